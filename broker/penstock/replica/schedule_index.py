"""The scheduled records of a partition that wait for their time, without I/O: which are due, which are cancelled.

`scheduled_delivery` fills it with the rows of scheduled batches in the order of the log, and takes what is due.
Millions may wait: a record costs 32 bytes in an array per minute of due times. Only the records of the current minute,
or second if there are many, are sorted.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from penstock.wire.scheduled_batch import CANCELS, NO_KEY_HASH, OWN_OFFSET

MINUTE_MS, SECOND_MS = 60_000, 1_000
WIDTH = 4
"""Numbers per record in an array: due time, origin, key hash, location."""
MAX_SORTED = 16_384
"""Records of a minute that are sorted at once; a minute with more is divided into seconds."""
SWEPT_PER_STEP = 8_192
"""Records that one step of a sweep visits at least."""
RECORDS_PER_CANCELLATION = 64
"""A sweep starts when this many records wait per cancellation that was not applied, which bounds its cost."""
SWEPT_AT_ONCE = 512
"""Up to this many records, each cancellation is applied at once."""

Rows: TypeAlias = "array[int]"


class WaitingRecord(NamedTuple):
    """A record that waits. Records are delivered by due time, then by origin."""

    due_ms: int
    origin: int
    key_hash: int
    location: int
    """Offset at which the log has the record: its origin, or that of a copy."""


class ScheduleIndex:
    """The records that wait, by due time."""

    def __init__(self) -> None:
        self.minutes: dict[int, Rows] = {}
        self.seconds: dict[int, Rows] = {}
        """The minute that is being delivered, if it has many records."""
        self.minute_keys: list[int] = []
        self.second_keys: list[int] = []
        """Heaps of the keys of `minutes` and `seconds`."""
        self.split_end_ms = self.sorted_end_ms = 0
        """Due times below these are not in `minutes`, or not in `seconds`."""
        self.sorted: list[WaitingRecord] = []
        """A heap."""
        self.taken: list[WaitingRecord] = []
        """What `take_due` has returned."""
        self.taken_changed = False
        """Whether a taken record was removed."""
        self.count = 0
        """Number of records. May include cancelled ones, if there are many."""
        self.cancelled: dict[int, int] = {}
        """By key hash, the offset of the last cancellation: it removes the records located before it."""
        self.replaced: dict[int, int] = {}
        """By origin, the offset of the batch that delivered or copied the record."""
        self.sweeping: tuple[dict[int, int], dict[int, int]] = ({}, {})
        """The cancellations and replacements that a sweep is applying."""
        self.to_sweep: list[tuple[dict[int, Rows], int]] = []
        self.lowest_location = 0
        """No record is located below."""

    # Changes in the order of the log

    def apply_rows(self, base_offset: int, rows: Iterable[tuple[int, int, int, int]]) -> None:
        """Apply the rows of a scheduled batch."""
        for location, (due_ms, origin, key_hash, _) in enumerate(rows, base_offset):
            if due_ms == CANCELS:
                if key_hash != NO_KEY_HASH:
                    self.cancelled[key_hash] = location
                continue
            if origin == OWN_OFFSET:
                origin = location
            else:
                self.replaced[origin] = location
            self.add(due_ms, origin, key_hash, location)
        self.sweep_if_needed()

    def apply_delivered(self, base_offset: int, origins: Iterable[int]) -> None:
        """Remove the records that a batch in the log has delivered."""
        for origin in origins:
            self.replaced[origin] = base_offset
        self.sweep_if_needed()

    def add(self, due_ms: int, origin: int, key_hash: int, location: int) -> None:
        """Add a record."""
        if not self.count:
            self.lowest_location = location
        self.count += 1
        if due_ms < self.sorted_end_ms:
            heapq.heappush(self.sorted, WaitingRecord(due_ms, origin, key_hash, location))
            return
        if due_ms < self.split_end_ms:
            level, keys, key = self.seconds, self.second_keys, due_ms // SECOND_MS
        else:
            level, keys, key = self.minutes, self.minute_keys, due_ms // MINUTE_MS
        rows = level.get(key)
        if rows is None:
            rows = level[key] = array("q")
            heapq.heappush(keys, key)
        rows.extend((due_ms, origin, key_hash, location))

    def add_minute(self, key: int, rows: Rows) -> None:
        """Add the records of a minute from a snapshot."""
        assert key not in self.minutes, f"minute {key} was added before"
        self.minutes[key] = rows
        heapq.heappush(self.minute_keys, key)
        self.count += len(rows) // WIDTH

    # Delivery

    @property
    def next_due_ms(self) -> int | None:
        """When to call `take_due`, in ms since 1970: not later than the first due time. None if no record waits."""
        if self.sorted:
            return self.sorted[0].due_ms
        for level, keys, width_ms in (
            (self.seconds, self.second_keys, SECOND_MS),
            (self.minutes, self.minute_keys, MINUTE_MS),
        ):
            skip_empty(level, keys)
            if keys:
                return keys[0] * width_ms
        return None

    @property
    def first_due_ms(self) -> int | None:
        """The first due time, in ms since 1970; None if no record waits. Visits the records of a minute."""
        if self.taken or self.sorted:
            return min(record.due_ms for record in self.taken[:1] + self.sorted[:1])
        for level, keys in ((self.seconds, self.second_keys), (self.minutes, self.minute_keys)):
            skip_empty(level, keys)
            if keys:
                return min(level[keys[0]][0::WIDTH])
        return None

    def take_due(self, now_ms: int, max_records: int) -> list[WaitingRecord]:
        """Return the first records that are due, in order. `complete` or `put_back` must follow."""
        assert not self.taken, "records are taken that were neither delivered nor put back"
        self.taken_changed = False
        while len(self.taken) < max_records:
            if not self.sorted:
                due_ms = self.next_due_ms
                if due_ms is None or due_ms > now_ms:
                    break
                self.open_next()
            elif self.sorted[0].due_ms > now_ms:
                break
            else:
                record = heapq.heappop(self.sorted)
                if self.is_removed(record):
                    self.count -= 1
                else:
                    self.taken.append(record)
        return list(self.taken)

    def complete(self, count: int) -> None:
        """Remove the first `count` taken records, which are delivered, and put the others back."""
        assert count <= len(self.taken), f"{count} records are delivered, {len(self.taken)} were taken"
        del self.taken[:count]
        self.count -= count
        self.put_back()

    def put_back(self) -> None:
        """Let the taken records wait again, except those that were cancelled meanwhile."""
        taken, self.taken = self.taken, []
        for record in taken:
            if self.is_removed(record):
                self.count -= 1
            else:
                heapq.heappush(self.sorted, record)

    def has_removed_taken(self) -> bool:
        """Return whether a taken record was cancelled meanwhile."""
        return self.taken_changed or (self.has_removals and any(map(self.is_removed, self.taken)))

    def open_next(self) -> None:
        """Sort the records of the next second or minute."""
        if self.second_keys:
            key = heapq.heappop(self.second_keys)
            rows, end_ms = self.seconds.pop(key), (key + 1) * SECOND_MS
        else:
            key = heapq.heappop(self.minute_keys)
            rows, end_ms = self.minutes.pop(key), (key + 1) * MINUTE_MS
            self.split_end_ms = max(self.split_end_ms, end_ms)
            if len(rows) > MAX_SORTED * WIDTH:
                self.sorted_end_ms = max(self.sorted_end_ms, key * MINUTE_MS)
                self.split(rows)
                return
        self.sorted_end_ms = max(self.sorted_end_ms, end_ms)
        numbers = iter(rows)
        found = [
            record
            for record in map(WaitingRecord._make, zip(numbers, numbers, numbers, numbers, strict=True))
            if not self.is_removed(record)
        ]
        self.count -= len(rows) // WIDTH - len(found)
        self.sorted = sorted(found + self.sorted)

    def split(self, rows: Rows) -> None:
        """Divide the records of a minute into seconds. A minute may have a million, so each costs one step."""
        seconds, is_checked = self.seconds, self.has_removals
        numbers = iter(rows)
        for row in zip(numbers, numbers, numbers, numbers, strict=True):
            if is_checked and self.is_removed_row(row[1], row[2], row[3]):
                self.count -= 1
                continue
            second = row[0] // SECOND_MS
            try:
                seconds[second].extend(row)
            except KeyError:
                seconds[second] = array("q", row)
                heapq.heappush(self.second_keys, second)

    # Removal

    @property
    def has_removals(self) -> bool:
        """Whether cancellations or replacements were not applied to all records."""
        return bool(self.cancelled or self.replaced or self.sweeping[0] or self.sweeping[1])

    def is_removed(self, record: WaitingRecord) -> bool:
        """Return whether a record is cancelled, or replaced by a later batch."""
        return self.is_removed_row(record.origin, record.key_hash, record.location)

    def is_removed_row(self, origin: int, key_hash: int, location: int) -> bool:
        """Return the same as `is_removed`."""
        cancelled, replaced = self.sweeping
        return (
            self.cancelled.get(key_hash, 0) > location
            or self.replaced.get(origin, 0) > location
            or cancelled.get(key_hash, 0) > location
            or replaced.get(origin, 0) > location
        )

    def sweep_if_needed(self) -> None:
        """Start to remove records if many cancellations and replacements were not applied, or continue."""
        pending = len(self.cancelled) + len(self.replaced)
        if (
            not self.to_sweep
            and pending
            and (self.count <= SWEPT_AT_ONCE or pending * RECORDS_PER_CANCELLATION >= self.count)
        ):
            self.start_sweep()
        self.continue_sweep(SWEPT_AT_ONCE if self.count <= SWEPT_AT_ONCE else SWEPT_PER_STEP)

    def start_sweep(self) -> None:
        """Apply all that is pending to the sorted records, and then step by step to the others."""
        self.sweeping, self.cancelled, self.replaced = (self.cancelled, self.replaced), {}, {}
        kept = [record for record in self.sorted if not self.is_removed(record)]
        self.count -= len(self.sorted) - len(kept)
        heapq.heapify(kept)
        self.sorted = kept
        kept = [record for record in self.taken if not self.is_removed(record)]
        self.count -= len(self.taken) - len(kept)
        self.taken, self.taken_changed = kept, self.taken_changed or len(kept) < len(self.taken)
        self.to_sweep = [(level, key) for level in (self.minutes, self.seconds) for key in level]

    def continue_sweep(self, min_records: int) -> None:
        """Visit at least this many records."""
        while self.to_sweep and min_records > 0:
            level, key = self.to_sweep.pop()
            rows = level.get(key)
            if rows is not None:
                min_records -= len(rows) // WIDTH + 1
                self.sweep_rows(level, key, rows)
        if not self.to_sweep:
            self.sweeping = ({}, {})

    def finish_sweeps(self) -> None:
        """Apply all that is pending. Visits all records."""
        self.continue_sweep(self.count + len(self.to_sweep) + 1)
        self.start_sweep()
        self.continue_sweep(self.count + len(self.to_sweep) + 1)

    def sweep_rows(self, level: dict[int, Rows], key: int, rows: Rows) -> None:
        """Remove what is cancelled or replaced from an array. Its key stays, so that the heap of keys is right."""
        cancelled, replaced = self.sweeping
        if cancelled.keys().isdisjoint(rows[2::WIDTH]) and replaced.keys().isdisjoint(rows[1::WIDTH]):
            return
        kept = array("q")
        for at in range(0, len(rows), WIDTH):
            if not self.is_removed_row(*rows[at + 1 : at + WIDTH]):
                kept.extend(rows[at : at + WIDTH])
        self.count -= (len(rows) - len(kept)) // WIDTH
        level[key] = kept

    # Locations

    def find_lowest_location(self) -> int | None:
        """Return the lowest location of a record, None if no record waits. Visits all records."""
        found = [record.location for record in (*self.taken, *self.sorted)]
        for level in (self.minutes, self.seconds):
            found += [min(rows[3::WIDTH]) for rows in level.values() if rows]
        if not found:
            return None
        self.lowest_location = min(found)
        return self.lowest_location

    def located_below(self, offset: int, max_records: int) -> list[WaitingRecord]:
        """Return up to `max_records` records that the log has below an offset, lowest location first. Visits all
        records."""
        found = [record for record in self.sorted if record.location < offset]
        for level in (self.minutes, self.seconds):
            for rows in level.values():
                if rows and min(rows[3::WIDTH]) < offset:
                    numbers = iter(rows)
                    records = map(WaitingRecord._make, zip(numbers, numbers, numbers, numbers, strict=True))
                    found += [record for record in records if record.location < offset]
        found = [record for record in found if not self.is_removed(record)]
        return heapq.nsmallest(max_records, found, key=lambda record: record.location)

    def count_below(self, offset: int) -> int:
        """Return the number of records that the log has below an offset. Visits all records."""
        found = sum(record.location < offset for record in self.sorted)
        for level in (self.minutes, self.seconds):
            found += sum(location < offset for rows in level.values() for location in rows[3::WIDTH])
        return found

    def forget_below(self, offset: int) -> None:
        """Remove the records that the log no longer has, because it starts at `offset`. Visits all records."""
        self.sorted = self._kept_above(self.sorted, offset)
        heapq.heapify(self.sorted)
        before = len(self.taken)
        self.taken = self._kept_above(self.taken, offset)
        self.taken_changed = self.taken_changed or len(self.taken) < before
        for level in (self.minutes, self.seconds):
            for key, rows in level.items():
                if rows and min(rows[3::WIDTH]) < offset:
                    kept = array("q")
                    for at in range(0, len(rows), WIDTH):
                        if rows[at + 3] >= offset:
                            kept.extend(rows[at : at + WIDTH])
                    self.count -= (len(rows) - len(kept)) // WIDTH
                    level[key] = kept
        self.lowest_location = max(self.lowest_location, offset)

    def _kept_above(self, records: list[WaitingRecord], offset: int) -> list[WaitingRecord]:
        kept = [record for record in records if record.location >= offset]
        self.count -= len(records) - len(kept)
        return kept


def skip_empty(level: dict[int, Rows], keys: list[int]) -> None:
    """Drop the first arrays that a sweep has emptied."""
    while keys and not level[keys[0]]:
        del level[heapq.heappop(keys)]
