"""Decides which member gets which records of one share-partition (KIP-932), without I/O.

The leader of the partition owns the object. It acquires records for members, applies their acknowledgements, and
releases locks that time out. A change of state is written through the group's coordinator: `begin_write` returns what
to store and `complete_write` reports the result. At most one write is outstanding, and acknowledgements during it share
the next. An acknowledgement takes effect, and may be answered, only once its write is durable. If the write fails, the
member holds the records again until its lock times out.

Locks and back-offs are not stored: a new leader starts with the stored states, in which acquired records are
available, and with a new back-off of each record that was delivered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.filter import RecordFilter
from penstock.share.acknowledgement import (
    FAILURES,
    AckBatch,
    AckResult,
    AckType,
    ack_runs,
    are_well_formed,
)
from penstock.share.acquisition import AcquiredRange, AcquireRequest, Acquisition
from penstock.share.contents import BatchContents, ReadContents, all_contents
from penstock.share.dead_letters import DeadLetterState, FailureCause, ShareDeadLetters
from penstock.share.key_order import KeyOrder
from penstock.share.redelivery import (
    GROUP_BACKOFF,
    NEVER,
    Delay,
    RedeliveryDelays,
    RedeliveryPolicy,
    end_of_delay,
)
from penstock.share.window import InFlightWindow, RecordState, Run, StateRun
from penstock.wire.errors import ErrorCode


class LogBatch(NamedTuple):
    """The offsets of a batch that the log returned; `last` is inclusive. A control batch, or one of an aborted
    transaction for read_committed, is not deliverable. `read_contents` is for order by key and filters."""

    first: int
    last: int
    is_deliverable: bool = True
    read_contents: ReadContents = all_contents


class ShareSnapshot(NamedTuple):
    """The state to store: nothing below `start_offset` is delivered again; `runs` follow it without gaps, and end
    where records were never delivered."""

    start_offset: int
    runs: list[StateRun]
    dead_letters: DeadLetterState | None = None


@dataclass(slots=True)
class ShareLimits:
    """Settings of the group: duration of locks, `share.partition.max.record.locks`, the redelivery policy,
    `share.order.by.key` and `share.filter`."""

    lock_ms: float
    max_locks: int
    policy: RedeliveryPolicy
    has_dead_letters: bool = False
    """Whether a record that is rejected or exhausted is archived only once its dead letter is written (KIP-1191)."""
    is_ordered: bool = False
    filter: RecordFilter | None = None


class SharePartition:
    """The records in flight between the share-partition's start offset and its end. Times are monotonic ms."""

    def __init__(
        self, stored: ShareSnapshot, limits: ShareLimits, now_ms: float, delays: Iterable[Delay] | None = None
    ) -> None:
        """Start with a stored state. `delays` are those of a former leader in this process; without them, they start
        anew."""
        self.limits = limits
        self.window = InFlightWindow(stored.start_offset)
        self.is_dirty = False
        """Whether the state differs from the last one that was written."""
        self.in_flight_write = 0
        """Number of the outstanding write, 0 if there is none."""
        self._next_write = 1
        self._next_deadline_ms = NEVER
        self._first_available = stored.start_offset
        self._log_start = 0
        """The log's start when it was last above the start offset."""
        self.dead_letters = ShareDeadLetters(self.window, stored.dead_letters, self._mark_dirty)
        self.delays = RedeliveryDelays(self.window)
        for state in stored.runs:
            self._restore(state)
        self.delays.restore(self._delays_from(now_ms) if delays is None else delays)
        self.window.trim()
        self._start_order()
        self.filtered = 0
        """Number of offsets that this leader archived because their records do not pass the filter."""

    def _restore(self, stored: StateRun) -> None:
        """Add a stored run. A record that was delivered for the last time before the leader changed is archived."""
        state = stored.state
        if state is RecordState.AVAILABLE and self.limits.policy.is_exhausted(stored.delivery_count):
            state, self.is_dirty = self._discard(), True
        if state is RecordState.ARCHIVING:
            self.dead_letters.may_be_pending = True
        self.window.append(Run(stored.first, stored.last, state, stored.delivery_count))

    def _delays_from(self, now_ms: float) -> list[Delay]:
        """Return the back-offs of all available records if they start now."""
        ends = [(self._end_of_delay(run, now_ms), run) for run in self.window if run.state is RecordState.AVAILABLE]
        return [Delay(end_ms, run.first, run.last) for end_ms, run in ends if end_ms]

    def configure(self, limits: ShareLimits) -> None:
        """Apply changed settings of the group. Locks and delays that have begun keep their ends, and the filter applies
        to records that are not in the window yet."""
        was_ordered, self.limits = self.limits.is_ordered, limits
        if limits.is_ordered is was_ordered:
            return
        for run in self.window:
            run.is_blocked = False
        self._start_order()
        self._first_available = self.window.start_offset

    def _start_order(self) -> None:
        """Start to order records by key, if the group does."""
        self._order = KeyOrder(self.window) if self.limits.is_ordered else None
        self._awaited_write = self._next_write if self.is_dirty else self.in_flight_write
        """Number of the write that must complete before delivery in order starts: until then, records may be done here
        and not in the store, and the index of keys does not contain them."""

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
        """Return the offset from which to read the log for `acquire`; None while all locks are in use, or until the
        write that delivery in order awaits has completed."""
        window, order = self.window, self._order
        if order is not None and self._awaited_write:
            return None
        offset = self._find_ready()
        if order is not None and order.end_offset < window.end_offset:
            return min(offset, order.end_offset)  # the keys of the window must be known first
        return offset if offset < window.end_offset or self._room > 0 else None

    @property
    def _room(self) -> int:
        """Number of records by which the window may grow. The index may have records below the window's start."""
        used = self.window.tracked if self._order is None else max(self.window.tracked, len(self._order))
        return self.limits.max_locks - used

    def _find_ready(self) -> int:
        """Return the first offset in the window that a member can acquire, or else the window's end."""
        window = self.window
        start = max(self._first_available, window.start_offset)
        runs = window.runs[window.index_of(start) :] if start < window.end_offset else ()
        self._first_available = next((run.first for run in runs if run.is_ready), window.end_offset)
        return self._first_available

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
            elif not self._acquire_batch(acquisition, batch, first):
                break
            position = max(position, batch.last + 1)
            if self._order is not None:
                self._order.skip_to(position)
        if acquisition.ranges:
            self._next_deadline_ms = min(self._next_deadline_ms, acquisition.deadline_ms)
        self.window.merge(fetch_offset, position)
        self.window.trim()
        return acquisition.ranges

    def _acquire_batch(self, acquisition: Acquisition, batch: LogBatch, first: int) -> bool:
        """Acquire what is available of a batch from an offset on. Returns whether the next batch may be acquired from
        too."""
        window, last = self.window, batch.last
        if self._order is not None and not self._admit(self._order, batch, first):
            return False
        for run in window.between(first, last):
            if run.is_ready and not self._acquire_again(acquisition, run):
                return False
        if window.end_offset <= last:
            if self._order is not None:
                return False  # the window has no room
            room = min(acquisition.room, self._room)
            contents = batch.read_contents() if room > 0 else None
            if contents is None:
                return False
            self._extend(last, contents, room, acquisition)
        return not acquisition.is_complete and window.end_offset > last

    def _admit(self, order: KeyOrder, batch: LogBatch, first: int) -> bool:
        """Extend the window by the records of a batch that may be in flight, and index their keys.

        Returns False if the contents of the batch are not known.
        """
        window, first, last = self.window, max(first, order.end_offset), batch.last
        room = self._room
        if first > last or (room <= 0 and first >= window.end_offset):
            return True
        contents = batch.read_contents()
        if contents is None:
            return False
        self._extend(last, contents, room)
        order.admit(first, min(last, window.end_offset - 1), contents.keys)
        return True

    def _extend(self, last: int, contents: BatchContents, room: int, acquisition: Acquisition | None = None) -> None:
        """Extend the window to the last offset of a batch, or until it has `room` more records.

        Records that pass the filter are available, or acquired at once; all others are archived.
        """
        window = self.window
        if window.end_offset > last:
            return
        for first, end in contents.matching_between(window.end_offset, last):
            self._archive_filtered(first - 1)
            if room <= 0:
                return
            run = Run(first, min(end, first + room - 1), RecordState.AVAILABLE, 0)
            if acquisition is not None:
                run.acquire(acquisition.request.member, acquisition.deadline_ms)
                acquisition.add(run.first, run.last, 1)
            window.append(run)
            room -= run.size
            if run.last < end:
                return
        self._archive_filtered(last)

    def _archive_filtered(self, last: int) -> None:
        """Archive the offsets from the end of the window on: their records do not pass the filter."""
        first = self.window.end_offset
        if first <= last:
            self.filtered += last - first + 1
            self.window.append(Run(first, last, RecordState.ARCHIVED, 0))
            self.is_dirty = True

    def _acquire_again(self, acquisition: Acquisition, run: Run) -> bool:
        """Acquire a run that is in the window already. Returns whether more may be acquired."""
        policy, count = self.limits.policy, run.delivery_count
        if policy.is_exhausted(count):
            self._move(run, self._discard())
            self.is_dirty = True
            return True
        permitted = min(run.size, policy.max_records(count + 1, run.size))
        is_limited = permitted < run.size or policy.is_exhausted(count + 1)
        if is_limited and acquisition.ranges:
            return False  # suspicious records are delivered on their own
        permitted = min(permitted, acquisition.room)
        if permitted < run.size:
            self.window.split(run.first + permitted)
        self.window.acquire(run, acquisition.request.member, acquisition.deadline_ms)
        acquisition.add(run.first, run.last, run.delivery_count)
        return not is_limited and acquisition.room > 0

    def _archive(self, first: int, last: int) -> None:
        """Archive offsets without a deliverable record, except those that a member holds."""
        if first > last:
            return
        for run in self.window.between(first, last):
            if run.state is RecordState.AVAILABLE:
                self._move(run, RecordState.ARCHIVED)
        if last >= self.window.end_offset:
            self.window.append(Run(max(first, self.window.end_offset), last, RecordState.ARCHIVED, 0))
        self.window.merge(first, last)
        self.is_dirty = True

    # --- acknowledgement

    def acknowledge(self, member: str, batches: Sequence[AckBatch], now_ms: float) -> AckResult:
        """Apply a member's acknowledgements, all of them or none.

        Returns INVALID_REQUEST for malformed batches and INVALID_RECORD_STATE for records that the member does not
        hold. Offsets below the log's start are ignored: their records were deleted.
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
                            failure = FailureCause(batch.reason, is_rejected)
                            self.dead_letters.record_failure(run.first, run.last, now_ms, failure)
                        if run.next_state is RecordState.AVAILABLE:
                            run.delay_ends_ms = self._end_of_delay(run, now_ms, batch.delay_ms)
            self.window.merge(batch.first, batch.last)
        self.is_dirty = self.is_dirty or bool(write)
        return AckResult(ErrorCode.NONE, write)

    def _check_acknowledgement(self, member: str, batches: Sequence[AckBatch]) -> ErrorCode:
        if not are_well_formed(batches):
            return ErrorCode.INVALID_REQUEST
        for first, last, *_ in batches:
            if last >= self.window.end_offset:
                return ErrorCode.INVALID_REQUEST
            if max(first, self._log_start) <= min(last, self.window.start_offset - 1):
                return ErrorCode.INVALID_RECORD_STATE  # done, perhaps with a dead letter
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

    def _end_of_delay(self, run: Run, now_ms: float, delay_ms: float = GROUP_BACKOFF) -> float:
        """Return when records that are released now are available, 0 for at once."""
        policy = self.limits.policy
        return end_of_delay(now_ms, policy.delay_ms(run.delivery_count) if delay_ms == GROUP_BACKOFF else delay_ms)

    def _move(self, run: Run, state: RecordState, is_durable: bool = False) -> None:
        """Change the state of a run. A run in a final state frees its keys once that state is stored."""
        self.window.move(run, state)
        if self._order is not None and not state.is_open:
            remove = self._order.remove if is_durable else self._order.remove_when_written
            remove(run.first, run.last)
        if state is RecordState.AVAILABLE and run.delay_ends_ms:
            self.delays.add(run)
        elif state is RecordState.AVAILABLE:
            self._first_available = min(self._first_available, run.first)

    def _free_keys(self, write: int, is_durable: bool) -> None:
        """Make records available whose predecessors of the same key are done, if a write has now stored that."""
        if self._order is None:
            return
        self._order.complete_write(is_durable)
        if is_durable and write >= self._awaited_write:
            self._awaited_write = 0
        self._first_available = min(self._first_available, self._order.unblock())

    # --- locks and delays

    @property
    def next_deadline_ms(self) -> float:
        """The time at or after which `expire` may have work; infinite without locks and delays."""
        return min(self._next_deadline_ms, self.delays.next_end_ms)

    def expire(self, now_ms: float) -> bool:
        """Release the locks that have timed out, and end the delays that are over. Returns whether there were any."""
        is_over = now_ms >= self.delays.next_end_ms
        if is_over:
            self._first_available = min(self._first_available, self.delays.finish(now_ms))
        if now_ms < self._next_deadline_ms:
            return is_over
        timed_out = [run for run in self.window if run.is_locked and run.deadline_ms <= now_ms]
        return self._release(timed_out, now_ms) or is_over

    def release_member(self, member: str, now_ms: float) -> bool:
        """Release all that a member holds, when its session ends. Returns whether it held anything."""
        return self._release([run for run in self.window if run.is_locked and run.member == member], now_ms)

    def _release(self, runs: list[Run], now_ms: float) -> bool:
        for run in runs:
            if self.limits.has_dead_letters:
                self.dead_letters.record_failure(run.first, run.last, now_ms)
            run.delay_ends_ms = self._end_of_delay(run, now_ms)
            self._move(run, self._released(run))
        if runs:
            self.is_dirty = True
            self.window.merge(runs[0].first, runs[-1].last)
            self.window.trim()
        self._next_deadline_ms = min((run.deadline_ms for run in self.window if run.is_locked), default=NEVER)
        return bool(runs)

    def on_log_start(self, offset: int) -> None:
        """Drop the records below the log's new start, acquired ones included."""
        if offset > self.window.start_offset:
            self._log_start = offset
            if self._order is not None:
                self._order.remove_when_written(self.window.start_offset, offset - 1)
            self.window.cut(offset)
            self.delays.cut(offset)
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
        if self._order is not None:
            self._order.begin_write()
        runs, dead_letters = self.window.durable_states(), self.dead_letters.begin_write()
        return ShareSnapshot(runs[0].first if runs else self.window.end_offset, runs, dead_letters)

    def complete_write(self, is_durable: bool) -> int:
        """Apply the acknowledgements of the outstanding write, or give the records back to their holders.

        Returns the number of the write. After a failure the next write has all that is still to be stored; call
        `expire` then, since locks may have timed out meanwhile.
        """
        write, self.in_flight_write = self.in_flight_write, 0
        assert write, "a write completes that was not begun"
        self.dead_letters.complete_write(is_durable)
        for run in [run for run in self.window if run.write == write]:
            assert run.next_state is not None, f"offsets {run.first}-{run.last} are in write {write} without a change"
            if not is_durable:
                run.next_state, run.write, run.delay_ends_ms = None, 0, 0.0
                self._next_deadline_ms = min(self._next_deadline_ms, run.deadline_ms)
            else:
                self._move(run, run.next_state, is_durable=True)
        self._free_keys(write, is_durable)
        self.is_dirty = self.is_dirty or not is_durable
        self.window.merge(self.window.start_offset, self.window.end_offset - 1)
        self.window.trim()
        return write
