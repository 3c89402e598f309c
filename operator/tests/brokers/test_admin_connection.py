"""Errors of a connection without reachable brokers."""

from __future__ import annotations

import socket

import pytest

from penstock.client import NoBrokerAvailable, Node
from penstock.client.cluster import ClusterConnections

pytestmark = pytest.mark.integration


async def test_the_same_trouble_is_told_in_the_same_words() -> None:
    """The client tries known brokers in any order, and error messages become part of statuses."""
    closed = [socket.create_server(("127.0.0.1", 0)) for _ in range(5)]
    ports = [server.getsockname()[1] for server in closed]
    for server in closed:
        server.close()
    cluster = ClusterConnections(f"127.0.0.1:{ports[0]}")
    cluster.metadata.brokers.update({n: Node(n, "127.0.0.1", port) for n, port in enumerate(ports)})
    require_answers = set()
    for _ in range(8):
        with pytest.raises(NoBrokerAvailable) as caught:
            await cluster.any_connection()
        require_answers.add(str(caught.value))
    await cluster.close()
    assert len(require_answers) == 1, require_answers
