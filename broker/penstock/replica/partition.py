"""The common base of a partition's roles: its log, the offsets that readers may see, and waiting readers.

`leader` and `follower` are the serving roles; each leader epoch gets a new object with the same log. Called by the
Fetch and ListOffsets handlers. Runs on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol
from uuid import UUID

from penstock.config.topic import TopicConfig
from penstock.log.partition_log import PartitionLog
from penstock.log.types import LogSlice, OffsetOutOfRange
from penstock.replica.producer_state import ProducerState
from penstock.runtime.clock import Clock
from penstock.state.view import SealView
from penstock.wire.errors import ErrorCode

UNSEALED_BYTES = 1 << 30
"""Stands for how much becomes visible when a partition is opened again: waiting readers respond with all of it."""


class Reader(Protocol):
    """A reader that waits for data."""

    def on_data(self, grown_bytes: int) -> None:
        """Handle a new high watermark; `grown_bytes` is about how much was committed, 0 if only the log start moved."""

    def on_end(self) -> None:
        """Handle the end of the wait: the partition was deleted or changed its role, its log was truncated, its disk
        has failed, or the broker stops."""


class PartitionDelivery(Protocol):
    """The delayed delivery of a led partition, for its readers: `delayed_delivery.LeaderDelivery`."""

    @property
    def visible_offset(self) -> int:
        """The offset below which consumers read: at most the high watermark."""

    @property
    def is_located(self) -> bool:
        """Whether the visible offset is known."""

    @property
    def delay_ms(self) -> int:
        """The topic's `delivery.delay.ms`."""

    @property
    def waiting(self) -> int:
        """Number of committed offsets that are not visible yet; 0 while that is not known."""

    @property
    def next_due_ms(self) -> int | None:
        """When the next record becomes visible, in ms since 1970; None if none is known to wait."""


class PartitionSchedule(Protocol):
    """The scheduled records of a led partition: `scheduled_delivery.LeaderSchedule`."""

    @property
    def is_loaded(self) -> bool:
        """Whether it is known which records wait."""

    @property
    def waiting(self) -> int:
        """Number of records that wait; 0 while that is not known."""

    @property
    def next_due_ms(self) -> int | None:
        """When the next record is due, in ms since 1970; None if none is known to wait."""


