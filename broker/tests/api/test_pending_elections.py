"""Metadata of partitions whose leader has just failed waits for their new leaders, and for nothing else."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, replace
from typing import Any, cast
from uuid import UUID

import pytest

from penstock.api.exchange import PeerInfo
from penstock.api.metadata import MetadataApi
from penstock.api.pending_elections import CHECK_INTERVAL_S, FOLLOWED_INTERVAL_S, PendingElections
from penstock.api.routes import RequestContext
from penstock.config.broker import BrokerConfig
from penstock.config.topic import TopicConfig
from penstock.replica.lost_leaders import MAX_ELECTION_S, LostLeaders
from penstock.state.view import BrokerView, ClusterView, PartitionView, TopicChange, TopicView
from penstock.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

LEADERS = {"a": [1, 2, 3], "b": [1, 3, 1]}


@dataclass
class Exchange:
    """The exchange of the request, as far as Metadata reads it."""

    is_followed: bool = False
    is_disconnected: bool = False


class Cluster:
    """The view of a broker, its Metadata, and the event loop's time, which the test advances."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loop = asyncio.get_running_loop()
        self.now_s = self.loop.time()
        monkeypatch.setattr(self.loop, "time", lambda: self.now_s)
        self.view = ClusterView()
        self.view.brokers.update({broker: BrokerView(broker, [], epoch=1) for broker in (1, 2, 3)})
        for number, (name, leaders) in enumerate(LEADERS.items()):
            partitions = [PartitionView(i, [1, 2, 3], leader, 0, [1, 2, 3]) for i, leader in enumerate(leaders)]
            topic = TopicView(name, UUID(int=number + 1), partitions, {}, TopicConfig())
            self.view.topics[name] = self.view.topics_by_id[topic.topic_id] = topic
        self.lost = LostLeaders(self.view)
        elections = PendingElections(self.view, self.lost)
        self.api = MetadataApi(self.view, cast(Any, None), BrokerConfig.from_texts({}), elections)
        self.tasks: list[asyncio.Task[MetadataResponse]] = []
        self.exchange = Exchange()
        """Of the last request."""

    def elect(self, name: str, partition: int, leader: int) -> None:
        old = self.view.topics[name]
        partitions = list(old.partitions)
        partitions[partition] = replace(partitions[partition], leader=leader, leader_epoch=1)
        new = replace(old, partitions=partitions)
        self.view.topics[name] = self.view.topics_by_id[old.topic_id] = new
        for listener in self.view.listeners:
            listener([TopicChange(old, new, [partition])])

    def fence(self, broker: int) -> None:
        self.view.brokers = {key: value for key, value in self.view.brokers.items() if key != broker}
        for listener in self.view.broker_listeners:
            listener()

    def ask(self, *names: str, ids: bool = False) -> MetadataResponse | Awaitable[MetadataResponse]:
        """Ask for topics, by default for all."""
        topics = None
        if names:
            found = [self.view.topics[name] for name in names]
            topics = [
                MetadataRequestTopic(topic_id=t.topic_id, name=None) if ids else MetadataRequestTopic(name=t.name)
                for t in found
            ]
        peer = PeerInfo(1, "PLAINTEXT", "127.0.0.1", 1)
        self.exchange = Exchange()
        context = RequestContext(13, 1, "client", peer, cast(Any, self.exchange))
        return self.api.metadata(MetadataRequest(topics=topics, allow_auto_topic_creation=False), context)

    async def request(self, *names: str, ids: bool = False) -> asyncio.Task[MetadataResponse]:
        """Ask for topics; the task is done if the response has come at once."""
        response = self.ask(*names, ids=ids)
        assert inspect.iscoroutine(response)
        self.tasks.append(asyncio.ensure_future(response))
        await self.advance(0)
        return self.tasks[-1]

    async def advance(self, seconds: float) -> None:
        self.now_s += seconds
        for _ in range(5):
            await asyncio.sleep(0)


def leaders(response: MetadataResponse, name: str) -> list[int]:
    (topic,) = [topic for topic in response.topics if topic.name == name]
    return [partition.leader_id for partition in topic.partitions]


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    made = Cluster(monkeypatch)
    yield made
    for task in made.tasks:
        task.cancel()
    await asyncio.gather(*made.tasks, return_exceptions=True)


async def test_a_single_broker_answers_without_a_turn_of_the_event_loop(cluster: Cluster) -> None:
    for broker in (2, 3):
        cluster.fence(broker)
        cluster.lost.on_response(broker)
    assert isinstance(cluster.ask("a"), MetadataResponse)


