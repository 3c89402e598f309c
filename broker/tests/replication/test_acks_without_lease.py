"""acks=all at a leader without a lease: acknowledged only while the in-sync replicas fetch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from client_requests import Producer
from cluster_kit import Answered, Cluster
from replica_kit import until

from penstock.api import produce_wait
from penstock.replica.leader import Leader
from penstock.wire.errors import ErrorCode

HOUR_MS = 3_600_000


@pytest.fixture(autouse=True)
def sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check pending requests every 10 ms, and treat all of them as overdue."""
    monkeypatch.setattr(produce_wait, "EXPIRY_INTERVAL_S", 0.01)
    monkeypatch.setattr(produce_wait, "ABANDONED_AFTER_MS", 0)


@pytest.fixture
def producers() -> Iterator[list[Producer]]:
    made: list[Producer] = []
    yield made
    for producer in made:
        producer.close()


async def writing(cluster: Cluster, producers: list[Producer], *names: str) -> Producer:
    """Return a producer for topics that broker 1 leads and broker 2 follows, with three records each."""
    for name in names:
        await cluster.create(name, replicas=(1, 2))
        await cluster.acknowledged(1, name=name)
        await cluster.caught_up(1, 2, name=name)
    producers.append(Producer(cluster, 1))
    return producers[-1]


async def without_lease(cluster: Cluster) -> None:
    """End broker 1's lease, an hour after all fetches."""
    cluster[1].membership.serves = False
    cluster.clock.advance(HOUR_MS)


def looks(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Record the results of `Leader.is_abandoned` in the returned list."""
    found: list[bool] = []
    real = Leader.is_abandoned

    def look(leader: Leader, offset: int, time_ms: float) -> bool:
        found.append(real(leader, offset, time_ms))
        return found[-1]

    monkeypatch.setattr(Leader, "is_abandoned", look)
    return found


async def test_a_leader_that_nobody_follows_sends_its_producers_to_look_for_another(
    cluster: Cluster, producers: list[Producer]
) -> None:
    """The leader is cut off from etcd and its peers, but not from its clients."""
    producer = await writing(cluster, producers, "t")
    cluster.cut(2, 1)
    await cluster.deafen(1)
    await cluster.elect(2, [2])
    await without_lease(cluster)
    exchange = producer.send("t")
    assert await producer.errors(exchange) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert not producer.api.waits.waiting


async def test_what_in_sync_replicas_fetch_counts_without_a_lease_however_slow_their_disks_are(
    cluster: Cluster, producers: list[Producer], monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await writing(cluster, producers, "t")
    await without_lease(cluster)
    cluster[2].files.hold()
    exchange, found = await fetched(cluster, producer, monkeypatch, "t")
    await until(lambda: len(found) > 3)
    assert set(found) == {False}
    assert not exchange.frame.done()
    cluster[2].files.let_go()
    assert await producer.errors(exchange) == [0]


async def fetched(
    cluster: Cluster, producer: Producer, monkeypatch: pytest.MonkeyPatch, *names: str
) -> tuple[Answered, list[bool]]:
    """Send a batch for each topic, wait until broker 2 has fetched that of t, and check pending requests from then
    on."""
    monkeypatch.setattr(produce_wait, "ABANDONED_AFTER_MS", HOUR_MS)
    exchange = producer.send(*names)
    isr = cluster[1].leader().isr
    assert isr is not None
    await until(lambda: isr.progress[2].fetch_offset == 6)
    assert isr.progress[2].flushed_offset == 3
    found = looks(monkeypatch)
    monkeypatch.setattr(produce_wait, "ABANDONED_AFTER_MS", 0)
    return exchange, found


async def test_what_all_have_but_the_leader_is_waited_for(
    cluster: Cluster, producers: list[Producer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replicas fetched the duplicated batch long ago: it requires no further fetch."""
    producer = await writing(cluster, producers, "t")
    cluster[1].files.hold()
    done, _ = cluster.produce(1, producer=(7, 0, 0))
    isr = cluster[1].leader().isr
    assert isr is not None
    await until(lambda: isr.progress[2].flushed_offset == done.required_offset)
    await without_lease(cluster)
    found = looks(monkeypatch)
    exchange = producer.send("t", producer=(7, 0, 0))
    await until(lambda: len(found) > 3)
    assert not exchange.frame.done()
    cluster[1].files.let_go()
    assert await producer.errors(exchange) == [0]


async def test_what_is_fetched_is_waited_for_before_the_rest_of_a_request_is_given_up(
    cluster: Cluster, producers: list[Producer], monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await writing(cluster, producers, "t")
    await cluster.create("u", replicas=(1, 3))
    await cluster.acknowledged(1, name="u")
    cluster.cut(3, 1)
    await without_lease(cluster)
    cluster[2].files.hold()
    exchange, found = await fetched(cluster, producer, monkeypatch, "u", "t")
    await until(lambda: found.count(False) > 3)
    assert True in found
    assert not exchange.frame.done()
    cluster[2].files.let_go()
    assert await producer.errors(exchange) == [ErrorCode.NOT_LEADER_OR_FOLLOWER, 0]


async def test_with_a_lease_a_batch_is_waited_for_until_its_time_is_up(
    cluster: Cluster, producers: list[Producer], monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await writing(cluster, producers, "t")
    cluster.cut(2, 1)
    cluster.clock.advance(HOUR_MS)
    found = looks(monkeypatch)
    exchange = producer.send("t", timeout_ms=50)
    assert await producer.errors(exchange) == [ErrorCode.REQUEST_TIMED_OUT]
    assert not found


async def test_what_comes_to_count_after_it_was_given_up_disturbs_nobody(
    cluster: Cluster, producers: list[Producer]
) -> None:
    producer = await writing(cluster, producers, "t")
    cluster.cut(2, 1)
    await without_lease(cluster)
    exchange = producer.send("t")
    assert await producer.errors(exchange) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    cluster.heal()
    leader = cluster[1].leader()
    await until(lambda: leader.high_watermark == 6)
    assert not leader.commit_waiters
