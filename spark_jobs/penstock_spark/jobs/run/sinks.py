"""Batches into Parquet folders and Delta tables, exactly once. Called by `writing`, `direct` and the kinds that merge.

Tasks write files; they begin to count in one step of the driver. A batch that runs again after a crash is recognised
there and not written twice. Nothing but lists of files ever comes to the driver.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs

from penstock_spark.jobs.run.batches import JobBatch, JobRows
from penstock_spark.jobs.run.compaction import compact_folder
from penstock_spark.jobs.run.data_files import DataFileWriter, filesystem
from penstock_spark.jobs.run.folder import ParquetFolder
from penstock_spark.jobs.run.table import Table
from penstock_spark.jobs.spec.specs import DeltaTarget, FileTarget, FileTargetBase, ParquetTarget, TimePartition
from penstock_spark.model.errors import InvalidOption, PenstockSparkError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

MERGE_FOLDER = "_penstock_merge"
TIME_COLUMNS = {"month": ("month",), "day": ("date",), "hour": ("date", "hour")}


class FileSink(Protocol):
    """Writes a batch. Called again with its number after a crash; does nothing if it had come through."""

    def __call__(self, rows: DataFrame, number: int) -> None:
        """As Spark calls it for each batch of rows."""
        ...

    def write(self, batch: JobBatch, number: int) -> None: ...


def file_sink(target: FileTarget) -> FileSink:
    return ParquetSink(target) if isinstance(target, ParquetTarget) else DeltaSink(target)


def with_time(rows: DataFrame, time: TimePartition) -> DataFrame:
    """Rows with the columns that their folders are named for: month, or date, or date and hour (UTC)."""
    from pyspark.sql import functions as F  # noqa: N812

    if time.column not in rows.columns:
        raise InvalidOption(f"to.time.column: the result has no column {time.column}; it has {', '.join(rows.columns)}")
    for name in rows.columns:
        is_date = name == time.column == "date" and rows.schema[name].dataType.typeName() == "date"
        if name.lower() in TIME_COLUMNS[time.by] and not is_date:  # Spark's names have no case
            raise InvalidOption(
                f"to.time: folders by {time.by} would take the place of the result's column {name}: rename that"
            )
    column = F.col(time.column)
    if time.by == "month":
        return rows.withColumn("month", F.date_format(column, "yyyy-MM"))
    rows = rows.withColumn("date", F.to_date(column))
    return rows.withColumn("hour", F.hour(column)) if time.by == "hour" else rows


def partition_columns(target: FileTargetBase) -> tuple[str, ...]:
    return (*(TIME_COLUMNS[target.time.by] if target.time else ()), *target.partition_by)


def check_partitions(schema: pa.Schema, partition_by: tuple[str, ...]) -> None:
    """Raises `InvalidOption` for columns that cannot name folders."""
    for name in partition_by:
        if name not in schema.names:
            raise InvalidOption(f"to.partition_by: the result has no column {name}; it has {', '.join(schema.names)}")
        kind = schema.field(name).type
        if not (pa.types.is_string(kind) or pa.types.is_signed_integer(kind) or pa.types.is_date32(kind)):
            raise InvalidOption(f"to.partition_by: {name} is {kind}; partitions are text, whole numbers or dates")
    if len(partition_by) == len(schema.names):
        raise InvalidOption("to.partition_by: no column is left for the files")


def part_writer(
    target: FileTargetBase, root: str, name: str, schema: pa.Schema, storage: dict[str, str]
) -> DataFileWriter:
    return DataFileWriter(
        root=root,
        prefix=f"part-{name}",
        schema=schema,
        partition_by=partition_columns(target),
        compression=target.compression,
        file_size=target.file_size.bytes,
        storage=storage,
        plain=isinstance(target, DeltaTarget),
    )


class RepeatedBatchGrew(PenstockSparkError):
    """A batch that was written comes again with more rows."""


def check_repeated(where: str, number: int, written: int | None, batch: JobBatch) -> None:
    """A batch that is there already may have fewer rows by now (retention), never more: those are nowhere. Raises
    `RepeatedBatchGrew`."""
    if written is not None and (found := batch.count()) > written:
        raise RepeatedBatchGrew(
            f"{where} has batch {number} with {written:,} rows, but now it has {found:,}: the checkpoint has lost how "
            "far the batch went, as after a loss of power. Begin a new checkpoint where the target ends"
        )


class ParquetSink:
    """Batches into a folder; `folder` says how they are made to count once."""

    def __init__(self, target: ParquetTarget) -> None:
        self._target = target
        self._folder: ParquetFolder | None = None
        self._schema: pa.Schema | None = None
        self._batches = 0

    def __call__(self, rows: DataFrame, number: int) -> None:
        self.write(JobRows(rows), number)

    def write(self, batch: JobBatch, number: int) -> None:
        schema = self._schema = self._schema or batch.schema()
        folder = self._open(batch, schema)
        staging = folder.begin(number)
        if staging is not None:
            name = f"{folder.tag}-{number:010d}"
            parts = batch.write(part_writer(self._target, str(staging), name, schema, {}))
            folder.commit(number, [p.path for p in parts], sum(p.rows for p in parts))
        else:
            check_repeated(str(folder.root), number, folder.rows(number), batch)
        compact = self._target.compact
        self._batches += 1
        if compact is not None and self._batches % compact.every_batches == 0:
            compact_folder(folder, compact, self._target.compression)

    def _open(self, batch: JobBatch, schema: pa.Schema) -> ParquetFolder:
        if self._folder is None:
            check_partitions(schema, partition_columns(self._target))
            folder = ParquetFolder(Path(self._target.path.removeprefix("file://")).absolute(), batch.query_id)
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

    def __call__(self, rows: DataFrame, number: int) -> None:
        self.write(JobRows(rows), number)

    def write(self, batch: JobBatch, number: int) -> None:
        schema = self._schema = self._schema or batch.schema()
        table = self._open(batch, self._table_schema(schema))
        if not table.done(number):
            self._add(table, batch, number, schema)
        else:
            check_repeated(table.uri, number, table.rows(number), batch)
        compact = self._target.compact
        self._batches += 1
        if compact is not None and self._batches % compact.every_batches == 0:
            table.compact()

    def _table_schema(self, schema: pa.Schema) -> pa.Schema:
        return schema

    def _open(self, batch: JobBatch, schema: pa.Schema) -> Table:
        if self._table is None:
            check_partitions(schema, partition_columns(self._target))
            table = Table(self._target, batch.query_id)
            table.open(schema, partition_columns(self._target))
            self._table = table
        return self._table

    def _add(self, table: Table, batch: JobBatch, number: int, schema: pa.Schema) -> None:
        parts = batch.write(part_writer(self._target, table.uri, f"{number:010d}", schema, self._target.storage))
        if parts:
            table.append(number, parts, schema, partition_columns(self._target))


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

    def __call__(self, rows: DataFrame, number: int) -> None:
        rows = self._prepare(rows) if self._prepare is not None else rows
        self.write(JobRows(with_time(rows, self._target.time) if self._target.time else rows), number)

    def _table_schema(self, schema: pa.Schema) -> pa.Schema:
        return pa.schema([field for field in schema if field.name != self._deleted])

    def _add(self, table: Table, batch: JobBatch, number: int, schema: pa.Schema) -> None:
        root = f"{table.uri.rstrip('/')}/{MERGE_FOLDER}/{table.app_id}"
        writer = DataFileWriter(
            root, f"batch-{number:010d}", schema, (), "zstd", self._target.file_size.bytes, self._target.storage
        )
        files = filesystem(root, self._target.storage)
        base = "" if "://" in root else root
        clear(files, base)
        try:
            parts = batch.write(writer)
            if parts:
                paths = [f"{base}/{p.path}" if base else p.path for p in parts]
                total = sum(p.rows for p in parts)
                table.merge(number, lambda: reader(paths, schema, files), self._keys, self._deleted, total)
        finally:
            clear(files, base)


def clear(files: pafs.FileSystem, path: str) -> None:
    """What a merge left: files of attempts that did not count too."""
    files.delete_dir_contents(path, missing_dir_ok=True, accept_root_dir=True)


def reader(paths: list[str], schema: pa.Schema, files: pafs.FileSystem) -> pa.RecordBatchReader:
    """Files as one stream."""
    return ds.dataset(paths, schema=schema, format="parquet", filesystem=files).scanner(batch_size=16_384).to_reader()