async def test_the_last_broker_waits_while_the_others_may_be_replaced(cluster: Cluster) -> None:
    for broker in (2, 3):
        cluster.fence(broker)
    assert not (await cluster.request("a")).done()


async def test_metadata_is_answered_at_once_while_no_leader_has_failed(cluster: Cluster) -> None:
    assert (await cluster.request("a")).done()
    assert (await cluster.request()).done()


async def test_a_failure_that_the_event_loop_reports_together_with_the_request_counts(cluster: Cluster) -> None:
    cluster.loop.call_soon(cluster.loop.call_soon, cluster.lost.on_lost, 2)
    assert not (await cluster.request("a")).done()


@pytest.mark.parametrize("ids", [False, True])
async def test_only_topics_of_a_failed_leader_wait_for_another_one(cluster: Cluster, ids: bool) -> None:
    cluster.lost.on_lost(2)
    asked, everything = await cluster.request("b", "a", ids=ids), await cluster.request()
    assert (await cluster.request("b", ids=ids)).done()
    cluster.fence(2)
    await cluster.advance(0.2)
    assert not asked.done()
    assert not everything.done(), "a fenced leader is no answer yet"
    cluster.elect("a", 1, 3)
    await cluster.advance(CHECK_INTERVAL_S)
    assert leaders(asked.result(), "a") == leaders(everything.result(), "a") == [1, 3, 3]


@pytest.mark.parametrize("why", ["is_followed", "is_disconnected"])
async def test_a_response_for_which_another_request_waits_or_nothing_any_more_does_not_wait(
    cluster: Cluster, why: str
) -> None:
    """The later request may be for a partition whose leader is alive, and responses keep their order."""
    cluster.lost.on_lost(2)
    asked = await cluster.request("a")
    setattr(cluster.exchange, why, True)
    await cluster.advance(FOLLOWED_INTERVAL_S)
    assert leaders(asked.result(), "a") == [1, 2, 3]


async def test_a_response_waits_for_the_leaders_of_all_topics(cluster: Cluster) -> None:
    cluster.lost.on_lost(3)
    asked = await cluster.request("a", "b")
    assert not asked.done()
    cluster.elect("a", 2, 1)
    await cluster.advance(CHECK_INTERVAL_S)
    assert not asked.done()
    cluster.elect("b", 1, 2)
    await cluster.advance(CHECK_INTERVAL_S)
    assert leaders(asked.result(), "b") == [1, 2, 1]


async def test_a_second_failure_concerns_topics_that_the_first_did_not(cluster: Cluster) -> None:
    cluster.lost.on_lost(2)
    assert (await cluster.request("b")).done()
    cluster.lost.on_lost(3)
    assert not (await cluster.request("b")).done()


async def test_a_response_does_not_wait_longer_than_an_election_takes(cluster: Cluster) -> None:
    cluster.lost.on_lost(2)
    await cluster.advance(MAX_ELECTION_S - 0.1)
    asked = await cluster.request("a")
    assert not asked.done()
    await cluster.advance(0.05)
    assert not asked.done()
    await cluster.advance(0.06)
    assert leaders(asked.result(), "a") == [1, 2, 3]
    cluster.lost.on_lost(2)
    assert (await cluster.request("a")).done(), "it has not responded since"


async def test_a_leader_that_responds_again_ends_the_wait(cluster: Cluster) -> None:
    cluster.lost.on_lost(2)
    asked = await cluster.request("a")
    assert not asked.done()
    cluster.lost.on_response(2)
    await cluster.advance(CHECK_INTERVAL_S)
    assert leaders(asked.result(), "a") == [1, 2, 3]


async def test_a_partition_without_any_leader_is_reported_at_once(cluster: Cluster) -> None:
    cluster.lost.on_lost(2)
    asked = await cluster.request("a")
    assert not asked.done()
    cluster.elect("a", 1, -1)
    await cluster.advance(CHECK_INTERVAL_S)
    assert leaders(asked.result(), "a") == [1, -1, 3]


async def test_a_topic_that_is_deleted_ends_the_wait(cluster: Cluster) -> None:
    cluster.lost.on_lost(2)
    asked = await cluster.request("a")
    assert not asked.done()
    old = cluster.view.topics.pop("a")
    del cluster.view.topics_by_id[old.topic_id]
    for listener in cluster.view.listeners:
        listener([TopicChange(old, None)])
    await cluster.advance(CHECK_INTERVAL_S)
    assert asked.done()
