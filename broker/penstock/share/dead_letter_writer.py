"""Writes the dead letters of one share-partition, one batch after another, each exactly once (KIP-1191).

`led_partition` runs it while records await their letters. Each batch takes these steps: read the records, store the
share-partition's state with the batch, append the batch to the dead-letter topic, archive the records. The next write
of the state has the archived records. A step that fails is repeated with back-off for as long as the group has a
dead-letter topic; only records that await letters are held up. Letters that the topic itself rejects are dropped after
`MAX_REJECTIONS` attempts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from penstock.config.modern_groups import ShareGroupConfig
from penstock.log.types import LogError, LogSlice, OffsetOutOfRange
from penstock.replica.leader import Leader
from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock.share.dead_letter_logs import LetterResult
from penstock.share.dead_letter_records import (
    Failure,
    LetterSource,
    SourceRecords,
    encode_letters,
    failure_headers,
    letter_of,
    plan_letters,
)
from penstock.share.dead_letter_topics import DeadLetterTopics, DeadLetterTopicUnavailable
from penstock.share.dead_letters import DeadLetterState, DeadLetterTarget
from penstock.share.leader import SharePartitionLeader
from penstock.share.stats import ShareStats
from penstock.state.records import BadRecord
from penstock.state.store import StoreError
from penstock.wire.batch_builder import record_size_bound
from penstock.wire.errors import ErrorCode
from penstock.wire.record import Record
from penstock.wire.records import iterate_batches, iterate_records
from penstock.wire.schema import MalformedMessage

log = get_logger(__name__)

MAX_READ_BYTES = 1 << 20
"""Bytes of one read, unless a batch is larger, and upper bound of a batch of letters."""
MAX_DECOMPRESSED_BYTES = 64 << 20
WRITTEN = frozenset({ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER})
OUT_OF_SEQUENCE = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_PRODUCER_EPOCH})
REJECTED = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
    }
)
"""Errors of the letters themselves, which last as long as the topic's settings."""
MAX_REJECTIONS = 10
"""How often a topic may reject a batch of letters before its records are archived without them."""


class LetterLogs(Protocol):
    """The logs to which letters are written: `dead_letter_logs.DeadLetterLogs`."""

    async def append(self, target: DeadLetterTarget, batch: bytes) -> LetterResult:
        """Append a batch at the leader of a partition. Does not raise."""


class RetryDelays(NamedTuple):
    """The delays before a failed step is repeated, in seconds; each is twice the previous one, up to the maximum."""

    min_s: float = 1.0
    max_s: float = 30.0


@dataclass(frozen=True, slots=True)
class DeadLetterServices:
    """What the writers of a broker share. `new_producer_id` raises StoreError or BadRecord."""

    topics: DeadLetterTopics
    logs: LetterLogs
    new_producer_id: Callable[[], Awaitable[int]]
    clock: Clock
    stats: ShareStats = field(default_factory=ShareStats)
    retry: RetryDelays = field(default_factory=RetryDelays)


class DeadLetterWriteFailed(Exception):
    """A step failed and is to be repeated; the message has the reason."""


class ReadRange(NamedTuple):
    """Offsets and what a read of them returned."""

    first: int
    last: int
    found: SourceRecords


