"""Rows go to the partition that they name, otherwise to that of their key, otherwise to the task's current one."""

from __future__ import annotations

from collections import Counter
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.partitioner import murmur2
from penstock_spark.encode.batches import batch_edges, encode
from penstock_spark.encode.murmur import partitions
from penstock_spark.encode.ports import ProducerId
from penstock_spark.model.columns import HEADER
from penstock_spark.sink.columns import SinkColumns
from penstock_spark.sink.splitting import BadRow, Splitter

TOPICS = {"t": 4, "u": 1, "wide": 40_000}
Found = list[tuple[tuple[str, int], list[bytes]]]


def split(batches: list[pa.RecordBatch], topic: str | None = "t", batch_bytes: int = 1 << 20, turn: int = 0) -> Found:
    names = batches[0].schema.names
    columns = SinkColumns("key" in names, False, topic is None, "partition" in names, False)
    splitter = Splitter(columns, topic, batch_bytes, partitions, batch_edges, lambda name, _: TOPICS[name], turn)
    found = splitter.split(iter(batches), lambda: 1)
    return [(place, rows.value.to_pylist()) for place, rows in found]


def batch(**columns: list[object]) -> pa.RecordBatch:
    kinds = {"key": pa.binary(), "value": pa.binary(), "topic": pa.string(), "partition": pa.int32()}
    return pa.record_batch({name: pa.array(given, kinds[name]) for name, given in columns.items()})


def of_key(key: bytes, count: int) -> int:
    return (murmur2(key) & 0x7FFFFFFF) % count


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), st.binary(max_size=9)), min_size=1, max_size=200), st.integers(1, 5))
def test_keyed_rows_go_to_their_keys_partition_in_their_order(keys: list[bytes | None], pieces: int) -> None:
    values = [b"%d" % number for number in range(len(keys))]
    step = max(1, len(keys) // pieces)
    cut = [batch(key=keys[i : i + step], value=values[i : i + step]) for i in range(0, len(keys), step)]
    seen: dict[bytes, tuple[str, int]] = {}
    order: dict[int, list[int]] = {}
    for place, found in split(cut, batch_bytes=64):
        for value in found:
            assert value not in seen
            seen[value] = place
            order.setdefault(place[1], []).append(int(value))
    assert set(seen) == set(values)
    keyed = {p: [n for n in numbers if keys[n] is not None] for p, numbers in order.items()}
    assert all(numbers == sorted(numbers) for numbers in keyed.values())
    for key, value in zip(keys, values, strict=True):
        if key is not None:
            assert seen[value] == ("t", of_key(key, 4))


def test_a_named_partition_wins_over_the_key() -> None:
    found = split([batch(key=[b"a", b"b", None], value=[b"1", b"2", b"3"], partition=[3, None, 0])])
    assert dict(found)["t", 3] == [b"1"] or b"1" in dict(found)["t", 3]
    places = {value: place for place, values in found for value in values}
    assert places == {b"1": ("t", 3), b"2": ("t", of_key(b"b", 4)), b"3": ("t", 0)}


@pytest.mark.parametrize("wrong", [-1, 4])
def test_a_partition_that_the_topic_has_not_is_named(wrong: int) -> None:
    with pytest.raises(BadRow, match=f'partition {wrong} of topic "t", which has 4'):
        split([batch(value=[b"1"], partition=[wrong])])


def test_rows_without_a_key_fill_batches_one_partition_after_another_from_the_tasks_turn() -> None:
    rows = [b"x" * 96] * 1000
    found = split([batch(value=rows)], batch_bytes=10_000, turn=2)
    places = [place for place, _ in found]
    assert places[:5] == [("t", 2), ("t", 3), ("t", 0), ("t", 1), ("t", 2)]
    assert sum(len(values) for _, values in found) == 1000
    counts = Counter[tuple[str, int]]()
    for place, values in found:
        counts[place] += len(values)
    assert max(counts.values()) - min(counts.values()) <= 100


def test_the_option_wins_over_the_column_topic() -> None:
    assert split([batch(value=[b"1"], topic=["u"])], topic="t") == [(("t", 0), [b"1"])]


def test_each_row_goes_to_its_topic() -> None:
    found = split([batch(key=[b"a", b"b", b"c"], value=[b"1", b"2", b"3"], topic=["t", "u", "t"])], topic=None)
    places = {value: place for place, values in found for value in values}
    assert places == {b"1": ("t", of_key(b"a", 4)), b"2": ("u", 0), b"3": ("t", of_key(b"c", 4))}


def test_a_row_without_a_topic_is_an_error_that_names_the_column() -> None:
    with pytest.raises(BadRow, match='column "topic" is null'):
        split([batch(value=[b"1"], topic=[None])], topic=None)


def test_a_topic_may_have_more_partitions_than_fit_into_16_bits() -> None:
    found = split([batch(key=[b"k%d" % n for n in range(500)], value=[b"%d" % n for n in range(500)])], topic="wide")
    places = {value: place for place, values in found for value in values}
    assert all(places[b"%d" % n] == ("wide", of_key(b"k%d" % n, 40_000)) for n in range(500))


def test_no_rows_are_nothing() -> None:
    assert split([batch(value=[])]) == []


@pytest.mark.parametrize("spread_ms", [0, 1 << 30])
@pytest.mark.parametrize("size", [1, 100, 1000, 5000])
def test_what_is_handed_over_at_a_time_makes_one_batch(size: int, spread_ms: int) -> None:
    """This also holds for rows of different sizes: otherwise a small batch would follow each full one."""
    random = Random(size)
    count = 2_000_000 // size if size > 1 else 100_000
    values = [b"x" * random.randint(size // 2, size + size // 2) for _ in range(count)]
    times = [(random.randint(0, spread_ms)) * 1000 for _ in range(count)]
    header = [{"key": "h", "value": b"y" * 50}]
    rows = pa.record_batch(
        {
            "value": pa.array(values, pa.binary()),
            "timestamp": pa.array(times, pa.timestamp("us", tz="UTC")),
            "headers": pa.array([header if n % 3 else None for n in range(count)], pa.list_(HEADER)),
        }
    )
    most = 100_000
    splitter = Splitter(
        SinkColumns(False, True, False, False, True), "t", most, partitions, batch_edges, lambda *_: 3, 0
    )
    found = list(splitter.split(iter([rows]), lambda: 1))
    encoded = [encode(part, 0, most, ProducerId(-1, -1, False), -1) for _, part in found]
    assert {len(batches) for batches in encoded} == {1}
    sizes = [len(batch.data) for (batch,) in encoded]
    assert max(sizes) <= most
    assert min(sizes[:-1]) > most * 0.85
