"""The follower role of one partition: appends the leader's batches unchanged, and truncates what the leader lacks.

`fetcher` sends the requests and passes the responses. Divergence is found by the ends of leader epochs (KIP-101,
KIP-279, KIP-595), never by the high watermark. Runs on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from enum import Enum
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from penstock.log.partition_log import PartitionLog
from penstock.log.types import LogError
from penstock.replica.partition import Partition
from penstock.replica.producer_state import ProducerState
from penstock.replica.throttle import Throttles
from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock.wire.batch import HEADER_SIZE, BatchHeader, checksum, read_header
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.fetch import PartitionData
from penstock.wire.primitives import Buffer

logger = get_logger("penstock.replica")

MAGIC = 2


class FollowerStep(Enum):
    """What the fetcher must do next."""

    CONTINUE = "continue"
    BACK_OFF = "back off"
    """Retry after a backoff, or when the view has changed."""
    WAIT = "wait"
    """Work on the log has started; the follower calls when it is done."""


class FollowerPosition(NamedTuple):
    """A follower's state as reported to the leader. Nothing below `log_start_offset` reappears after a crash."""

    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    flushed_offset: int
    log_start_offset: int


class LeaderSource(Protocol):
    """The fetcher of a follower."""

    def on_change(self, follower: Follower) -> None:
        """Handle a changed position: more is flushed, or work on the log is done."""

    def on_failure(self, follower: Follower) -> None:
        """Handle failed work on the log."""


