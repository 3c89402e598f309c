"""The follower's role for one partition: takes over the leader's batches as they are, cuts off what the leader lacks.

`fetcher` asks the leader for it and hands it the answers. Where the log has parted from the leader's is found by the
ends of leader epochs (KIP-101, KIP-279, KIP-595), never by the high watermark. Runs on the event loop only.
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
    """What a follower's fetcher is to do about it."""

    GO_ON = "go on"
    REST = "rest"
    """Try again after a while, or when the view has changed."""
    WAIT = "wait"
    """Work on the log has begun: it calls when that is done."""


class FollowerPosition(NamedTuple):
    """What a follower tells its leader of itself; a crash brings back nothing below
    `log_start_offset`."""

    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    flushed_offset: int
    log_start_offset: int


class LeaderSource(Protocol):
    """The fetcher, for the followers that it serves."""

    def on_change(self, follower: Follower) -> None:
        """Its place is another now: more is flushed, or work on its log has ended."""

    def on_trouble(self, follower: Follower) -> None:
        """Work on its log has failed."""


class FollowerHost(Protocol):
    """What a follower needs of its broker."""

    throttles: Throttles

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]: ...

    def may_discard(self) -> bool:
        """Whether data may be cut off: not while the store's past is in doubt."""


class Follower(Partition):
    """The role under one leader in one leader epoch."""

    __slots__ = ("host", "leader_id", "moving_start", "source", "work")

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
        """Work on the log during which nothing may be appended to it."""
        self.moving_start = False

    @property
    def place(self) -> FollowerPosition:
        log = self.log
        start_offset = min(log.start_offset, log.durable_start_offset)
        return FollowerPosition(self.leader_epoch, log.end_offset, log.latest_epoch, self.written_end(), start_offset)

    @property
    def is_flushed(self) -> bool:
        return self.written_end() >= self.log.end_offset

    @property
    def copy_rate(self) -> int | None:
        """The most bytes a second that may be fetched of it now; None is no bound."""
        return self.host.throttles.rate_of_own(self.key, self.config)

    def take(self, data: PartitionData, asked: FollowerPosition) -> FollowerStep:
        """Takes in the leader's answer to a fetch at `asked`."""
        log = self.log
        if self.ended or self.work is not None:
            return FollowerStep.WAIT
        if asked.fetch_offset != log.end_offset or asked.leader_epoch != self.leader_epoch:
            return FollowerStep.GO_ON  # an answer to what is no longer the question
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return self.begin_anew(data.log_start_offset)
        if data.error_code:
            return FollowerStep.REST
        if data.diverging_epoch.end_offset >= 0:
            return self.cut(data.diverging_epoch.epoch, data.diverging_epoch.end_offset)
        outcome = self.append_all(data.records) if data.records else FollowerStep.GO_ON
        self.take_marks(data.high_watermark, data.log_start_offset)
        return outcome

    # Records

    def append_all(self, records: Buffer) -> FollowerStep:
        """Appends whole batches; stops at the first that cannot follow."""
        view = memoryview(records)
        position, size = 0, len(view)
        while size - position >= HEADER_SIZE:
            header = read_header(view, position)
            end = position + header.size_bytes
            if end > size:
                break
            wrong = self.objection(view, position, header)
            if wrong is not None:
                logger.error("a batch from the leader is not taken", partition=repr(self), reason=wrong)
                return FollowerStep.REST
            outcome = self.make_room(view[position:end], header)
            if outcome is not None:
                return outcome
            try:
                self.log.append(view[position:end], header, header.leader_epoch)
            except LogError as e:
                logger.warning("a follower cannot append", partition=repr(self), reason=str(e))
                return FollowerStep.REST
            self.replay(view[position:end], header)
            self.unseen_bytes += end - position
            position = end
        return FollowerStep.GO_ON if position else FollowerStep.REST

    def replay(self, batch: memoryview, header: BatchHeader) -> None:
        """Brings what is known of producers to the log's new end, as recovery would."""
        if header.is_control:
            self.log.state.replay_control(header, batch)
        else:
            self.log.state.replay(header)

    def objection(self, view: memoryview, position: int, header: BatchHeader) -> str | None:
        """Why a batch is not sound."""
        if header.magic != MAGIC or header.size_bytes < HEADER_SIZE or header.last_offset_delta < 0:
            return f"its header is not one: {header}"
        if checksum(view, position, header.size_bytes) != header.crc:
            return f"the CRC of the batch at offset {header.base_offset} is wrong"
        if not self.log.latest_epoch <= header.leader_epoch <= self.leader_epoch:
            return f"it is of leader epoch {header.leader_epoch}, after {self.log.latest_epoch}"
        if header.base_offset < self.log.end_offset and not self.is_middle_of_start(header):
            return f"its offset {header.base_offset} is behind the end of the log, {self.log.end_offset}"
        return None

    def is_middle_of_start(self, header: BatchHeader) -> bool:
        """Whether an empty log is to begin within a batch, which then comes whole."""
        log = self.log
        return log.start_offset == log.end_offset <= header.last_offset

    def make_room(self, batch: memoryview, header: BatchHeader) -> FollowerStep | None:
        """Where a batch does not begin at the log's end, what has to be done first."""
        log = self.log
        if header.base_offset < log.end_offset:
            return self.begin(self.start_with(bytes(batch), header))
        if header.base_offset > log.end_offset and not log.gaps:  # the leader's log was compacted
            return self.begin(log.permit_gaps())
        return None

    async def start_with(self, batch: bytes, header: BatchHeader) -> None:
        """Begins an empty log with a batch that holds its first offset; the leader does not have it by its own."""
        await self.log.truncate_fully_and_start_at(header.base_offset)
        self.high_watermark = header.base_offset
        self.wake_readers()
        await self.log.ensure_prepared()
        self.log.append(memoryview(batch), header, header.leader_epoch)
        self.replay(memoryview(batch), header)

    def take_marks(self, high_watermark: int, log_start_offset: int) -> None:
        """Follows the leader's high watermark, as far as this log goes, and where its log starts."""
        log = self.log
        reached = min(high_watermark, log.end_offset)
        if reached > self.high_watermark:
            grown, self.unseen_bytes = self.unseen_bytes, 0
            self.high_watermark = reached
            for reader in list(self.readers):
                reader.on_data(max(grown, 1))
        start = min(log_start_offset, self.high_watermark)
        if start > log.durable_start_offset and not self.moving_start and self.host.may_discard():
            self.moving_start = True
            self.host.spawn(self.move_start(start))

    async def move_start(self, offset: int) -> None:
        """Deletes what the leader has deleted, and has it told. Where that cannot be now, the leader says it again when
        this partition is named next."""
        moved = False
        try:
            if not self.ended and self.work is None and offset <= self.log.end_offset:
                await self.log.delete_records_before(offset)
                moved = True
        finally:
            self.moving_start = False
            if moved and self.source is not None and not self.ended:
                self.source.on_change(self)

    # Cutting

    def cut(self, epoch: int, end_offset: int) -> FollowerStep:
        """Truncates to where the leader's log and this one part, which it says is in `epoch` at most at `end_offset`.

        Where this log does not have that epoch, all that later epochs wrote goes, and the next fetch tells more.
        """
        log = self.log
        _, own_end = log.epoch_end_offset(epoch)
        offset = end_offset if own_end < 0 else min(own_end, end_offset)
        if offset >= log.end_offset:
            logger.error("the leader says that logs part behind the end of this one", partition=repr(self))
            return FollowerStep.REST
        if not self.host.may_discard():
            return FollowerStep.REST
        if offset < self.high_watermark:
            logger.error("what was committed is cut off", partition=repr(self), offset=offset, was=self.high_watermark)
        return self.begin(self.truncate(offset))

    async def truncate(self, offset: int) -> None:
        logger.info("a follower truncates", partition=repr(self), to=offset, end=self.log.end_offset)
        await self.log.truncate_to(offset)
        self.unseen_bytes = 0
        if self.log.end_offset < self.high_watermark:
            self.high_watermark = self.log.end_offset
            self.wake_readers()

    def begin_anew(self, leader_start: int) -> FollowerStep:
        """Starts from the leader's first offset: it has nothing any more of what this log would go on with."""
        if leader_start < 0 or not self.host.may_discard():
            return FollowerStep.REST
        return self.begin(self.start_over(leader_start))

    async def start_over(self, offset: int) -> None:
        logger.info("a follower starts anew", partition=repr(self), at=offset, end=self.log.end_offset)
        await self.log.truncate_fully_and_start_at(offset)
        self.high_watermark = offset
        self.unseen_bytes = 0
        self.wake_readers()

    def begin(self, work: Coroutine[Any, Any, None]) -> FollowerStep:
        """Starts work on the log, until whose end nothing is fetched."""
        assert self.work is None, f"{self!r} has work under way"
        self.work = self.host.spawn(self.guarded(work))
        return FollowerStep.WAIT

    async def guarded(self, work: Coroutine[Any, Any, None]) -> None:
        failed = True
        try:
            await work
            failed = False
        finally:
            self.work = None
            source = self.source
            if source is not None and not self.ended:
                (source.on_trouble if failed else source.on_change)(self)

    # What happens around it

    def on_flushed(self, log: PartitionLog) -> None:
        assert log is self.log
        if self.source is not None and not self.ended:
            self.source.on_change(self)
