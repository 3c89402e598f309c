"""A broker with outdated metadata: the client queries all brokers before it reports a topic as lost. On a real broker,
with changed responses for one kind of request."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
from penstock_spark_kit.broker import Broker
from penstock_spark_kit.topics import MakeTopic, Rec, delete_topic, produce

from penstock.client import ErrorCode, FetchSizes, RangeFetch, TopicDeleted, TopicPartition, TopicPartitions
from penstock.client import topic_queries as queries
from penstock.client.cluster import ClusterConnections
from penstock.wire.messages.metadata import MetadataResponse
from penstock_spark.model.ranges import LATEST, READ_UNCOMMITTED, Fetched, OffsetRange

pytestmark = pytest.mark.integration

T = TypeVar("T")
Lag = Callable[[MetadataResponse], None]
OLD_ID = uuid.uuid4()


class BehindTheTimes(ClusterConnections):
    """The single queried broker lags; of all brokers only some responses lag, or none."""

    lag: Lag
    all_lag = 0

    async def call_all(self, request: Any, response: Any, timeout_ms: float) -> Any:
        answers = await super().call_all(request, response, timeout_ms)
        self.all_lag -= 1
        if self.all_lag >= 0:
            for answer in answers.values():
                self.lag(answer)
        return answers

    async def call_any(self, request: Any, response: Any) -> Any:
        answer = await super().call_any(request, response)
        if isinstance(answer, MetadataResponse):
            self.lag(answer)
        return answer


def lacks_topics(answer: MetadataResponse) -> None:
    for topic in answer.topics:
        topic.error_code, topic.partitions = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []


def lacks_partitions(answer: MetadataResponse) -> None:
    for topic in answer.topics:
        topic.partitions = topic.partitions[:1]


def has_another_topic(answer: MetadataResponse) -> None:
    for topic in answer.topics:
        topic.topic_id = OLD_ID


def with_lag(broker: Broker, lag: Lag, work: Callable[[ClusterConnections], Awaitable[T]], all_lag: int = 0) -> T:
    async def run() -> T:
        cluster = BehindTheTimes(broker.bootstrap)
        cluster.lag, cluster.all_lag = lag, all_lag
        await cluster.start()
        try:
            return await work(cluster)
        finally:
            await cluster.close()

    return asyncio.run(run())


def truth(broker: Broker, name: str) -> TopicPartitions:
    def none(_: MetadataResponse) -> None: ...

    return with_lag(broker, none, lambda cluster: queries.list_topics(cluster, [name]))[name]


@pytest.mark.parametrize("lag", [lacks_topics, lacks_partitions, has_another_topic])
@pytest.mark.parametrize("by_name", [True, False], ids=["named", "by pattern"])
def test_what_was_known_of_a_topic_is_not_lost(penstock: Broker, topic: MakeTopic, lag: Lag, by_name: bool) -> None:
    known = truth(penstock, name := topic(3))
    names = [name] if by_name else None
    found = with_lag(penstock, lag, lambda cluster: queries.list_topics(cluster, names, {name: known}))
    assert found[name] == known


def test_a_topic_that_all_lack_is_gone(penstock: Broker, topic: MakeTopic) -> None:
    known = truth(penstock, name := topic(2))
    delete_topic(penstock.bootstrap, name)
    for names in ([name], None):
        assert name not in with_lag(
            penstock, lacks_partitions, lambda cluster, names=names: queries.list_topics(cluster, names, {name: known})
        )


def test_offsets_of_a_partition_that_a_broker_lacks_are_found(penstock: Broker, topic: MakeTopic) -> None:
    place, none = TopicPartition(topic(3), 2), TopicPartition("there-is-none", 0)
    produce(penstock.bootstrap, place.topic, [Rec(b"v", partition=2)] * 5)
    found = with_lag(
        penstock,
        lacks_partitions,
        lambda cluster: queries.OffsetQuery(cluster, {place: LATEST, none: LATEST}, READ_UNCOMMITTED).run(),
    )
    assert found == {place: 5}


@pytest.mark.parametrize("lag", [lacks_topics, lacks_partitions, has_another_topic])
def test_a_range_is_read_to_its_end(penstock: Broker, topic: MakeTopic, lag: Lag) -> None:
    known = truth(penstock, name := topic(3))
    produce(penstock.bootstrap, name, [Rec(b"v", partition=2)] * 5)
    delivered: list[Fetched] = []

    def fetch(cluster: ClusterConnections) -> Awaitable[None]:
        range_, sizes = OffsetRange(name, 2, 0, 5), FetchSizes(ahead=9)
        return RangeFetch(cluster, range_, READ_UNCOMMITTED, sizes, known.topic_id, 10_000, {}, delivered.append).run()

    with_lag(penstock, lag, fetch)
    assert delivered[-1].high_watermark == 5


def test_what_all_lack_for_a_moment_is_waited_for(penstock: Broker, topic: MakeTopic) -> None:
    """Right after a topic's creation, only the broker that created it may know it."""
    known = truth(penstock, name := topic())
    produce(penstock.bootstrap, name, [b"v"] * 5)
    delivered: list[Fetched] = []

    def fetch(cluster: ClusterConnections) -> Awaitable[None]:
        range_, sizes = OffsetRange(name, 0, 0, 5), FetchSizes(ahead=9)
        return RangeFetch(cluster, range_, READ_UNCOMMITTED, sizes, known.topic_id, 10_000, {}, delivered.append).run()

    with_lag(penstock, has_another_topic, fetch, all_lag=3)
    assert delivered[-1].high_watermark == 5
    with pytest.raises(TopicDeleted, match=f"its id was {known.topic_id} and is {OLD_ID}"):
        with_lag(penstock, has_another_topic, fetch, all_lag=1_000_000)