class FollowerHost(Protocol):
    """What a follower needs of its broker."""

    throttles: Throttles

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run work on the log as a task."""

    def may_discard(self) -> bool:
        """Return whether data may be truncated: not while the store may have been restored from a backup."""


class Follower(Partition):
    """The follower role with one leader in one leader epoch."""

    __slots__ = ("host", "is_moving_start", "leader_id", "source", "work")

    def __init__(
        self,
        name: str,
        topic_id: UUID,
        index: int,
        leader_epoch: int,
        log: PartitionLog,
        producers: ProducerState,
        clock: Clock,
        high_watermark: int,
        *,
        leader_id: int,
        host: FollowerHost,
    ) -> None:
        super().__init__(name, topic_id, index, leader_epoch, log, producers, clock, high_watermark)
        self.leader_id, self.host = leader_id, host
        self.source: LeaderSource | None = None
        self.work: asyncio.Task[None] | None = None
        """Work on the log, during which nothing is appended."""
        self.is_moving_start = False

    @property
    def position(self) -> FollowerPosition:
        """The current position, as reported to the leader."""
        log = self.log
        start_offset = min(log.start_offset, log.durable_start_offset)
        return FollowerPosition(self.leader_epoch, log.end_offset, log.latest_epoch, self.written_end(), start_offset)

    @property
    def is_flushed(self) -> bool:
        """Whether the whole log counts as flushed."""
        return self.written_end() >= self.log.end_offset

    @property
    def copy_rate(self) -> int | None:
        """The current fetch rate limit in bytes per second, None if unlimited."""
        return self.host.throttles.fetch_rate(self.key, self.config)

    def apply_fetch(self, data: PartitionData, requested: FollowerPosition) -> FollowerStep:
        """Apply the leader's response to a fetch at `requested`."""
        log = self.log
        if self.ended or self.work is not None:
            return FollowerStep.WAIT
        if requested.fetch_offset != log.end_offset or requested.leader_epoch != self.leader_epoch:
            return FollowerStep.CONTINUE  # the position has changed since the request
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return self.handle_out_of_range(data.log_start_offset)
        if data.error_code:
            return FollowerStep.BACK_OFF
        if data.diverging_epoch.end_offset >= 0:
            return self.truncate_diverging(data.diverging_epoch.epoch, data.diverging_epoch.end_offset)
        outcome = self.append_batches(data.records) if data.records else FollowerStep.CONTINUE
        self.update_watermarks(data.high_watermark, data.log_start_offset)
        return outcome

    # Records

    def append_batches(self, records: Buffer) -> FollowerStep:
        """Append whole batches, up to the first invalid one."""
        view = memoryview(records)
        position, size = 0, len(view)
        while size - position >= HEADER_SIZE:
            header = read_header(view, position)
            end = position + header.size_bytes
            if end > size:
                break
            defect = self.find_defect(view, position, header)
            if defect is not None:
                logger.error("rejected a batch from the leader", partition=repr(self), reason=defect)
                return FollowerStep.BACK_OFF
            outcome = self.prepare_append(view[position:end], header)
            if outcome is not None:
                return outcome
            try:
                self.log.append(view[position:end], header, header.leader_epoch)
            except LogError as e:
                logger.warning("follower cannot append", partition=repr(self), reason=str(e))
                return FollowerStep.BACK_OFF
            self.replay(view[position:end], header)
            self.unseen_bytes += end - position
            position = end
        return FollowerStep.CONTINUE if position else FollowerStep.BACK_OFF

    def replay(self, batch: memoryview, header: BatchHeader) -> None:
        """Update the producer state, as recovery would."""
        if header.is_control:
            self.log.state.replay_control(header, batch)
        else:
            self.log.state.replay(header)

    def find_defect(self, view: memoryview, position: int, header: BatchHeader) -> str | None:
        """Return why a batch is invalid, None if it is valid."""
        if (
            header.magic != MAGIC
            or header.size_bytes < HEADER_SIZE
            or header.base_offset < 0
            or header.last_offset_delta < 0
        ):
            return f"invalid header: {header}"
        if checksum(view, position, header.size_bytes) != header.crc:
            return f"the CRC of the batch at offset {header.base_offset} is defect"
        if not self.log.latest_epoch <= header.leader_epoch <= self.leader_epoch:
            return f"leader epoch {header.leader_epoch} after {self.log.latest_epoch}"
        if header.base_offset < self.log.end_offset and not self.contains_start(header):
            return f"offset {header.base_offset} is below the log end {self.log.end_offset}"
        return None

    def contains_start(self, header: BatchHeader) -> bool:
        """Return whether an empty log starts within this batch, which then arrives whole."""
        log = self.log
        return log.start_offset == log.end_offset <= header.last_offset

    def prepare_append(self, batch: memoryview, header: BatchHeader) -> FollowerStep | None:
        """Start the work that a batch requires that does not begin at the log end, if any."""
        log = self.log
        if header.base_offset < log.end_offset:
            return self.start_work(self.start_with(bytes(batch), header))
        if header.base_offset > log.end_offset and not log.gaps:  # the leader's log is compacted
            return self.start_work(log.permit_gaps())
        return None

    async def start_with(self, batch: bytes, header: BatchHeader) -> None:
        """Start an empty log with the batch that contains its first offset."""
        await self.log.truncate_fully_and_start_at(header.base_offset)
        self.high_watermark = header.base_offset
        self.wake_readers()
        await self.log.ensure_prepared()
        self.log.append(memoryview(batch), header, header.leader_epoch)
        self.replay(memoryview(batch), header)

    def update_watermarks(self, high_watermark: int, log_start_offset: int) -> None:
        """Follow the leader's high watermark, up to the log end, and its log start."""
        log = self.log
        reached = min(high_watermark, log.end_offset)
        if reached > self.high_watermark:
            grown, self.unseen_bytes = self.unseen_bytes, 0
            self.high_watermark = reached
            for reader in list(self.readers):
                reader.on_data(max(grown, 1))
        start = min(log_start_offset, self.high_watermark)
        if start > log.durable_start_offset and not self.is_moving_start and self.host.may_discard():
            self.is_moving_start = True
            self.host.spawn(self.move_start(start))

    async def move_start(self, offset: int) -> None:
        """Delete the records that the leader has deleted, and report that. If it fails, the leader repeats its log
        start when the partition is named next."""
        moved = False
        try:
            if not self.ended and self.work is None and offset <= self.log.end_offset:
                await self.log.delete_records_before(offset)
                moved = True
        finally:
            self.is_moving_start = False
            if moved and self.source is not None and not self.ended:
                self.source.on_change(self)

    # Truncation

    def truncate_diverging(self, epoch: int, end_offset: int) -> FollowerStep:
        """Truncate to where this log diverges from the leader's, which ends `epoch` at `end_offset`.

        If this log lacks that epoch, all later epochs are truncated, and the next response narrows it further.
        """
        log = self.log
        _, own_end = log.epoch_end_offset(epoch)
        offset = end_offset if own_end < 0 else min(own_end, end_offset)
        if offset >= log.end_offset:
            logger.error("invalid divergence from the leader: past this log's end", partition=repr(self))
            return FollowerStep.BACK_OFF
        if not self.host.may_discard():
            return FollowerStep.BACK_OFF
        if offset < self.high_watermark:
            logger.error(
                "truncating below the high watermark", partition=repr(self), offset=offset, was=self.high_watermark
            )
        return self.start_work(self.truncate(offset))

    async def truncate(self, offset: int) -> None:
        """Truncate the log, and lower the high watermark if needed."""
        logger.info("follower truncates its log", partition=repr(self), to=offset, end=self.log.end_offset)
        await self.log.truncate_to(offset)
        self.unseen_bytes = 0
        if self.log.end_offset < self.high_watermark:
            self.high_watermark = self.log.end_offset
            self.wake_readers()

    def handle_out_of_range(self, leader_start: int) -> FollowerStep:
        """Restart at the leader's log start: the leader no longer has the offset of this log's end."""
        if leader_start < 0 or not self.host.may_discard():
            return FollowerStep.BACK_OFF
        return self.start_work(self.start_over(leader_start))

    async def start_over(self, offset: int) -> None:
        """Remove all data and start at the offset."""
        logger.info(
            "follower restarts at the leader's log start", partition=repr(self), at=offset, end=self.log.end_offset
        )
        await self.log.truncate_fully_and_start_at(offset)
        self.high_watermark = offset
        self.unseen_bytes = 0
        self.wake_readers()

    def start_work(self, work: Coroutine[Any, Any, None]) -> FollowerStep:
        """Start work on the log. Nothing is fetched until it is done."""
        assert self.work is None, f"{self!r} has work in progress"
        self.work = self.host.spawn(self.guarded(work))
        return FollowerStep.WAIT

    async def guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work on the log, and notify the fetcher."""
        failed = True
        try:
            await work
            failed = False
        finally:
            self.work = None
            source = self.source
            if source is not None and not self.ended:
                (source.on_failure if failed else source.on_change)(self)

    # Callbacks of the log

    def on_flushed(self, log: PartitionLog) -> None:
        """Report the new flushed offset to the leader."""
        assert log is self.log, f"{self!r} heard of {log}, not of its own log"
        if self.source is not None and not self.ended:
            self.source.on_change(self)
