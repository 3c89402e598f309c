"""Merging of all brokers' metadata responses, some of them outdated. Needs no broker."""

from __future__ import annotations

from typing import Any, cast
from uuid import UUID

import pytest

from penstock.client import BrokerError, ErrorCode, TopicPartition, TopicPartitions
from penstock.client import topic_queries as queries
from penstock.client.broker_answers import BrokerAnswers, query_all_brokers
from penstock.client.cluster import BrokerRef, ClusterConnections
from penstock.client.metadata import MetadataCache, merge_metadata
from penstock.client.types import Node
from penstock.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

ID, OTHER_ID = UUID(int=1), UUID(int=2)
PLACE = TopicPartition("t", 0)
KNOWN = {"t": TopicPartitions("t", ID, 2)}
A, B, C = 1, 2, 3


def says(
    leader: int = A, epoch: int = 4, *, parts: int = 2, id_: UUID = ID, brokers: tuple[int, ...] = (A, B, C)
) -> MetadataResponse:
    """Return a response with the same leader for all partitions; without partitions the topic is missing."""
    topic = MetadataResponseTopic(name="t", topic_id=id_)
    topic.error_code = 0 if parts else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    topic.partitions = [
        MetadataResponsePartition(partition_index=n, leader_id=leader, leader_epoch=epoch) for n in range(parts)
    ]
    nodes = [MetadataResponseBroker(node_id=n, host=f"host-{n}", port=n) for n in brokers]
    return MetadataResponse(brokers=nodes, topics=[topic])


MISSING, SHORT, ANOTHER = says(parts=0), says(parts=1), says(id_=OTHER_ID, epoch=9)
CONTRADICTIONS = pytest.mark.parametrize(
    "contradiction", [MISSING, SHORT, ANOTHER], ids=["missing", "short", "another"]
)


class Told(ClusterConnections):
    """A cluster whose brokers return configured responses; brokers outside its metadata are not queried."""

    def __init__(self, answers: dict[BrokerRef, MetadataResponse], any_: MetadataResponse | None = None) -> None:
        super().__init__("bootstrap:1")
        self.answers, self.any = answers, any_
        self.metadata = MetadataCache(brokers={A: Node(A, "host-1", A)})

    async def call_all(self, request: Any, response: Any, timeout_ms: float) -> Any:
        return {p: a for p, a in self.answers.items() if not isinstance(p, int) or p in self.metadata.brokers}

    async def call_any(self, request: Any, response: Any) -> Any:
        return self.any


async def asked(cluster: Told) -> BrokerAnswers:
    return await query_all_brokers(cluster, ["t"], KNOWN)


@pytest.mark.parametrize("order", [(A, B, C), (C, B, A), (B, A, C)])
async def test_the_newest_leader_counts_whoever_says_it(order: tuple[int, ...]) -> None:
    answers = {A: says(A, 4), B: says(B, 5), C: says(A, 4)}
    cluster = Told({node: answers[node] for node in order})
    await asked(cluster)
    assert cluster.metadata.leader("t", 1) == B


async def test_what_was_known_is_not_replaced_by_what_is_older() -> None:
    cluster = Told({A: says(A, 4), B: says(B, 5)})
    cluster.metadata = merge_metadata(MetadataCache(), says(C, 6), ["t"])
    await asked(cluster)
    assert cluster.metadata.leader("t", 0) == C


@CONTRADICTIONS
async def test_what_contradicts_what_was_seen_counts_for_nothing_while_one_knows_better(
    contradiction: MetadataResponse,
) -> None:
    cluster = Told({A: contradiction, B: says(B, 5), C: contradiction})
    await asked(cluster)
    info = cluster.metadata.topics["t"]
    assert (info.topic_id, len(info.partitions), cluster.metadata.leader("t", 1)) == (ID, 2, B)


