"""The index of scheduled records, compared with a model that has plain lists."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.replica import schedule_index
from penstock.replica.schedule_index import MAX_SORTED, MINUTE_MS, ScheduleIndex, WaitingRecord
from penstock.wire.scheduled_batch import CANCELS, NO_KEY_HASH, OWN_OFFSET

START_MS = 1_700_000_000_000
DELAYS = st.one_of(st.integers(0, 3_000), st.integers(0, 3 * MINUTE_MS), st.integers(0, 30 * 86_400_000))
HASHES = st.sampled_from([NO_KEY_HASH, 1, 2, 3, -4])


class Batch(NamedTuple):
    """A batch of the log: rows of a scheduled batch, or the origins of a delivered one."""

    base_offset: int
    rows: list[tuple[int, int, int, int]]
    origins: list[int]


class ScheduleMachine(RuleBasedStateMachine):
    """Schedules, cancels, delivers, copies, deletes and replays, with small limits so that all paths are taken."""

    @initialize(
        max_sorted=st.sampled_from([2, 16_384]),
        at_once=st.sampled_from([-1, 512]),
        step=st.integers(1, 8),
        per_cancellation=st.sampled_from([0, 2, 64]),
    )
    def start(self, max_sorted: int, at_once: int, step: int, per_cancellation: int) -> None:
        self.limits = {
            "MAX_SORTED": max_sorted,
            "SWEPT_AT_ONCE": at_once,
            "SWEPT_PER_STEP": step,
            "RECORDS_PER_CANCELLATION": per_cancellation,
        }
        self.saved = {name: getattr(schedule_index, name) for name in self.limits}
        for name, value in self.limits.items():
            setattr(schedule_index, name, value)
        self.index, self.now_ms, self.end = ScheduleIndex(), START_MS, 1
        self.waiting: list[WaitingRecord] = []
        self.log: list[Batch] = []
        self.start_offset = 1

    def teardown(self) -> None:
        for name, value in getattr(self, "saved", {}).items():
            setattr(schedule_index, name, value)

    def append_rows(self, rows: list[tuple[int, int, int, int]]) -> int:
        base = self.end
        self.log.append(Batch(base, rows, []))
        self.index.apply_rows(base, rows)
        self.end += len(rows)
        return base

    @rule(rows=st.lists(st.tuples(DELAYS, HASHES, st.booleans()), min_size=1, max_size=8))
    def schedule(self, rows: list[tuple[int, int, bool]]) -> None:
        made = [
            (CANCELS if cancels else self.now_ms + delay_ms, OWN_OFFSET, key_hash, 0)
            for delay_ms, key_hash, cancels in rows
        ]
        base = self.append_rows(made)
        for location, (due_ms, _, key_hash, _) in enumerate(made, base):
            if due_ms != CANCELS:
                self.waiting.append(WaitingRecord(due_ms, location, key_hash, location))
            elif key_hash != NO_KEY_HASH:
                self.waiting = [r for r in self.waiting if r.key_hash != key_hash]

    @rule(by_ms=st.one_of(st.integers(0, 2_000), st.integers(-5_000, 40 * 86_400_000)))
    def pass_time(self, by_ms: int) -> None:
        self.now_ms += by_ms

    @rule(count=st.integers(1, 5), fails=st.booleans(), cancelled=st.one_of(st.none(), HASHES))
    def deliver(self, count: int, fails: bool, cancelled: int | None) -> None:
        expected = sorted(r for r in self.waiting if r.due_ms <= self.now_ms)[:count]
        assert self.index.take_due(self.now_ms, count) == expected
        if cancelled is not None:
            self.schedule([(0, cancelled, True)])
        is_changed = cancelled not in (None, NO_KEY_HASH) and any(r.key_hash == cancelled for r in expected)
        assert self.index.has_removed_taken() == is_changed
        if fails or is_changed:
            self.index.put_back()
        elif expected:
            origins = [r.origin for r in expected]
            self.log.append(Batch(self.end, [], origins))
            self.end += len(origins)
            self.index.complete(len(expected))
            self.waiting = [r for r in self.waiting if r.origin not in origins]
        else:
            self.index.complete(0)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), count=st.integers(1, 3))
    def copy_oldest(self, data: st.DataObject, count: int) -> None:
        limit = data.draw(st.integers(1, self.end))
        expected = sorted((r for r in self.waiting if r.location < limit), key=lambda r: r.location)
        assert self.index.count_below(limit) >= len(expected)
        found = self.index.located_below(limit, count)
        assert found == expected[:count]
        if not found:
            return
        base = self.append_rows([(r.due_ms, r.origin, r.key_hash, 0) for r in found])
        for location, record in enumerate(found, base):
            self.waiting.remove(record)
            self.waiting.append(record._replace(location=location))

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        self.start_offset = data.draw(st.integers(self.start_offset, self.end))
        self.waiting = [r for r in self.waiting if r.location >= self.start_offset]
        self.index.forget_below(self.start_offset)

    @rule()
    def restart(self) -> None:
        """Replay the log into an empty index."""
        self.index = ScheduleIndex()
        for batch in self.log:
            if batch.rows:
                self.index.apply_rows(batch.base_offset, batch.rows)
            else:
                self.index.apply_delivered(batch.base_offset, batch.origins)
        self.index.forget_below(self.start_offset)

    @rule()
    def finish_sweeps(self) -> None:
        self.index.finish_sweeps()
        assert self.index.count == len(self.waiting)
        assert self.index.first_due_ms == min((r.due_ms for r in self.waiting), default=None)
        assert self.index.find_lowest_location() == min((r.location for r in self.waiting), default=None)

    @invariant()
    def bounds_hold(self) -> None:
        if not hasattr(self, "index"):
            return
        assert self.index.count >= len(self.waiting)
        if self.waiting:
            next_due_ms = self.index.next_due_ms
            assert next_due_ms is not None
            assert next_due_ms <= min(r.due_ms for r in self.waiting)
            assert self.index.lowest_location <= min(r.location for r in self.waiting)


TestScheduleIndex = ScheduleMachine.TestCase
TestScheduleIndex.settings = settings(
    max_examples=settings().max_examples * 3 // 2, stateful_step_count=40, deadline=None
)


def test_a_million_records_cost_about_32_bytes_each() -> None:
    index = ScheduleIndex()
    for base in range(0, 1_000_000, 1_000):
        index.apply_rows(base, ((START_MS + (base + i) * 37 % 2_592_000_000, -1, i, 0) for i in range(1_000)))
    size = sum(rows.buffer_info()[1] * rows.itemsize for rows in index.minutes.values())
    assert (index.count, size) == (1_000_000, 32_000_000)


def test_records_that_were_removed_stay_removed_when_a_large_minute_is_divided() -> None:
    index, count = ScheduleIndex(), MAX_SORTED + 1_000
    start_ms = START_MS // MINUTE_MS * MINUTE_MS
    index.apply_rows(0, [(start_ms + i, OWN_OFFSET, i + 1, 0) for i in range(count)])
    index.apply_rows(count, [(CANCELS, OWN_OFFSET, 2, 0)])
    index.apply_delivered(count + 1, [3])
    assert index.count == count, "two removals do not start a sweep"
    assert [r.origin for r in index.take_due(start_ms + 5, 10)] == [0, 2, 4, 5]
    assert index.seconds, "the minute is divided"
    assert index.count == count - 2


def test_a_cancellation_that_is_not_applied_yet_holds_for_sorted_records_too() -> None:
    index = ScheduleIndex()
    index.apply_rows(0, [(START_MS + i, OWN_OFFSET, i + 1, 0) for i in range(1_000)])
    first = index.take_due(START_MS + 5, 3)
    assert [r.origin for r in first] == [0, 1, 2]
    index.complete(3)
    index.apply_rows(1_000, [(CANCELS, OWN_OFFSET, 5, 0)])
    assert index.count == 997, "one cancellation does not start a sweep"
    assert [r.origin for r in index.take_due(START_MS + 5, 10)] == [3, 5]
    assert index.count == 996
