"""When a topic with fewer partitions moves on."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from penstock.config.topic import TopicConfig
from penstock.shrink.stages import CommittedOffsets, is_draining, is_finished, may_hide, waiting_groups
from penstock.state.view import PartitionView, SealView, ShrinkView, TopicView

SEALED = SealView(offset=100, target=0, drained_offset=98)


def topic(seals: dict[int, SealView], remaining: int = 2, shown: int = 4, total: int = 4) -> TopicView:
    partitions = [PartitionView(index, [0], 0, 0, [0]) for index in range(total)]
    return TopicView("t", UUID(int=5), partitions, {}, TopicConfig(), shrink=ShrinkView(remaining, shown), seals=seals)


EMPTY = SealView(offset=0, target=0, drained_offset=0)
DRAINING = topic({2: SEALED, 3: SEALED})


def test_a_topic_drains_once_all_surplus_partitions_are_sealed() -> None:
    assert is_draining(DRAINING)
    assert not is_draining(topic({2: SEALED}))
    assert not is_draining(topic({2: SEALED, 3: SealView()}))
    assert not is_draining(topic({2: SEALED, 3: SEALED}, shown=2))
    assert is_draining(topic({2: EMPTY, 3: SEALED})), "a partition that never had a record is sealed at offset 0"


@pytest.mark.parametrize(
    ("committed", "expected"),
    [
        ({"g": {2: 98, 3: 100}}, True),
        ({"g": {2: 97, 3: 100}}, False),
        ({"g": {2: 98, 3: 98}, "other": {0: 5}}, False),
        ({"g": {0: 5}}, False),
        ({}, False),
    ],
)
def test_the_partitions_are_hidden_once_each_group_has_read_them(committed: CommittedOffsets, expected: bool) -> None:
    assert may_hide(DRAINING, committed) == expected


def test_deleted_records_keep_no_group_waiting() -> None:
    empty = SealView(100, 0, 98, has_records=False)
    assert may_hide(topic({2: empty, 3: empty}), {})
    assert may_hide(topic({2: empty, 3: SEALED}), {"g": {3: 98}})
    assert not may_hide(topic({2: empty, 3: SEALED}), {})


def test_the_groups_that_hold_a_topic_up_are_named() -> None:
    waiting = list(waiting_groups(DRAINING, {"g": {2: 98, 3: 5}, "h": {0: 1}}))
    assert [(group.group_id, group.partition, group.committed) for group in waiting] == [
        ("h", 2, -1),
        ("g", 3, 5),
        ("h", 3, -1),
    ]


def test_no_group_waits_for_partitions_that_are_hidden_or_not_sealed() -> None:
    assert [group.partition for group in waiting_groups(topic({2: SEALED, 3: SEALED}, shown=3), {"g": {}})] == [2]
    assert [group.partition for group in waiting_groups(topic({3: SEALED}), {"g": {}})] == [3]


def test_a_topic_that_never_had_fewer_partitions_is_at_no_stage() -> None:
    unchanged = replace(DRAINING, shrink=None)
    assert not is_finished(unchanged)
    assert not is_draining(unchanged)
    assert not may_hide(unchanged, {})
    assert list(waiting_groups(unchanged, {"g": {}})) == []


def test_a_change_is_finished_once_no_partition_is_surplus_or_sealed() -> None:
    gaps = SealView(gaps=((1, 5),))
    assert is_finished(topic({2: gaps}, remaining=4))
    assert is_finished(topic({2: gaps}, remaining=5))
    assert not is_finished(topic({2: SEALED}, remaining=4))
    assert not is_finished(topic({2: EMPTY}, remaining=4))
    assert not is_finished(topic({2: gaps}, remaining=3))
    assert not is_finished(DRAINING)
