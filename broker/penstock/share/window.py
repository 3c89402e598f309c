"""The in-flight records of a share-partition as adjacent runs of equal state, without I/O. Used by `partition`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from operator import attrgetter
from typing import NamedTuple

FIRST_OFFSET = attrgetter("first")
new = tuple.__new__
"""Creates a named tuple of thousands in less time."""


class RecordState(IntEnum):
    """The states of a record, by Kafka's numbers. ACKNOWLEDGED and ARCHIVED are final; ACQUIRED is never stored.

    An ARCHIVING record is not delivered again: it is archived once its dead letter is written (KIP-1191).
    """

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    ARCHIVED = 4

    @property
    def is_final(self) -> bool:
        """Whether the record is never delivered again."""
        return self is RecordState.ACKNOWLEDGED or self is RecordState.ARCHIVED

    @property
    def is_open(self) -> bool:
        """Whether the record is delivered, or may be delivered again."""
        return self <= RecordState.ACQUIRED


class StateRun(NamedTuple):
    """Adjacent offsets of equal durable state; `last` is inclusive."""

    first: int
    last: int
    state: RecordState
    delivery_count: int


@dataclass(slots=True)
class Run:
    """Adjacent offsets of equal state; `last` is inclusive.

    `member` and `deadline_ms` are those of the lock while ACQUIRED. `next_state` is the state that an acknowledgement
    requests; it takes effect once write number `write` is durable. Available records are not delivered before
    `delay_ends_ms`, and not while `is_blocked`: an earlier record of their key is not done.
    """

    first: int
    last: int
    state: RecordState
    delivery_count: int
    member: str = ""
    deadline_ms: float = 0.0
    next_state: RecordState | None = None
    write: int = 0
    delay_ends_ms: float = 0.0
    is_blocked: bool = False

    @property
    def size(self) -> int:
        """Number of offsets."""
        return self.last - self.first + 1

    @property
    def is_locked(self) -> bool:
        """Whether a member holds the records and has not acknowledged them."""
        return self.state is RecordState.ACQUIRED and self.next_state is None

    @property
    def awaits_dead_letter(self) -> bool:
        """Whether the records are ARCHIVING, or will be once the outstanding write is durable."""
        return RecordState.ARCHIVING in (self.state, self.next_state)

    @property
    def is_ready(self) -> bool:
        """Whether a member can acquire the records now."""
        return self.state is RecordState.AVAILABLE and not self.delay_ends_ms and not self.is_blocked

    def move(self, state: RecordState) -> None:
        """Change the state. Asserts the transitions of KIP-932 and KIP-1191."""
        assert not self.state.is_final, f"offsets {self.first}-{self.last} are {self.state.name} for good"
        if self.state is RecordState.ARCHIVING:
            assert state is RecordState.ARCHIVED, f"offsets {self.first}-{self.last} await a dead letter"
        if state is RecordState.ACQUIRED:
            assert self.is_ready, f"offsets {self.first}-{self.last} are acquired twice, or too early"
        else:
            self.member, self.deadline_ms = "", 0.0
        if not state.is_open:
            self.delay_ends_ms, self.is_blocked = 0.0, False
        self.state, self.next_state, self.write = state, None, 0

    def acquire(self, member: str, deadline_ms: float) -> None:
        """Lock the records for a member, and count the delivery."""
        self.move(RecordState.ACQUIRED)
        self.member, self.deadline_ms = member, deadline_ms
        self.delivery_count += 1

    def cut(self, offset: int) -> Run:
        """End the run before the offset, and return the rest of it."""
        rest = Run(
            offset,
            self.last,
            self.state,
            self.delivery_count,
            self.member,
            self.deadline_ms,
            self.next_state,
            self.write,
            self.delay_ends_ms,
            self.is_blocked,
        )
        self.last = offset - 1
        return rest

    def continues(self, other: Run) -> bool:
        """Return whether the run and `other`, the next one, are one run."""
        return (
            self.state is other.state
            and self.delivery_count == other.delivery_count
            and self.next_state is other.next_state
            and self.write == other.write
            and self.member == other.member
            and self.deadline_ms == other.deadline_ms
            and self.delay_ends_ms == other.delay_ends_ms
            and self.is_blocked is other.is_blocked
        )


class InFlightWindow:
    """Runs without gaps between `start_offset` and `end_offset`, which is exclusive.

    Splits and lookups cost O(log n) in the number of runs, plus moving the list's tail; ranges cost the runs in them.
    """

    def __init__(self, start_offset: int) -> None:
        self.start_offset = self.end_offset = start_offset
        self.runs: list[Run] = []
        self.delivered = 0
        """Number of offsets that were acquired at least once."""
        self.waiting = 0
        """Number of available offsets that were never acquired."""

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    @property
    def tracked(self) -> int:
        """Number of offsets that the limit of locks bounds."""
        return self.delivered + self.waiting

    def _count(self, run: Run, size: int) -> None:
        if run.delivery_count:
            self.delivered += size
        elif run.state is RecordState.AVAILABLE:
            self.waiting += size

    def append(self, run: Run) -> None:
        """Extend the window by a run that starts at its end."""
        assert run.first == self.end_offset <= run.last, f"a run from {run.first} leaves a gap at {self.end_offset}"
        self.end_offset = run.last + 1
        self._count(run, run.size)
        if self.runs and self.runs[-1].continues(run):
            self.runs[-1].last = run.last
        else:
            self.runs.append(run)

    def acquire(self, run: Run, member: str, deadline_ms: float) -> None:
        """Lock the records of a run for a member."""
        self._count(run, -run.size)
        run.acquire(member, deadline_ms)
        self._count(run, run.size)

    def move(self, run: Run, state: RecordState) -> None:
        """Change the state of a run."""
        self._count(run, -run.size)
        run.move(state)
        self._count(run, run.size)

    def index_of(self, offset: int) -> int:
        """Return the index of the run that contains the offset."""
        assert self.start_offset <= offset < self.end_offset, f"offset {offset} is outside the window"
        return bisect_right(self.runs, offset, key=FIRST_OFFSET) - 1

    def between(self, first: int, last: int) -> list[Run]:
        """Return the runs within the offsets, both inclusive and cut to the window, splitting those at the ends."""
        first, last = max(first, self.start_offset), min(last, self.end_offset - 1)
        if first > last:
            return []
        runs = self.runs
        begin = end = self.split(first)
        while end < len(runs) and runs[end].last <= last:
            end += 1
        if end < len(runs) and runs[end].first <= last:
            runs.insert(end + 1, runs[end].cut(last + 1))
            end += 1
        return runs[begin:end]

    def overlapping(self, first: int, last: int) -> list[Run]:
        """Return the runs that share offsets with the range, unsplit."""
        first, last = max(first, self.start_offset), min(last, self.end_offset - 1)
        return [] if first > last else self.runs[self.index_of(first) : self.index_of(last) + 1]

    def split(self, offset: int) -> int:
        """Let a run start at the offset, and return its index."""
        if offset == self.end_offset:
            return len(self.runs)
        index = self.index_of(offset)
        run = self.runs[index]
        if run.first == offset:
            return index
        self.runs.insert(index + 1, run.cut(offset))
        return index + 1

    def merge(self, first: int, last: int) -> None:
        """Merge equal neighbours among the runs that touch the offsets."""
        first, last = max(first - 1, self.start_offset), min(last + 1, self.end_offset - 1)
        if first > last:
            return
        runs, begin = self.runs, self.index_of(first)
        end = len(runs) if last == self.end_offset - 1 else self.index_of(last) + 1
        previous = runs[begin]
        merged = [previous]
        for run in runs[begin + 1 : end]:
            if previous.state is run.state and previous.continues(run):
                previous.last = run.last
            else:
                merged.append(run)
                previous = run
        if len(merged) < end - begin:
            runs[begin:end] = merged

    def trim(self) -> None:
        """Advance the start past all leading records in a final state."""
        count = next((i for i, run in enumerate(self.runs) if not run.state.is_final), len(self.runs))
        self._drop(count)

    def cut(self, offset: int) -> None:
        """Drop all records below the offset, whatever their state: the log no longer has them.

        Those that await a dead letter stay, and what follows them is archived.
        """
        if any(run.awaits_dead_letter for run in self.overlapping(self.start_offset, offset - 1)):
            self._archive_below(offset)
        elif offset >= self.end_offset:
            self._drop(len(self.runs))
            self.start_offset = self.end_offset = max(offset, self.end_offset)
        elif offset > self.start_offset:
            self._drop(self.split(offset))

    def _archive_below(self, offset: int) -> None:
        for run in self.between(self.start_offset, offset - 1):
            if not run.state.is_final and not run.awaits_dead_letter:
                run.move(RecordState.ARCHIVED)
        if offset > self.end_offset:
            self.append(Run(self.end_offset, offset - 1, RecordState.ARCHIVED, 0))
        self.merge(self.start_offset, offset - 1)

    def _drop(self, count: int) -> None:
        if count:
            for run in self.runs[:count]:
                self._count(run, -run.size)
            self.start_offset = self.runs[count - 1].last + 1
            del self.runs[:count]

    def durable_states(self) -> list[StateRun]:
        """Return the runs as they are stored: with what is acknowledged, and without locks. Equal neighbours are
        merged, and the leading final ones left out."""
        found: list[StateRun] = []
        first, last, state, count = self.start_offset, self.start_offset - 1, RecordState.ACKNOWLEDGED, 0
        for run in self.runs:
            run_state = run.next_state
            if run_state is None:
                run_state = RecordState.AVAILABLE if run.state is RecordState.ACQUIRED else run.state
            if run_state is not state or run.delivery_count != count:
                if found or not state.is_final:
                    found.append(new(StateRun, (first, last, state, count)))
                first, state, count = run.first, run_state, run.delivery_count
            last = run.last
        if found or not state.is_final:
            found.append(new(StateRun, (first, last, state, count)))
        return found

    def verify(self) -> None:
        """Assert that the runs cover the window without gaps. For tests: costs O(n)."""
        offset = self.start_offset
        for run in self.runs:
            assert run.first == offset <= run.last, f"run {run} does not start at {offset}"
            assert bool(run.member) is (run.state is RecordState.ACQUIRED), f"run {run} has a wrong holder"
            assert run.state.is_open or (not run.delay_ends_ms and not run.is_blocked), f"run {run} waits, and is done"
            offset = run.last + 1
        assert offset == self.end_offset, f"the window ends at {self.end_offset}, its runs at {offset}"
        assert self.delivered == sum(run.size for run in self.runs if run.delivery_count), "deliveries are miscounted"
        waiting = sum(run.size for run in self.runs if run.state is RecordState.AVAILABLE and not run.delivery_count)
        assert self.waiting == waiting, f"{waiting} records were never acquired, not {self.waiting}"
