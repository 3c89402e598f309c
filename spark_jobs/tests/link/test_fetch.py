"""Ranges are read completely and in order, for any responses; missing records are named. On a real broker."""

from __future__ import annotations

import asyncio
import itertools
import signal
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer
from penstock_spark_kit.broker import Broker
from penstock_spark_kit.reading import records_of
from penstock_spark_kit.topics import MakeTopic, delete_records, delete_topic, eventually, make_topic, produce

from penstock.client import BrokerError, TopicPartition
from penstock.client import range_fetch as fetching
from penstock.client.cluster import DATA, ClusterConnections
from penstock.client.connection import ClientConnection
from penstock.client.range_fetch import Densities, RangeFetch
from penstock.wire.messages.fetch import FetchResponse, PartitionData
from penstock_spark.link import FetchSizes, Link
from penstock_spark.model.errors import OffsetGone, TopicGone, Unavailable
from penstock_spark.model.ranges import LATEST, READ_COMMITTED, READ_UNCOMMITTED, Fetched, OffsetRange

pytestmark = pytest.mark.integration

LinkTo = Callable[..., Link]
SMALL = FetchSizes(partition_bytes=8_000)
COUNT = 2_000
VALUES = [f"{n:06}".encode() * 20 for n in range(COUNT)]
MANY_BATCHES = {"batch.num.messages": 50}


@pytest.fixture
def filled(penstock: Broker, topic: MakeTopic) -> str:
    """Fill a topic of one partition with `VALUES` in batches of at most 50."""
    name = topic()
    produce(penstock.bootstrap, name, VALUES, config=MANY_BATCHES)
    return name


def whole(topic: str) -> OffsetRange:
    return OffsetRange(topic, 0, 0, COUNT)


def read(link: Link, range_: OffsetRange, isolation: int = READ_UNCOMMITTED, sizes: FetchSizes = SMALL) -> list[bytes]:
    return [record.value or b"" for record in records_of(link.fetch(range_, isolation, sizes), range_)]


def test_a_range_comes_whole_in_order_and_in_many_answers(link: Link, filled: str) -> None:
    answers = list(link.fetch(whole(filled), READ_UNCOMMITTED, SMALL))
    assert [r.value for r in records_of(answers, whole(filled))] == VALUES
    assert len(answers) > 20
    assert all(answer.high_watermark == COUNT and answer.log_start_offset == 0 for answer in answers)


@pytest.mark.parametrize(("start", "end"), [(0, 1), (1, 2), (49, 51), (50, 100), (1003, 1777), (1999, 2000)])
def test_a_range_may_begin_and_end_inside_batches(link: Link, filled: str, start: int, end: int) -> None:
    assert read(link, OffsetRange(filled, 0, start, end)) == VALUES[start:end]


def test_an_empty_range_asks_nobody(link_to: LinkTo) -> None:
    assert list(link_to("127.0.0.1:1").fetch(OffsetRange("t", 0, 5, 5), READ_UNCOMMITTED)) == []


def test_no_batch_past_the_end_is_handed_over(link: Link, filled: str) -> None:
    (answer,) = link.fetch(OffsetRange(filled, 0, 0, 10), READ_UNCOMMITTED, FetchSizes(partition_bytes=1 << 20))
    assert len(answer.records) < 50 * 200


def test_a_batch_larger_than_an_answer_should_be_comes_all_the_same(
    link: Link, penstock: Broker, topic: MakeTopic
) -> None:
    name = topic()
    large = b"x" * 500_000
    produce(penstock.bootstrap, name, [large, b"small", large])
    assert read(link, OffsetRange(name, 0, 0, 3), sizes=FetchSizes(partition_bytes=100)) == [large, b"small", large]


def test_ranges_are_read_side_by_side(link: Link, filled: str) -> None:
    found: dict[int, list[bytes]] = {}

    def work(number: int) -> None:
        found[number] = read(link, whole(filled))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(4), VALUES)


