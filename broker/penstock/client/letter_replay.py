"""Replays dead letters: sends their original records again, each letter once.

A transaction has the records and the progress, which is the committed offset of a group. A replay that was interrupted
continues there. Used by `penstock dlq replay` and the operator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from penstock.client.admin.admin import Admin
from penstock.client.consumer import Consumer
from penstock.client.letters import Letter, LetterFilter, ReplayProgress, parse_letter
from penstock.client.producer import Producer
from penstock.client.security import Security
from penstock.client.types import OffsetAndMetadata, TopicPartition
from penstock.wire.record import Record

MAX_BATCH_LETTERS = 500
MAX_BUFFERED_BYTES = 16 * 1024 * 1024
"""Bounds the memory of a replay, apart from a single letter that is larger."""
POLL_MS = 500


@dataclass(slots=True)
class ReplayCounts:
    """Letters of a replay: `kept` were left out by the filter, `empty` lack the original record."""

    replayed: int = 0
    kept: int = 0
    empty: int = 0


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """`target` replaces the original topics. `rate_per_s` limits the letters per second. The group `group_id` has the
    progress; by default, its name is derived from the topic.

    `ends` bounds the replay; by default, it ends where the topic ends at the start. A replay that is repeated with the
    same `run` counts the letters that it has replayed before, too: see `RunTally`.
    """

    selection: LetterFilter = field(default_factory=LetterFilter)
    target: str = ""
    rate_per_s: float | None = None
    group_id: str = ""
    dry_run: bool = False
    ends: Mapping[TopicPartition, int] | None = None
    run: str = ""


class LetterReplay:
    """A replay of the letters that a dead-letter topic has at the start."""

    def __init__(
        self, bootstrap: str, topic: str, options: ReplayOptions | None = None, *, security: Security | None = None
    ) -> None:
        self._bootstrap, self._topic, self._security = bootstrap, topic, security
        self._options = options or ReplayOptions()
        self.group_id = self._options.group_id or f"penstock-dlq-replay-{topic}"
        self.counts = ReplayCounts()
        self._progress: dict[TopicPartition, ReplayProgress] = {}
        self._positions: dict[TopicPartition, int] = {}
        """The offset of the next letter to visit, by partition that has letters to visit."""
        self._ends: dict[TopicPartition, int] = {}

    @property
    def remaining(self) -> int:
        """Number of offsets that the replay has not visited yet."""
        return sum(max(end - self._positions[tp], 0) for tp, end in self._ends.items())

    async def run(self, on_progress: Callable[[ReplayCounts], object] = lambda _: None) -> ReplayCounts:
        """Replay. Raises `UnknownTopic` for a missing topic, `ProducerFenced` if another replay of it has started, and
        other errors of `Producer` and `Consumer`: what was counted before is replayed."""
        async with AsyncExitStack() as stack:
            producer: Producer | None = None
            if not self._options.dry_run:
                # Before the progress is read: this fences another replay and ends its transaction.
                producer = Producer(
                    self._bootstrap,
                    security=self._security,
                    transactional_id=f"penstock-dlq-{self.group_id}",
                    auto_create_topics=False,
                )
                await stack.enter_async_context(producer)
            await self._load_progress()
            consumer = Consumer(
                self._bootstrap,
                security=self._security,
                isolation="read_committed",
                offset_reset="earliest",
                fetch_max_bytes=MAX_BUFFERED_BYTES,
                buffer_bytes=MAX_BUFFERED_BYTES,
                auto_create_topics=False,
            )
            await stack.enter_async_context(consumer)
            consumer.assign(list(self._ends))
            for tp, position in self._positions.items():
                consumer.seek(tp, position)
            await self._run(consumer, producer, on_progress)
        return self.counts

    async def _load_progress(self) -> None:
        """Restore the progress, and find the partitions that have letters to visit."""
        async with Admin(self._bootstrap, security=self._security) as admin:
            (topic,) = (await admin.describe_topics([self._topic])).values()
            partitions = [TopicPartition(self._topic, index) for index in sorted(topic.partitions)]
            ranges = await admin.ends(partitions)
            committed = await admin.committed(self.group_id, partitions)
        limits = self._options.ends
        for tp, (start, end) in ranges.items():
            last = end if limits is None else min(limits.get(tp, 0), end)
            progress = ReplayProgress.restore(committed.get(tp), start)
            self.counts.replayed += progress.replayed(self._options.run)
            position = max(progress.first_offset, start)
            if position < last:
                self._progress[tp], self._positions[tp], self._ends[tp] = progress, position, last

    async def _run(
        self, consumer: Consumer, producer: Producer | None, on_progress: Callable[[ReplayCounts], object]
    ) -> None:
        rate = self._options.rate_per_s
        max_records = MAX_BATCH_LETTERS if rate is None else max(1, min(int(rate), MAX_BATCH_LETTERS))
        loop = asyncio.get_running_loop()
        started_s, before = loop.time(), self.counts.replayed
        while not all([await consumer.position(tp) >= end for tp, end in self._ends.items()]):
            found = await consumer.getmany(timeout_ms=POLL_MS, max_records=max_records)
            batches = {tp: bounded for tp, records in found.items() if (bounded := self._below_end(tp, records))}
            consumer.pause(*[tp for tp in found if await consumer.position(tp) >= self._ends[tp]])
            if not batches:
                continue
            selected = {tp: self._select(tp, records) for tp, records in batches.items()}
            offsets = {
                tp: self._commit(tp, records[-1].offset + 1, len(selected[tp])) for tp, records in batches.items()
            }
            if producer is not None:
                await self._send(producer, [letter for letters in selected.values() for letter in letters], offsets)
            self.counts.replayed += sum(len(letters) for letters in selected.values())
            self._positions.update({tp: records[-1].offset + 1 for tp, records in batches.items()})
            on_progress(self.counts)
            if rate is not None:
                await asyncio.sleep(started_s + (self.counts.replayed - before) / rate - loop.time())
        self._positions = dict(self._ends)

    def _below_end(self, tp: TopicPartition, records: Sequence[Record]) -> Sequence[Record]:
        """Return the records below the end: a consumer of the replayed records may fail again, and its new letters must
        not extend the replay."""
        end = self._ends[tp]
        if records[-1].offset < end:
            return records
        return [record for record in records if record.offset < end]

    def _commit(self, tp: TopicPartition, position: int, replayed: int) -> OffsetAndMetadata:
        if self._options.run:
            self._progress[tp].count(self._options.run, replayed)
        return self._progress[tp].commit(position)

    def _select(self, tp: TopicPartition, records: Sequence[Record]) -> list[Letter]:
        """Return the letters to replay, and keep the others."""
        progress, selected = self._progress[tp], []
        for record in records:
            if not progress.visit(record.offset):
                continue
            letter = parse_letter(tp, record)
            is_selected = self._options.selection.matches(letter)
            if is_selected and letter.has_content and self._target(letter):
                selected.append(letter)
                continue
            progress.keep(record.offset)
            self.counts.empty += is_selected
            self.counts.kept += not is_selected
        return selected

    async def _send(
        self, producer: Producer, letters: Sequence[Letter], offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        """Send the original records and commit the progress, in one transaction."""
        async with producer.transaction():
            for letter in letters:
                target = self._target(letter)
                is_known = target == letter.topic and 0 <= letter.partition < await producer.partitions(target)
                await producer.send(
                    target,
                    letter.value,
                    key=letter.key,
                    headers=letter.headers,
                    partition=letter.partition if is_known else None,
                )
            await producer.send_offsets(offsets, self.group_id)

    def _target(self, letter: Letter) -> str:
        return self._options.target or letter.topic
