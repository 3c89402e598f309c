"""Decides which member gets which records of one share-partition (KIP-932), without I/O.

The leader of the partition owns the object. It acquires records for members, applies their acknowledgements, and
releases locks that time out. A change of state is written through the group's coordinator: `begin_write` returns what
to store and `complete_write` reports the result. At most one write is outstanding, and acknowledgements during it share
the next. An acknowledgement takes effect, and may be answered, only once its write is durable. If the write fails, the
member holds the records again until its lock times out.

Locks are not stored: a new leader starts with the stored states, in which acquired records are available.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby
from typing import NamedTuple

from penstock.share.dead_letters import DeadLetterState, ShareDeadLetters
from penstock.share.redelivery import RedeliveryPolicy
from penstock.share.window import InFlightWindow, RecordState, Run, StateRun
from penstock.wire.errors import ErrorCode

NEVER = float("inf")
UNLIMITED = 1 << 62


class AcquireMode(IntEnum):
    """How strictly `max_records` holds (KIP-1206): up to the end of its batch, or exactly."""

    BATCH_OPTIMIZED = 0
    RECORD_LIMIT = 1


class AckType(IntEnum):
    """The acknowledgement of a record. GAP is that of an offset without a record; RENEW extends the lock (KIP-1222)."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


ACK_TYPES = frozenset(AckType)
FAILURES = frozenset({AckType.RELEASE, AckType.REJECT})


class LogBatch(NamedTuple):
    """The offsets of a batch that the log returned; `last` is inclusive. A control batch, or one of an aborted
    transaction for read_committed, is not deliverable."""

    first: int
    last: int
    is_deliverable: bool = True


class AcquireRequest(NamedTuple):
    """What a member asks for."""

    member: str
    max_records: int
    mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED


class AcquiredRange(NamedTuple):
    """Adjacent records that a member holds; `last` is inclusive."""

    first: int
    last: int
    delivery_count: int


class AckBatch(NamedTuple):
    """Acknowledgements of adjacent offsets: one type for all, or one for each. `last` is inclusive."""

    first: int
    last: int
    types: Sequence[int]


class AckResult(NamedTuple):
    """The result of an acknowledgement: an error, or the number of the write to wait for, 0 if there is none."""

    error: ErrorCode
    write: int = 0


class ShareSnapshot(NamedTuple):
    """The state to store: nothing below `start_offset` is delivered again; `runs` follow it without gaps, and end
    where records were never delivered."""

    start_offset: int
    runs: list[StateRun]
    dead_letters: DeadLetterState | None = None


@dataclass(slots=True)
class ShareLimits:
    """Settings of the group: duration of locks, `share.partition.max.record.locks`, and the redelivery policy."""

    lock_ms: float
    max_locks: int
    policy: RedeliveryPolicy
    has_dead_letters: bool = False
    """Whether a record that is rejected or exhausted is archived only once its dead letter is written (KIP-1191)."""


