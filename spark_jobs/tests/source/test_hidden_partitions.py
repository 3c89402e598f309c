"""Offsets of a query whose topic has fewer partitions than before, without brokers and without Spark."""

from __future__ import annotations

from uuid import UUID

import pytest

from penstock.client import TopicPartition
from penstock_spark.progress.offsets import StreamOffset
from penstock_spark.source.changes import compare, with_hidden

KEPT, HIDDEN, OTHER = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
OLD, NEW = UUID(int=1), UUID(int=2)
START = StreamOffset({KEPT: 5, HIDDEN: 7}, {"a": OLD})
NOW = StreamOffset({KEPT: 9}, {"a": OLD})


@pytest.mark.parametrize("drained", [0, 6, 7], ids=["without records", "read further", "read"])
def test_a_hidden_partition_that_was_read_stays_in_the_offset_and_is_no_loss(drained: int) -> None:
    now = with_hidden(START, NOW, {HIDDEN: drained})
    assert now == StreamOffset({KEPT: 9, HIDDEN: 7}, {"a": OLD})
    found = compare(START, now, {HIDDEN: drained})
    assert (found.begins, found.new, found.losses) == ({KEPT: 5, HIDDEN: 7}, frozenset(), [])


def test_a_hidden_partition_with_unread_records_is_a_loss_that_says_how_to_read_them() -> None:
    hidden = {HIDDEN: 10}
    now = with_hidden(START, NOW, hidden)
    assert now == NOW
    (loss,) = compare(START, now, hidden).losses
    assert loss.startswith('topic "a", partition 1 is hidden')
    assert "offsets 7 to 9 were not read; give the topic its partitions back" in loss


@pytest.mark.parametrize(
    ("start", "now"),
    [
        (START, StreamOffset({KEPT: 9}, {"a": NEW})),
        (StreamOffset({KEPT: 5, OTHER: 7}, {"a": OLD, "b": OLD}), NOW),
    ],
    ids=["recreated", "deleted"],
)
def test_partitions_of_another_topic_are_not_taken_for_hidden_ones(start: StreamOffset, now: StreamOffset) -> None:
    assert with_hidden(start, now, {HIDDEN: 0, OTHER: 0}) == now
    assert compare(start, now, {}).losses


def test_a_checkpoint_without_topic_ids_keeps_hidden_partitions() -> None:
    start = StreamOffset({KEPT: 5, HIDDEN: 7})
    assert with_hidden(start, NOW, {HIDDEN: 7}).offsets == {KEPT: 9, HIDDEN: 7}
