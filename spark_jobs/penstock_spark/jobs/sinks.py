"""Batches of rows into Parquet folders and Delta tables, exactly once. Called by `writing` and `merging`.

Tasks write files; they begin to count in one step of the driver. A batch that runs again after a crash is recognised
there and not written twice. Nothing but lists of files ever comes to the driver.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs

from penstock_spark.jobs.compaction import compact_folder
from penstock_spark.jobs.folder import Folder
from penstock_spark.jobs.lists import packed
from penstock_spark.jobs.parts import RESULT, Part, PartWriter, filesystem
from penstock_spark.jobs.specs import DeltaTarget, Files, FileTarget, ParquetTarget, TimePartition
from penstock_spark.jobs.table import Table
from penstock_spark.model.errors import InvalidOption, PenstockSparkError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

MERGE_FOLDER = "_penstock_merge"
PARTITION_TYPES = ("string", "integer", "long", "short", "byte", "date")
TIME_COLUMNS = {"month": ("month",), "day": ("date",), "hour": ("date", "hour")}


class BatchSink(Protocol):
    """Writes a batch. Called again with its number after a crash; does nothing if it had come through."""

    def __call__(self, rows: DataFrame, batch: int) -> None: ...


def file_sink(target: FileTarget) -> BatchSink:
    return ParquetSink(target) if isinstance(target, ParquetTarget) else DeltaSink(target)


def with_time(rows: DataFrame, time: TimePartition) -> DataFrame:
    """Rows with the columns that their folders are named for: month, or date, or date and hour (UTC)."""
    from pyspark.sql import functions as F  # noqa: N812

    if time.column not in rows.columns:
        raise InvalidOption(f"to.time.column: the result has no column {time.column}; it has {', '.join(rows.columns)}")
    column = F.col(time.column)
    if time.by == "month":
        return rows.withColumn("month", F.date_format(column, "yyyy-MM"))
    rows = rows.withColumn("date", F.to_date(column))
    return rows.withColumn("hour", F.hour(column)) if time.by == "hour" else rows


def partition_columns(target: Files) -> tuple[str, ...]:
    return (*(TIME_COLUMNS[target.time.by] if target.time else ()), *target.partition_by)


def check_partitions(rows: DataFrame, partition_by: tuple[str, ...]) -> None:
    """Raises `InvalidOption` for columns that cannot name folders."""
    for name in partition_by:
        if name not in rows.columns:
            raise InvalidOption(f"to.partition_by: the result has no column {name}; it has {', '.join(rows.columns)}")
        kind = rows.schema[name].dataType.typeName()
        if kind not in PARTITION_TYPES:
            raise InvalidOption(f"to.partition_by: {name} is {kind}; partitions are text, whole numbers or dates")
    if len(partition_by) == len(rows.columns):
        raise InvalidOption("to.partition_by: no column is left for the files")


def query_id(spark: SparkSession) -> str:
    """The id of the streaming query in whose batch this runs; its checkpoint keeps it."""
    found = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    assert found, "this runs in a batch of a streaming query"
    return str(found)


def arrow_schema(rows: DataFrame) -> pa.Schema:
    """The schema that a task's Arrow batches have, asked of Spark by an empty table of these columns. Instants are in
    UTC, whatever time zone the session shows them in."""
    found = rows.sparkSession.createDataFrame([], rows.schema).toArrow().schema
    types = [pa.timestamp("us", "UTC") if is_instant(field.type) else field.type for field in found]
    # Whether a query can give null is no promise for the next version of the job.
    return pa.schema([pa.field(field.name, type_) for field, type_ in zip(found, types, strict=True)])


def is_instant(type_: pa.DataType) -> bool:
    return pa.types.is_timestamp(type_) and type_.tz is not None


def part_writer(target: Files, root: str, name: str, schema: pa.Schema, storage: dict[str, str]) -> PartWriter:
    return PartWriter(
        root=root,
        prefix=f"part-{name}",
        schema=schema,
        partition_by=partition_columns(target),
        compression=target.compression,
        file_size=target.file_size.bytes,
        storage=storage,
        plain=isinstance(target, DeltaTarget),
    )


def write_parts(rows: DataFrame, writer: PartWriter) -> list[Part]:
    """Has tasks write the rows; the list of files comes back."""
    found = packed(rows).mapInArrow(writer, RESULT).collect()
    return [Part(r.path, json.loads(r.partition), r.rows, r.bytes, r.stats) for r in found]


class RepeatedBatchGrew(PenstockSparkError):
    """A batch that was written comes again with more rows."""


def check_repeated(where: str, batch: int, written: int | None, rows: DataFrame) -> None:
    """A batch that is there already may have fewer rows by now (retention), never more: those are nowhere. Raises
    `RepeatedBatchGrew`."""
    if written is not None and (found := rows.count()) > written:
        raise RepeatedBatchGrew(
            f"{where} has batch {batch} with {written:,} rows, but now it has {found:,}: the checkpoint has lost how "
            "far the batch went, as after a loss of power. Begin a new checkpoint where the target ends"
        )


class ParquetSink:
    """Batches into a folder; `folder` says how they are made to count once."""

    def __init__(self, target: ParquetTarget) -> None:
        self._target = target
        self._folder: Folder | None = None
        self._schema: pa.Schema | None = None
        self._batches = 0

    def __call__(self, rows: DataFrame, batch: int) -> None:
        folder = self._open(rows)
        staging = folder.begin(batch)
        if staging is not None:
            self._schema = self._schema or arrow_schema(rows)
            name = f"{folder.tag}-{batch:010d}"
            parts = write_parts(rows, part_writer(self._target, str(staging), name, self._schema, {}))
            folder.commit(batch, [p.path for p in parts], sum(p.rows for p in parts))
        else:
            check_repeated(str(folder.root), batch, folder.rows(batch), rows)
        compact = self._target.compact
        self._batches += 1
        if compact is not None and self._batches % compact.every_batches == 0:
            compact_folder(folder, compact, self._target.compression)

    def _open(self, rows: DataFrame) -> Folder:
        if self._folder is None:
            check_partitions(rows, partition_columns(self._target))
            folder = Folder(Path(self._target.path.removeprefix("file://")).absolute(), query_id(rows.sparkSession))
            folder.claim()
            folder.open()
            self._folder = folder
        return self._folder


class DeltaSink:
    """Batches into a table; `table` says how they are made to count once."""

    def __init__(self, target: DeltaTarget) -> None:
        self._target = target
        self._table: Table | None = None
        self._schema: pa.Schema | None = None
        self._batches = 0

    def __call__(self, rows: DataFrame, batch: int) -> None:
        rows = self._prepared(rows)
        self._schema = self._schema or arrow_schema(rows)
        table = self._open(rows, self._table_schema(self._schema))
        if not table.done(batch):
            self._write(table, rows, batch, self._schema)
        else:
            check_repeated(table.uri, batch, table.rows(batch), rows)
        compact = self._target.compact
        self._batches += 1
        if compact is not None and self._batches % compact.every_batches == 0:
            table.compact()

    def _prepared(self, rows: DataFrame) -> DataFrame:
        return rows

    def _table_schema(self, schema: pa.Schema) -> pa.Schema:
        return schema

    def _open(self, rows: DataFrame, schema: pa.Schema) -> Table:
        if self._table is None:
            check_partitions(rows, partition_columns(self._target))
            table = Table(self._target, query_id(rows.sparkSession))
            table.open(schema, partition_columns(self._target))
            self._table = table
        return self._table

    def _write(self, table: Table, rows: DataFrame, batch: int, schema: pa.Schema) -> None:
        parts = write_parts(rows, part_writer(self._target, table.uri, f"{batch:010d}", schema, self._target.storage))
        if parts:
            table.append(batch, parts, schema, partition_columns(self._target))


class MergeSink(DeltaSink):
    """Batches merged into a table by keys. Tasks write what is to be merged beside the table, where every task and the
    driver reach it; deltalake reads it from there as a stream, so that the driver never holds a batch."""

    def __init__(
        self,
        target: DeltaTarget,
        keys: tuple[str, ...],
        deleted: str | None = None,
        prepare: Callable[[DataFrame], DataFrame] | None = None,
    ) -> None:
        super().__init__(target)
        self._keys = keys
        self._deleted = deleted
        """A column that says which rows go; it is not in the table."""
        self._prepare = prepare

    def _prepared(self, rows: DataFrame) -> DataFrame:
        rows = self._prepare(rows) if self._prepare is not None else rows
        return with_time(rows, self._target.time) if self._target.time else rows

    def _table_schema(self, schema: pa.Schema) -> pa.Schema:
        return pa.schema([field for field in schema if field.name != self._deleted])

    def _write(self, table: Table, rows: DataFrame, batch: int, schema: pa.Schema) -> None:
        root = f"{table.uri.rstrip('/')}/{MERGE_FOLDER}/{table.app_id}"
        writer = PartWriter(
            root, f"batch-{batch:010d}", schema, (), "zstd", self._target.file_size.bytes, self._target.storage
        )
        files = filesystem(root, self._target.storage)
        base = "" if "://" in root else root
        clear(files, base)
        try:
            parts = write_parts(rows, writer)
            if parts:
                paths = [f"{base}/{p.path}" if base else p.path for p in parts]
                total = sum(p.rows for p in parts)
                table.merge(batch, lambda: reader(paths, schema, files), self._keys, self._deleted, total)
        finally:
            clear(files, base)


def clear(files: pafs.FileSystem, path: str) -> None:
    """What a merge left: files of attempts that did not count too."""
    files.delete_dir_contents(path, missing_dir_ok=True, accept_root_dir=True)


def reader(paths: list[str], schema: pa.Schema, files: pafs.FileSystem) -> pa.RecordBatchReader:
    """Files as one stream."""
    return ds.dataset(paths, schema=schema, format="parquet", filesystem=files).scanner(batch_size=16_384).to_reader()
