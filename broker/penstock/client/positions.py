"""A consumer's partitions: where each one stands, what is buffered for it, whether it may be fetched.

Sans-io: `fetcher` fills, `consumer` takes. A position is the offset of the next record that the consumer hands out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice

from penstock.client.errors import ClientError, IllegalState
from penstock.client.types import SkippedBatch, TopicPartition
from penstock.wire.batch import BatchHeader
from penstock.wire.messages.fetch import AbortedTransaction
from penstock.wire.record import Record
from penstock.wire.records import iterate_batches, iterate_records
from penstock.wire.schema import MalformedMessage

MAX_DECOMPRESSED_BYTES = 512 * 1024 * 1024
"""What one batch may decompress to."""
CONTROL_ABORT = 0

Skip = Callable[[SkippedBatch], object]
"""Is told of each damaged batch that is left out."""


class PartitionState:
    """One assigned partition. `position` is -1 until it is known.

    `version` changes whenever what is under way for it must be thrown away: a seek, a new assignment. `read_from` is
    the replica that the leader prefers for this consumer until the loop's time `read_from_until` (KIP-392), else -1.
    """

    __slots__ = (
        "batches", "buffered_bytes", "committed", "error", "fetch_offset", "high_watermark", "index",
        "last_stable_offset", "log_start_offset", "paused", "position", "read_from", "read_from_until", "records",
        "reset_to", "retry_at", "skip", "tp", "version",
    )  # fmt: skip

    def __init__(self, tp: TopicPartition, skip: Skip | None = None) -> None:
        self.tp = tp
        self.skip = skip
        self.position = self.fetch_offset = -1
        self.version = 0
        self.paused = False
        self.committed = -1
        self.reset_to: int | None = None
        self.retry_at = 0.0
        self.read_from, self.read_from_until = -1, 0.0
        self.error: ClientError | None = None
        self.high_watermark = self.last_stable_offset = self.log_start_offset = -1
        self.batches: deque[tuple[BatchHeader, memoryview]] = deque()
        self.records: list[Record] = []
        self.index = 0
        self.buffered_bytes = 0

    def seek(self, offset: int) -> None:
        """Throws away what is buffered and goes on at `offset`."""
        self.version += 1
        self.position = self.fetch_offset = offset
        self.reset_to = None
        self.error = None
        self.batches.clear()
        self.records, self.index, self.buffered_bytes = [], 0, 0

    def reset(self, timestamp: int) -> None:
        """The position has to be looked up: the first offset at `timestamp`, or LATEST, EARLIEST."""
        self.seek(-1)
        self.reset_to = timestamp

    @property
    def has_records(self) -> bool:
        return self.index < len(self.records) or bool(self.batches)

    def fill(self, data: memoryview, aborted: list[AbortedTransaction] | None, committed_only: bool) -> None:
        """Adds the batches of a fetch answer that begins at `fetch_offset`. Raises MalformedMessage."""
        for header, batch in wanted_batches(data, aborted, committed_only):
            if header.last_offset < self.fetch_offset:
                continue
            self.fetch_offset = header.last_offset + 1
            if header.is_control or header.record_count == 0:
                # an empty view only moves the position on
                batch = batch[:0]
            self.batches.append((header, batch))
            self.buffered_bytes += len(batch)

    def take(self, max_records: int) -> list[Record]:
        """The next records, up to `max_records`, and the position behind them.

        Raises MalformedMessage where the very next batch is damaged, and does so until there is a seek.
        """
        taken: list[Record] = []
        while len(taken) < max_records:
            try:
                if not self.advance():
                    break
            except MalformedMessage:
                if taken:
                    break
                raise
            more = list(islice(self.records, self.index, self.index + max_records - len(taken)))
            self.index += len(more)
            self.position = more[-1].offset + 1
            taken = taken + more if taken else more
        return taken

    def next(self) -> Record | None:
        """One record, or None."""
        if self.index >= len(self.records) and not self.advance():
            return None
        record = self.records[self.index]
        self.index += 1
        self.position = record.offset + 1
        return record

    def advance(self) -> bool:
        """Makes `records[index]` the next record, decoding a batch where needed; False where there is none.

        A batch whose records are damaged is left out where `skip` is set. Otherwise this raises MalformedMessage, and
        leaves everything as it was.
        """
        while self.index >= len(self.records):
            if self.records:
                self.records, self.index = [], 0
            if not self.batches:
                return False
            header, batch = self.batches[0]
            try:
                decoded = list(iterate_records(batch, header, MAX_DECOMPRESSED_BYTES)) if batch else []
            except MalformedMessage as e:
                if self.skip is None:
                    raise
                decoded = []
                self.skip(SkippedBatch(self.tp, header.base_offset, header.last_offset, str(e)))
            self.batches.popleft()  # only now: one that cannot be decoded stays in the way
            self.buffered_bytes -= len(batch)
            if batch:
                if header.base_offset < self.position:
                    decoded = [record for record in decoded if record.offset >= self.position]
                self.records, self.index = decoded, 0
            if not self.records:
                self.position = max(self.position, header.last_offset + 1)
        return True


def wanted_batches(
    data: memoryview, aborted: list[AbortedTransaction] | None, committed_only: bool
) -> Iterable[tuple[BatchHeader, memoryview]]:
    """The batches of a fetch answer; those of aborted transactions are empty views (KIP-98)."""
    pending = sorted(aborted or (), key=lambda a: a.first_offset) if committed_only else []
    open_aborted: set[int] = set()
    start = 0
    for header, batch in iterate_batches(data):
        while start < len(pending) and pending[start].first_offset <= header.last_offset:
            open_aborted.add(pending[start].producer_id)
            start += 1
        if header.is_control:
            if open_aborted and is_abort_marker(header, batch):
                open_aborted.discard(header.producer_id)
            yield header, batch[:0]
        elif header.is_transactional and header.producer_id in open_aborted:
            yield header, batch[:0]
        else:
            yield header, batch


def is_abort_marker(header: BatchHeader, batch: memoryview) -> bool:
    """Whether a control batch ends a transaction by aborting: its record's key is (version int16, type int16)."""
    for record in iterate_records(batch, header, MAX_DECOMPRESSED_BYTES):
        return record.key is not None and len(record.key) >= 4 and record.key[3] == CONTROL_ABORT
    return False


class Positions:
    """The assigned partitions by name. With `skip` damaged batches are left out and reported to it."""

    def __init__(self, skip: Skip | None = None) -> None:
        self.skip = skip
        self.states: dict[TopicPartition, PartitionState] = {}
        self._turn = 0

    def assign(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Makes exactly these the assigned ones; those that stay keep their state. Returns the new ones."""
        wanted = dict.fromkeys(partitions)
        new = {tp for tp in wanted if tp not in self.states}
        for tp, state in self.states.items():
            if tp not in wanted:
                state.version += 1  # what is under way for it will not be taken
        self.states = {tp: self.states.get(tp) or PartitionState(tp, self.skip) for tp in wanted}
        return new

    def of(self, tp: TopicPartition) -> PartitionState:
        """Raises `IllegalState` for a partition that is not assigned."""
        state = self.states.get(tp)
        if state is None:
            raise IllegalState(f"{tp} is not assigned to this consumer")
        return state

    def in_turn(self) -> list[PartitionState]:
        """All states, beginning with another one each time, so that none starves."""
        states = list(self.states.values())
        if not states:
            return states
        self._turn = (self._turn + 1) % len(states)
        return states[self._turn :] + states[: self._turn]
