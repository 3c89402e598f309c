"""Writes Parquet files in Spark's tasks and returns their list to the driver. Called by `sinks` through mapInArrow.

Spark passes rows to a task as Arrow, and the task writes them unchanged; the driver gets only the list of files. A task
that runs twice writes different files. Files of an attempt that Spark did not accept are not in the list, so they do
not count (a Parquet folder removes them with its staging directory, a Delta table with a vacuum).
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from penstock_spark.jobs.spec.lists import unpack_lists
from penstock_spark.model.errors import Undecodable

RESULT = "path string, partition string, rows long, bytes long, stats string"
RESULT_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("partition", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("stats", pa.string()),
    ]
)
ROW_GROUP_BYTES = 16 << 20
MAX_OPEN = 64
"""Maximum number of open files in a task; with more partitions in a batch, the least recently used file is finished."""
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
SPECIAL = re.compile(r"[^A-Za-z0-9-]")
MAX_PLAIN = 100
MAX_STATS_TEXT = 64


@dataclass(frozen=True, slots=True)
class DataFile:
    """A finished file. `path` is relative to the root; `stats` are statistics in Delta's format."""

    path: str
    partition: Mapping[str, str | None]
    rows: int
    bytes: int
    stats: str


@dataclass(frozen=True)
class DataFileWriter:
    """Run by tasks. `root` is a folder, or the URL of an object store with its options."""

    root: str
    prefix: str
    schema: pa.Schema
    """Schema of all columns, including `partition_by`, which are in folder names and not in files."""
    partition_by: tuple[str, ...]
    compression: str
    file_size: int
    storage: Mapping[str, str] = field(default_factory=dict)
    plain: bool = False
    """Whether folder names are simplified instead of escaped, for tables whose log has the values: readers and writers
    may disagree about escapes of escapes. Several values may share a folder."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write all batches. Yield one row for each finished file."""
        task = TaskDataFiles(self)
        try:
            for batch in batches:
                rows = unpack_lists(batch)
                check_text(rows)
                with naming(self.root):
                    task.add(rows)
            with naming(self.root):
                parts = task.finish()
        except BaseException:
            task.abandon()
            raise
        yield pa.RecordBatch.from_pydict(
            {
                "path": [p.path for p in parts],
                "partition": [json.dumps(p.partition) for p in parts],
                "rows": [p.rows for p in parts],
                "bytes": [p.bytes for p in parts],
                "stats": [p.stats for p in parts],
            },
            schema=RESULT_SCHEMA,
        )

    @property
    def file_schema(self) -> pa.Schema:
        """Schema of the files."""
        return pa.schema([f for f in self.schema if f.name not in self.partition_by])


class TaskDataFiles:
    """The open files of one task."""

    def __init__(self, writer: DataFileWriter) -> None:
        self._writer = writer
        self._schema = writer.file_schema
        self._filesystem = filesystem(writer.root, writer.storage)
        self._open: OrderedDict[tuple[str | None, ...], OpenDataFile] = OrderedDict()
        self._done: list[DataFile] = []
        # A second run of this task writes other names.
        self._id = uuid.uuid4().hex[:12]

    def add(self, batch: pa.RecordBatch) -> None:
        """Append rows to the files of their partitions."""
        for values, rows in split(batch, self._writer.partition_by):
            columns = [rows.column(f.name).cast(f.type) for f in self._schema]
            table = pa.Table.from_arrays(columns, schema=self._schema)
            part = self._part(values)
            part.add(table)
            if part.bytes >= self._writer.file_size:
                self._done.append(self._open.pop(values).finish())

    def _part(self, values: tuple[str | None, ...]) -> OpenDataFile:
        part = self._open.get(values)
        if part is None:
            if len(self._open) >= MAX_OPEN:
                _, oldest = self._open.popitem(last=False)
                self._done.append(oldest.finish())
            part = self._open[values] = self._create(values)
        self._open.move_to_end(values)
        return part

    def _create(self, values: tuple[str | None, ...]) -> OpenDataFile:
        partition = dict(zip(self._writer.partition_by, values, strict=True))
        number = len(self._done) + len(self._open)
        name = f"{self._writer.prefix}-{self._id}-{number:04d}.parquet"
        folder = "".join(f"{n}={folder_name(v, self._writer.plain)}/" for n, v in partition.items())
        return OpenDataFile(self._filesystem, self._writer, self._schema, folder + name, partition)

    def finish(self) -> list[DataFile]:
        """Finish all files. Return every file of the task."""
        while self._open:
            _, part = self._open.popitem(last=False)
            self._done.append(part.finish())
        return self._done

    def abandon(self) -> None:
        """Close the open files after an error."""
        for part in self._open.values():
            # On a full disk the footer cannot be written either. The first error is the one to report.
            with contextlib.suppress(OSError):
                part.close()