class Partition:
    """A role of this broker for one partition in one leader epoch."""

    __slots__ = (
        "checks_only_ends",
        "clock",
        "config",
        "deleted",
        "delivery",
        "ended",
        "flushes_each_batch",
        "gaps",
        "has_read_to_seal",
        "high_watermark",
        "index",
        "leader_epoch",
        "log",
        "messages_in",
        "name",
        "on_advance",
        "producers",
        "readers",
        "relayed_offset",
        "schedule",
        "seal_offset",
        "topic_id",
        "unseen_bytes",
    )

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
    ) -> None:
        self.name, self.topic_id, self.index = name, topic_id, index
        self.leader_epoch = leader_epoch
        self.log, self.producers, self.clock = log, producers, clock
        self.config: TopicConfig = log.config
        self.flushes_each_batch = log.config.flushes_each_batch
        self.checks_only_ends = log.config.checks_only_ends
        assert high_watermark <= log.end_offset, f"{high_watermark} is past the end of {log}"
        self.high_watermark = high_watermark
        self.delivery: PartitionDelivery | None = None
        """The delayed delivery of the records that this broker leads; None without `delivery.delay.ms`."""
        self.schedule: PartitionSchedule | None = None
        """The scheduled records that this broker leads; None without `delivery.schedule.enable`."""
        self.seal_offset = -1
        """The offset from which records are relayed to another partition; -1 if the partition is not sealed."""
        self.has_read_to_seal = False
        """Whether readers were woken for all that is visible of a sealed partition."""
        self.on_advance: Callable[[], None] | None = None
        """Called when a leader's high watermark or log start has moved, or its role ends: for the relay."""
        self.relayed_offset = -1
        """The offset up to which the relay has come, as stored; -1 if unknown."""
        self.gaps: tuple[tuple[int, int], ...] = ()
        """(first, end) of the ranges that were relayed before the partition was opened again."""
        self.deleted = False
        self.ended = False
        """Whether another role, or none, has replaced this one."""
        self.messages_in = 0
        self.unseen_bytes = 0
        self.readers: dict[Reader, None] = {}
        log.on_flushed = self.on_flushed
        log.on_failed = self.on_failed
        log.on_start_moved = self.on_start_moved
        log.retention_limit = self.readable_end
        producers.transactions.aborted.attach(log.host.files, log.directory)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.name}-{self.index} in epoch {self.leader_epoch}>"

    @property
    def key(self) -> tuple[UUID, int]:
        """The partition's (topic id, index)."""
        return self.topic_id, self.index

    def readable_end(self) -> int:
        """Return the offset below which records may be deleted or compacted: the last stable offset, or what is
        relayed of a sealed partition.

        Only the leader knows which scheduled records wait, so other replicas delete what the leader has deleted.
        """
        if self.config.delivery_schedule_enable:
            return self.log.start_offset
        return self.stable_end_of_relay

    @property
    def last_stable_offset(self) -> int:
        """The offset below which all transactions are decided: the end for read_committed readers."""
        return self.producers.transactions.stable_offset(self.high_watermark)

    @property
    def visible_offset(self) -> int:
        """The end for consumers: the high watermark, or less if records wait for their delivery or are relayed."""
        end = self.high_watermark if self.delivery is None else self.delivery.visible_offset
        return end if self.seal_offset < 0 else min(end, self.seal_offset)

    @property
    def visible_stable_offset(self) -> int:
        """The end for read_committed consumers."""
        return min(self.last_stable_offset, self.visible_offset)

    @property
    def is_limited(self) -> bool:
        """Whether consumers may not read all records below the high watermark."""
        return self.config.delivery_delay_ms > 0 or self.seal_offset >= 0 or bool(self.gaps)

    @property
    def acknowledged_end(self) -> int:
        """The end of the records that are acknowledged to producers, as far as this role knows."""
        return self.high_watermark

    def aborted_between(self, from_offset: int, to_offset: int) -> list[tuple[int, int]]:
        """Return (producer id, first offset) of aborted transactions in a range that ends at most at the last stable
        offset. Raises CorruptLog."""
        return self.producers.transactions.aborted_between(from_offset, to_offset, self.log.start_offset)

    def written_end(self) -> int:
        """Return the end of the log that counts as written: what is flushed, unless the topic's settings relax that."""
        return self.log.flushed_offset if self.flushes_each_batch else self.log.end_offset

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """Return (the largest epoch up to `epoch` in the log, the start offset of the next one); (-1, -1) if
        unknown."""
        return self.log.epoch_end_offset(epoch)

    def reconfigure(self, config: TopicConfig) -> None:
        """Apply new topic settings. Data that they count as written counts at once."""
        self.config, self.flushes_each_batch = config, config.flushes_each_batch
        self.checks_only_ends = config.checks_only_ends
        self.log.reconfigure(config)
        self.on_flushed(self.log)

    def read(self, offset: int, max_bytes: int, at_least_one: bool, limit_offset: int | None = None) -> LogSlice | None:
        """Return the batches from the one that contains `offset`, below the high watermark or `limit_offset`.

        The caller releases the slice. Raises OffsetOutOfRange.
        """
        log = self.log
        limit = self.high_watermark if limit_offset is None else limit_offset
        if offset >= limit:
            if offset > log.end_offset:
                raise OffsetOutOfRange(
                    f"offset {offset} is past the end, {log.end_offset}, of {self.name}-{self.index}"
                )
            return None
        return log.read(offset, max_bytes, limit, at_least_one)

    def read_visible(self, offset: int, max_bytes: int, at_least_one: bool, limit_offset: int) -> LogSlice | None:
        """Return the same as `read` for consumers, who skip the gaps as they do those of compaction."""
        for first, end in self.gaps:
            if offset < first:
                limit_offset = min(limit_offset, first)
                break
            offset = max(offset, min(end, self.log.end_offset)) if offset < end else offset
        return self.read(offset, max_bytes, at_least_one, limit_offset)

    def skip_gaps(self, offset: int) -> int:
        """Return the first offset from `offset` on that is not in a gap."""
        for first, end in self.gaps:
            if first <= offset < end:
                return end
        return offset

    @property
    def stable_end_of_relay(self) -> int:
        """The last stable offset, or the end of what is relayed of a sealed partition."""
        if self.seal_offset < 0:
            return self.last_stable_offset
        return min(self.last_stable_offset, max(self.relayed_offset, self.seal_offset))

    @property
    def unrelayed(self) -> int | None:
        """Number of committed offsets behind the seal that are not relayed; None if the partition is not sealed, or the
        relay has not started."""
        if self.seal_offset < 0 or self.relayed_offset < 0:
            return None
        return max(self.last_stable_offset - self.relayed_offset, 0)

    @property
    def replicated_watermark(self) -> int:
        """The high watermark for followers, which may serve consumers: they learn of seals and gaps only by the view.

        It is at least the log start, so that followers delete what the leader has deleted.
        """
        hidden = self.gaps[0][0] if self.gaps else self.seal_offset
        if hidden < 0:
            return self.high_watermark
        return max(min(self.high_watermark, hidden), min(self.log.start_offset, self.high_watermark))

    def start_seal(self) -> int:
        """Hide all records from the log end on from consumers, and return it. The seal is stored once all below it is
        committed."""
        self.seal_offset = self.log.end_offset
        return self.seal_offset

    def notify_readers(self, grown_bytes: int) -> None:
        """Let readers read after the high watermark has moved, unless it was past the seal before."""
        if self.seal_offset >= 0:
            had_read, self.has_read_to_seal = self.has_read_to_seal, self.visible_stable_offset >= self.seal_offset
            if had_read:
                return
        for reader in list(self.readers):
            reader.on_data(grown_bytes)

    def notify_relay(self) -> None:
        """Let the relay of a sealed partition continue."""
        if self.on_advance is not None:
            self.on_advance()

    def set_seal(self, seal: SealView | None) -> None:
        """Apply the partition's seal of the view; None if it has none."""
        self.has_read_to_seal = False
        self.seal_offset, self.gaps = (-1, ()) if seal is None else (seal.offset, seal.gaps)
        if self.seal_offset < 0:
            self.relayed_offset = -1
            self.wake_sealed_readers()
        self.notify_relay()

    def wake_sealed_readers(self) -> None:
        """Let readers read what was not visible while the partition was sealed."""
        for reader in list(self.readers):
            reader.on_data(UNSEALED_BYTES)

    def on_flushed(self, log: PartitionLog) -> None:
        """Handle a flush of the log."""

    def on_failed(self, log: PartitionLog) -> None:
        """Fail all waiters: the log directory has failed."""
        assert log is self.log, f"{self!r} heard of {log}, not of its own log"
        self.fail_waiters(ErrorCode.KAFKA_STORAGE_ERROR)

    def on_start_moved(self, log: PartitionLog) -> None:
        """Wake readers, whose responses include the log start."""
        self.notify_relay()
        for reader in list(self.readers):
            reader.on_data(0)

    def on_deleted(self) -> None:
        """End the role: the topic is deleted."""
        self.deleted = True
        self.end_role(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def end_role(self, error: int) -> None:
        """End the role and fail all waiters."""
        assert not self.ended, f"{self!r} has ended already"
        self.ended = True
        self.fail_waiters(error)
        self.notify_relay()

    def fail_waiters(self, error: int) -> None:
        """Fail all waiters with the error."""
        self.wake_readers()

    def wake_readers(self) -> None:
        """End the wait of all readers."""
        for reader in list(self.readers):
            reader.on_end()
