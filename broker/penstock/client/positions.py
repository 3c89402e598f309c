"""A consumer's assigned partitions: positions, buffered batches, and whether they can be fetched.

No I/O: `fetcher` appends batches, `consumer` reads records. A position is the offset of the next record that the
consumer returns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice

from penstock.client.errors import ClientError, IllegalState
from penstock.client.types import SkippedBatch, TopicPartition
from penstock.filter import RecordFilter
from penstock.wire.batch import BatchHeader
from penstock.wire.messages.fetch import AbortedTransaction
from penstock.wire.record import Record
from penstock.wire.records import iterate_batches, iterate_records
from penstock.wire.schema import MalformedMessage

MAX_DECOMPRESSED_BYTES = 512 * 1024 * 1024
"""Maximum decompressed size of a batch."""
CONTROL_ABORT = 0

SkipHandler = Callable[[SkippedBatch], object]
"""Called for each damaged batch that is skipped."""


class PartitionState:
    """An assigned partition. `position` is -1 while unknown.

    `version` changes when outstanding requests become invalid: after a seek or a new assignment. `read_from` is the
    replica that the leader prefers for this consumer until the loop time `read_from_until` (KIP-392), else -1.
    """

    __slots__ = (
        "batches", "buffered_bytes", "committed", "error", "fetch_offset", "high_watermark", "index",
        "last_stable_offset", "log_start_offset", "paused", "position", "read_from", "read_from_until",
        "record_filter", "records", "records_end", "reset_to", "retry_at", "skip", "tp", "version",
    )  # fmt: skip

    def __init__(
        self, tp: TopicPartition, skip: SkipHandler | None = None, record_filter: RecordFilter | None = None
    ) -> None:
        self.tp = tp
        self.skip, self.record_filter = skip, record_filter
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
        self.records_end = 0
        """The offset after the batch of `records`."""
        self.index = 0
        self.buffered_bytes = 0

    def seek(self, offset: int) -> None:
        """Discard buffered batches and continue at `offset`."""
        self.version += 1
        self.position = self.fetch_offset = offset
        self.reset_to = None
        self.error = None
        self.batches.clear()
        self.records, self.index, self.buffered_bytes = [], 0, 0

    def reset(self, timestamp: int) -> None:
        """Discard the position; it is looked up by `timestamp`, or LATEST, EARLIEST."""
        self.seek(-1)
        self.reset_to = timestamp

    @property
    def has_records(self) -> bool:
        """Return whether records or batches are buffered."""
        return self.index < len(self.records) or bool(self.batches)

    def append_batches(self, data: memoryview, aborted: list[AbortedTransaction] | None, committed_only: bool) -> None:
        """Append the batches of a fetch response at `fetch_offset`. Raises MalformedMessage."""
        for header, batch in visible_batches(data, aborted, committed_only):
            if header.last_offset < self.fetch_offset:
                continue
            self.fetch_offset = header.last_offset + 1
            if header.is_control or header.record_count == 0:
                # an empty view only advances the position
                batch = batch[:0]
            self.batches.append((header, batch))
            self.buffered_bytes += len(batch)

    def read_records(self, max_records: int) -> list[Record]:
        """Return up to `max_records` records and advance the position.

        Raises MalformedMessage if the next batch is damaged, until a seek.
        """
        records: list[Record] = []
        while len(records) < max_records:
            try:
                if not self.advance():
                    break
            except MalformedMessage:
                if records:
                    break
                raise
            more = list(islice(self.records, self.index, self.index + max_records - len(records)))
            self.index += len(more)
            self.position = self.records_end if self.index == len(self.records) else more[-1].offset + 1
            records = records + more if records else more
        return records

    def next_record(self) -> Record | None:
        """Return the next record, or None."""
        if self.index >= len(self.records) and not self.advance():
            return None
        record = self.records[self.index]
        self.index += 1
        self.position = self.records_end if self.index == len(self.records) else record.offset + 1
        return record

    def advance(self) -> bool:
        """Make `records[index]` the next record, decoding a batch if needed. Returns False if there is none.

        A damaged batch is skipped if `skip` is set. Otherwise MalformedMessage is raised and the state stays unchanged.
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
            self.batches.popleft()  # after decoding: a damaged batch stays first in the queue
            self.buffered_bytes -= len(batch)
            if batch:
                if header.base_offset < self.position:
                    decoded = [record for record in decoded if record.offset >= self.position]
                if self.record_filter is not None:
                    decoded = list(filter(self.record_filter.matches, decoded))
                self.records, self.index = decoded, 0
                self.records_end = header.last_offset + 1
            if not self.records:
                self.position = max(self.position, header.last_offset + 1)
        return True


def visible_batches(
    data: memoryview, aborted: list[AbortedTransaction] | None, committed_only: bool
) -> Iterable[tuple[BatchHeader, memoryview]]:
    """Yield the batches of a fetch response; those of aborted transactions as empty views (KIP-98)."""
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
    """Return whether a control batch aborts a transaction. The record's key is (version int16, type int16)."""
    for record in iterate_records(batch, header, MAX_DECOMPRESSED_BYTES):
        return record.key is not None and len(record.key) >= 4 and record.key[3] == CONTROL_ABORT
    return False


class Positions:
    """The assigned partitions. With `skip`, damaged batches are skipped and passed to it; with `record_filter`, records
    that do not pass are left out."""

    def __init__(self, skip: SkipHandler | None = None, record_filter: RecordFilter | None = None) -> None:
        self.skip, self.record_filter = skip, record_filter
        self.states: dict[TopicPartition, PartitionState] = {}
        self._rotation = 0

    def assign(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Replace the assignment; partitions that stay keep their state. Returns the new ones."""
        assigned = dict.fromkeys(partitions)
        new = {tp for tp in assigned if tp not in self.states}
        for tp, state in self.states.items():
            if tp not in assigned:
                state.version += 1  # responses to outstanding requests are ignored
        self.states = {tp: self.states.get(tp) or PartitionState(tp, self.skip, self.record_filter) for tp in assigned}
        return new

    def state(self, tp: TopicPartition) -> PartitionState:
        """Return a partition's state. Raises `IllegalState` if it is not assigned."""
        state = self.states.get(tp)
        if state is None:
            raise IllegalState(f"{tp} is not assigned to this consumer")
        return state

    def rotated(self) -> list[PartitionState]:
        """Return all states, starting with another one each time for fairness."""
        states = list(self.states.values())
        if not states:
            return states
        self._rotation = (self._rotation + 1) % len(states)
        return states[self._rotation :] + states[: self._rotation]
