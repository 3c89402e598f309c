"""Replays of dead letters against a real broker."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from penstock.client import (
    Admin,
    ConsumerRecord,
    NewTopic,
    Producer,
    ProducerFenced,
    TopicPartition,
    UnknownTopic,
    deliver_after,
)
from penstock.client.consumer import Consumer
from penstock.client.letter_replay import LetterReplay, ReplayCounts, ReplayOptions
from penstock.client.letters import LetterFilter

pytestmark = pytest.mark.integration

REASONS = ("timeout", "bad address")


async def write_letters(bootstrap: str, topic: str, source: str, count: int) -> None:
    """Write letters of a topic, with the reasons in turn, over two partitions."""
    async with Producer(bootstrap) as producer:
        for number in range(count):
            headers = [
                ("n", b"%d" % number),
                ("__dlq.errors.topic", source.encode()),
                ("__dlq.errors.partition", b"%d" % (number % 4)),
                ("__dlq.errors.message", REASONS[number % 2].encode()),
            ]
            await producer.send(topic, b"%d" % number, partition=number % 2, headers=headers)


async def read_all(bootstrap: str, topic: str, count: int = 0) -> list[ConsumerRecord]:
    """Return the committed records of a topic with four partitions, at least `count`.

    The end of a transaction reaches the partitions after its commit.
    """
    partitions = [TopicPartition(topic, index) for index in range(4)]
    async with Consumer(bootstrap, isolation="read_committed") as consumer:
        consumer.assign(partitions)
        await consumer.seek_to_beginning()
        ends = await consumer.end_offsets(partitions)
        found: list[ConsumerRecord] = []
        while len(found) < count or not all([await consumer.position(tp) >= end for tp, end in ends.items()]):
            for tp, records in (await consumer.getmany(timeout_ms=100)).items():
                found += [
                    ConsumerRecord(tp.topic, tp.partition, r.offset, r.timestamp_ms, r.key, r.value, list(r.headers))
                    for r in records
                ]
    return found


@pytest.fixture
async def letters(bootstrap: str, topic: str, name: str) -> str:
    """Return a topic with twenty letters of `topic`, which has four partitions."""
    async with Admin(bootstrap) as admin:
        await admin.create_topics([NewTopic(f"dlq.{name}", 2)])
    await write_letters(bootstrap, f"dlq.{name}", topic, 20)
    return f"dlq.{name}"


async def test_records_go_to_their_partitions_without_the_headers_of_their_failure(
    bootstrap: str, topic: str, letters: str
) -> None:
    assert await LetterReplay(bootstrap, letters).run() == ReplayCounts(replayed=20)
    found = await read_all(bootstrap, topic, 20)
    assert sorted((int(r.value or b""), r.partition) for r in found) == [(n, n % 4) for n in range(20)]
    assert all(r.headers == [("n", r.value)] for r in found)


async def test_each_letter_is_replayed_once_with_and_without_a_filter(bootstrap: str, topic: str, letters: str) -> None:
    timeouts = ReplayOptions(LetterFilter(reason="timeout"))
    assert await LetterReplay(bootstrap, letters, timeouts).run() == ReplayCounts(replayed=10, kept=10)
    assert await LetterReplay(bootstrap, letters, timeouts).run() == ReplayCounts(kept=10)
    await write_letters(bootstrap, letters, topic, 2)
    assert await LetterReplay(bootstrap, letters).run() == ReplayCounts(replayed=12)
    assert await LetterReplay(bootstrap, letters).run() == ReplayCounts()
    values = sorted(int(r.value or b"") for r in await read_all(bootstrap, topic, 22))
    assert values == sorted([*range(20), 0, 1])


async def test_a_dry_run_sends_nothing_and_leaves_no_progress(bootstrap: str, topic: str, letters: str) -> None:
    assert await LetterReplay(bootstrap, letters, ReplayOptions(dry_run=True)).run() == ReplayCounts(replayed=20)
    assert await read_all(bootstrap, topic) == []
    async with Admin(bootstrap) as admin:
        assert await admin.committed(f"penstock-dlq-replay-{letters}") == {}


async def test_another_topic_can_be_the_target(bootstrap: str, topic: str, letters: str, name: str) -> None:
    async with Admin(bootstrap) as admin:
        await admin.create_topics([NewTopic(f"{name}-repaired", 4)])
    await LetterReplay(bootstrap, letters, ReplayOptions(target=f"{name}-repaired")).run()
    assert len(await read_all(bootstrap, f"{name}-repaired", 20)) == 20
    assert await read_all(bootstrap, topic) == []


async def test_a_record_that_was_scheduled_is_replayed_without_its_former_delay(
    bootstrap: str, admin: Admin, name: str
) -> None:
    await admin.create_topics(
        [NewTopic(name, 4, configs={"delivery.schedule.enable": "true"}), NewTopic(f"dlq.{name}")]
    )
    headers = [deliver_after(3_600_000), ("penstock-scheduled-offset", b"0"), ("__dlq.errors.topic", name.encode())]
    async with Producer(bootstrap) as producer:
        await producer.send(f"dlq.{name}", "late", headers=headers)
    assert await LetterReplay(bootstrap, f"dlq.{name}").run() == ReplayCounts(replayed=1)
    assert [record.value for record in await read_all(bootstrap, name, 1)] == [b"late"]


async def test_a_letter_without_its_record_is_kept(bootstrap: str, topic: str, name: str) -> None:
    async with Admin(bootstrap) as admin:
        await admin.create_topics([NewTopic(f"dlq.{name}", 1)])
    async with Producer(bootstrap) as producer:
        await producer.send(f"dlq.{name}", None, headers=[("__dlq.errors.topic", topic.encode())])
    assert await LetterReplay(bootstrap, f"dlq.{name}").run() == ReplayCounts(empty=1)


async def test_a_missing_target_replays_nothing_and_keeps_the_letters(bootstrap: str, name: str, letters: str) -> None:
    with pytest.raises(UnknownTopic, match=f"{name}-gone"):
        await LetterReplay(bootstrap, letters, ReplayOptions(target=f"{name}-gone")).run()
    assert await LetterReplay(bootstrap, letters).run() == ReplayCounts(replayed=20)


async def test_a_replay_ends_when_another_one_starts(bootstrap: str, topic: str, letters: str) -> None:
    first = LetterReplay(bootstrap, letters, ReplayOptions(rate_per_s=1))
    other_has_run = False

    async def run_another(counts: ReplayCounts) -> None:
        nonlocal other_has_run
        if not other_has_run:
            other_has_run = True
            assert (await LetterReplay(bootstrap, letters).run()).replayed == 20 - counts.replayed

    tasks = []
    with pytest.raises(ProducerFenced):
        await first.run(lambda counts: tasks.append(asyncio.ensure_future(run_another(counts))))
    await tasks[0]
    assert sorted(int(r.value or b"") for r in await read_all(bootstrap, topic, 20)) == list(range(20))


async def test_letters_after_the_given_ends_are_not_replayed(bootstrap: str, topic: str, letters: str) -> None:
    ends = {TopicPartition(letters, 0): 4, TopicPartition(letters, 1): 20}
    assert await LetterReplay(bootstrap, letters, ReplayOptions(ends=ends)).run() == ReplayCounts(replayed=14)
    values = sorted(int(r.value or b"") for r in await read_all(bootstrap, topic, 14))
    assert values == sorted([*range(0, 8, 2), *range(1, 20, 2)])
    assert await LetterReplay(bootstrap, letters).run() == ReplayCounts(replayed=6)


async def test_letters_that_are_written_during_a_replay_do_not_extend_it(
    bootstrap: str, topic: str, letters: str
) -> None:
    """A consumer rejects the replayed records at once, so each one becomes a letter again."""
    replay = LetterReplay(bootstrap, letters, ReplayOptions(rate_per_s=8))
    written: list[asyncio.Task[None]] = []

    def reject(counts: ReplayCounts) -> None:
        if not written:
            written.append(asyncio.ensure_future(write_letters(bootstrap, letters, topic, 40)))

    assert await replay.run(reject) == ReplayCounts(replayed=20)
    await written[0]
    assert await LetterReplay(bootstrap, letters).run() == ReplayCounts(replayed=40)


async def test_a_run_that_was_interrupted_counts_its_letters_once(bootstrap: str, topic: str, letters: str) -> None:
    options = ReplayOptions(LetterFilter(reason="timeout"), rate_per_s=2, run="r1")
    first = LetterReplay(bootstrap, letters, options)
    reached = asyncio.Event()
    task = asyncio.ensure_future(first.run(lambda counts: reached.set() if counts.replayed else None))
    await reached.wait()
    assert 0 < first.remaining < 20
    task.cancel()
    await asyncio.wait([task])
    second = LetterReplay(bootstrap, letters, replace(options, rate_per_s=None))
    assert await second.run() == ReplayCounts(replayed=10, kept=10)
    assert second.remaining == 0
    assert len(await read_all(bootstrap, topic, 10)) == 10
    assert await LetterReplay(bootstrap, letters, replace(options, run="r2")).run() == ReplayCounts(kept=10)
