"""A Delta table to which batches are added, or merged, exactly once."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from penstock_spark.jobs.run.data_files import DataFile, DataFileWriter
from penstock_spark.jobs.run.table import Table, TableConflict, TableMismatch
from penstock_spark.jobs.spec.specs import CompactionSpec, DeltaTarget

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])


def table(path: Path, app_id: str = "query", *by: str, schema: pa.Schema = SCHEMA) -> Table:
    found = Table(DeltaTarget(path=str(path), compact=CompactionSpec()), app_id, lambda: 1_700_000_000)
    found.open(schema, by)
    return found


def parts(path: Path, ids: list[int], *by: str, names: list[str | None] | None = None) -> list[DataFile]:
    columns = {"id": ids, "name": names or [f"n{i}" for i in ids], "at": ids}
    writer = DataFileWriter(str(path), "part", SCHEMA, by, "zstd", 1 << 20, plain=True)
    (told,) = writer(iter([pa.RecordBatch.from_pydict(columns, SCHEMA)]))
    return [
        DataFile(p["path"], json.loads(p["partition"]), p["rows"], p["bytes"], p["stats"]) for p in told.to_pylist()
    ]


def ids(path: Path) -> Counter[int]:
    return Counter(DeltaTable(path).to_pyarrow_table()["id"].to_pylist())


def test_a_batch_is_in_the_table_once_though_its_driver_died_before_it_could_say_so(tmp_path: Path) -> None:
    first = table(tmp_path)
    first.append(0, parts(tmp_path, [1, 2]), SCHEMA, ())
    again = table(tmp_path)
    assert again.has_batch(0)
    assert not again.has_batch(1)
    again.append(1, parts(tmp_path, [3]), SCHEMA, ())
    assert ids(tmp_path) == Counter([1, 2, 3])


def test_a_driver_that_was_thought_dead_adds_no_batch_a_second_time(tmp_path: Path) -> None:
    old, new = table(tmp_path), table(tmp_path)
    assert not old.has_batch(0)
    new.append(0, parts(tmp_path, [1]), SCHEMA, ())
    old.append(0, parts(tmp_path, [1]), SCHEMA, ())
    assert ids(tmp_path) == Counter([1])


def test_a_checkpoint_that_was_set_back_is_refused(tmp_path: Path) -> None:
    """Its next batches have new rows under numbers that the table already has."""
    found = table(tmp_path)
    for batch in range(5):
        found.append(batch, parts(tmp_path, [batch]), SCHEMA, ())
    with pytest.raises(TableConflict, match="has batch 4 of this checkpoint, which is at batch 2"):
        table(tmp_path).has_batch(2)


def test_a_table_tells_how_many_rows_a_batch_had(tmp_path: Path) -> None:
    found = table(tmp_path)
    found.append(0, parts(tmp_path, [1, 2, 3]), SCHEMA, ())
    rows = pa.table({"id": [1, 9], "name": ["a", "b"], "at": [1, 1]}, schema=SCHEMA)
    found.merge(1, rows.to_reader, ["id"], None, 2)
    table(tmp_path, "another").append(1, parts(tmp_path, [4]), SCHEMA, ())
    found.compact()
    again = table(tmp_path)
    assert [again.rows(batch) for batch in range(3)] == [3, 2, None]


def test_another_checkpoint_is_another_writer(tmp_path: Path) -> None:
    table(tmp_path, "one").append(0, parts(tmp_path, [1]), SCHEMA, ())
    other = table(tmp_path, "two")
    assert not other.has_batch(0)


@pytest.mark.parametrize("name", ["a b", "a/b", "ä", "50%", "x=y", "..", "n" * 300, None])
def test_a_partition_of_any_name_is_read_back(tmp_path: Path, name: str | None) -> None:
    found = table(tmp_path, "q", "name")
    found.append(0, parts(tmp_path, [1], "name", names=[name]), SCHEMA, ("name",))
    assert DeltaTable(tmp_path).to_pyarrow_table().to_pylist()[0]["name"] == name


def test_a_table_of_other_columns_types_or_partitions_is_refused_by_name(tmp_path: Path) -> None:
    table(tmp_path)
    with pytest.raises(TableMismatch, match="the table has no column extra"):
        table(tmp_path, schema=SCHEMA.append(pa.field("extra", pa.int32())))
    with pytest.raises(TableMismatch, match="the job has no column at"):
        table(tmp_path, schema=pa.schema([f for f in SCHEMA if f.name != "at"]))
    with pytest.raises(TableMismatch, match='column "id" is int64, but the job writes string'):
        table(tmp_path, schema=SCHEMA.set(0, pa.field("id", pa.string())))
    with pytest.raises(TableMismatch, match="is partitioned by nothing, the job by"):
        table(tmp_path, "q", "name")


def test_a_merge_replaces_adds_and_deletes_once(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"], "at": [1, 2, 3]}).cast(SCHEMA))
    found = table(tmp_path)
    changes = SCHEMA.append(pa.field("gone", pa.bool_()))
    columns = {"id": [1, 2, 4, 5], "name": ["A", None, "d", None], "at": [9] * 4, "gone": [False, True, False, True]}

    def source() -> pa.RecordBatchReader:
        return pa.table(columns, schema=changes).to_reader()

    found.merge(0, source, ["id"], "gone")
    rows = {r["id"]: r["name"] for r in DeltaTable(tmp_path).to_pyarrow_table().to_pylist()}
    assert rows == {1: "A", 3: "c", 4: "d"}
    version = DeltaTable(tmp_path).version()
    assert table(tmp_path).has_batch(0)
    assert DeltaTable(tmp_path).version() == version


def test_a_merge_that_changes_no_row_is_a_batch_like_any_other(tmp_path: Path) -> None:
    """It deletes rows that do not exist, for which deltalake alone creates no version."""
    found = table(tmp_path)
    columns = {"id": [7, 8], "name": [None, None], "at": [None, None], "gone": [True, True]}
    rows = pa.table(columns, schema=SCHEMA.append(pa.field("gone", pa.bool_())))
    for batch in (0, 1):
        found.merge(batch, rows.to_reader, ["id"], "gone", 2)
        again = table(tmp_path)
        assert again.has_batch(batch)
        assert again.rows(batch) == 2
    found.append(2, parts(tmp_path, [7]), SCHEMA, ())
    found.merge(3, rows.to_reader, ["id"], "gone", 2)
    assert not ids(tmp_path)


def test_a_null_key_is_a_key(tmp_path: Path) -> None:
    found = table(tmp_path)
    for batch in range(2):
        rows = pa.table({"id": [None, 1], "name": [f"b{batch}"] * 2, "at": [1, 1]}, schema=SCHEMA)
        found.merge(batch, rows.to_reader, ["id", "at"], None)
    assert sorted(DeltaTable(tmp_path).to_pyarrow_table()["name"].to_pylist()) == ["b1", "b1"]


def test_compaction_changes_no_rows_and_forgets_no_batch(tmp_path: Path) -> None:
    found = table(tmp_path)
    for batch in range(6):
        found.append(batch, parts(tmp_path, [batch]), SCHEMA, ())
    found.compact()
    assert len(DeltaTable(tmp_path).file_uris()) == 1
    assert ids(tmp_path) == Counter(range(6))
    assert table(tmp_path).has_batch(5)