class OpenDataFile:
    """A file that is being written; rows are collected into row groups."""

    def __init__(
        self,
        filesystem: pafs.FileSystem,
        writer: DataFileWriter,
        schema: pa.Schema,
        path: str,
        partition: Mapping[str, str | None],
    ) -> None:
        self._root = Path(writer.root)
        self._local = self._root / path if isinstance(filesystem, pafs.LocalFileSystem) else None
        if self._local is not None:
            self._local.parent.mkdir(parents=True, exist_ok=True)
        self._file = filesystem.open_output_stream(str(self._local or path))
        self._parquet = pq.ParquetWriter(self._file, schema, compression=writer.compression)
        self._path = path
        self._partition = partition
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self.bytes = 0
        """Bytes in memory of the rows added."""
        self._rows = 0

    def add(self, table: pa.Table) -> None:
        """Append rows; write a row group if there are enough."""
        size = table.nbytes
        self._waiting.append(table)
        self._waiting_bytes += size
        self.bytes += size
        self._rows += table.num_rows
        if self._waiting_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            table = pa.concat_tables(self._waiting)
            self._parquet.write_table(table, row_group_size=max(table.num_rows, 1))
            self._waiting.clear()
            self._waiting_bytes = 0

    def finish(self) -> DataFile:
        """Write the footer and fsync the file and its folders."""
        self._flush()
        self._parquet.close()
        size = self._file.tell()
        self._file.close()
        if self._local is not None:
            sync(self._local)
            for folder in self._local.parents:
                sync(folder)
                if folder == self._root:
                    break
        stats = statistics(self._parquet.writer.metadata, self._rows)
        return DataFile(self._path, self._partition, self._rows, size, stats)

    def close(self) -> None:
        """Close the file without a footer."""
        self._file.close()


def check_text(rows: pa.RecordBatch) -> None:
    """Raise `Undecodable` for text that is not UTF-8, with the column and, if the rows have it, the record's position.

    Spark accepts other bytes cast to text; readers of the file do not.
    """
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if pa.types.is_primitive(column.type) or pa.types.is_binary(column.type):
            continue
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            place = place_of(rows, column) if pa.types.is_string(column.type) else ""
            raise Undecodable(
                f'{place}column "{name}" is not UTF-8; keep it as binary, or use hex(...) or decode(..., charset) in '
                "transform.sql"
            ) from None


def place_of(rows: pa.RecordBatch, column: pa.StringArray) -> str:
    """Return the position of the first text that is not UTF-8; empty without topic, partition and offset columns."""
    if not {"topic", "partition", "offset"} <= set(rows.schema.names):
        return ""
    values = column.view(pa.binary()).to_pylist()
    row = next(i for i, value in enumerate(values) if value is not None and not is_text(value))
    topic, partition, offset = (rows.column(name)[row].as_py() for name in ("topic", "partition", "offset"))
    return f"{topic}-{partition} offset {offset}: "


def is_text(value: bytes) -> bool:
    """Return whether bytes are UTF-8."""
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


