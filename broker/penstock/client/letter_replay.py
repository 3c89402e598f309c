"""Replays dead letters: sends their original records again, each letter once.

A transaction has the records and the progress, which is the committed offset of a group. A replay that was interrupted
continues there. Used by `penstock dlq replay`.
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
    progress; by default, its name is derived from the topic."""

    selection: LetterFilter = field(default_factory=LetterFilter)
    target: str = ""
    rate_per_s: float | None = None
    group_id: str = ""
    dry_run: bool = False


class LetterReplay:
    """A replay of one dead-letter topic, up to the end that it has at the start."""

    def __init__(
        self, bootstrap: str, topic: str, options: ReplayOptions | None = None, *, security: Security | None = None
    ) -> None:
        self._bootstrap, self._topic, self._security = bootstrap, topic, security
        self._options = options or ReplayOptions()
        self.group_id = self._options.group_id or f"penstock-dlq-replay-{topic}"
        self.counts = ReplayCounts()
        self._progress: dict[TopicPartition, ReplayProgress] = {}

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
            ends = await self._load_progress()
            consumer = Consumer(
                self._bootstrap,
                security=self._security,
                isolation="read_committed",
                offset_reset="earliest",
                auto_create_topics=False,
            )
            await stack.enter_async_context(consumer)
            consumer.assign(list(ends))
            for tp, progress in self._progress.items():
                consumer.seek(tp, progress.first_offset)
            await self._run(consumer, producer, ends, on_progress)
        return self.counts

    async def _load_progress(self) -> dict[TopicPartition, int]:
        """Restore the progress. Returns the end offsets of the partitions that have letters to visit."""
        async with Admin(self._bootstrap, security=self._security) as admin:
            (topic,) = (await admin.describe_topics([self._topic])).values()
            partitions = [TopicPartition(self._topic, index) for index in sorted(topic.partitions)]
            ranges = await admin.ends(partitions)
            committed = await admin.committed(self.group_id, partitions)
        ends: dict[TopicPartition, int] = {}
        for tp, (start, end) in ranges.items():
            progress = ReplayProgress.restore(committed.get(tp), start)
            if max(progress.first_offset, start) < end:
                self._progress[tp], ends[tp] = progress, end
        return ends

    async def _run(
        self,
        consumer: Consumer,
        producer: Producer | None,
        ends: Mapping[TopicPartition, int],
        on_progress: Callable[[ReplayCounts], object],
    ) -> None:
        rate = self._options.rate_per_s
        max_records = MAX_BATCH_LETTERS if rate is None else max(1, min(int(rate), MAX_BATCH_LETTERS))
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        while not all([await consumer.position(tp) >= end for tp, end in ends.items()]):
            batches = await consumer.getmany(timeout_ms=POLL_MS, max_records=max_records)
            if not batches:
                continue
            selected = [letter for tp, records in batches.items() for letter in self._select(tp, records)]
            offsets = {tp: self._progress[tp].commit(records[-1].offset + 1) for tp, records in batches.items()}
            if producer is not None:
                await self._send(producer, selected, offsets)
            self.counts.replayed += len(selected)
            on_progress(self.counts)
            if rate is not None:
                await asyncio.sleep(started_s + self.counts.replayed / rate - loop.time())

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