class DeadLetterWriter:
    """The writer of a share-partition's letters; `config` returns the current settings of its group."""

    def __init__(
        self,
        leader: SharePartitionLeader,
        role: Leader,
        services: DeadLetterServices,
        config: Callable[[], ShareGroupConfig],
    ) -> None:
        self._leader, self._role, self._services, self._config = leader, role, services, config
        self._letters = leader.partition.dead_letters
        self._read: ReadRange | None = None
        self._has_content = True
        """False after the topic has rejected the outstanding batch."""
        self._rejections = 0
        """How often it has."""

    async def run(self) -> None:
        """Write letters until no record awaits one, or this broker no longer leads the share-partition."""
        delays = self._services.retry
        retry_s = delays.min_s
        while not self._leader.is_fenced and self._letters.is_pending:
            try:
                await self._write_batch()
                retry_s = delays.min_s
            except (DeadLetterWriteFailed, DeadLetterTopicUnavailable, StoreError, BadRecord) as e:
                log.warning(
                    "cannot write dead letters",
                    partition=self._leader.key,
                    topic=self._config().dead_letter_topic,
                    pending=self._letters.pending,
                    reason=str(e),
                    retry_s=retry_s,
                )
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, delays.max_s)

    async def _write_batch(self) -> None:
        """Take the steps of one batch. Raises if one of them failed."""
        batch = self._letters.outstanding
        if batch is None:
            await self._plan()
        elif await self._services.topics.is_deleted(batch.target.topic_id):
            await self._plan_again(batch)
        batch = self._letters.outstanding
        if batch is None or not await self._leader.store_letters():
            return
        result = await self._services.logs.append(batch.target, await self._encode(batch))
        if not self._leader.is_fenced:
            await self._handle(batch, result)

    # --- planning

    async def _plan(self) -> None:
        """Make a batch of the first pending letters outstanding, or archive records that need none."""
        run = next(self._letters.runs())
        if not self._config().dead_letter_topic:
            self._archive(run.first, run.last)
            return
        target = await self._find_target()
        found = await self._read_source(run.first, run.last)
        max_bytes = self._max_bytes(target)
        planned = plan_letters(
            run.first,
            run.last,
            found,
            lambda offset, record: record_size(letter_of(record, self._headers(offset), max_bytes)),
            max_bytes,
        )
        if not planned.has_records:
            self._archive(planned.first, planned.first + planned.size - 1)
            return
        self._read = ReadRange(planned.first, planned.first + planned.size - 1, found)
        await self._make_outstanding(planned.first, planned.size, target)

    async def _plan_again(self, batch: DeadLetterState) -> None:
        """Choose another target for a batch whose topic was deleted, and its letters with it if it had them."""
        if self._config().dead_letter_topic:
            await self._make_outstanding(batch.first, batch.size, await self._find_target())
        else:
            self._letters.abandon()
            self._leader.write_soon()

    async def _find_target(self) -> DeadLetterTarget:
        return await self._services.topics.find(self._config().dead_letter_topic, self._role.index)

    async def _make_outstanding(self, first: int, size: int, target: DeadLetterTarget) -> None:
        new_id = await self._services.new_producer_id() if self._letters.needs_producer else None
        self._has_content, self._rejections = True, 0
        self._letters.plan(first, size, target, new_id)

    def _archive(self, first: int, last: int) -> None:
        """Archive records without letters."""
        self._letters.archive(first, last)
        self._leader.write_soon()

    def _max_bytes(self, target: DeadLetterTarget) -> int:
        topic = self._services.topics.topic(target.topic_id)
        return MAX_READ_BYTES if topic is None else min(topic.config.max_message_bytes, MAX_READ_BYTES)

    # --- reading

    async def _read_source(self, first: int, last: int) -> SourceRecords:
        """Read records of the partition. Raises DeadLetterWriteFailed."""
        unread = SourceRecords({}, last + 1, is_readable=False)
        if not self._config().copies_dead_letters:
            return unread
        start = self._role.log.start_offset
        if first < start:
            return unread._replace(end=min(last + 1, start))
        try:
            read = self._role.read(first, MAX_READ_BYTES, at_least_one=True)
            if read is None and self._role.high_watermark < self._role.log.end_offset:
                raise DeadLetterWriteFailed(
                    f"offset {first} is not committed yet; a new leader waits for its followers"
                )
            if read is None:
                return unread  # an unclean election has lost it
            try:
                return await asyncio.to_thread(decode_source, read, first, last)
            finally:
                read.release()
        except OffsetOutOfRange:
            return unread  # retention was faster
        except (LogError, OSError) as e:
            raise DeadLetterWriteFailed(f"cannot read the records: {e}") from e
        except MalformedMessage as e:
            log.error("dead letters lack their damaged records", partition=self._leader.key, error=str(e))
            return unread

    # --- writing

    def _headers(self, offset: int) -> list[tuple[str, bytes | None]]:
        """Return the headers of a letter."""
        partition, key = self._leader.partition, self._leader.key
        (run,) = partition.window.overlapping(offset, offset)
        times = self._letters.failures.get(offset)
        is_rejected = not partition.limits.policy.is_exhausted(run.delivery_count)
        failure = Failure(offset, run.delivery_count, is_rejected)
        if times is not None:
            now_ms, wall_ms = self._leader.now_ms(), self._services.clock.wall_ms()
            first_ms, last_ms = (int(wall_ms - (now_ms - at_ms)) for at_ms in (times.first_ms, times.last_ms))
            reason, was_rejected = times.cause
            is_rejected = is_rejected or was_rejected
            failure = Failure(offset, run.delivery_count, is_rejected, first_ms, last_ms, reason)
        return failure_headers(LetterSource(self._role.name, key.partition, key.group_id), failure)

    async def _encode(self, batch: DeadLetterState) -> bytes:
        """Return the outstanding batch."""
        read = self._read
        if read is None or (read.first, read.last) != (batch.first, batch.last):
            read = self._read = ReadRange(batch.first, batch.last, await self._read_batch(batch))
        max_bytes, records = self._max_bytes(batch.target), read.found.records if self._has_content else {}
        letters = [
            letter_of(records.get(offset), self._headers(offset), max_bytes)
            for offset in range(batch.first, batch.last + 1)
        ]
        return encode_letters(letters, batch, self._services.clock.wall_ms())

    async def _read_batch(self, batch: DeadLetterState) -> SourceRecords:
        """Read the records of a batch that an earlier leader planned, as far as the log has them."""
        records: dict[int, Record] = {}
        position = batch.first
        while position <= batch.last:
            found = await self._read_source(position, batch.last)
            records.update(found.records)
            position = max(found.end, position + 1)
        return SourceRecords(records, batch.last + 1)

    async def _handle(self, batch: DeadLetterState, result: LetterResult) -> None:
        """Archive the records of a batch that is written. Raises DeadLetterWriteFailed if it is not."""
        error, message = result
        if error in WRITTEN:
            self._read = None
            self._services.stats.dead_letters += batch.size
            self._letters.complete()
            self._leader.write_soon()
            return
        if error in OUT_OF_SEQUENCE and self._letters.needs_producer:
            await self._make_outstanding(batch.first, batch.size, batch.target)
        elif error in OUT_OF_SEQUENCE:
            self._letters.restart()
        elif error in REJECTED:
            self._has_content, self._rejections = False, self._rejections + 1
            if self._rejections == MAX_REJECTIONS:
                self._drop(batch, result)
                return
        raise DeadLetterWriteFailed(f"{error.name}{': ' if message else ''}{message}")

    def _drop(self, batch: DeadLetterState, result: LetterResult) -> None:
        """Archive the records of a batch that the topic rejects for good, without letters."""
        log.error(
            "the topic rejects dead letters: their records are archived without them",
            partition=self._leader.key,
            first_offset=batch.first,
            last_offset=batch.last,
            topic=self._config().dead_letter_topic,
            error=result.error.name,
            reason=result.message,
        )
        self._read = None
        self._services.stats.dropped_letters += batch.size
        self._letters.drop()
        self._leader.write_soon()


def record_size(record: Record) -> int:
    """Return the maximum encoded size of a record in bytes."""
    return record_size_bound(record.key, record.value, record.headers)


def decode_source(read: LogSlice, first: int, last: int) -> SourceRecords:
    """Decode the records of a read. Raises OSError, MalformedMessage. Runs in a thread."""
    data, end = read.file.read_at(read.position, read.size), max(read.next_offset, first + 1)
    records: dict[int, Record] = {}
    for header, batch in iterate_batches(data):
        end = max(end, header.last_offset + 1)
        if header.is_control or header.last_offset < first:
            continue
        for record in iterate_records(batch, header, MAX_DECOMPRESSED_BYTES):
            if first <= record.offset <= last:
                records[record.offset] = record
    return SourceRecords(records, min(end, last + 1))