@CONTRADICTIONS
async def test_a_loss_that_most_do_not_confirm_is_to_be_asked_for_again(contradiction: MetadataResponse) -> None:
    for answers in ({A: contradiction}, {A: contradiction, ("bootstrap", 1): contradiction}):
        cluster = Told(cast(dict[BrokerRef, MetadataResponse], answers))
        cluster.metadata = merge_metadata(MetadataCache(), says(B, 5), ["t"])
        with pytest.raises(BrokerError, match=r'"t".* 1 of 3 brokers') as caught:
            await asked(cluster)
        assert caught.value.retriable
        assert cluster.metadata.partition_count("t") == 2
        assert cluster.metadata.leader("t", 1) == B


@CONTRADICTIONS
async def test_a_loss_that_most_confirm_is_one(contradiction: MetadataResponse) -> None:
    cluster = Told({A: contradiction, C: contradiction})
    cluster.metadata = merge_metadata(MetadataCache(), says(B, 5), ["t"])
    await asked(cluster)
    info = cluster.metadata.topics.get("t")
    assert info is None or info.topic_id == OTHER_ID or len(info.partitions) == 1


async def test_a_broker_alone_is_most_of_them() -> None:
    cluster = Told({A: says(parts=0, brokers=(A,))})
    await asked(cluster)
    assert cluster.metadata.errors == {"t": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


async def test_brokers_of_whom_only_an_answer_tells_are_asked_too() -> None:
    cluster = Told({A: says(A, 4), C: says(B, 5)})
    assert cluster.metadata.brokers.keys() == {A}
    await asked(cluster)
    assert cluster.metadata.brokers.keys() == {A, B, C}
    assert cluster.metadata.leader("t", 0) == B


async def test_who_leads_is_sure_once_most_say_the_same() -> None:
    unsure = Told({A: says(A, 4), B: says(B, 5)})
    answered = await asked(unsure)
    with pytest.raises(BrokerError, match=r"t-0.*1 of 3 brokers confirm") as caught:
        answered.require_confirmed_leaders(unsure.metadata, [PLACE])
    assert caught.value.retriable
    with pytest.raises(BrokerError, match="1 of 3"):
        await queries.list_topics(unsure, ["t"], KNOWN, confirmed=True)
    confirmed = Told({A: says(A, 4), B: says(B, 5), C: says(B, 5)}, any_=says(A, 4))
    (await asked(confirmed)).require_confirmed_leaders(confirmed.metadata, [PLACE])
    for names in (["t"], None):
        assert await queries.list_topics(confirmed, names, KNOWN, confirmed=True) == KNOWN
        assert confirmed.metadata.leader("t", 0) == B


async def test_a_broker_that_refuses_to_tell_says_nothing_about_the_topic() -> None:
    refused = says()
    refused.topics[0].error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    cluster = Told({A: refused, B: refused})
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
        await queries.query_topics(cluster, ["t"], KNOWN, all_brokers=True)
    cluster.answers[C] = says(B, 5)
    assert (await queries.query_topics(cluster, ["t"], KNOWN, all_brokers=True)).keys() == {"t"}


@CONTRADICTIONS
async def test_one_brokers_word_does_not_replace_what_is_known(contradiction: MetadataResponse) -> None:
    """Another caller may read the metadata while the client queries all brokers."""
    cluster = Told({A: contradiction}, any_=contradiction)
    cluster.metadata = merge_metadata(MetadataCache(), says(B, 5), ["t"])
    with pytest.raises(BrokerError, match="1 of 3"):
        await queries.query_topics(cluster, ["t"], KNOWN)
    assert cluster.metadata.leader("t", 1) == B


async def test_leaders_of_what_a_pattern_takes_are_learnt_with_all_topics() -> None:
    """Otherwise the client would request offsets from the previous leaders as long as they respond."""
    cluster = Told({}, any_=says(B, 5))
    cluster.metadata = merge_metadata(MetadataCache(), says(A, 4), ["t"])
    assert await queries.list_topics(cluster, None, KNOWN) == KNOWN
    assert cluster.metadata.leader("t", 0) == B


async def test_topics_that_nobody_wants_yet_are_told_and_not_remembered() -> None:
    cluster = Told({}, any_=says(B, 5))
    assert await queries.list_topics(cluster, None) == KNOWN
    assert cluster.metadata.topics == {}
