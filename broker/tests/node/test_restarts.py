"""A broker's restart as clients observe it: the controlled shutdown follows Kafka's order, so that no broker names a
closed port."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from cluster_processes import Cluster
from node_kit import Client

from penstock.state import keys
from penstock.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.messages.metadata import MetadataRequest, MetadataResponse

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

GROUPS = [f"group-{n}" for n in range(100)]
assert len({keys.shard_of(group) for group in GROUPS}) > 40, "the groups are spread over the shards"


def named(client: Client) -> set[int]:
    """Return the brokers that a broker names to clients: in Metadata, as controller, and as coordinators."""
    about = client.ask(MetadataRequest(topics=[]), MetadataResponse, 8)
    return {broker.node_id for broker in about.brokers} | {about.controller_id} | set(coordinators(client).values())


def coordinators(client: Client) -> dict[str, int]:
    """Return the coordinator of each group; -1 for those without one."""
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=GROUPS)
    return {c.key: c.node_id for c in client.ask(request, FindCoordinatorResponse, 4).coordinators}


def answers(port: int) -> bool:
    """Return whether a broker accepts a connection and responds on it."""
    try:
        with Client(port) as client:
            client.ask(MetadataRequest(topics=[]), MetadataResponse, 8)
    except (OSError, IndexError, ValueError):
        return False
    return True


@contextmanager
def observed(observe: Callable[[], None]) -> Iterator[None]:
    """Call `observe` repeatedly in a thread while the block runs; raise its error."""
    ended = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            while not ended.is_set():
                observe()
        except BaseException as e:
            failures.append(e)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if failures:
        raise failures[0]


def until(condition: Callable[[], bool]) -> None:
    """Poll until the condition holds; the test's timeout bounds it."""
    while not condition():
        threading.Event().wait(0.02)


async def test_a_restarting_broker_is_named_only_while_it_answers(cluster: Cluster) -> None:
    await asyncio.to_thread(restart_observed, cluster)


def restart_observed(cluster: Cluster) -> None:
    port, survivor = cluster.brokers[1].port, Client(cluster.brokers[2].port)
    other = Client(cluster.brokers[3].port)  # one connection per thread
    until(lambda: named(survivor) == {1, 2, 3})
    moves: dict[str, list[int]] = {group: [broker] for group, broker in coordinators(survivor).items()}

    def note_moves() -> None:
        for group, broker in coordinators(survivor).items():
            if broker >= 0 and moves[group][-1] != broker:
                moves[group].append(broker)

    def while_it_stops() -> None:
        note_moves()
        if not answers(port):
            assert 1 not in named(survivor), "it refuses connections and is still named"

    def while_it_starts() -> None:
        note_moves()
        if 1 in named(survivor):
            assert answers(port), "it is named and does not answer yet"

    with observed(while_it_stops):
        assert cluster.brokers[1].stop() == 0
    assert 1 not in named(survivor)
    with observed(while_it_starts):
        cluster.begin(1).ready()
        until(lambda: 1 in named(other))
    until(lambda: 1 in named(survivor))
    note_moves()
    survivor.close()
    other.close()
    assert all(len(brokers) <= 2 for brokers in moves.values()), "a coordinator moves once at most"
    assert all(brokers[-1] != 1 for brokers in moves.values()), "those that moved away do not come back at once"
    assert any(len(brokers) == 2 for brokers in moves.values())
