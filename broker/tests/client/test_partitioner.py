"""Partitioners choose the same partitions as other Kafka clients."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_python_murmur2

from penstock.client.partitioner import (
    FunctionPartitioner,
    KeyHashPartitioner,
    RoundRobinPartitioner,
    StickyPartitioner,
    make_partitioner,
    murmur2,
)


@pytest.mark.parametrize(
    ("key", "java"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_gives_what_the_java_client_gives(key: bytes, java: int) -> None:
    assert murmur2(key) == java & 0xFFFFFFFF


@given(st.binary(max_size=64))
def test_murmur2_agrees_with_another_client_on_any_key(key: bytes) -> None:
    assert murmur2(key) == kafka_python_murmur2(key) & 0xFFFFFFFF


def test_a_key_goes_to_its_partition_however_often_it_comes() -> None:
    partitioner = KeyHashPartitioner()
    assert {partitioner.choose("t", b"UA", None, 6) for _ in range(5)} == {(murmur2(b"UA") & 0x7FFFFFFF) % 6}


def test_many_keys_do_not_make_the_partitioner_grow() -> None:
    partitioner = KeyHashPartitioner()
    for number in range(20_000):
        partitioner.choose("t", b"%d" % number, None, 6)
    assert len(partitioner._hashes) <= 4096


def test_records_without_a_key_stay_with_a_partition_until_its_batch_is_complete() -> None:
    sticky = StickyPartitioner(random.Random(1))
    first = sticky.choose("t", None, None, 4)
    assert {sticky.choose("t", None, None, 4) for _ in range(10)} == {first}
    sticky.batch_closed("t", first, 4)
    assert sticky.choose("t", None, None, 4) != first


def test_a_batch_of_another_partition_does_not_move_the_sticky_one() -> None:
    sticky = StickyPartitioner(random.Random(1))
    first = sticky.choose("t", None, None, 4)
    sticky.batch_closed("t", (first + 1) % 4, 4)
    assert sticky.choose("t", None, None, 4) == first


def test_round_robin_takes_each_partition_in_turn() -> None:
    partitioner = RoundRobinPartitioner()
    assert [partitioner.choose("t", b"k", None, 3) for _ in range(6)] == [0, 1, 2, 0, 1, 2]


def test_a_function_that_leaves_the_range_is_an_error() -> None:
    with pytest.raises(ValueError, match='returned partition "7"'):
        FunctionPartitioner(lambda *_: 7).choose("t", None, None, 3)


def test_an_unknown_partitioner_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match='unknown partitioner "random"'):
        make_partitioner("random")