class SharePartition:
    """The records in flight between the share-partition's start offset and its end. Times are monotonic ms."""

    def __init__(self, stored: ShareSnapshot, limits: ShareLimits) -> None:
        self.limits = limits
        self.window = InFlightWindow(stored.start_offset)
        self.is_dirty = False
        """Whether the state differs from the last one that was written."""
        self.in_flight_write = 0
        """Number of the outstanding write, 0 if there is none."""
        self._next_write = 1
        self._next_deadline_ms = NEVER
        self._first_available = stored.start_offset
        self.dead_letters = ShareDeadLetters(self.window, stored.dead_letters, self._mark_dirty)
        for state in stored.runs:
            self._restore(state)
        self.window.trim()

    def _restore(self, stored: StateRun) -> None:
        """Add a stored run. A record that was delivered for the last time before the leader changed is archived."""
        state = stored.state
        if state is RecordState.AVAILABLE and self.limits.policy.is_exhausted(stored.delivery_count):
            state, self.is_dirty = self._discard(), True
        if state is RecordState.ARCHIVING:
            self.dead_letters.may_be_pending = True
        self.window.append(Run(stored.first, stored.last, state, stored.delivery_count))

    @property
    def start_offset(self) -> int:
        """The offset below which no record is delivered again (SPSO)."""
        return self.window.start_offset

    @property
    def completed(self) -> int:
        """Number of offsets above the start in a final state, for the lag (KIP-1226)."""
        return sum(run.size for run in self.window if run.state.is_final)

    @property
    def locked(self) -> int:
        """Number of records that members hold."""
        return sum(run.size for run in self.window if run.state is RecordState.ACQUIRED)

    @property
    def is_idle(self) -> bool:
        """Whether nothing would be lost if the leader forgot the partition."""
        return not self.is_dirty and not self.in_flight_write and not self.locked and not self.dead_letters.is_pending

    def _discard(self) -> RecordState:
        """Return the state of a record that is not delivered again although no member accepted it."""
        if not self.limits.has_dead_letters:
            return RecordState.ARCHIVED
        self.dead_letters.may_be_pending = True
        return RecordState.ARCHIVING

    def _mark_dirty(self) -> None:
        self.is_dirty = True

    # --- acquisition

    def next_fetch_offset(self) -> int | None:
        """Return the offset from which to read the log for `acquire`; None while all locks are in use."""
        window = self.window
        start = max(self._first_available, window.start_offset)
        if start < window.end_offset:
            for run in window.runs[window.index_of(start) :]:
                if run.state is RecordState.AVAILABLE:
                    self._first_available = run.first
                    return run.first
        self._first_available = window.end_offset
        return window.end_offset if window.delivered < self.limits.max_locks else None

    def acquire(
        self, request: AcquireRequest, fetch_offset: int, batches: Iterable[LogBatch], now_ms: float
    ) -> list[AcquiredRange]:
        """Lock records for a member among the batches that the log returned for a read from `fetch_offset`.

        Offsets that the read skipped have no record and are archived, as are those of undeliverable batches.
        """
        assert request.max_records > 0, f"{request} asks for nothing"
        assert fetch_offset <= self.window.end_offset, f"a read from {fetch_offset} leaves a gap"
        self.expire(now_ms)
        acquisition = Acquisition(request, now_ms + self.limits.lock_ms)
        position = max(fetch_offset, self.window.start_offset)
        for batch in batches:
            self._archive(position, batch.first - 1)
            first = max(batch.first, position)
            if not batch.is_deliverable:
                self._archive(first, batch.last)
            elif not self._acquire_batch(acquisition, first, batch.last):
                break
            position = max(position, batch.last + 1)
        if acquisition.ranges:
            self._next_deadline_ms = min(self._next_deadline_ms, acquisition.deadline_ms)
        self.window.merge(fetch_offset, position)
        self.window.trim()
        return acquisition.ranges

    def _acquire_batch(self, acquisition: Acquisition, first: int, last: int) -> bool:
        """Acquire what is available of a batch. Returns whether the next batch may be acquired from too."""
        window = self.window
        for run in window.between(first, last):
            if run.state is RecordState.AVAILABLE and not self._acquire_again(acquisition, run):
                return False
        first = max(first, window.end_offset)
        room = self.limits.max_locks - window.delivered
        size = min(last - first + 1, acquisition.room, room)
        if first <= last and size <= 0:
            return False
        if first <= last:
            run = Run(first, first + size - 1, RecordState.AVAILABLE, 0)
            run.acquire(acquisition.request.member, acquisition.deadline_ms)
            window.append(run)
            acquisition.add(run.first, first + size - 1, 1)
        return not acquisition.is_complete and (first > last or first + size > last)

    def _acquire_again(self, acquisition: Acquisition, run: Run) -> bool:
        """Acquire a run that is in the window already. Returns whether more may be acquired."""
        policy, count = self.limits.policy, run.delivery_count
        if policy.is_exhausted(count):
            run.move(self._discard())
            self.is_dirty = True
            return True
        permitted = min(run.size, policy.max_records(count + 1, run.size))
        is_limited = permitted < run.size or policy.is_exhausted(count + 1)
        if is_limited and acquisition.ranges:
            return False  # suspicious records are delivered on their own
        permitted = min(permitted, acquisition.room)
        if permitted < run.size:
            self.window.split(run.first + permitted)
        run.acquire(acquisition.request.member, acquisition.deadline_ms)
        if not count:
            self.window.delivered += run.size
        acquisition.add(run.first, run.last, run.delivery_count)
        return not is_limited and acquisition.room > 0

    def _archive(self, first: int, last: int) -> None:
        """Archive offsets without a deliverable record, except those that a member holds."""
        if first > last:
            return
        for run in self.window.between(first, last):
            if run.state is RecordState.AVAILABLE:
                run.move(RecordState.ARCHIVED)
        if last >= self.window.end_offset:
            self.window.append(Run(max(first, self.window.end_offset), last, RecordState.ARCHIVED, 0))
        self.window.merge(first, last)
        self.is_dirty = True

    # --- acknowledgement

    def acknowledge(self, member: str, batches: Sequence[AckBatch], now_ms: float) -> AckResult:
        """Apply a member's acknowledgements, all of them or none.

        Returns INVALID_REQUEST for malformed batches and INVALID_RECORD_STATE for records that the member does not
        hold. Offsets below the start offset are ignored: the log has deleted their records.
        """
        self.expire(now_ms)
        error = self._check_acknowledgement(member, batches)
        if error:
            return AckResult(error)
        write = 0
        for batch in batches:
            for first, last, ack_type in ack_runs(batch):
                for run in self.window.between(first, last):
                    if ack_type == AckType.RENEW:
                        run.deadline_ms = now_ms + self.limits.lock_ms
                    else:
                        run.next_state, run.write = self._outcome(ack_type, run), self._next_write
                        write = self._next_write
                        if self.limits.has_dead_letters and ack_type in FAILURES:
                            is_rejected = ack_type == AckType.REJECT
                            self.dead_letters.record_failure(run.first, run.last, now_ms, is_rejected=is_rejected)
            self.window.merge(batch.first, batch.last)
        self.is_dirty = self.is_dirty or bool(write)
        return AckResult(ErrorCode.NONE, write)

    def _check_acknowledgement(self, member: str, batches: Sequence[AckBatch]) -> ErrorCode:
        if not are_well_formed(batches):
            return ErrorCode.INVALID_REQUEST
        for first, last, _ in batches:
            if last >= self.window.end_offset:
                return ErrorCode.INVALID_REQUEST
            if not all(run.is_locked and run.member == member for run in self.window.overlapping(first, last)):
                return ErrorCode.INVALID_RECORD_STATE
        return ErrorCode.NONE

    def _outcome(self, ack_type: int, run: Run) -> RecordState:
        """Return the state that an acknowledgement requests."""
        if ack_type == AckType.ACCEPT:
            return RecordState.ACKNOWLEDGED
        if ack_type == AckType.RELEASE:
            return self._released(run)
        return self._discard() if ack_type == AckType.REJECT else RecordState.ARCHIVED

    def _released(self, run: Run) -> RecordState:
        is_exhausted = self.limits.policy.is_exhausted(run.delivery_count)
        return self._discard() if is_exhausted else RecordState.AVAILABLE

    # --- locks

    @property
    def next_deadline_ms(self) -> float:
        """The time at or after which `expire` may have work; infinite without locks."""
        return self._next_deadline_ms

    def expire(self, now_ms: float) -> bool:
        """Release the locks that have timed out. Returns whether there were any."""
        if now_ms < self._next_deadline_ms:
            return False
        return self._release([run for run in self.window if run.is_locked and run.deadline_ms <= now_ms], now_ms)

    def release_member(self, member: str, now_ms: float) -> bool:
        """Release all that a member holds, when its session ends. Returns whether it held anything."""
        return self._release([run for run in self.window if run.is_locked and run.member == member], now_ms)

    def _release(self, runs: list[Run], now_ms: float) -> bool:
        for run in runs:
            if self.limits.has_dead_letters:
                self.dead_letters.record_failure(run.first, run.last, now_ms)
            run.move(self._released(run))
        if runs:
            self.is_dirty = True
            self._first_available = min(self._first_available, runs[0].first)
            self.window.merge(runs[0].first, runs[-1].last)
            self.window.trim()
        self._next_deadline_ms = min((run.deadline_ms for run in self.window if run.is_locked), default=NEVER)
        return bool(runs)

    def on_log_start(self, offset: int) -> None:
        """Drop the records below the log's new start, acquired ones included."""
        if offset > self.window.start_offset:
            self.window.cut(offset)
            self.is_dirty = True
            self.window.trim()

    # --- persistence

    def begin_write(self) -> ShareSnapshot | None:
        """Return the state to store; None while a write is outstanding, or if there is nothing new.

        The state has the outcome of all acknowledgements so far. Acquired records are available in it.
        """
        if self.in_flight_write or not self.is_dirty:
            return None
        self.in_flight_write, self.is_dirty = self._next_write, False
        self._next_write += 1
        runs, dead_letters = self.window.states(durable_state), self.dead_letters.begin_write()
        return ShareSnapshot(runs[0].first if runs else self.window.end_offset, runs, dead_letters)

    def complete_write(self, is_durable: bool) -> int:
        """Apply the acknowledgements of the outstanding write, or give the records back to their holders.

        Returns the number of the write. After a failure the next write has all that is still to be stored; call
        `expire` then, since locks may have timed out meanwhile.
        """
        write, self.in_flight_write = self.in_flight_write, 0
        assert write, "a write completes that was not begun"
        self.dead_letters.complete_write(is_durable)
        for run in self.window:
            if run.write != write:
                continue
            assert run.next_state is not None, f"offsets {run.first}-{run.last} are in write {write} without a change"
            if not is_durable:
                run.next_state, run.write = None, 0
                self._next_deadline_ms = min(self._next_deadline_ms, run.deadline_ms)
            else:
                run.move(run.next_state)
                if run.state is RecordState.AVAILABLE:
                    self._first_available = min(self._first_available, run.first)
        self.is_dirty = self.is_dirty or not is_durable
        self.window.merge(self.window.start_offset, self.window.end_offset - 1)
        self.window.trim()
        return write