def test_a_reader_that_stops_early_leaves_nothing_behind(link: Link, filled: str) -> None:
    for _ in range(3):
        answers = link.fetch(whole(filled), READ_UNCOMMITTED, SMALL)
        next(iter(answers))
        answers.close()  # type: ignore[attr-defined]

    async def tasks(_: ClusterConnections) -> set[str]:
        await asyncio.sleep(0)
        return {t.get_coro().__qualname__ for t in asyncio.all_tasks()}  # type: ignore[union-attr]

    eventually("none of them fetches", lambda: "RangeFetch.run" not in link.run(tasks))
    assert read(link, whole(filled)) == VALUES


async def test_what_is_fetched_ahead_is_bounded(penstock: Broker, filled: str) -> None:
    cluster = ClusterConnections(penstock.bootstrap)
    await cluster.start()
    delivered: list[Fetched] = []
    densities: Densities = {}
    sizes = FetchSizes(partition_bytes=8_000, ahead=3)
    fetch = RangeFetch(cluster, whole(filled), READ_UNCOMMITTED, sizes, None, 10_000, densities, delivered.append)
    task = asyncio.create_task(fetch.run())
    while len(delivered) < 3:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)
    assert len(delivered) == 3
    fetch.slots.release()
    while len(delivered) < 4:
        await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await cluster.close()


def test_aborted_transactions_are_told_to_readers_of_committed_data(
    link: Link, penstock: Broker, topic: MakeTopic
) -> None:
    name = topic()
    produce(penstock.bootstrap, name, [b"a"] * 3, transactional_id=name)
    produce(penstock.bootstrap, name, [b"b"] * 3, transactional_id=name, commit=False)
    produce(penstock.bootstrap, name, [b"c"] * 3, transactional_id=name)
    place = TopicPartition(name, 0)
    eventually("all markers are written", lambda: link.offsets({place: LATEST}, READ_COMMITTED) == {place: 12})
    range_ = OffsetRange(name, 0, 0, 12)  # nine records and three markers
    answers = list(link.fetch(range_, READ_COMMITTED))
    assert {first for answer in answers for _, first in answer.aborted} == {4}
    assert all(answer.last_stable_offset == 12 for answer in answers)
    assert len(records_of(answers, range_)) == 9
    assert not any(answer.aborted for answer in link.fetch(range_, READ_UNCOMMITTED))


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
def test_batches_come_as_they_were_compressed(link: Link, penstock: Broker, topic: MakeTopic, compression: str) -> None:
    name = topic()
    produce(penstock.bootstrap, name, VALUES, compression=compression)
    answers = list(link.fetch(whole(name), READ_UNCOMMITTED))
    assert [r.value for r in records_of(answers, whole(name))] == VALUES
    assert sum(len(answer.records) for answer in answers) < COUNT * len(VALUES[0]) / 2


def test_what_was_deleted_before_it_was_read_is_named(link: Link, penstock: Broker, filled: str) -> None:
    delete_records(penstock.bootstrap, filled, {0: 700})
    with pytest.raises(OffsetGone) as caught:
        read(link, whole(filled))
    gone = caught.value
    assert (gone.range_, gone.offset, gone.log_start, gone.end) == (whole(filled), 0, 700, COUNT)
    assert f'topic "{filled}", partition 0: offset 0 is not in the log, which has 700 up to 2000' in str(gone)


def test_what_is_deleted_while_it_is_read_is_named_with_the_offset_that_was_next(
    link: Link, penstock: Broker, filled: str
) -> None:
    answers = iter(link.fetch(whole(filled), READ_UNCOMMITTED, FetchSizes(8_000, ahead=1)))
    first = records_of([next(answers)], whole(filled))
    delete_records(penstock.bootstrap, filled, {0: 1_500})
    with pytest.raises(OffsetGone) as caught:
        list(answers)
    assert first[-1].offset < caught.value.offset < 1_500
    assert caught.value.log_start == 1_500