@contextlib.contextmanager
def naming(root: str) -> Iterator[None]:
    """Add the path to OS errors of writes (no space left, read-only file system), which lack it."""
    try:
        yield
    except OSError as e:
        raise OSError(e.errno, f'cannot write "{root}": {e}') from e


def folder_name(value: str | None, plain: bool) -> str:
    """Return the folder name of a partition value."""
    if value is None:
        return NULL_PARTITION
    return SPECIAL.sub("_", value)[:MAX_PLAIN] if plain else quote(value, safe="")


def sync(path: Path) -> None:
    """fsync a file or directory."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def filesystem(root: str, storage: Mapping[str, str]) -> pafs.FileSystem:
    """Return the local file system, or an object store through deltalake, which needs no further package."""
    if "://" not in root:
        return pafs.LocalFileSystem()
    from deltalake.fs import DeltaStorageHandler

    return pafs.PyFileSystem(DeltaStorageHandler(root, dict(storage)))


def split(
    batch: pa.RecordBatch, partition_by: Sequence[str]
) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
    """Yield the rows of each combination of partition values (as text), in their order.

    Vectorised: the cost depends on columns and combinations, not on rows.
    """
    if not batch.num_rows:
        return
    if not partition_by:
        yield (), batch
        return
    codes = np.zeros(batch.num_rows, np.int64)
    dictionaries = []
    for name in partition_by:
        encoded = batch.column(name).cast(pa.string()).dictionary_encode(null_encoding="encode")
        dictionaries.append(encoded.dictionary.to_pylist())
        codes = codes * max(len(encoded.dictionary), 1) + encoded.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=ordered[0] - 1))
    if len(starts) == 1:
        yield values_of(int(ordered[0]), dictionaries), batch
        return
    rows = batch.take(pa.array(order))
    for start, end in zip(starts, [*starts[1:], len(ordered)], strict=True):
        yield values_of(int(ordered[start]), dictionaries), rows.slice(int(start), int(end - start))


def values_of(code: int, dictionaries: Sequence[Sequence[str | None]]) -> tuple[str | None, ...]:
    """Return the partition values of a combined dictionary code."""
    values: list[str | None] = []
    for dictionary in reversed(dictionaries):
        code, index = divmod(code, max(len(dictionary), 1))
        values.append(dictionary[index])
    return tuple(reversed(values))


def statistics(metadata: pq.FileMetaData, rows: int) -> str:
    """Return a file's statistics for Delta's log: row count, and bounds of columns that JSON can represent exactly."""
    low, high, nulls = bounds(metadata)
    return json.dumps({"numRecords": rows, "minValues": low, "maxValues": high, "nullCount": nulls})


def bounds(metadata: pq.FileMetaData) -> tuple[dict[str, Any], dict[str, Any], dict[str, int]]:
    """Return the smallest and largest value and the null count of each top-level column."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for index in range(metadata.num_columns):
        name = metadata.schema.column(index).path
        if "." in name:
            continue
        found = [metadata.row_group(g).column(index).statistics for g in range(metadata.num_row_groups)]
        if not found or any(s is None or not s.has_null_count for s in found):
            continue
        nulls[name] = sum(s.null_count for s in found)
        with_values = [s for s in found if s.has_min_max]
        if len(with_values) < len([s for s in found if s.num_values]) or not with_values:
            continue
        smallest, largest = min(s.min for s in with_values), max(s.max for s in with_values)
        if exact(smallest) and exact(largest):
            low[name], high[name] = spelled(smallest), spelled(largest)
    return low, high, nulls


def exact(value: Any) -> bool:
    """Return whether JSON represents a bound exactly: not bytes, NaN, times (truncated by Delta) or long text (by
    Parquet)."""
    if isinstance(value, str):
        return len(value) <= MAX_STATS_TEXT
    plain_date = isinstance(value, datetime.date) and not isinstance(value, datetime.datetime)
    return plain_date or (isinstance(value, int) and not isinstance(value, bool))


def spelled(value: Any) -> Any:
    """Return a bound as JSON value."""
    return value.isoformat() if isinstance(value, datetime.date) else value
