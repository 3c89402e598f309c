"""Translated offsets of groups in another cluster: exact if possible, otherwise earlier, never later."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_spark.jobs.kinds.translation import (
    MAX_METADATA_BYTES,
    MAX_POINTS,
    RECENT_POINTS,
    OffsetPoint,
    add,
    decode,
    encode,
    thin_out,
    translate,
)


@pytest.mark.parametrize(
    ("points", "offset", "expected"),
    [
        ([], 5, None),
        ([(10, 12)], 10, 12),
        ([(10, 12)], 7, 8),
        ([(10, 12)], 0, 1),
        ([(10, 12), (20, 23)], 10, 12),
        ([(10, 12), (20, 23)], 15, 17),
        ([(10, 12), (20, 23)], 20, 23),
        ([(10, 12)], 99, 12),
        ([(10, 12), (40, 15)], 11, 12),
    ],
)
def test_an_offset_between_points_is_counted_from_the_later_one(
    points: list[tuple[int, int]], offset: int, expected: int | None
) -> None:
    assert translate([OffsetPoint(*p) for p in points], offset) == expected


@pytest.mark.parametrize(("offset", "expected"), [(7, 0), (10, 12), (15, 12), (20, 24), (25, 27)])
def test_nothing_is_counted_back_over_more_than_one_batch(offset: int, expected: int) -> None:
    points = [OffsetPoint(10, 12, is_one_batch=False), OffsetPoint(20, 24, is_one_batch=False), OffsetPoint(30, 33)]
    assert translate(points, offset) == expected


@pytest.mark.slow
@given(st.data())
def test_no_record_is_lost_and_dense_logs_are_exact(data: st.DataObject) -> None:
    """The source log has gaps; the target has aborted attempts and markers. A consumer at the translated offset reads
    every record that it has not read before."""
    here, there = data.draw(st.integers(0, 5)), data.draw(st.integers(0, 5))
    points: list[OffsetPoint] = []
    places: dict[int, int] = {}
    dense = True
    for _ in range(data.draw(st.one_of(st.integers(1, 6), st.integers(RECENT_POINTS, RECENT_POINTS + 12)))):
        aborted = data.draw(st.integers(0, 3))
        there += aborted + (1 if aborted else 0)
        for _ in range(data.draw(st.integers(1, 5))):
            gap = data.draw(st.integers(0, 2))
            dense = dense and not gap and not aborted
            here += gap
            places[here] = there
            here, there = here + 1, there + 1
        there += 1
        points = add(points, OffsetPoint(here, there))
        if len(points) > RECENT_POINTS and data.draw(st.booleans()):
            points, dense = thin_out(points), False
    if data.draw(st.booleans()):
        points = decode(encode(points))
    for offset in range(min(places), here + 1):
        to = translate(points, offset)
        assert to is not None
        unseen = [place for source, place in places.items() if source >= offset]
        assert all(place >= to for place in unseen)
        if dense and unseen:
            assert to == min(unseen) or (offset, to) in [(p.source_offset, p.target_offset) for p in points]


def test_points_are_bounded_and_the_newest_are_kept() -> None:
    points: list[OffsetPoint] = []
    for n in range(1_000):
        points = add(points, OffsetPoint(n * 10**15, n * 10**15 + n))
        assert len(points) <= MAX_POINTS
    assert points[-1] == (999 * 10**15, 999 * 10**15 + 999, True)
    assert len(encode(points)) <= MAX_METADATA_BYTES
    assert decode(encode(points)) == points


def test_a_note_has_room_for_the_newest_and_tells_that_older_ones_were_left_out() -> None:
    points = [OffsetPoint(n, n) for n in range(500)]
    kept = decode(encode(points))
    assert len(encode(points)) <= MAX_METADATA_BYTES
    assert 50 < len(kept) < 500
    assert kept == [points[-len(kept)]._replace(is_one_batch=False), *points[1 - len(kept) :]]


def test_a_batch_that_runs_again_keeps_its_point() -> None:
    assert add([OffsetPoint(10, 12)], OffsetPoint(10, 15)) == [OffsetPoint(10, 12)]


@pytest.mark.parametrize("note", ["", "x", "{}", "[[1]]", '[["a", 2]]'])
def test_a_note_that_is_none_of_ours_is_no_point(note: str) -> None:
    assert decode(note) == []