def test_a_range_past_the_end_of_the_log_is_named(
    link_to: LinkTo, penstock: Broker, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "END_OF_LOG_MS", 300)
    with pytest.raises(OffsetGone) as caught:
        read(link_to(penstock.bootstrap, give_up_ms=3_000), OffsetRange(filled, 0, COUNT + 5, COUNT + 10))
    assert (caught.value.offset, caught.value.end) == (COUNT + 5, COUNT)


def test_a_log_that_ends_before_the_range_is_waited_for_and_named(
    link_to: LinkTo, penstock: Broker, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "END_OF_LOG_MS", 4_000)
    link = link_to(penstock.bootstrap, give_up_ms=3_000)
    with pytest.raises(OffsetGone) as caught:
        read(link, OffsetRange(filled, 0, COUNT - 10, COUNT + 10))
    assert (caught.value.offset, caught.value.end) == (COUNT, COUNT)


@pytest.mark.parametrize("start", [COUNT - 1, COUNT + 1], ids=["at the end", "beyond it"])
def test_a_leader_that_lags_is_given_longer_than_brokers_that_are_away(
    link_to: LinkTo, penstock: Broker, filled: str, start: int
) -> None:
    """The reader does not report records as lost after the retry timeout of three seconds."""
    later = threading.Timer(5, produce, (penstock.bootstrap, filled, [b"late"] * 10))
    later.start()
    found = read(link_to(penstock.bootstrap, give_up_ms=3_000), OffsetRange(filled, 0, start, COUNT + 10))
    assert found == [*VALUES[start:], *[b"late"] * (COUNT + 10 - max(start, COUNT))]
    later.join()


def test_a_leader_that_had_no_more_and_then_falls_silent_says_nothing_about_the_log(
    link_to: LinkTo, own_broker: Broker
) -> None:
    make_topic(own_broker.bootstrap, "t")
    produce(own_broker.bootstrap, "t", VALUES[:10])
    answers = link_to(own_broker.bootstrap, give_up_ms=2_000).fetch(OffsetRange("t", 0, 0, 20), READ_UNCOMMITTED)
    next(answers)
    time.sleep(0.8)  # the leader reports the end of its log meanwhile
    assert own_broker.process is not None
    own_broker.process.send_signal(signal.SIGSTOP)
    with pytest.raises(Unavailable, match=r"t-0 at offset 10: gave up after 2000 ms"):
        list(answers)


