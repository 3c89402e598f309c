"""The dead letters of one share-partition, without I/O (KIP-1191): which are to be written, and the batch on its way.

`partition` owns the object, and `dead_letter_writer` drives it. A record that is rejected or was delivered too often is
ARCHIVING until its letter is in the dead-letter topic. Letters are written in batches of adjacent offsets, one batch at
a time. The batch has the producer id and sequence of an idempotent producer, and the share-partition's stored state
names both before the batch is sent. After a crash the next leader therefore sends a batch with the same sequence and
the same number of records, which the dead-letter partition recognises if it has the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from penstock.share.window import InFlightWindow, RecordState, Run

MAX_PRODUCER_EPOCH = (1 << 15) - 1
SEQUENCE_MODULUS = 1 << 31
"""Sequence numbers wrap to 0 here."""
MAX_BATCHED_LETTERS = 500
"""Upper bound of the letters in a batch."""
MAX_REASON_CHARS = 256
"""Upper bound of the reason that a member gives."""


class DeadLetterTarget(NamedTuple):
    """A partition of a dead-letter topic."""

    topic_id: UUID
    partition: int


class DeadLetterState(NamedTuple):
    """The stored part: the producer, where it writes, and its outstanding batch of `size` letters, 0 if there is none.

    `sequence` is that of the next batch, which is the outstanding one if there is one.
    """

    producer_id: int
    producer_epoch: int
    sequence: int
    target: DeadLetterTarget
    first: int = 0
    size: int = 0

    @property
    def last(self) -> int:
        """The last offset of the outstanding batch."""
        return self.first + self.size - 1


class FailureCause(NamedTuple):
    """Why a delivery failed: the reason that the member gave, and whether it rejected the record."""

    reason: str = ""
    is_rejected: bool = False


TIMED_OUT = FailureCause()
"""No acknowledgement came in time, or the member's session has ended."""


@dataclass(slots=True)
class FailureTimes:
    """When deliveries of a record failed, in monotonic ms, and why the last one did."""

    first_ms: float
    last_ms: float
    cause: FailureCause = TIMED_OUT


class ShareDeadLetters:
    """`state` is the current state, `durable` the one in the store. `on_changed` is called when both differ."""

    def __init__(self, window: InFlightWindow, stored: DeadLetterState | None, on_changed: Callable[[], None]) -> None:
        self._window, self._on_changed = window, on_changed
        self.state = self.durable = stored
        self._writing = stored
        self.failures: dict[int, FailureTimes] = {}
        """Failed deliveries by offset, as far as this leader knows. Empty without a dead-letter topic."""
        self.may_be_pending = False
        """False if certainly no record awaits its letter."""

    # --- persistence, called by the share-partition

    def begin_write(self) -> DeadLetterState | None:
        """Return what to store."""
        self._writing = self.state
        return self.state

    def complete_write(self, is_durable: bool) -> None:
        """Record the result of the write."""
        if is_durable:
            self.durable = self._writing

    @property
    def is_durable(self) -> bool:
        """Whether the outstanding batch may be sent: the store knows of it."""
        return self.durable == self.state

    # --- records

    def runs(self) -> Iterator[Run]:
        """Iterate over the records that await their letters."""
        return (run for run in self._window if run.state is RecordState.ARCHIVING)

    @property
    def pending(self) -> int:
        """Number of records that await their letters."""
        return sum(run.size for run in self.runs())

    @property
    def is_pending(self) -> bool:
        """Whether a record awaits its letter."""
        if self.may_be_pending:
            self.may_be_pending = any(run.awaits_dead_letter for run in self._window)
        return self.may_be_pending and next(self.runs(), None) is not None

    def record_failure(self, first: int, last: int, now_ms: float, cause: FailureCause = TIMED_OUT) -> None:
        """Record that the deliveries of adjacent records failed."""
        for offset in range(first, last + 1):
            known = self.failures.setdefault(offset, FailureTimes(now_ms, now_ms))
            known.last_ms, known.cause = now_ms, cause

    def archive(self, first: int, last: int) -> None:
        """Archive records without a letter. Offsets that do not await one are left alone."""
        for run in self._window.between(first, last):
            if run.state is RecordState.ARCHIVING:
                run.move(RecordState.ARCHIVED)
        self._window.merge(first, last)
        self._window.trim()
        start = self._window.start_offset
        self.failures = {offset: times for offset, times in self.failures.items() if offset >= start}
        self._on_changed()

    # --- the outstanding batch

    @property
    def outstanding(self) -> DeadLetterState | None:
        """The state if it has an outstanding batch."""
        return self.state if self.state is not None and self.state.size else None

    def plan(self, first: int, size: int, target: DeadLetterTarget, new_producer_id: int | None = None) -> None:
        """Make a batch outstanding. The first one needs a new producer id.

        A batch for another partition starts a new producer epoch: the sequences there are others.
        """
        assert 0 < size <= MAX_BATCHED_LETTERS, f"a batch of {size} dead letters"
        state = self.state
        if state is None or self.needs_producer:
            assert new_producer_id is not None, "a producer id is needed"
            state = DeadLetterState(new_producer_id, 0, 0, target)
        elif state.target != target:
            state = state._replace(producer_epoch=state.producer_epoch + 1, sequence=0, target=target)
        self.state = state._replace(first=first, size=size)
        self._on_changed()

    def restart(self) -> None:
        """Give the outstanding batch a new producer epoch: the partition has lost what came before it."""
        state = self.outstanding
        assert state is not None, "no batch of dead letters is outstanding"
        self.state = state._replace(producer_epoch=state.producer_epoch + 1, sequence=0)
        self._on_changed()

    def abandon(self) -> None:
        """Archive the records of the outstanding batch without letters: its topic was deleted."""
        state = self.outstanding
        assert state is not None, "no batch of dead letters is outstanding"
        self.state = state._replace(first=0, size=0)
        self.archive(state.first, state.last)

    def drop(self) -> None:
        """Archive the records of the outstanding batch without letters: the topic rejects these.

        An earlier attempt without an answer may have been written, so the next batch has another producer epoch.
        """
        self.restart()
        self.abandon()

    @property
    def needs_producer(self) -> bool:
        """Whether `plan` needs a new producer id."""
        return self.state is None or self.state.producer_epoch >= MAX_PRODUCER_EPOCH - 1

    def complete(self) -> None:
        """Archive the records of the outstanding batch, which the dead-letter partition has on all in-sync replicas."""
        state = self.outstanding
        assert state is not None, "no batch of dead letters is outstanding"
        assert self.is_durable, f"letters of offsets {state.first}-{state.last} were written before the store knew"
        sequence = (state.sequence + state.size) % SEQUENCE_MODULUS
        self.state = state._replace(sequence=sequence, first=0, size=0)
        self.archive(state.first, state.last)
