"""Changes of partitions since an earlier offset of a query."""

from __future__ import annotations

from uuid import UUID

import pytest

from penstock.client import TopicPartition
from penstock_spark.progress.offsets import ForeignCheckpoint, StreamOffset
from penstock_spark.source.changes import compare

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
OLD, NEW = UUID(int=1), UUID(int=2)


def test_partitions_that_are_still_there_go_on_where_they_stood() -> None:
    found = compare(StreamOffset({A0: 5}, {"a": OLD}), StreamOffset({A0: 9}, {"a": OLD}))
    assert (found.begins, found.new, found.losses) == ({A0: 5}, frozenset(), [])


def test_partitions_that_appear_are_new() -> None:
    found = compare(StreamOffset({A0: 5}), StreamOffset({A0: 5, A1: 3, B0: 1}))
    assert (found.new, found.losses) == ({A1, B0}, [])


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (StreamOffset({}, {}), 'topic "a", partition 0 no longer exists; it had been read up to offset 5'),
        (
            StreamOffset({A0: 4}, {"a": OLD}),
            'topic "a", partition 0 ends at offset 4, but was read up to offset 5',
        ),
        (StreamOffset({A0: 9}, {"a": NEW}), f'topic "a" was deleted and created again: its id was {OLD} and is {NEW}'),
    ],
)
def test_losses_name_topic_partition_and_offsets(now: StreamOffset, said: str) -> None:
    (loss,) = compare(StreamOffset({A0: 5}, {"a": OLD}), now).losses
    assert loss.startswith(said)


def test_of_a_query_that_begins_nothing_is_said_to_have_been_read() -> None:
    (loss,) = compare(StreamOffset({A0: 5}, initial=True), StreamOffset({A0: 4})).losses
    assert loss == 'topic "a", partition 0 was to be read from offset 5, but ends at offset 4'


def test_a_topic_made_anew_is_read_from_its_beginning_however_long_it_is() -> None:
    found = compare(StreamOffset({A0: 5, A1: 7}, {"a": OLD}), StreamOffset({A0: 100}, {"a": NEW}))
    assert (found.begins, found.new, len(found.losses)) == ({}, {A0}, 1)


def test_brokers_without_topic_ids_are_no_reason_to_see_a_loss() -> None:
    assert compare(StreamOffset({A0: 5}, {"a": OLD}), StreamOffset({A0: 9})).losses == []


def test_offsets_survive_a_checkpoint() -> None:
    offset = StreamOffset({A1: 7, A0: 5, B0: 0}, {"b": NEW, "a": OLD}, began={A0: 1})
    assert offset.to_json() == {
        "a": {"0": 5, "1": 7},
        "b": {"0": 0},
        "@topics": {"a": str(OLD), "b": str(NEW)},
        "@from": {"a": {"0": 1}},
    }
    assert StreamOffset.from_json(offset.to_json()) == offset


def test_offsets_of_the_connectors_checkpoint_are_understood() -> None:
    assert StreamOffset.from_json({"a": {"1": 7, "0": 5}}) == StreamOffset({A0: 5, A1: 7})


def test_ten_partitions_are_written_in_the_order_of_their_numbers() -> None:
    offset = StreamOffset({TopicPartition("a", number): number for number in range(12)})
    assert list(offset.to_json()["a"]) == [str(number) for number in range(12)]


@pytest.mark.parametrize(
    "value", [[], 3, {"a": 3}, {"a": {"x": 3}}, {"a": {"0": -1}}, {"a": {"0": "1"}}, {"@topics": {"a": "x"}}]
)
def test_a_foreign_checkpoint_is_refused(value: object) -> None:
    with pytest.raises(ForeignCheckpoint, match="another query's"):
        StreamOffset.from_json(value)
