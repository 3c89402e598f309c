"""Writes batches to Parquet folders and Delta tables, exactly once. Called by `writing`, `direct` and merging kinds.

Tasks write files; the driver commits them in one step. A batch that runs again after a crash is recognised and not
written twice. Only lists of files reach the driver.
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
    """Writes a batch. If it is called again with the number of a committed batch, it does nothing."""

    def __call__(self, rows: DataFrame, number: int) -> None:
        """Write a batch of rows; called by Spark."""
        ...

    def write(self, batch: JobBatch, number: int) -> None:
        """Write a batch."""
        ...


def file_sink(target: FileTarget) -> FileSink:
    """Return the sink of a target."""
    return ParquetSink(target) if isinstance(target, ParquetTarget) else DeltaSink(target)


def with_time(rows: DataFrame, time: TimePartition) -> DataFrame:
    """Return rows with the columns of time folders: month, or date, or date and hour (UTC)."""
    from pyspark.sql import functions as F  # noqa: N812

    if time.column not in rows.columns:
        raise InvalidOption(
            f'to.time.column: the result has no column "{time.column}"; it has {", ".join(rows.columns)}'
        )
    for name in rows.columns:
        is_date = name == time.column == "date" and rows.schema[name].dataType.typeName() == "date"
        if name.lower() in TIME_COLUMNS[time.by] and not is_date:  # Spark ignores case in names
            raise InvalidOption(
                f'to.time: folders by {time.by} would replace the result\'s column "{name}"; rename the column'
            )
    column = F.col(time.column)
    if time.by == "month":
        return rows.withColumn("month", F.date_format(column, "yyyy-MM"))
    rows = rows.withColumn("date", F.to_date(column))
    return rows.withColumn("hour", F.hour(column)) if time.by == "hour" else rows


def partition_columns(target: FileTargetBase) -> tuple[str, ...]:
    """Return the columns that become folders."""
    return (*(TIME_COLUMNS[target.time.by] if target.time else ()), *target.partition_by)


def check_partitions(schema: pa.Schema, partition_by: tuple[str, ...]) -> None:
    """Raise `InvalidOption` for columns that cannot be folder names."""
    for name in partition_by:
        if name not in schema.names:
            raise InvalidOption(f'to.partition_by: the result has no column "{name}"; it has {", ".join(schema.names)}')
        kind = schema.field(name).type
        if not (pa.types.is_string(kind) or pa.types.is_signed_integer(kind) or pa.types.is_date32(kind)):
            raise InvalidOption(
                f'to.partition_by: column "{name}" is {kind}; partition by text, whole numbers or dates'
            )
    if len(partition_by) == len(schema.names):
        raise InvalidOption("to.partition_by: no column is left for the files; remove one from partition_by")


def part_writer(
    target: FileTargetBase, root: str, name: str, schema: pa.Schema, storage: dict[str, str]
) -> DataFileWriter:
    """Return the writer of a target's data files."""
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
    """A committed batch was repeated with more rows."""


def check_repeated(where: str, number: int, written: int | None, batch: JobBatch) -> None:
    """Raise `RepeatedBatchGrew` if a committed batch now has more rows: these are not written. Fewer rows are normal
    (retention)."""
    if written is not None and (found := batch.count()) > written:
        raise RepeatedBatchGrew(
            f'"{where}" has batch {number} with {written:,} rows, but now it has {found:,}: the checkpoint lost the '
            "end of the batch, as after a power failure; start a new checkpoint at the target's end"
        )


class ParquetSink:
    """Writes batches to a folder; `folder` makes them exactly-once."""

    def __init__(self, target: ParquetTarget) -> None:
        self._target = target
        self._folder: ParquetFolder | None = None
        self._schema: pa.Schema | None = None
        self._batches = 0

    def __call__(self, rows: DataFrame, number: int) -> None:
        """Write a batch of rows; called by Spark."""
        self.write(JobRows(rows), number)

    def write(self, batch: JobBatch, number: int) -> None:
        """Write and commit a batch, unless it is committed already; compact if it is due."""
        schema = self._schema = self._schema or batch.schema()
        folder = self._open(batch, schema)
        staging = folder.start_batch(number)
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
    """Writes batches to a table; `table` makes them exactly-once."""

    def __init__(self, target: DeltaTarget) -> None:
        self._target = target
        self._table: Table | None = None
        self._schema: pa.Schema | None = None
        self._batches = 0

    def __call__(self, rows: DataFrame, number: int) -> None:
        """Write a batch of rows; called by Spark."""
        self.write(JobRows(rows), number)

    def write(self, batch: JobBatch, number: int) -> None:
        """Write and commit a batch, unless it is committed already; compact if it is due."""
        schema = self._schema = self._schema or batch.schema()
        table = self._open(batch, self._table_schema(schema))
        if not table.has_batch(number):
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
    """Merges batches into a table by keys.

    Tasks write the rows to merge beside the table, where tasks and driver have access. deltalake reads them as a
    stream, so the driver never holds a batch in memory.
    """

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
        """Column that marks rows to delete; it is not part of the table."""
        self._prepare = prepare

    def __call__(self, rows: DataFrame, number: int) -> None:
        """Prepare and merge a batch of rows; called by Spark."""
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
    """Delete the files of merges, also those of attempts that did not count."""
    files.delete_dir_contents(path, missing_dir_ok=True, accept_root_dir=True)


def reader(paths: list[str], schema: pa.Schema, files: pafs.FileSystem) -> pa.RecordBatchReader:
    """Return files as one stream."""
    return ds.dataset(paths, schema=schema, format="parquet", filesystem=files).scanner(batch_size=16_384).to_reader()
