"""Deletion of topics and addition of partitions."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from penstock.control.results import ConfigChange, ConfigOperation, ConfigResource, TopicRequest
from penstock.state import keys
from penstock.state.records import PartitionRecord, encode
from penstock.state.store import PutOp
from penstock.wire.errors import ErrorCode


async def created(cluster, name: str = "t", partitions: int = 1) -> UUID:
    (outcome,) = await cluster.topics.create([TopicRequest(name, partitions, 1)])
    assert outcome.error is ErrorCode.NONE
    return outcome.topic_id


async def test_a_deleted_topic_is_gone_when_the_answer_comes(cluster) -> None:
    await cluster.removal.start([])
    topic_id = await created(cluster, partitions=300)
    outcome = await cluster.topics.delete(cluster.view.topics["t"])
    assert outcome.error is ErrorCode.NONE
    assert not cluster.view.topics
    assert not cluster.view.topics_by_id
    await cluster.removal.close()
    assert not (await cluster.store.range(keys.TOPICS)).entries
    assert not (await cluster.store.range(keys.TOPIC_NAMES)).entries
    assert not (await cluster.store.range(keys.partitions(topic_id))).entries
    assert not cluster.view.deleting


async def test_each_answer_waits_for_a_view_that_lags(lagging_cluster) -> None:
    view = lagging_cluster.view
    await created(lagging_cluster, partitions=2)
    assert len(view.topics["t"].partitions) == 2
    await lagging_cluster.topics.create_partitions("t", 3)
    assert len(view.topics["t"].partitions) == 3
    await lagging_cluster.configs.change(
        ConfigResource.TOPIC, "t", [ConfigChange("flush.ms", ConfigOperation.SET, "5")]
    )
    assert view.topics["t"].config.flush_ms == 5
    await lagging_cluster.topics.delete(view.topics["t"])
    assert not view.topics
    await lagging_cluster.topics.auto_create("auto")
    assert "auto" in view.topics


async def test_a_recreated_topic_has_another_id(cluster) -> None:
    first = await created(cluster)
    await cluster.topics.delete(cluster.view.topics["t"])
    assert await created(cluster) != first


async def test_of_racing_deletions_one_wins(cluster) -> None:
    await created(cluster)
    topic = cluster.view.topics["t"]
    outcomes = await asyncio.gather(*[cluster.topics.delete(topic) for _ in range(5)])
    errors = sorted(o.error for o in outcomes)
    assert errors == [ErrorCode.NONE] + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 4


async def test_a_deletion_meant_for_an_older_topic_spares_the_new_one_of_its_name(cluster) -> None:
    await created(cluster)
    old = cluster.view.topics["t"]
    await cluster.topics.delete(old)
    new = await created(cluster)
    assert (await cluster.topics.delete(old)).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert cluster.view.topics["t"].topic_id == new


async def test_deletion_can_be_switched_off(opener) -> None:
    cluster = await opener(delete_topic_enable="false")
    await created(cluster)
    outcome = await cluster.topics.delete(cluster.view.topics["t"])
    assert outcome.error is ErrorCode.TOPIC_DELETION_DISABLED
    assert "t" in cluster.view.topics
    await cluster.close()


async def test_the_tombstone_stays_until_every_room_has_forgotten_the_topic(cluster) -> None:
    topic_id = await created(cluster)
    forgotten, may_go_on = [], asyncio.Event()

    async def cleaner(gone: UUID) -> None:
        await may_go_on.wait()
        forgotten.append(gone)

    await cluster.removal.start([cleaner])
    await cluster.topics.delete(cluster.view.topics["t"])
    assert cluster.view.deleting == {topic_id}
    may_go_on.set()
    await cluster.removal.close()
    assert forgotten == [topic_id]
    assert not (await cluster.store.range(keys.TOPICS)).entries


async def test_what_could_not_be_forgotten_is_tried_again_at_the_next_start(opener) -> None:
    cluster = await opener()
    topic_id = await created(cluster)

    async def failing(gone: UUID) -> None:
        raise OSError("disk is away")

    await cluster.removal.start([failing])
    await cluster.topics.delete(cluster.view.topics["t"])
    await cluster.close()

    cluster = await opener()
    assert cluster.view.deleting == {topic_id}
    forgotten = []

    async def cleaner(gone: UUID) -> None:
        forgotten.append(gone)

    await cluster.removal.start([cleaner])
    await cluster.removal.close()
    assert forgotten == [topic_id]
    await cluster.close()

    cluster = await opener()
    assert not cluster.view.deleting
    await cluster.close()


async def test_added_partitions_are_seen_when_the_answer_comes_and_the_old_stay(cluster) -> None:
    topic_id = await created(cluster, partitions=2)
    old = cluster.view.topics["t"].partitions
    outcome = await cluster.topics.create_partitions("t", 500)
    assert outcome.error is ErrorCode.NONE, outcome
    topic = cluster.view.topics["t"]
    assert topic.topic_id == topic_id
    assert [p.index for p in topic.partitions] == list(range(500))
    assert topic.partitions[:2] == old


async def test_listeners_see_a_grown_topic_once_with_what_it_was(cluster) -> None:
    await created(cluster, partitions=2)
    seen = []
    cluster.view.subscribe(seen.extend)
    await cluster.topics.create_partitions("t", 300)
    assert [(len(c.old.partitions), len(c.new.partitions)) for c in seen] == [(2, 300)]


@pytest.mark.parametrize(
    ("count", "assignments", "error"),
    [
        (3, None, ErrorCode.INVALID_PARTITIONS),
        (2, None, ErrorCode.INVALID_PARTITIONS),
        (0, None, ErrorCode.INVALID_PARTITIONS),
        (-1, None, ErrorCode.INVALID_PARTITIONS),
        (2_000_000_000, None, ErrorCode.INVALID_PARTITIONS),
        (5, [[0]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (4, [[1]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (4, [[]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (4, [[0, 0]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
async def test_growth_that_cannot_be_is_refused(cluster, count, assignments, error) -> None:
    await created(cluster, partitions=3)
    outcome = await cluster.topics.create_partitions("t", count, assignments)
    assert outcome.error is error
    assert outcome.message
    assert len(cluster.view.topics["t"].partitions) == 3


async def test_a_topic_that_is_not_there_cannot_grow(cluster) -> None:
    assert (await cluster.topics.create_partitions("t", 2)).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_growth_can_be_tried_without_doing_it(cluster) -> None:
    await created(cluster)
    assert (await cluster.topics.create_partitions("t", 2, validate_only=True)).error is ErrorCode.NONE
    assert len(cluster.view.topics["t"].partitions) == 1


async def test_of_racing_growths_to_one_size_one_wins(cluster) -> None:
    await created(cluster)
    outcomes = await asyncio.gather(*[cluster.topics.create_partitions("t", 200) for _ in range(3)])
    errors = sorted(o.error for o in outcomes)
    assert errors == [ErrorCode.NONE] + [ErrorCode.INVALID_PARTITIONS] * 2
    assert len(cluster.view.topics["t"].partitions) == 200


async def test_growth_that_was_cut_short_is_made_good_by_the_next(cluster) -> None:
    topic_id = await created(cluster)
    stale = encode(PartitionRecord(replicas=[0], leader=0, isr=[0], leader_epoch=3))
    await cluster.store.txn([], [PutOp(keys.partition(topic_id, 1), stale)])
    assert len(cluster.view.topics["t"].partitions) == 1
    assert (await cluster.topics.create_partitions("t", 3)).error is ErrorCode.NONE
    assert [p.leader_epoch for p in cluster.view.topics["t"].partitions] == [0, 0, 0]