def test_records_that_a_leader_has_and_does_not_send_are_not_gone(
    link_to: LinkTo, penstock: Broker, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records after the start of an open transaction exist, although readers of committed data do not get them."""
    monkeypatch.setattr(fetching, "END_OF_LOG_MS", 300)
    producer = Producer({"bootstrap.servers": penstock.bootstrap, "transactional.id": filled})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(filled, b"pending")
    assert producer.flush(30) == 0
    link = link_to(penstock.bootstrap, give_up_ms=3_000)
    with pytest.raises(Unavailable, match=f"has records up to offset {COUNT + 1}, but returns none"):
        read(link, OffsetRange(filled, 0, COUNT - 1, COUNT + 1), READ_COMMITTED)
    producer.abort_transaction(30)


class OverQuota(ClusterConnections):
    """Makes every other fetch response look like Apache Kafka's for a client over its quota."""

    held_back = 0

    async def connection(self, node_id: int, purpose: str = DATA) -> Any:
        return HeldBack(self, await super().connection(node_id, purpose))


class HeldBack:
    throttled = False

    def __init__(self, cluster: OverQuota, connection: ClientConnection) -> None:
        self.cluster, self.connection, self.version = cluster, connection, connection.version

    async def call(self, request: Any, response: Any, **more: Any) -> Any:
        answer = await self.connection.call(request, response, **more)
        if isinstance(answer, FetchResponse):
            self.cluster.held_back += 1
            if self.cluster.held_back % 2:
                return FetchResponse(throttle_time_ms=1)
        return answer


async def test_a_client_that_is_over_its_quota_waits_and_reads_on(penstock: Broker, filled: str) -> None:
    cluster, delivered = OverQuota(penstock.bootstrap), list[Fetched]()
    await cluster.start()
    try:
        sizes = FetchSizes(partition_bytes=8_000, ahead=COUNT)
        await RangeFetch(cluster, whole(filled), READ_UNCOMMITTED, sizes, None, 10_000, {}, delivered.append).run()
    finally:
        await cluster.close()
    assert [record.value for record in records_of(delivered, whole(filled))] == VALUES
    assert cluster.held_back >= 2 * len(delivered) > 2


def test_records_that_come_late_are_waited_for(link: Link, penstock: Broker, filled: str) -> None:
    later = threading.Timer(0.3, produce, (penstock.bootstrap, filled, [b"late"] * 10))
    later.start()
    assert read(link, OffsetRange(filled, 0, COUNT - 1, COUNT + 10)) == [VALUES[-1], *[b"late"] * 10]
    later.join()


def test_a_topic_that_does_not_exist_is_named(link: Link) -> None:
    with pytest.raises(TopicGone, match='"there-is-none", partition 0: the topic was deleted'):
        read(link, OffsetRange("there-is-none", 0, 0, 10))


def test_a_partition_that_does_not_exist_is_named(link: Link, filled: str) -> None:
    with pytest.raises(TopicGone, match="has 1 partitions"):
        read(link, OffsetRange(filled, 3, 0, 10))


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "recreated"])
def test_a_topic_that_goes_while_it_is_read_is_named(link: Link, penstock: Broker, filled: str, again: bool) -> None:
    answers = iter(link.fetch(whole(filled), READ_UNCOMMITTED, FetchSizes(8_000, ahead=1)))
    seen = records_of(itertools.islice(answers, 2), whole(filled))
    delete_topic(penstock.bootstrap, filled)
    if again:
        make_topic(penstock.bootstrap, filled)
        produce(penstock.bootstrap, filled, [b"of another topic"] * COUNT)
    with pytest.raises(TopicGone, match="deleted and created again" if again else "the topic was deleted"):
        seen += records_of(answers, whole(filled))
    assert [record.value for record in seen] == VALUES[: len(seen)]


def test_a_topic_that_was_planned_for_is_not_taken_for_its_namesake(link: Link, penstock: Broker, filled: str) -> None:
    planned = link.topics([filled])[filled].topic_id
    assert read(link, whole(filled)) == VALUES
    assert list(link.fetch(whole(filled), READ_UNCOMMITTED, SMALL, planned))
    delete_topic(penstock.bootstrap, filled)
    make_topic(penstock.bootstrap, filled)
    produce(penstock.bootstrap, filled, [b"new"] * COUNT)
    with pytest.raises(TopicGone, match="created again"):
        list(link.fetch(whole(filled), READ_UNCOMMITTED, SMALL, planned))
    with pytest.raises(TopicGone, match="created again"):
        list(link.fetch(whole(filled), READ_UNCOMMITTED, SMALL, uuid.uuid4()))
    assert read(link, whole(filled)) == [b"new"] * COUNT


async def test_a_leader_that_does_not_know_its_end_yet_says_nothing_about_it(penstock: Broker, filled: str) -> None:
    """Its high watermark is -1 until then."""
    cluster = ClusterConnections(penstock.bootstrap)
    fetch = RangeFetch(cluster, whole(filled), READ_UNCOMMITTED, SMALL, None, 10_000, {}, lambda _: None)
    with pytest.raises(BrokerError, match="does not know its log end yet") as caught:
        fetch._accept(PartitionData(high_watermark=-1))
    assert caught.value.retriable
    assert fetch._end_since is None
