"""A link that is cut holds bytes back, and closes what was cut when it is mended."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from penstock_chaos.etcd_link import EtcdLink

LIMIT_S = 20.0


class Server:
    """A listening socket, and the last connection that it accepted."""

    def __init__(self) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.listening.settimeout(LIMIT_S)
        self.link = EtcdLink(self.listening.getsockname()[1])

    def connect(self) -> tuple[socket.socket, socket.socket]:
        """Return both ends of a connection through the link."""
        host, _, port = self.link.url.removeprefix("http://").partition(":")
        near = socket.create_connection((host, int(port)), LIMIT_S)
        far, _ = self.listening.accept()
        far.settimeout(LIMIT_S)
        return near, far

    def close(self) -> None:
        self.link.close()
        self.listening.close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def test_bytes_pass_in_both_directions(server: Server) -> None:
    near, far = server.connect()
    with near, far:
        near.sendall(b"range")
        assert far.recv(16) == b"range"
        far.sendall(b"kvs")
        assert near.recv(16) == b"kvs"


def test_a_cut_link_holds_bytes_back_and_mending_closes_the_connection(server: Server) -> None:
    near, far = server.connect()
    with near, far:
        server.link.cut()
        near.sendall(b"lease")
        near.shutdown(socket.SHUT_WR)
        assert far.recv(16) == b""
        assert server.link.held_bytes == len(b"lease")
        server.link.mend()
        assert near.recv(16) == b""


def test_a_mended_link_forwards_new_connections(server: Server) -> None:
    server.link.cut()
    server.link.mend()
    near, far = server.connect()
    with near, far:
        near.sendall(b"range")
        assert far.recv(16) == b"range"


def test_a_connection_is_closed_while_the_server_is_away(server: Server) -> None:
    host, _, port = server.link.url.removeprefix("http://").partition(":")
    server.listening.close()
    with socket.create_connection((host, int(port)), LIMIT_S) as near:
        assert near.recv(16) == b""
