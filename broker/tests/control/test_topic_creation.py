"""Creation of topics: rejected requests, races, and leftovers of crashes."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from penstock.control.results import TopicRequest
from penstock.state import keys
from penstock.state.records import PartitionRecord, encode
from penstock.state.store import PutOp
from penstock.wire.errors import ErrorCode


async def test_a_created_topic_is_seen_when_the_answer_comes(cluster) -> None:
    (outcome,) = await cluster.topics.create([TopicRequest("t", 3, 1, settings={"retention.ms": "1000"})])
    assert (outcome.error, outcome.partition_count, outcome.replication_factor) == (ErrorCode.NONE, 3, 1)
    topic = cluster.view.topics["t"]
    assert topic.topic_id == outcome.topic_id
    assert cluster.view.topics_by_id[topic.topic_id] is topic
    assert [(p.index, p.leader, p.isr, p.leader_epoch) for p in topic.partitions] == [(i, 0, [0], 0) for i in range(3)]
    assert topic.config.retention_ms == 1000


async def test_numbers_that_are_left_out_come_from_the_brokers_settings(opener) -> None:
    cluster = await opener(num_partitions="4")
    (outcome,) = await cluster.topics.create([TopicRequest("t")])
    assert (outcome.partition_count, outcome.replication_factor) == (4, 1)
    await cluster.close()


async def test_the_default_replication_factor_is_lowered_to_the_brokers_there_are(opener) -> None:
    cluster = await opener(default_replication_factor="3")
    (outcome,) = await cluster.topics.create([TopicRequest("t")])
    assert outcome.replication_factor == 1
    await cluster.close()


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "../up", "a b", "ü", "x" * 250, "a\0b", "a\nb", "tab\t", "a:b", "a\\b"]
)
async def test_names_that_no_topic_can_have_are_refused(cluster, name: str) -> None:
    (outcome,) = await cluster.topics.create([TopicRequest(name, 1, 1)])
    assert outcome.error is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert "nvalid topic name" in (outcome.message or "")
    assert not cluster.view.topics


@pytest.mark.parametrize("name", ["x" * 249, "...", "a.b", "A-_9", "-"])
async def test_all_other_names_are_accepted(cluster, name: str) -> None:
    (outcome,) = await cluster.topics.create([TopicRequest(name, 1, 1)])
    assert outcome.error is ErrorCode.NONE
    assert cluster.view.topics[name].name == name


async def test_a_name_that_differs_in_dots_and_underscores_only_is_refused_while_the_other_is_there(cluster) -> None:
    await cluster.topics.create([TopicRequest("a.b", 1, 1)])
    (outcome,) = await cluster.topics.create([TopicRequest("a_b", 1, 1)])
    assert outcome.error is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert "'a.b'" in outcome.message
    await cluster.topics.delete(cluster.view.topics["a.b"])
    (outcome,) = await cluster.topics.create([TopicRequest("a_b", 1, 1)])
    assert outcome.error is ErrorCode.NONE


@pytest.mark.parametrize("topic", [TopicRequest("t", 1, 33), TopicRequest("t", -1, -1, {0: list(range(33))})])
async def test_more_replicas_than_a_partition_can_have_are_refused(cluster, topic: TopicRequest) -> None:
    (outcome,) = await cluster.topics.create([topic])
    assert outcome.error in (ErrorCode.INVALID_REPLICATION_FACTOR, ErrorCode.INVALID_REPLICA_ASSIGNMENT)
    assert "32" in outcome.message


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (TopicRequest("t", 0, 1), ErrorCode.INVALID_PARTITIONS),
        (TopicRequest("t", -2, 1), ErrorCode.INVALID_PARTITIONS),
        (TopicRequest("t", 1_000_000_000, 1), ErrorCode.INVALID_PARTITIONS),
        (TopicRequest("t", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (TopicRequest("t", 1, -2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (TopicRequest("t", 1, 2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (TopicRequest("t", 1, -1, {0: [0]}), ErrorCode.INVALID_REQUEST),
        (TopicRequest("t", -1, 1, {0: [0]}), ErrorCode.INVALID_REQUEST),
        (TopicRequest("t", -1, -1, {1: [0]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (TopicRequest("t", -1, -1, {0: [0], 2: [0]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (TopicRequest("t", -1, -1, {0: []}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (TopicRequest("t", -1, -1, {0: [0, 0]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (TopicRequest("t", -1, -1, {0: [1]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (TopicRequest("t", 0, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (TopicRequest("t", 0, 33), ErrorCode.INVALID_PARTITIONS),
        (TopicRequest("t", 1, 1, settings={"retention.mss": "1"}), ErrorCode.INVALID_CONFIG),
        (TopicRequest("t", 1, 1, settings={"retention.ms": "soon"}), ErrorCode.INVALID_CONFIG),
        (TopicRequest("t", 1, 1, settings={"retention.ms": None}), ErrorCode.INVALID_CONFIG),
        (TopicRequest("t", 1, 1, settings={"compression.type": "brotli"}), ErrorCode.INVALID_CONFIG),
        (
            TopicRequest("t", 1, 1, settings={"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "8"}),
            ErrorCode.INVALID_CONFIG,
        ),
    ],
    ids=str,
)
async def test_what_cannot_be_is_refused_and_leaves_nothing(cluster, topic: TopicRequest, error: ErrorCode) -> None:
    before = await cluster.store.range(keys.ROOT)
    (outcome,) = await cluster.topics.create([topic])
    assert outcome.error is error, outcome
    assert outcome.message
    assert await cluster.store.range(keys.ROOT) == before


async def test_a_manual_assignment_is_kept(cluster) -> None:
    (outcome,) = await cluster.topics.create([TopicRequest("t", -1, -1, {1: [0], 0: [0]})])
    assert (outcome.error, outcome.partition_count) == (ErrorCode.NONE, 2)


async def test_validate_only_says_what_would_be_and_does_nothing(cluster) -> None:
    before = await cluster.store.range(keys.ROOT)
    good, bad = await cluster.topics.create([TopicRequest("good", 2, 1), TopicRequest("bad", 0, 1)], validate_only=True)
    assert (good.error, good.partition_count) == (ErrorCode.NONE, 2)
    assert bad.error is ErrorCode.INVALID_PARTITIONS
    assert await cluster.store.range(keys.ROOT) == before


async def test_one_topic_that_is_refused_does_not_stop_the_others(cluster) -> None:
    outcomes = await cluster.topics.create([TopicRequest("a", 1, 1), TopicRequest("!", 1, 1), TopicRequest("b", 1, 1)])
    assert [o.error for o in outcomes] == [ErrorCode.NONE, ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.NONE]
    assert set(cluster.view.topics) == {"a", "b"}


async def test_a_name_twice_in_a_request_is_refused_both_times(cluster) -> None:
    outcomes = await cluster.topics.create([TopicRequest("a", 1, 1), TopicRequest("b", 1, 1), TopicRequest("a", 1, 1)])
    assert [o.error for o in outcomes] == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE, ErrorCode.INVALID_REQUEST]


async def test_a_topic_that_is_there_is_refused(cluster) -> None:
    await cluster.topics.create([TopicRequest("t", 1, 1)])
    (outcome,) = await cluster.topics.create([TopicRequest("t", 5, 1)])
    assert outcome.error is ErrorCode.TOPIC_ALREADY_EXISTS
    assert len(cluster.view.topics["t"].partitions) == 1


@pytest.mark.parametrize("partitions", [1, 300])
async def test_of_racing_creators_one_wins_and_nothing_of_the_others_stays(cluster, partitions: int) -> None:
    outcomes = await asyncio.gather(*[cluster.topics.create([TopicRequest("t", partitions, 1)]) for _ in range(8)])
    errors = sorted(outcome.error for (outcome,) in outcomes)
    assert errors == [ErrorCode.NONE] + [ErrorCode.TOPIC_ALREADY_EXISTS] * 7
    stored = await cluster.store.range(keys.PARTITIONS)
    winner = next(o.topic_id for (o,) in outcomes if o.error is ErrorCode.NONE)
    assert {e.key.split("/")[5] for e in stored.entries} == {str(winner)}
    assert len(cluster.view.topics["t"].partitions) == partitions


@pytest.mark.slow
async def test_ten_thousand_partitions_come_into_being_at_once(cluster) -> None:
    seen: list[int] = []
    cluster.view.subscribe(lambda changes: seen.extend(len(c.new.partitions) for c in changes if c.new))
    (outcome,) = await cluster.topics.create([TopicRequest("t", 10_000, 1)])
    assert outcome.error is ErrorCode.NONE
    assert seen == [10_000], "the topic was seen before it was whole"


async def test_partitions_are_bounded_in_all(opener) -> None:
    cluster = await opener(max_partitions="10")
    outcomes = await asyncio.gather(*[cluster.topics.create([TopicRequest(f"t{i}", 4, 1)]) for i in range(4)])
    assert sorted(o.error for (o,) in outcomes) == [ErrorCode.NONE] * 2 + [ErrorCode.INVALID_PARTITIONS] * 2
    await cluster.topics.delete(next(iter(cluster.view.topics.values())))
    (outcome,) = await cluster.topics.create([TopicRequest("again", 4, 1)])
    assert outcome.error is ErrorCode.NONE
    await cluster.close()


async def test_a_request_for_too_many_partitions_is_refused_whole(cluster) -> None:
    outcomes = await cluster.topics.create([TopicRequest(f"t{i}", 5_001, 1) for i in range(2)])
    assert [o.error for o in outcomes] == [ErrorCode.INVALID_PARTITIONS] * 2


async def test_ids_are_random_and_never_those_that_clients_misread(cluster) -> None:
    ids = iter([UUID(int=0), UUID(int=1), UUID(bytes=b"\xfb" + bytes(15)), UUID(int=5 << 64)])
    cluster.topics._new_id = lambda: next(ids)
    (outcome,) = await cluster.topics.create([TopicRequest("t", 1, 1)])
    assert outcome.topic_id == UUID(int=5 << 64)


async def test_auto_creation_happens_once_for_all_who_ask_at_a_time(cluster) -> None:
    outcomes = await asyncio.gather(*[cluster.topics.auto_create("t") for _ in range(20)])
    assert {o.topic_id for o in outcomes} == {cluster.view.topics["t"].topic_id}
    assert (await cluster.topics.auto_create("t")).error is ErrorCode.TOPIC_ALREADY_EXISTS
    assert (await cluster.topics.auto_create("a/b")).error is ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_one_who_stops_waiting_for_auto_creation_does_not_stop_it_for_others(cluster) -> None:
    first = asyncio.ensure_future(cluster.topics.auto_create("t"))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(cluster.topics.auto_create("t"))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).error is ErrorCode.NONE


async def test_topics_are_there_after_a_restart(opener) -> None:
    cluster = await opener()
    (outcome,) = await cluster.topics.create([TopicRequest("t", 200, 1, settings={"segment.bytes": "4096"})])
    cluster_id = cluster.view.cluster_id
    await cluster.close()
    cluster = await opener()
    topic = cluster.view.topics["t"]
    assert (topic.topic_id, len(topic.partitions), topic.config.segment_bytes) == (outcome.topic_id, 200, 4096)
    assert cluster.view.cluster_id == cluster_id
    await cluster.close()


async def test_what_a_creation_left_that_was_cut_short_is_removed_at_the_next_start(opener) -> None:
    cluster = await opener()
    await cluster.topics.create([TopicRequest("t", 1, 1)])
    orphan = UUID(int=9 << 64)
    value = encode(PartitionRecord(replicas=[0], leader=0, isr=[0]))
    await cluster.store.txn([], [PutOp(keys.partition(orphan, i), value) for i in range(5)])
    await cluster.close()
    cluster = await opener()
    assert set(cluster.view.topics) == {"t"}
    await cluster.removal.start([])
    stored = await cluster.store.range(keys.PARTITIONS)
    assert len(stored.entries) == 1
    await cluster.close()


@pytest.mark.parametrize(
    "topic",
    [
        TopicRequest("t", 0, 1, settings={"retention.ms": "-2"}),
        TopicRequest("t", 1, 33, settings={"retention.mss": "1"}),
        TopicRequest("t", -1, -1, {0: [7]}, settings={"segment.bytes": "x"}),
        TopicRequest("t", 1, 1, {0: [0]}, settings={"segment.bytes": "x"}),
    ],
)
async def test_a_setting_that_cannot_be_is_named_before_numbers_that_cannot_be(cluster, topic: TopicRequest) -> None:
    (outcome,) = await cluster.topics.create([topic])
    assert outcome.error is ErrorCode.INVALID_CONFIG


async def test_a_name_that_cannot_be_is_named_before_a_setting_that_cannot_be(cluster) -> None:
    await cluster.topics.create([TopicRequest("there", 1, 1)])
    settings = {"retention.ms": "-2"}
    outcomes = await cluster.topics.create([TopicRequest(name, 1, 1, settings=settings) for name in ("a b", "there")])
    assert [o.error for o in outcomes] == [ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.TOPIC_ALREADY_EXISTS]
