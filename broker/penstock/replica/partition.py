"""What the roles of a partition in this broker share: its log, what readers may see of it, who waits for data.

`leader` and `follower` have the two roles that serve; a partition whose leadership moves gets another object with the
same log. Called by the Fetch and ListOffsets handlers for each partition of a request. Runs on the event loop only.
"""

from __future__ import annotations

from typing import Protocol
from uuid import UUID

from penstock.config.values import TopicConfig
from penstock.log.partition_log import PartitionLog
from penstock.log.types import LogSlice, OffsetOutOfRange
from penstock.replica.producer_state import ProducerState
from penstock.runtime.clock import Clock
from penstock.wire.errors import ErrorCode


class Reader(Protocol):
    """Somebody who waits for data."""

    def on_data(self, grown_bytes: int) -> None:
        """Called when the high watermark has moved, with about how many bytes came below it; with 0 when it was the
        log's start that has moved."""

    def on_end(self) -> None:
        """Called when there is nothing to wait for any more: the partition was deleted or has another role now, its log
        begins anew or was cut, its disk has failed, or the broker stops."""


class Partition:
    """A role of this broker for one partition; `leader_epoch` is that in which it holds."""

    __slots__ = (
        "clock",
        "config",
        "deleted",
        "ended",
        "flushes_each_batch",
        "high_watermark",
        "index",
        "leader_epoch",
        "log",
        "messages_in",
        "name",
        "producers",
        "readers",
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
        assert high_watermark <= log.end_offset, f"{high_watermark} is past the end of {log}"
        self.high_watermark = high_watermark
        self.deleted = False
        self.ended = False
        """Whether another role has taken over, or none."""
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
        return self.topic_id, self.index

    def readable_end(self) -> int:
        """What may be dropped or compacted lies below: not what is undecided."""
        return self.last_stable_offset

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction is decided: the end of what read_committed readers see."""
        return self.producers.transactions.stable_offset(self.high_watermark)

    @property
    def acknowledged_end(self) -> int:
        """The end of what producers have been told is stored, as far as this role knows it."""
        return self.high_watermark

    def aborted_between(self, from_offset: int, to_offset: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of the aborted transactions in a range that ends at the last stable offset or
        before. Raises CorruptLog."""
        return self.producers.transactions.aborted_between(from_offset, to_offset, self.log.start_offset)

    def written_end(self) -> int:
        """Up to where the log counts as this broker's: what is on its disk, unless the topic relaxes that."""
        return self.log.flushed_offset if self.flushes_each_batch else self.log.end_offset

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """(the largest epoch up to `epoch` that wrote, the first offset of the next one); (-1, -1) where unknown."""
        return self.log.epoch_end_offset(epoch)

    def reconfigure(self, config: TopicConfig) -> None:
        """Takes new settings; data that they count as written counts at once."""
        self.config, self.flushes_each_batch = config, config.flushes_each_batch
        self.log.reconfigure(config)
        self.on_flushed(self.log)

    def read(self, offset: int, max_bytes: int, at_least_one: bool, limit_offset: int | None = None) -> LogSlice | None:
        """Batches below the high watermark, or below `limit_offset` where given, from the one that holds `offset`; the
        caller releases the slice. Raises OffsetOutOfRange.
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

    def on_flushed(self, log: PartitionLog) -> None:
        """More of the log is on disk."""

    def on_failed(self, log: PartitionLog) -> None:
        """The log directory has stopped: nobody who waits will ever be served."""
        assert log is self.log
        self.fail_waiters(ErrorCode.KAFKA_STORAGE_ERROR)

    def on_start_moved(self, log: PartitionLog) -> None:
        """Readers are told with their next answer: where they are, nothing has changed."""
        for reader in list(self.readers):
            reader.on_data(0)

    def on_deleted(self) -> None:
        self.deleted = True
        self.end(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def end(self, error: int) -> None:
        """The role is over; who waits is told why."""
        self.ended = True
        self.fail_waiters(error)

    def fail_waiters(self, error: int) -> None:
        self.wake_readers()

    def wake_readers(self) -> None:
        """There is nothing to wait for any more."""
        for reader in list(self.readers):
            reader.on_end()