class Acquisition:
    """One call of `SharePartition.acquire`: its limits and its result so far."""

    __slots__ = ("acquired", "deadline_ms", "ranges", "request")

    def __init__(self, request: AcquireRequest, deadline_ms: float) -> None:
        self.request, self.deadline_ms = request, deadline_ms
        self.ranges: list[AcquiredRange] = []
        self.acquired = 0

    @property
    def is_complete(self) -> bool:
        """Whether no further batch may be acquired from."""
        return self.acquired >= self.request.max_records

    @property
    def room(self) -> int:
        """How many more records the current batch may give."""
        if self.request.mode is AcquireMode.BATCH_OPTIMIZED:
            return UNLIMITED
        return self.request.max_records - self.acquired

    def add(self, first: int, last: int, delivery_count: int) -> None:
        """Record that the offsets are acquired."""
        self.acquired += last - first + 1
        previous = self.ranges[-1] if self.ranges else None
        if previous is not None and previous.last + 1 == first and previous.delivery_count == delivery_count:
            self.ranges[-1] = previous._replace(last=last)
        else:
            self.ranges.append(AcquiredRange(first, last, delivery_count))


def durable_state(run: Run) -> RecordState:
    """Return the state of a run as it is stored: with what is acknowledged, without locks."""
    if run.next_state is not None:
        return run.next_state
    return RecordState.AVAILABLE if run.state is RecordState.ACQUIRED else run.state


def are_well_formed(batches: Sequence[AckBatch]) -> bool:
    """Return whether acknowledgements are in order, of known types, and one or as many as their offsets."""
    previous = -1
    for first, last, types in batches:
        if not previous < first <= last or len(types) not in (1, last - first + 1):
            return False
        if not ACK_TYPES.issuperset(types):
            return False
        previous = last
    return True


def ack_runs(batch: AckBatch) -> Iterator[tuple[int, int, int]]:
    """Yield (first, last, type) for adjacent offsets of one type."""
    if len(batch.types) == 1:
        yield batch.first, batch.last, batch.types[0]
        return
    first = batch.first
    for ack_type, equal in groupby(batch.types):
        last = first + sum(1 for _ in equal) - 1
        yield first, last, ack_type
        first = last + 1
