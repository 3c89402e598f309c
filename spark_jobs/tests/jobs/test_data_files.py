"""Parquet files of tasks: rows go to the folders of their values, and the statistics are correct."""

from __future__ import annotations

import json
from collections import Counter
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_spark.jobs.run.data_files import MAX_OPEN, DataFileWriter, split
from penstock_spark.model.errors import Undecodable

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("day", pa.date32()), ("raw", pa.binary())])


def writer(root: Path, *partition_by: str, file_size: int = 1 << 20, schema: pa.Schema = SCHEMA) -> DataFileWriter:
    return DataFileWriter(str(root), "part-0", schema, partition_by, "zstd", file_size)


def batch(ids: range, names: list[str | None] | None = None) -> pa.RecordBatch:
    given = names or [f"n{i % 3}" for i in ids]
    days = [date(2013, 1, 1 + i % 2) for i in ids]
    return pa.RecordBatch.from_pydict({"id": list(ids), "name": given, "day": days, "raw": [b"x"] * len(ids)}, SCHEMA)


def test_rows_are_where_their_values_say_and_come_back_as_they_were(tmp_path: Path) -> None:
    (told,) = writer(tmp_path, "day", "name")(iter([batch(range(10)), batch(range(10, 20))]))
    found = told.to_pylist()
    assert sum(f["rows"] for f in found) == 20
    assert {f["path"].rsplit("/", 1)[0] for f in found} == {
        f"day=2013-01-0{d}/name=n{n}" for d in (1, 2) for n in range(3)
    }
    for part in found:
        assert (tmp_path / part["path"]).stat().st_size == part["bytes"]
    table = ds.dataset(tmp_path, format="parquet", partitioning="hive").to_table()
    assert Counter(table["id"].to_pylist()) == Counter(range(20))


@pytest.mark.parametrize("value", ["a/b", "a=b", "ä %", "..", " ", "a\nb"])
def test_a_value_with_special_characters_names_one_folder_and_is_read_back(tmp_path: Path, value: str) -> None:
    (told,) = writer(tmp_path, "name")(iter([batch(range(1), [value])]))
    (path,) = [p["path"] for p in told.to_pylist()]
    assert path.count("/") == 1
    assert json.loads(told.to_pylist()[0]["partition"]) == {"name": value}
    table = ds.dataset(tmp_path, format="parquet", partitioning="hive").to_table()
    assert table["name"].to_pylist() == [value]


def test_null_has_a_folder_of_its_own(tmp_path: Path) -> None:
    list(writer(tmp_path, "name")(iter([batch(range(2), [None, "a"])])))
    table = ds.dataset(tmp_path, format="parquet", partitioning="hive").to_table()
    assert sorted(table["name"].to_pylist(), key=str) == [None, "a"]


@pytest.mark.slow
def test_a_file_ends_at_its_size_and_open_files_are_bounded(tmp_path: Path) -> None:
    many = [str(n) for n in range(MAX_OPEN * 2)]
    batches = [batch(range(len(many)), many) for _ in range(3)]
    (told,) = writer(tmp_path, "name")(iter(batches))
    assert sum(told.column("rows").to_pylist()) == 3 * len(many)
    assert len(set(told.column("path").to_pylist())) == told.num_rows
    (told,) = writer(tmp_path / "small", file_size=1_000)(iter([batch(range(100)), batch(range(100))]))
    assert told.num_rows == 2


def test_a_task_without_rows_writes_no_file(tmp_path: Path) -> None:
    (told,) = writer(tmp_path)(iter([]))
    assert told.num_rows == 0
    assert not list(tmp_path.iterdir())


def test_statistics_are_true_and_leave_out_what_they_cannot_say(tmp_path: Path) -> None:
    types = {"n": pa.int32(), "s": pa.string(), "t": pa.timestamp("us", tz="UTC"), "x": pa.float64()}
    schema = pa.schema(list(types.items()))
    columns = {"n": [3, None, 1], "s": ["b", "a" * 100, "c"], "t": [1, 2, 3], "x": [1, 2, 3]}
    rows = pa.RecordBatch.from_pydict(columns, schema)
    (told,) = writer(tmp_path, schema=schema)(iter([rows]))
    assert json.loads(told.to_pylist()[0]["stats"]) == {
        "numRecords": 3,
        "minValues": {"n": 1},
        "maxValues": {"n": 3},
        "nullCount": {"n": 1, "s": 0, "t": 0, "x": 0},
    }
    assert pq.read_table(tmp_path / told.to_pylist()[0]["path"]).num_rows == 3


@given(st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 3)), max_size=40))
def test_splitting_keeps_each_row_and_their_order(values: list[tuple[str | None, int]]) -> None:
    columns = {"a": [a for a, _ in values], "b": [b for _, b in values], "n": list(range(len(values)))}
    schema = pa.schema([("a", pa.string()), ("b", pa.int32()), ("n", pa.int64())])
    found = list(split(pa.RecordBatch.from_pydict(columns, schema), ("a", "b")))
    assert sorted(n for _, rows in found for n in rows["n"].to_pylist()) == columns["n"]
    assert len({key for key, _ in found}) == len(found)
    for (a, b), rows in found:
        numbers = rows["n"].to_pylist()
        assert numbers == sorted(numbers)
        assert {values[n] for n in numbers} == {(a, int(b or 0))}


NOT_UTF8 = b"K\xf6ln"
PLACED = [("topic", ["t", "t"]), ("partition", [3, 3]), ("offset", [40, 41])]


@pytest.mark.parametrize(
    ("placed", "told"),
    [(PLACED, 't-3 offset 41: column "name" is not UTF-8; keep it as binary'), ([], 'column "name" is not UTF-8')],
)
def test_text_that_is_not_utf8_is_written_to_no_file(
    tmp_path: Path, placed: list[tuple[str, list[object]]], told: str
) -> None:
    names = pa.array(["Köln".encode(), NOT_UTF8], pa.binary()).view(pa.string())
    rows = pa.RecordBatch.from_pydict({"name": names, **{name: pa.array(values) for name, values in placed}})
    with pytest.raises(Undecodable, match=f"^{told}"):
        list(writer(tmp_path, schema=rows.schema)(iter([rows])))
    nested = pa.ListArray.from_arrays([0, 2], names)
    rows = pa.RecordBatch.from_pydict({"names": nested})
    with pytest.raises(Undecodable, match='column "names" is not UTF-8'):
        list(writer(tmp_path, schema=rows.schema)(iter([rows])))
    assert not list(tmp_path.rglob("*.parquet"))


def test_bytes_that_are_no_text_are_written_as_they_are(tmp_path: Path) -> None:
    rows = pa.RecordBatch.from_pydict(
        {"raw": pa.array([NOT_UTF8, None], pa.binary()), "name": pa.array(["Köln", None])}
    )
    list(writer(tmp_path, schema=rows.schema)(iter([rows])))
    assert ds.dataset(tmp_path, format="parquet").to_table().to_pydict() == rows.to_pydict()
