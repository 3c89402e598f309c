"""The size of a batch and its split into tasks, with tables and random data."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client import TopicPartition
from penstock_spark.model.ranges import OffsetRange
from penstock_spark.source.splitting import limit_ends, split

A, B, C = (TopicPartition("t", number) for number in range(3))


def ranges(*sizes: int) -> list[OffsetRange]:
    return [OffsetRange("t", number, 10, 10 + size) for number, size in enumerate(sizes)]


def sizes(found: list[OffsetRange]) -> list[tuple[int, int]]:
    return [(one.partition, one.end - one.start) for one in found]


@pytest.mark.parametrize(
    ("limit", "begins", "ends", "expected"),
    [
        (10, {A: 0, B: 0}, {A: 100, B: 100}, {A: 5, B: 5}),
        (10, {A: 0, B: 0}, {A: 90, B: 10}, {A: 9, B: 1}),
        (10, {A: 0, B: 0}, {A: 10_000, B: 1}, {A: 9, B: 1}),  # the small partition does not starve
        (10, {A: 5, B: 7}, {A: 6, B: 7}, {A: 6, B: 7}),
        (1000, {A: 0, B: 50}, {A: 100, B: 100}, {A: 100, B: 100}),
        (10, {A: 0}, {A: 100, B: 100}, {A: 10, B: 100}),  # the start of B is unknown
        (10, {A: 0, B: 9}, {A: 20, B: 3}, {A: 10, B: 3}),
    ],
)
def test_a_limit_is_shared_in_proportion(
    limit: int, begins: dict[TopicPartition, int], ends: dict[TopicPartition, int], expected: dict[TopicPartition, int]
) -> None:
    assert limit_ends(limit, begins, ends) == expected


@given(st.integers(1, 10**6), st.dictionaries(st.sampled_from([A, B, C]), st.integers(0, 2**40), min_size=1))
def test_a_limited_batch_always_advances_and_never_passes_the_end(limit: int, ends: dict[TopicPartition, int]) -> None:
    begins = dict.fromkeys(ends, 0)
    found = limit_ends(limit, begins, ends)
    assert all(0 <= found[one] <= ends[one] for one in ends)
    assert sum(found.values()) <= limit + len(ends)
    assert any(found.values()) or not any(ends.values())


@pytest.mark.parametrize(
    ("given_sizes", "min_partitions", "max_records", "expected"),
    [
        ((5, 0, 7), None, None, [(0, 5), (2, 7)]),
        ((5, 7), 2, None, [(0, 5), (1, 7)]),
        ((10,), 3, None, [(0, 3), (0, 3), (0, 4)]),
        ((100, 100), 4, None, [(0, 50), (0, 50), (1, 50), (1, 50)]),
        ((1, 99), 4, None, [(0, 1), (1, 33), (1, 33), (1, 33)]),
        ((2,), 5, None, [(0, 1), (0, 1)]),
        ((10, 3), None, 4, [(0, 3), (0, 3), (0, 4), (1, 3)]),
        ((8,), None, 4, [(0, 4), (0, 4)]),
        ((100, 4), 6, 50, [(0, 17), (0, 17), (0, 16), (0, 17), (0, 17), (0, 16), (1, 4)]),
    ],
)
def test_ranges_are_divided_among_tasks(
    given_sizes: tuple[int, ...], min_partitions: int | None, max_records: int | None, expected: list[tuple[int, int]]
) -> None:
    assert sorted(sizes(split(ranges(*given_sizes), min_partitions, max_records))) == sorted(expected)


@given(
    st.lists(st.integers(0, 10_000), max_size=5),
    st.one_of(st.none(), st.integers(1, 40)),
    st.one_of(st.none(), st.integers(1, 10_000).filter(lambda n: n > 200)),
)
def test_divided_ranges_hold_each_offset_once_in_order(
    given_sizes: list[int], min_partitions: int | None, max_records: int | None
) -> None:
    whole = ranges(*given_sizes)
    found = split(whole, min_partitions, max_records)
    assert all(one.end > one.start for one in found)
    for one in whole:
        parts = [part for part in found if part.partition == one.partition]
        edges = [one.start, *(part.end for part in parts)]
        assert [part.start for part in parts] == edges[:-1]
        assert edges[-1] == one.end
    if max_records is not None:
        assert all(one.end - one.start <= max_records for one in found)
