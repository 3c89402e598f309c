"""The visible offset of a partition with delayed delivery (`delivery.delay.ms`), without I/O.

Consumers read below the visible offset: below the high watermark and below the first batch whose delay has not passed.
`delayed_delivery` passes appended batches, the times that it reads from the log, the clock and the high watermark. Only
the next batches that wait are in memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.log.append_times import BatchTime

MAX_STEPS = 128
"""Steps in memory per partition; each costs about 160 bytes."""
REFILL_STEPS = MAX_STEPS // 2
"""Steps at which the next ones are read from the log."""


@dataclass(slots=True)
class DueStep:
    """Consecutive batches that become due together: the first one, and those behind it that are not newer."""

    base_offset: int
    append_ms: int
    size_bytes: int


class DeliveryWindow:
    """The visible offset, and the batches that become visible next. Times are in ms since 1970.

    `visible_offset` is where the window starts; it never goes back. `end_offset` is the end of the log: by this clock,
    all batches below it were appended at `now_ms` or before, whatever their timestamps are.
    """

    __slots__ = (
        "clock_ms", "delay_ms", "due_bytes", "generation", "is_located", "known_end", "known_ms", "scanned_end",
        "steps", "visible_offset",
    )  # fmt: skip

    def __init__(self, delay_ms: int, visible_offset: int, end_offset: int, now_ms: int, *, is_located: bool) -> None:
        assert visible_offset <= end_offset, f"visible offset {visible_offset} is past the log end {end_offset}"
        self.delay_ms = delay_ms
        self.visible_offset = self.scanned_end = visible_offset
        self.is_located = is_located
        """Whether all batches below the visible offset, and none above, are known to be due: else `locate` follows."""
        self.steps: deque[DueStep] = deque()
        """The batches between `due_offset` and `scanned_end` that are not due. Append times increase strictly."""
        self.due_bytes = 0
        """Size of the batches that are due and not visible yet."""
        self.known_end, self.known_ms = end_offset, now_ms
        """Batches below this offset count as appended at this time at the latest: the clock may have been set back."""
        self.clock_ms = now_ms
        self.generation = 0
        """Changes when what is being read from the log is no longer needed."""

    @property
    def due_offset(self) -> int:
        """The offset below which all batches are due."""
        return self.steps[0].base_offset if self.steps else self.scanned_end

    @property
    def next_due_ms(self) -> int | None:
        """When the first batch in memory becomes due, None if no batch is."""
        return self.steps[0].append_ms + self.delay_ms if self.steps else None

    def needs_batches(self, end_offset: int) -> bool:
        """Return whether batches must be read from the log, which ends at `end_offset`."""
        return self.is_located and self.scanned_end < end_offset and len(self.steps) <= REFILL_STEPS

    def locate(self, due_offset: int) -> None:
        """Start at the first batch that is not due, as read from the log."""
        assert not self.is_located, "the window has been located already"
        self.is_located = True
        self.scanned_end = max(self.scanned_end, due_offset)

    def on_append(self, base_offset: int, end_offset: int, append_ms: int, size_bytes: int) -> None:
        """Add a batch that the leader appends, unless earlier ones must be read from the log first."""
        self.observe_clock(append_ms, base_offset)
        if base_offset == self.scanned_end and self.is_located and len(self.steps) < MAX_STEPS:
            self.add(base_offset, append_ms, size_bytes)
            self.scanned_end = end_offset

    def add_batches(self, batches: Iterable[BatchTime], end_offset: int) -> None:
        """Add all batches from `scanned_end` to `end_offset`, as read from the log."""
        assert self.is_located, "batches follow the located start"
        for base_offset, time_ms, size_bytes in batches:
            append_ms = min(time_ms, self.known_ms) if base_offset < self.known_end else time_ms
            self.add(base_offset, append_ms, size_bytes)
        self.scanned_end = max(self.scanned_end, end_offset)

    def add(self, base_offset: int, append_ms: int, size_bytes: int) -> None:
        """Add a batch behind all others. One that is not newer than its predecessor becomes due with it."""
        assert base_offset >= self.scanned_end, f"the batch at {base_offset} is below {self.scanned_end}"
        steps = self.steps
        if steps and append_ms <= steps[-1].append_ms:
            steps[-1].size_bytes += size_bytes
        else:
            steps.append(DueStep(base_offset, append_ms, size_bytes))

    def advance(self, now_ms: int, high_watermark: int, end_offset: int) -> int:
        """Advance the visible offset. Returns about how many bytes became visible, 0 if it has not moved."""
        self.observe_clock(now_ms, end_offset)
        steps, due_ms = self.steps, now_ms - self.delay_ms
        while steps and steps[0].append_ms <= due_ms:
            self.due_bytes += steps.popleft().size_bytes
        reached = min(high_watermark, self.due_offset)
        if reached <= self.visible_offset:
            return 0
        self.visible_offset = reached
        grown, self.due_bytes = self.due_bytes, 0
        return max(grown, 1)

    def set_delay(self, delay_ms: int) -> None:
        """Change the delay of all batches that are not visible."""
        if delay_ms > self.delay_ms and self.due_offset > self.visible_offset:
            self.read_again()  # batches that were due, but not committed, are not due now
        self.delay_ms = delay_ms
        self.generation += 1

    def on_log_start(self, start_offset: int) -> None:
        """Skip batches that were deleted."""
        self.visible_offset = max(self.visible_offset, start_offset)
        if start_offset >= self.scanned_end:
            self.steps.clear()
            self.scanned_end = start_offset
            return
        while len(self.steps) > 1 and self.steps[1].base_offset <= start_offset:
            self.steps.popleft()

    def read_again(self) -> None:
        """Forget the batches above the visible offset; they are read from the log."""
        self.steps.clear()
        self.scanned_end, self.due_bytes = self.visible_offset, 0

    def observe_clock(self, now_ms: int, end_offset: int) -> None:
        """Bound the wait of present batches by the delay if the clock was set back."""
        if now_ms < self.clock_ms:
            self.known_end, self.known_ms = end_offset, now_ms
            for step in self.steps:
                step.append_ms = min(step.append_ms, now_ms)
        self.clock_ms = now_ms
