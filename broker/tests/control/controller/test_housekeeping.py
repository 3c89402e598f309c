"""Leftovers of deleted topics in a cluster are removed once no broker needs them."""

from __future__ import annotations

from uuid import UUID

import pytest

from penstock.control.controller import housekeeping
from penstock.control.controller.housekeeping import (
    CLEANUP_INTERVAL_S,
    MIN_OBSERVED_MS,
    TOMBSTONE_AGE_MS,
    UNNAMED_TOPIC_AGE_MS,
)
from penstock.state import keys
from penstock.state.records import PartitionRecord, TopicRecord, encode
from penstock.state.store import PutOp


async def remove_leftovers(world, after_ms: int = 0) -> None:
    """Run the cleanup as if `after_ms` had passed since the last one."""
    housekeeping = world.the_controller().term.housekeeping
    housekeeping._observed_ms = {topic: since - after_ms for topic, since in housekeeping._observed_ms.items()}
    await world.finish(housekeeping.remove_leftovers())


async def left(world, topic: UUID) -> int:
    entries = [*(await world.store.range(keys.partitions(topic))).entries]
    return len(entries) + ((await world.store.get(keys.topic(topic))) is not None)


async def test_parts_without_a_name_are_removed_only_when_their_creation_must_have_failed(three) -> None:
    topic = UUID(int=77)
    record = PartitionRecord(replicas=[1], leader=1, isr=[1])
    await three.store.txn([], [PutOp(keys.partition(topic, i), encode(record)) for i in range(3)])
    await three.time.advance(CLEANUP_INTERVAL_S + 1)
    await remove_leftovers(three, UNNAMED_TOPIC_AGE_MS - 120_000)
    assert await left(three, topic) == 3
    await remove_leftovers(three, 120_000)
    assert await left(three, topic) == 0


async def test_a_creation_whose_parts_were_taken_for_leftovers_fails_and_leaves_nothing(three) -> None:
    admin = three.brokers[1].topics
    real = admin._put_all

    async def removed_after(puts, conditions=()):
        await real(puts, conditions)
        topic = UUID(puts[0].key[len(keys.PARTITIONS) :].partition("/")[0])
        await three.time.until(lambda: topic in three.brokers[1].watcher.unnamed())
        housekeeping = three.the_controller().term.housekeeping
        housekeeping._observed_ms[topic] = -UNNAMED_TOPIC_AGE_MS
        await housekeeping.remove_leftovers()
        assert await left(three, topic) == 0

    admin._put_all = removed_after
    (outcome,) = await three.create("t", 200, 1)
    assert outcome.error != 0
    assert not (await three.store.range(keys.PARTITIONS)).entries
    assert "t" not in three.view.topics


async def test_a_tombstone_stays_for_brokers_that_are_away_and_then_goes(three) -> None:
    forgotten: list[UUID] = []

    async def forget(topic: UUID) -> None:
        forgotten.append(topic)

    three.topic_cleaners.append(forget)
    topic = await three.topic("t", [1, 2, 3])
    await three.finish(three.brokers[1].topics.delete(three.view.topics["t"]))
    await remove_leftovers(three)
    await remove_leftovers(three, TOMBSTONE_AGE_MS - 1000)
    assert forgotten == [topic], "what is kept in the store is removed once"
    assert await left(three, topic) == 1
    assert topic in three.view.deleting
    await remove_leftovers(three, 1000)
    assert await left(three, topic) == 0


async def test_a_second_failure_to_forget_a_topic_is_a_warning_and_its_success_is_said(three, monkeypatch) -> None:
    said: list[tuple[str, str]] = []
    for level in ("info", "warning"):
        monkeypatch.setattr(housekeeping.log, level, lambda event, level=level, **_: said.append((level, event)))
    is_busy = True

    async def forget(topic: UUID) -> None:
        if is_busy:
            raise RuntimeError("offsets are left")

    three.topic_cleaners.append(forget)
    await three.topic("t", [1, 2, 3])
    await three.finish(three.brokers[1].topics.delete(three.view.topics["t"]))
    said.clear()
    await remove_leftovers(three)
    assert said == [("info", "removing committed offsets of deleted topics")]
    await remove_leftovers(three)
    assert said[-1][0] == "warning"
    is_busy = False
    await remove_leftovers(three)
    assert said[-1] == ("info", "removed committed offsets of deleted topics")
    count = len(said)
    await remove_leftovers(three)
    assert len(said) == count


async def test_a_tombstone_goes_a_day_after_the_deletion_however_often_the_controller_changes(three) -> None:
    topic = await three.topic("t", [1, 2, 3])
    await three.finish(three.brokers[1].topics.delete(three.view.topics["t"]))
    three.time.wall_offset_ms += TOMBSTONE_AGE_MS - MIN_OBSERVED_MS // 2
    await three.kill(1, notice=True)
    await three.time.until(lambda: three.controllers() in ([2], [3]))
    await remove_leftovers(three)
    await remove_leftovers(three, MIN_OBSERVED_MS // 2 - 30_000)
    assert await left(three, topic) == 1
    await remove_leftovers(three, 60_000)
    assert await left(three, topic) == 1, "a wall clock that is wrong must not take it from brokers that are there"
    await remove_leftovers(three, MIN_OBSERVED_MS // 2)
    assert await left(three, topic) == 0


@pytest.mark.parametrize("deleted_ms", [0, 1 << 62])
async def test_a_tombstone_whose_time_is_unknown_or_in_the_future_stays_for_a_day(three, deleted_ms: int) -> None:
    topic = UUID(int=79)
    tombstone = TopicRecord(name="t", topic_id=topic, partition_count=1, deleting=True, deleted_ms=deleted_ms)
    await three.store.txn([], [PutOp(keys.topic(topic), encode(tombstone))])
    await three.time.until(lambda: topic in three.view.deleting)
    await remove_leftovers(three)
    await remove_leftovers(three, TOMBSTONE_AGE_MS - 1000)
    assert await left(three, topic) == 1
    await remove_leftovers(three, 1000)
    assert await left(three, topic) == 0
