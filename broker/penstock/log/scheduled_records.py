"""Reads scheduled records from a log: which were scheduled, cancelled and delivered, and the records that are due.

`replica.scheduled_delivery` calls it in threads, because old batches come from disk. Batches that are neither scheduled
nor delivered cost their header.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import NamedTuple, Protocol

from penstock.log.index_files import load_indexes
from penstock.log.search import (
    LogSearch,
    SearchedSegment,
    SearchView,
    batches_between,
    open_segment,
    scan_batches,
    segments_from,
)
from penstock.log.types import CorruptLog
from penstock.runtime.files import File
from penstock.wire.scheduled_batch import (
    is_delivered,
    is_scheduled,
    parse_origins,
    parse_places,
    parse_table,
    table_size,
)
from penstock.wire.schema import MalformedMessage


class Schedule(Protocol):
    """What a log is replayed into: `schedule_index.ScheduleIndex`."""

    def apply_rows(self, base_offset: int, rows: Iterable[tuple[int, int, int, int]]) -> None:
        """Apply the rows of a scheduled batch."""

    def apply_delivered(self, base_offset: int, origins: Iterable[int]) -> None:
        """Remove the records that a batch has delivered."""


class FoundBody(NamedTuple):
    """The body of a scheduled record; None if the record was deleted with the start of the log."""

    location: int
    body: bytes | None


class BodyPosition(NamedTuple):
    """Where a file has a body."""

    file: File
    position: int
    size_bytes: int
    path: str


def replay_schedule(
    search: LogSearch, from_offset: int, end_offset: int, schedule: Schedule, is_over: Callable[[], bool] = bool
) -> None:
    """Apply all batches of a range, or some if `is_over` returns True before. Raises CorruptLog, LogError."""
    view = search.make_view(list(search.segments))
    for file, position, header, path in batches_between(view, from_offset, end_offset):
        if is_over():
            return
        try:
            if is_scheduled(header):
                table = parse_table(file.read_at(position, table_size(header)), header)
                schedule.apply_rows(header.base_offset, table.rows)
            elif is_delivered(header):
                schedule.apply_delivered(
                    header.base_offset, parse_origins(file.read_at(position, header.size_bytes), header)
                )
        except MalformedMessage as e:
            raise CorruptLog(f'"{path}": {e}') from e


def read_bodies(search: LogSearch, locations: Sequence[int], max_bytes: int) -> list[FoundBody]:
    """Return the bodies of the first scheduled records at `locations`, up to `max_bytes` but at least one.

    Raises CorruptLog, LogError.
    """
    return search.run(lambda view: bodies_at(view, locations, max_bytes))


def bodies_at(view: SearchView, locations: Sequence[int], max_bytes: int) -> list[FoundBody]:
    """Return the same as `read_bodies`."""
    found: list[FoundBody] = []
    size_bytes = 0
    with ExitStack() as files:
        places = find_places(view, sorted(locations), files)
        for location in locations:
            place = places.get(location)
            if place is None:
                if location >= view.start_offset:
                    raise CorruptLog(f"there is no scheduled record at offset {location}")
                found.append(FoundBody(location, None))
                continue
            size_bytes += place.size_bytes
            if size_bytes > max_bytes and found:
                break
            body = place.file.read_at(place.position, place.size_bytes)
            if len(body) != place.size_bytes:
                raise CorruptLog(f'"{place.path}" ends within the scheduled record at offset {location}')
            found.append(FoundBody(location, body))
    return found


def find_places(view: SearchView, locations: list[int], files: ExitStack) -> dict[int, BodyPosition]:
    """Return where the bodies at sorted locations are."""
    places: dict[int, BodyPosition] = {}
    at = 0
    for searched in segments_from(view, locations[0]):
        stop = bisect_left(locations, searched.end_offset, at)
        if stop == at:
            continue
        segment = searched.segment
        file = files.enter_context(open_segment(view, segment))
        if file is not None:
            offsets = (segment.indexes or load_indexes(view.files, segment)).offsets
            in_segment = locations[at:stop]
            for location in in_segment:
                if location not in places and location >= segment.base_offset:
                    position = offsets.floor(location - segment.base_offset)
                    add_places(places, file, searched, position, in_segment, location)
        at = stop
    return places


def add_places(
    places: dict[int, BodyPosition],
    file: File,
    searched: SearchedSegment,
    position: int,
    locations: list[int],
    first: int,
) -> None:
    """Add the places of all locations in the batch with the offset `first`."""
    path = searched.segment.path
    for found, header, _ in scan_batches(file, searched, position):
        if header.last_offset < first:
            continue
        if header.base_offset > first or not is_scheduled(header):
            return
        in_batch = locations[bisect_left(locations, first) : bisect_left(locations, header.last_offset + 1)]
        rows = [location - header.base_offset for location in in_batch]
        try:
            table = file.read_at(found, table_size(header))
            for location, (at, size_bytes) in zip(in_batch, parse_places(table, header, rows), strict=True):
                places[location] = BodyPosition(file, found + at, size_bytes, path)
        except MalformedMessage as e:
            raise CorruptLog(f'"{path}": {e}') from e
        return
