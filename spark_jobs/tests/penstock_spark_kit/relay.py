"""A network link that tests can cut: forwards bytes in both directions."""

from __future__ import annotations

import contextlib
import socket
import threading


class Relay:
    """Listens on `port` and forwards connections to `upstream` on loopback while the link is not cut."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self.upstream = 0
        self._is_cut = False
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break connections, and close new ones at once."""
        with self._lock:
            self._is_cut = True
            broken, self._sockets = self._sockets, []
        for each in broken:
            end(each)

    def mend(self) -> None:
        with self._lock:
            self._is_cut = False

    def close(self) -> None:
        self.cut()
        end(self._server)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                try:
                    broker = socket.create_connection(("127.0.0.1", self.upstream), 5)
                except OSError:
                    end(client)
                    continue
                with self._lock:
                    is_cut = self._is_cut
                    if not is_cut:
                        self._sockets += [client, broker]
                if is_cut:
                    end(client)
                    end(broker)
                    continue
                for source, target in ((client, broker), (broker, client)):
                    threading.Thread(target=pump, args=(source, target), daemon=True).start()


def pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
    end(source)
    end(target)


def end(each: socket.socket) -> None:
    # Shutdown wakes a thread that waits on a socket; close does not.
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
