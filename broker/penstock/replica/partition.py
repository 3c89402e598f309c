"""A partition that this broker leads: takes in batches, says what readers may see, wakes those who wait.

Called by the Produce, Fetch and ListOffsets handlers for each partition of a request, and by the flusher when a flush
has returned. Runs on the event loop only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol
from uuid import UUID

from penstock.config.values import TopicConfig
from penstock.log.partition_log import PartitionLog
from penstock.log.types import LogDirFailed, LogFull, LogSlice, OffsetOutOfRange
from penstock.replica.producer_state import ProducerState, Remembered, Verdict
from penstock.runtime.clock import Clock
from penstock.wire.batch import BatchHeader, read_header, stamp, stamp_log_append_time
from penstock.wire.batch_check import validate_batch
from penstock.wire.errors import ErrorCode
from penstock.wire.records import iterate_records
from penstock.wire.schema import MalformedMessage

MAX_GROWTH = 8
"""How many times max.message.bytes a batch may grow to where the broker has to look inside (keys of compacted topics).
That happens on the event loop, so what it costs is bounded, by the number of records too."""
MAX_CHECKED_RECORDS = 250_000


class Appended(NamedTuple):
    """The outcome of an append. `required_offset` is what the high watermark must reach for acks=all."""

    error: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    required_offset: int = -1
    message: str | None = None


class Reader(Protocol):
    """Somebody who waits for data."""

    def on_data(self, grown_bytes: int) -> None:
        """Called when the high watermark has moved, with about how many bytes came below it."""

    def on_end(self) -> None:
        """Called when there is nothing to wait for any more: the partition was deleted, its disk has failed, or the
        broker stops."""


class CommitWaiter(NamedTuple):
    required_offset: int
    callback: Callable[[int], None]


VERDICTS = {
    Verdict.OUT_OF_ORDER: (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "a batch before this one is missing"),
    Verdict.FENCED: (ErrorCode.INVALID_PRODUCER_EPOCH, "a newer instance of this producer has taken over"),
    Verdict.OLD_DUPLICATE: (ErrorCode.DUPLICATE_SEQUENCE_NUMBER, "the batch was written long ago"),
}


class Partition:
    """The leader's role for one partition."""

    __slots__ = (
        "clock",
        "commit_waiters",
        "config",
        "deleted",
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
    ) -> None:
        self.name, self.topic_id, self.index = name, topic_id, index
        self.leader_epoch = leader_epoch
        self.log, self.producers, self.clock = log, producers, clock
        self.config: TopicConfig = log.config
        self.high_watermark = log.flushed_offset if log.config.flushes_each_batch else log.end_offset
        self.deleted = False
        self.messages_in = 0
        self.unseen_bytes = 0
        self.commit_waiters: deque[CommitWaiter] = deque()
        self.readers: dict[Reader, None] = {}
        log.on_flushed = self.on_flushed
        log.on_failed = self.on_failed
        log.retention_limit = self.readable_end

    def __repr__(self) -> str:
        return f"<Partition {self.name}-{self.index} epoch {self.leader_epoch}>"

    def readable_end(self) -> int:
        return self.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Without transactions nothing is undecided."""
        return self.high_watermark

    def reconfigure(self, config: TopicConfig) -> None:
        """Takes new settings; data that they count as written becomes visible at once."""
        self.config = config
        self.log.reconfigure(config)
        self.advance()

    def append(self, batch: memoryview) -> Appended:
        """Checks and appends the batch that a producer sent; `batch` is written to (offsets, epoch, perhaps times)."""
        header = validate_batch(batch, self.config.max_message_bytes)
        if isinstance(header, ErrorCode):
            return Appended(header, message=explain(header))
        if header.is_transactional:
            return Appended(ErrorCode.INVALID_TXN_STATE, message="a broker without a cluster has no transactions")
        refusal = self.check_times(header) or (self.check_keys(batch, header) if self.config.cleanup_compact else None)
        if refusal is not None:
            return refusal
        if header.producer_id >= 0:
            verdict, original = self.producers.check(header)
            if verdict is Verdict.DUPLICATE:
                assert original is not None
                return self.repeated(original)
            if verdict is not Verdict.APPEND:
                code, message = VERDICTS[verdict]
                return Appended(code, message=message)
        return self.write(batch, header)

    def write(self, batch: memoryview, header: BatchHeader) -> Appended:
        append_time_ms = -1
        if self.config.message_timestamp_log_append:
            append_time_ms = self.clock.wall_ms()
            stamp_log_append_time(batch, 0, len(batch), header.attributes, append_time_ms)
            header = read_header(batch)
        base_offset = self.log.end_offset
        stamp(batch, 0, base_offset, self.leader_epoch)
        header = BatchHeader(base_offset, header[1], self.leader_epoch, *header[3:])
        try:
            self.log.append(batch, header, self.leader_epoch)
        except LogFull as e:
            return Appended(ErrorCode.KAFKA_STORAGE_ERROR, message=str(e))
        except LogDirFailed as e:
            return Appended(ErrorCode.KAFKA_STORAGE_ERROR, message=str(e))
        if header.producer_id >= 0:
            self.producers.update(header, self.clock.boot_ms())
        self.messages_in += header.record_count
        self.unseen_bytes += len(batch)
        if not self.config.flushes_each_batch:
            self.advance()
        return Appended(0, base_offset, append_time_ms, self.log.end_offset)

    def repeated(self, original: Remembered) -> Appended:
        """The answer that the first attempt got, or would have got: it too waits for the high watermark."""
        append_time_ms = original.timestamp_ms if self.config.message_timestamp_log_append else -1
        return Appended(0, original.base_offset, append_time_ms, original.last_offset + 1)

    def check_times(self, header: BatchHeader) -> Appended | None:
        """Bounds on the client's timestamps (KIP-937), by the batch's first and largest."""
        config = self.config
        if config.message_timestamp_log_append or header.max_timestamp_ms < 0:
            return None
        now_ms = self.clock.wall_ms()
        if header.max_timestamp_ms - now_ms > config.message_timestamp_after_max_ms:
            message = f"timestamp {header.max_timestamp_ms} is too far ahead of the broker's clock, {now_ms}"
        elif now_ms - min(header.base_timestamp_ms, header.max_timestamp_ms) > config.message_timestamp_before_max_ms:
            message = f"timestamp {header.base_timestamp_ms} is too far behind the broker's clock, {now_ms}"
        else:
            return None
        return Appended(ErrorCode.INVALID_TIMESTAMP, message=message)

    def check_keys(self, batch: memoryview, header: BatchHeader) -> Appended | None:
        """A compacted topic takes no record without a key: nothing could ever replace it."""
        if header.record_count > MAX_CHECKED_RECORDS:
            message = f"a batch for compacted topic {self.name} may have {MAX_CHECKED_RECORDS} records"
            return Appended(ErrorCode.MESSAGE_TOO_LARGE, message=message)
        try:
            most = MAX_GROWTH * self.config.max_message_bytes
            if all(r.key is not None for r in iterate_records(batch, header, most)):
                return None
        except MalformedMessage as e:  # its CRC is right, so sending it again would not help
            return Appended(ErrorCode.INVALID_RECORD, message=str(e))
        return Appended(ErrorCode.INVALID_RECORD, message=f"topic {self.name} is compacted: each record needs a key")

    def read(self, offset: int, max_bytes: int, at_least_one: bool) -> LogSlice | None:
        """Batches below the high watermark from the one that holds `offset`; the caller releases the slice.

        Raises OffsetOutOfRange.
        """
        log = self.log
        if offset >= self.high_watermark:
            if offset > log.end_offset:
                raise OffsetOutOfRange(
                    f"offset {offset} is past the end, {log.end_offset}, of {self.name}-{self.index}"
                )
            return None
        return log.read(offset, max_bytes, self.high_watermark, at_least_one)

    def when_committed(self, required_offset: int, callback: Callable[[int], None]) -> None:
        """Calls back with an error code, 0 when the high watermark has reached `required_offset`.

        Offsets mostly come in rising order; a repeated batch may ask for an earlier one.
        """
        if self.log.failed is not None:
            callback(ErrorCode.KAFKA_STORAGE_ERROR)
            return
        waiters = self.commit_waiters
        waiter = CommitWaiter(required_offset, callback)
        if not waiters or waiters[-1].required_offset <= required_offset:
            waiters.append(waiter)
            return
        at = next(i for i, w in enumerate(waiters) if w.required_offset > required_offset)
        waiters.insert(at, waiter)

    def advance(self) -> None:
        """Moves the high watermark to what counts as written, and wakes those who waited for it."""
        log = self.log
        reached = log.flushed_offset if self.config.flushes_each_batch else log.end_offset
        if reached <= self.high_watermark:
            return
        grown = self.unseen_bytes
        if reached < log.end_offset:  # the rest came while this was being flushed, and is to wake readers too
            before = self.high_watermark
            grown = grown * (reached - before) // (log.end_offset - before)
        self.unseen_bytes -= grown
        self.high_watermark = reached
        waiters = self.commit_waiters
        while waiters and waiters[0].required_offset <= reached:
            waiters.popleft().callback(0)
        if self.readers:
            for reader in list(self.readers):
                reader.on_data(max(grown, 1))

    def on_flushed(self, log: PartitionLog) -> None:
        assert log is self.log
        self.advance()

    def on_failed(self, log: PartitionLog) -> None:
        """The log directory has stopped: nobody who waits will ever be served."""
        assert log is self.log
        self.fail_waiters(ErrorCode.KAFKA_STORAGE_ERROR)

    def on_deleted(self) -> None:
        self.deleted = True
        self.fail_waiters(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def fail_waiters(self, error: int) -> None:
        waiters, self.commit_waiters = self.commit_waiters, deque()
        for waiter in waiters:
            waiter.callback(error)
        for reader in list(self.readers):
            reader.on_end()


def explain(error: ErrorCode) -> str:
    """What is wrong with a batch, for clients that show a message."""
    return {
        ErrorCode.CORRUPT_MESSAGE: "the batch's bytes do not match its CRC or its sizes",
        ErrorCode.MESSAGE_TOO_LARGE: "the batch is larger than max.message.bytes",
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: "only record batches in format 2 are taken",
        ErrorCode.INVALID_RECORD: "the batch's header contradicts itself",
    }.get(error, error.name)
