"""A deposed leader that readers can reach, but the other brokers and etcd cannot: it does not know of its successor and
continues to respond. A client with a connection to it must still find its successor. On real brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

import pytest
from cluster_processes import Cluster, running
from node_kit import Process
from penstock_spark_kit.reading import records_of
from penstock_spark_kit.relay import Relay
from penstock_spark_kit.topics import ask_admin, eventually, make_topic

from penstock.client import Producer, TopicPartition
from penstock.client import range_fetch as fetching
from penstock_spark.link import Link, TopicPartitions
from penstock_spark.model.errors import Unavailable
from penstock_spark.model.ranges import EARLIEST, LATEST, READ_UNCOMMITTED, OffsetRange

pytestmark = pytest.mark.integration

LinkTo = Callable[..., Link]
DEPOSED = 1
OLD, NEW = [b"old %03d" % n for n in range(100)], [b"new %03d" % n for n in range(100)]
OTHER_TOPIC = "made-while-it-was-cut-off"


class Divided(Cluster):
    """A cluster whose broker `DEPOSED` reaches etcd through a relay."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.relay = Relay()

    def begin(self, broker_id: int, *more: str, **rest: Any) -> Process:
        etcd = self.etcd
        if broker_id == DEPOSED:
            self.relay.upstream = urlsplit(etcd.endpoints[0]).port or 0
            self.etcd = cast(Any, SimpleNamespace(endpoints=(f"http://127.0.0.1:{self.relay.port}",)))
        try:
            return super().begin(broker_id, *more, **rest)
        finally:
            self.etcd = etcd

    def end(self) -> None:
        super().end()
        self.relay.close()

    def at(self, *broker_ids: int) -> str:
        return ",".join(f"127.0.0.1:{self.brokers[broker_id].port}" for broker_id in broker_ids)


def leaders(bootstrap: str) -> dict[int, int]:
    topic = ask_admin(bootstrap, lambda admin: admin.describe_topics(["t"]))["t"]
    return {number: part.leader for number, part in topic.partitions.items()}


@pytest.fixture(scope="module")
def divided(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, TopicPartition]]:
    """Yield the brokers, and a partition whose deposed leader has half of its records."""
    with running(Divided(tmp_path_factory.mktemp("divided"))) as cluster:
        make_topic(cluster.at(2, 3), "t", 3, replicas=3)
        number = next(number for number, leader in leaders(cluster.at(2, 3)).items() if leader == DEPOSED)
        place = TopicPartition("t", number)
        write(cluster.at(2, 3), place, OLD)
        cluster.relay.cut()
        eventually("another broker leads", lambda: leaders(cluster.at(2, 3))[number] not in (DEPOSED, -1))
        write(cluster.at(2, 3), place, NEW)
        make_topic(cluster.at(2, 3), OTHER_TOPIC, 2, replicas=2)
        assert leaders(cluster.at(DEPOSED))[number] == DEPOSED, "it knows that it was deposed"
        yield cluster, place


def write(bootstrap: str, place: TopicPartition, values: list[bytes]) -> None:
    """Write with a client that checks leader epochs: another client may send to the deposed leader, and wait there."""

    async def send() -> None:
        async with Producer(bootstrap) as producer:
            for value in values:
                await producer.send(place.topic, value, partition=place.partition)
            await producer.flush()

    asyncio.run(send())


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the confirmation time of a minute."""
    monkeypatch.setattr(fetching, "LEADER_CHECK_MS", 300)
    monkeypatch.setattr(fetching, "END_OF_LOG_MS", 3_000)


@pytest.fixture
def by_the_deposed(link_to: LinkTo, divided: tuple[Cluster, TopicPartition]) -> Iterator[Link]:
    """Return a link that connects to the deposed leader first."""
    cluster, _ = divided
    link = link_to(cluster.at(DEPOSED, 2, 3), give_up_ms=20_000)
    yield link
    link.close()


def read(link: Link, place: TopicPartition, start: int) -> list[bytes | None]:
    range_ = OffsetRange(*place, start, len(OLD + NEW))
    return [record.value for record in records_of(link.fetch(range_, READ_UNCOMMITTED), range_)]


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("start", [50, 100, 150], ids=["before its end", "at its end", "past its end"])
def test_a_range_is_read_to_its_end_by_who_comes_to_the_deposed_leader(
    divided: tuple[Cluster, TopicPartition], by_the_deposed: Link, start: int
) -> None:
    _, place = divided
    assert read(by_the_deposed, place, start) == (OLD + NEW)[start:]


def test_its_end_is_not_taken_for_the_end_by_who_asks_to_be_sure(
    divided: tuple[Cluster, TopicPartition], by_the_deposed: Link
) -> None:
    _, place = divided
    assert by_the_deposed.offsets({place: LATEST}, READ_UNCOMMITTED) == {place: 100}, "it was not asked at all"
    known = {"t": TopicPartitions("t", None, 3)}
    assert by_the_deposed.topics(["t"], known, confirmed=True)["t"].partitions == 3
    assert by_the_deposed.offsets({place: LATEST}, READ_UNCOMMITTED) == {place: 200}
    assert by_the_deposed.topics(["t"], known)["t"].partitions == 3
    assert by_the_deposed.offsets({place: LATEST}, READ_UNCOMMITTED) == {place: 200}, "it was believed again"


def test_a_topic_of_which_it_has_not_heard_is_found(by_the_deposed: Link) -> None:
    assert by_the_deposed.topics([OTHER_TOPIC])[OTHER_TOPIC].partitions == 2
    place = TopicPartition(OTHER_TOPIC, 1)
    assert by_the_deposed.offsets({place: EARLIEST}, READ_UNCOMMITTED) == {place: 0}


@pytest.mark.usefixtures("hasty")
def test_a_loss_of_which_only_it_knows_is_none(divided: tuple[Cluster, TopicPartition], link_to: LinkTo) -> None:
    """This test runs last, because it kills the other brokers."""
    cluster, place = divided
    link = link_to(cluster.at(DEPOSED, 2, 3), give_up_ms=2_000, connect_timeout_ms=1_000)
    assert link.offsets({place: LATEST}, READ_UNCOMMITTED) == {place: 100}
    for broker_id in (2, 3):
        cluster.brokers[broker_id].kill()
    with pytest.raises(Unavailable, match="1 of 3 brokers confirm"):
        read(link, place, 100)
    with pytest.raises(Unavailable, match="1 of 3 brokers confirm"):
        link.topics(["t"], {"t": TopicPartitions("t", None, 3)}, confirmed=True)
    with pytest.raises(Unavailable, match="1 of 3 brokers report"):
        link.topics(["t"], {"t": TopicPartitions("t", None, 4)})
