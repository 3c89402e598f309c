"""Sets of partitions and their form in the store."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.group.modern.assignment import (
    assignment_of,
    contains,
    difference,
    encode_indexes,
    intersection,
    overlaps,
    parse_indexes,
    partition_count,
    union,
)

INDEXES = st.frozensets(st.integers(0, 40))
ASSIGNMENTS = st.dictionaries(st.integers(0, 2).map(lambda n: UUID(int=n)), INDEXES.filter(bool), max_size=3)


def pairs(assignment) -> set[tuple[UUID, int]]:
    return {(topic_id, index) for topic_id, indexes in assignment.items() for index in indexes}


@given(ASSIGNMENTS, ASSIGNMENTS)
def test_they_behave_like_sets_of_pairs_and_have_no_empty_topics(one, other) -> None:
    for made, expected in (
        (difference(one, other), pairs(one) - pairs(other)),
        (intersection(one, other), pairs(one) & pairs(other)),
        (union(one, other), pairs(one) | pairs(other)),
    ):
        assert pairs(made) == expected
        assert all(made.values())
        assert partition_count(made) == len(expected)
    assert overlaps(one, other) == bool(pairs(one) & pairs(other))
    assert contains(one, other) == (pairs(one) >= pairs(other))


def test_a_topic_that_comes_twice_is_united() -> None:
    topic = UUID(int=1)
    assert assignment_of([(topic, [1]), (topic, [2]), (UUID(int=2), [])]) == {topic: frozenset({1, 2})}


@given(INDEXES.filter(bool))
def test_ranges_are_parsed_to_what_was_encoded(indexes) -> None:
    assert parse_indexes(encode_indexes(indexes), 41) == indexes


def test_consecutive_indexes_are_one_range() -> None:
    assert encode_indexes(frozenset({0, 1, 2, 3, 7, 9, 10})) == "0-3,7,9-10"


@pytest.mark.parametrize("text", ["", "x", "-1", "3-1", "0-200000", "1,,2", "0-10"])
def test_other_texts_are_rejected_without_building_them(text: str) -> None:
    with pytest.raises(ValueError, match=r"partitions|invalid literal"):
        parse_indexes(text, 10)
