"""The connections of one broker to etcd, through a forwarder on loopback that can be cut and mended.

A cell without network namespaces cuts single brokers off from etcd with it. While the link is cut, connections stay
open, but no byte arrives, as on a network that drops all packets.
"""

from __future__ import annotations

import contextlib
import socket
import threading

CHUNK_BYTES = 1 << 16


class EtcdLink:
    """Forwards connections until it is closed. `held_bytes` counts what was not forwarded."""

    def __init__(self, etcd_port: int) -> None:
        self._etcd_port = etcd_port
        self._server = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._is_cut = False
        self.held_bytes = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.getsockname()[1]}"

    def cut(self) -> None:
        """Forward nothing from now on."""
        self._is_cut = True

    def mend(self) -> None:
        """Close the connections that were cut, whose bytes are lost, and forward new ones."""
        with self._lock:
            self._is_cut = False
            for each in self._sockets:
                shut(each)

    def close(self) -> None:
        """Close everything."""
        with self._lock:
            for each in (self._server, *self._sockets):
                shut(each)
        self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                broker, _ = self._server.accept()
                threading.Thread(target=self._connect, args=(broker,), daemon=True).start()

    def _connect(self, broker: socket.socket) -> None:
        """Forward a connection in both directions until one side closes it."""
        try:
            etcd = socket.create_connection(("127.0.0.1", self._etcd_port))
        except OSError:  # etcd is away
            broker.close()
            return
        with broker, etcd:
            with self._lock:
                self._sockets |= {broker, etcd}
            back = threading.Thread(target=self._forward, args=(etcd, broker), daemon=True)
            back.start()
            self._forward(broker, etcd)
            back.join()
            with self._lock:
                self._sockets -= {broker, etcd}

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        """Forward until one side closes the connection, then close the other one."""
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                if self._is_cut:
                    self.held_bytes += len(data)
                else:
                    target.sendall(data)
        shut(source)
        shut(target)


def shut(each: socket.socket) -> None:
    """Wake the threads that wait for a socket; closing it would not."""
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
