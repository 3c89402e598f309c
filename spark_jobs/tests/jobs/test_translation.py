"""Offsets of groups in another cluster: exact where that can be known, else earlier, never later."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_spark.jobs.translation import MAX_NOTE_BYTES, MAX_POINTS, Point, add, decode, encode, translate


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
    points: list[Point], offset: int, expected: int | None
) -> None:
    assert translate(points, offset) == expected


@given(st.data())
def test_no_record_is_lost_and_dense_logs_are_exact(data: st.DataObject) -> None:
    """A mirror of batches with gaps here, aborted attempts and markers there: going on at the translated offset shows
    every record that was not seen."""
    here, there = data.draw(st.integers(0, 5)), data.draw(st.integers(0, 5))
    points: list[Point] = []
    places: dict[int, int] = {}
    dense = True
    for _ in range(data.draw(st.integers(1, 6))):
        aborted = data.draw(st.integers(0, 3))
        there += aborted + (1 if aborted else 0)
        for _ in range(data.draw(st.integers(1, 5))):
            gap = data.draw(st.integers(0, 2))
            dense = dense and not gap and not aborted
            here += gap
            places[here] = there
            here, there = here + 1, there + 1
        there += 1
        points = add(points, (here, there))
    for offset in range(min(places), here + 1):
        to = translate(points, offset)
        assert to is not None
        unseen = [place for source, place in places.items() if source >= offset]
        assert all(place >= to for place in unseen)
        if dense and unseen:
            assert to == min(unseen) or (offset, to) in points


def test_points_are_bounded_and_the_newest_are_kept() -> None:
    points: list[Point] = []
    for n in range(1_000):
        points = add(points, (n * 10**15, n * 10**15 + n))
        assert len(points) <= MAX_POINTS
    assert points[-1] == (999 * 10**15, 999 * 10**15 + 999)
    assert len(encode(points)) <= MAX_NOTE_BYTES
    assert decode(encode(points)) == points[-len(decode(encode(points))) :]


def test_a_batch_that_runs_again_keeps_its_point() -> None:
    assert add([(10, 12)], (10, 15)) == [(10, 12)]


@pytest.mark.parametrize("note", ["", "x", "{}", "[[1]]", '[["a", 2]]'])
def test_a_note_that_is_none_of_ours_is_no_point(note: str) -> None:
    assert decode(note) == []
