"""Keys map to the partitions that Kafka's default partitioner chooses."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client import partitioner
from penstock_spark.encode.murmur import murmur2, partitions

KNOWN = {  # test data of the Java client
    b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829, b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}  # fmt: skip


def test_the_hashes_are_those_of_the_java_client() -> None:
    assert murmur2(pa.array(list(KNOWN))).view(np.int32).tolist() == list(KNOWN.values())


@given(st.lists(st.none() | st.binary(max_size=40), max_size=60), st.integers(1, 100), st.integers(0, 5))
def test_partitions_are_those_of_the_client(keys: list[bytes | None], count: int, first: int) -> None:
    wanted = [-1 if key is None else partitioner.partition_for_key(key, count) for key in keys]
    found = partitions(pa.array(keys, pa.binary())[first:], count)
    assert found.tolist() == wanted[first:]


@pytest.mark.parametrize("many", [1, 3, 40])
def test_keys_of_every_length_from_0_to_40_are_hashed(many: int) -> None:
    rng = random.Random(many)
    keys = [rng.randbytes(size) for size in range(41) for _ in range(many)]
    rng.shuffle(keys)
    assert murmur2(pa.array(keys, pa.binary())).tolist() == [partitioner.murmur2(key) for key in keys]


def test_one_long_key_among_many_short_ones_is_hashed() -> None:
    keys = [b"k%d" % n for n in range(1000)]
    keys[500] = random.Random(1).randbytes(100_003)
    assert murmur2(pa.array(keys)).tolist() == [partitioner.murmur2(key) for key in keys]


@pytest.mark.parametrize("keys", [[], [None], [None, None], [b""], [b"", None]])
def test_columns_without_any_bytes_are_hashed(keys: list[bytes | None]) -> None:
    wanted = [-1 if key is None else partitioner.partition_for_key(key, 7) for key in keys]
    assert partitions(pa.array(keys, pa.binary()), 7).tolist() == wanted
    if keys == [None, None]:
        assert partitions(pa.nulls(2, pa.binary()), 7).tolist() == wanted


def test_a_topic_without_partitions_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one partition"):
        partitions(pa.array([b"k"]), 0)
