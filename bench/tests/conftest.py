"""Brokers of the bench for the tests of a module."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from bench.peers.broker import Broker, Peer

StartBroker = Callable[[Peer], Broker]


@pytest.fixture(scope="module")
def start_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartBroker]:
    """Return a function that starts a broker on all cores; each is removed after the module's tests."""
    with ExitStack() as stack:

        def start(peer: Peer) -> Broker:
            running = Broker(peer, os.sched_getaffinity(0), tmp_path_factory.mktemp("broker"))
            stack.callback(running.remove)
            running.start()
            return running

        yield start
