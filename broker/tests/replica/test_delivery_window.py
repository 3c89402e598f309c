"""The visible offset of a delayed topic, compared with a model that knows every batch."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.log.append_times import BatchTime
from penstock.replica.delivery_window import MAX_STEPS, REFILL_STEPS, DeliveryWindow

NOW_MS = 1_000_000
BATCHES_PER_READ = 7


def window_of(delay_ms: int = 100, **more: bool) -> DeliveryWindow:
    return DeliveryWindow(delay_ms, 0, 0, NOW_MS, is_located=more.get("is_located", True))


def test_a_batch_is_visible_once_its_delay_has_passed() -> None:
    window = window_of(100)
    window.on_append(0, 3, NOW_MS, 50)
    assert window.next_due_ms == NOW_MS + 100
    assert window.advance(NOW_MS + 99, 3, 3) == 0
    assert window.visible_offset == 0
    assert window.advance(NOW_MS + 100, 3, 3) == 50
    assert window.visible_offset == 3
    assert window.next_due_ms is None


def test_what_is_due_waits_for_the_high_watermark() -> None:
    window = window_of(100)
    window.on_append(0, 3, NOW_MS, 50)
    assert window.advance(NOW_MS + 200, 0, 3) == 0
    assert window.advance(NOW_MS + 201, 3, 3) == 50


def test_a_shorter_delay_applies_at_once_and_a_longer_one_hides_nothing() -> None:
    window = window_of(100)
    for number in range(3):
        window.on_append(number, number + 1, NOW_MS + 10 * number, 1)
    window.set_delay(10)
    window.advance(NOW_MS + 20, 3, 3)
    assert window.visible_offset == 2
    window.set_delay(1_000)
    window.advance(NOW_MS + 21, 3, 3)
    assert (window.visible_offset, window.next_due_ms) == (2, NOW_MS + 1_020)


def test_batches_that_were_due_but_not_committed_wait_for_a_longer_delay() -> None:
    window = window_of(100)
    window.on_append(0, 1, NOW_MS, 1)
    window.advance(NOW_MS + 100, 0, 1)
    window.set_delay(500)
    assert window.needs_batches(1)
    window.add_batches([BatchTime(0, NOW_MS, 1)], 1)
    window.advance(NOW_MS + 101, 1, 1)
    assert (window.visible_offset, window.next_due_ms) == (0, NOW_MS + 500)


def test_a_clock_that_is_set_back_hides_nothing_and_no_batch_waits_longer_than_the_delay_from_then() -> None:
    window = window_of(100)
    window.on_append(0, 1, NOW_MS, 1)
    window.on_append(1, 2, NOW_MS + 90, 1)
    window.advance(NOW_MS + 100, 2, 2)
    window.advance(NOW_MS - 50_000, 2, 2)
    assert (window.visible_offset, window.next_due_ms) == (1, NOW_MS - 50_000 + 100)
    window.advance(NOW_MS - 50_000 + 100, 2, 2)
    assert window.visible_offset == 2


def test_a_batch_from_the_future_of_an_earlier_leader_waits_for_one_delay() -> None:
    window = DeliveryWindow(100, 0, 2, NOW_MS, is_located=False)
    window.locate(0)
    window.add_batches([BatchTime(0, NOW_MS + 86_400_000, 1), BatchTime(1, NOW_MS - 20, 1)], 2)
    assert window.next_due_ms == NOW_MS + 100
    window.advance(NOW_MS + 100, 2, 2)
    assert window.visible_offset == 2


def test_memory_is_bounded_and_the_rest_is_read_from_the_log() -> None:
    window = window_of(100)
    for offset in range(10 * MAX_STEPS):
        window.on_append(offset, offset + 1, NOW_MS + offset, 1)
    assert len(window.steps) == MAX_STEPS
    assert not window.needs_batches(10 * MAX_STEPS)
    window.advance(NOW_MS + 100 + MAX_STEPS - REFILL_STEPS - 1, 10 * MAX_STEPS, 10 * MAX_STEPS)
    assert window.needs_batches(10 * MAX_STEPS)
    assert window.due_offset == MAX_STEPS - REFILL_STEPS


def test_batches_of_one_moment_cost_one_step() -> None:
    window = window_of(100)
    for offset in range(10 * MAX_STEPS):
        window.on_append(offset, offset + 1, NOW_MS, 1)
    assert len(window.steps) == 1
    assert window.advance(NOW_MS + 100, 10 * MAX_STEPS, 10 * MAX_STEPS) == 10 * MAX_STEPS


def test_nothing_is_visible_before_the_log_has_been_read() -> None:
    window = DeliveryWindow(100, 0, 5, NOW_MS, is_located=False)
    assert window.advance(NOW_MS + 1_000, 5, 5) == 0
    assert not window.needs_batches(5)
    window.locate(3)
    window.advance(NOW_MS + 1_000, 5, 5)
    assert window.visible_offset == 3
    assert window.needs_batches(5)


def test_deleted_records_are_skipped() -> None:
    window = window_of(100)
    for number in range(4):
        window.on_append(10 * number, 10 * number + 10, NOW_MS + number, 1)
    window.on_log_start(25)
    assert (window.visible_offset, window.next_due_ms) == (25, NOW_MS + 102)
    window.advance(NOW_MS + 102, 40, 40)
    assert window.visible_offset == 30
    window.on_log_start(40)
    assert (window.visible_offset, window.next_due_ms) == (40, None)


@dataclass
class LoggedBatch:
    base_offset: int
    end_offset: int
    stamped_ms: int


@dataclass
class Model:
    """The visible offset by definition, for times of append that a rule bounds after the clock was set back."""

    delay_ms: int
    visible_offset: int
    append_ms: dict[int, int] = field(default_factory=dict)
    """Time of the append by base offset."""
    due_offset: int = 0

    def advance(self, batches: list[LoggedBatch], now_ms: int, high_watermark: int) -> None:
        end = batches[-1].end_offset if batches else 0
        due = next(
            (
                b.base_offset
                for b in batches
                if b.end_offset > max(self.visible_offset, self.due_offset)
                and self.append_ms[b.base_offset] + self.delay_ms > now_ms
            ),
            end,
        )
        self.due_offset = max(self.due_offset, due)
        self.visible_offset = max(self.visible_offset, min(high_watermark, self.due_offset))

    def set_delay(self, delay_ms: int) -> None:
        if delay_ms > self.delay_ms:
            self.due_offset = self.visible_offset
        self.delay_ms = delay_ms


class DeliveryMachine(RuleBasedStateMachine):
    """Appends, clocks that move both ways, settings, deletions, commits and leader changes in any order.

    Each moment at which the clock was set back bounds the times of the batches before it. `earliest` uses all of these
    bounds, `latest` only the last one, which the window keeps.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = self.observed_ms = NOW_MS
        self.batches: list[LoggedBatch] = []
        self.start_offset = self.high_watermark = 0
        self.delay_ms = 100
        self.lead()

    @property
    def end_offset(self) -> int:
        return self.batches[-1].end_offset if self.batches else 0

    def lead(self) -> None:
        """Start a leader epoch, by a clock that may differ from the last leader's."""
        self.observed_ms = self.now_ms
        self.window = DeliveryWindow(
            self.delay_ms,
            self.start_offset,
            self.end_offset,
            self.now_ms,
            is_located=self.start_offset == self.end_offset,
        )
        times = {b.base_offset: min(b.stamped_ms, self.now_ms) for b in self.batches}
        self.earliest = Model(self.delay_ms, self.start_offset, dict(times))
        self.latest = Model(self.delay_ms, self.start_offset, dict(times))
        self.last_visible = self.start_offset
        self.advance()

    def observe(self) -> None:
        if self.now_ms < self.observed_ms:
            for batch in self.batches:
                base = batch.base_offset
                self.earliest.append_ms[base] = min(self.earliest.append_ms[base], self.now_ms)
                self.latest.append_ms[base] = min(batch.stamped_ms, self.now_ms)
        self.observed_ms = self.now_ms

    def advance(self) -> None:
        """Advance, and read the log whenever the window needs it."""
        self.observe()
        window = self.window
        while True:
            window.advance(self.now_ms, self.high_watermark, self.end_offset)
            if not window.is_located:
                newer = window.known_ms - window.delay_ms
                kept = [b for b in self.batches if b.end_offset > self.start_offset]
                found = next((b.base_offset for b in kept if b.stamped_ms > newer), self.end_offset)
                window.locate(max(found, self.start_offset))
            elif window.needs_batches(self.end_offset):
                waiting = [b for b in self.batches if b.end_offset > window.scanned_end]
                read = waiting[:BATCHES_PER_READ]
                times = [BatchTime(max(b.base_offset, window.scanned_end), b.stamped_ms, 1) for b in read]
                window.add_batches(times, read[-1].end_offset)
            else:
                break
        self.earliest.advance(self.batches, self.now_ms, self.high_watermark)
        self.latest.advance(self.batches, self.now_ms, self.high_watermark)

    @rule(batches=st.integers(1, 300), records=st.integers(1, 3), apart_ms=st.sampled_from([0, 1, 5]))
    def append(self, batches: int, records: int, apart_ms: int) -> None:
        for _ in range(batches):
            self.now_ms += apart_ms
            self.observe()
            base = self.end_offset
            self.batches.append(LoggedBatch(base, base + records, self.now_ms))
            self.earliest.append_ms[base] = self.latest.append_ms[base] = self.now_ms
            self.window.on_append(base, base + records, self.now_ms, 1)

    @rule(share=st.floats(0, 1))
    def commit(self, share: float) -> None:
        at = [b.end_offset for b in self.batches if b.end_offset >= self.high_watermark]
        if at:
            self.high_watermark = at[int(share * (len(at) - 1))]
        self.advance()

    @rule(moved_ms=st.one_of(st.integers(0, 400), st.integers(-2_000, 2_000)))
    def move_clock(self, moved_ms: int) -> None:
        self.now_ms += moved_ms
        self.advance()

    @rule(delay_ms=st.sampled_from([1, 50, 100, 101, 1_000]))
    def configure(self, delay_ms: int) -> None:
        self.delay_ms = delay_ms
        for changed in (self.window, self.earliest, self.latest):
            changed.set_delay(delay_ms)
        self.advance()

    @rule(share=st.floats(0, 1))
    def delete(self, share: float) -> None:
        self.start_offset += int(share * (self.high_watermark - self.start_offset))
        self.window.on_log_start(self.start_offset)
        for model in (self.earliest, self.latest):
            model.visible_offset = max(model.visible_offset, self.start_offset)
            model.due_offset = max(model.due_offset, self.start_offset)
        self.advance()

    @precondition(lambda self: self.batches)
    @rule(lost=st.integers(0, 3), skew_ms=st.integers(-300, 300))
    def change_leader(self, lost: int, skew_ms: int) -> None:
        """Lead again after a restart, or another broker: records that were not committed may be gone."""
        while lost and self.batches and self.batches[-1].base_offset >= max(self.high_watermark, self.start_offset):
            self.batches.pop()
            lost -= 1
        self.now_ms += skew_ms
        self.lead()

    @invariant()
    def the_visible_offset_is_that_of_the_model(self) -> None:
        visible = self.window.visible_offset
        assert self.latest.visible_offset <= visible <= self.earliest.visible_offset
        assert visible >= self.last_visible, "a visible offset went back"
        assert visible <= max(self.high_watermark, self.start_offset)
        assert len(self.window.steps) <= MAX_STEPS
        self.last_visible = visible


TestDelivery = DeliveryMachine.TestCase
TestDelivery.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
