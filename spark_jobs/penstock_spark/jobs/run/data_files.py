"""Writes Parquet files in Spark's tasks, and tells the driver what was written. Called by `writing` through mapInArrow.

Rows go from Spark to a task as Arrow and into files as they are: nothing but the list of files comes to the driver. A
task that runs twice writes other files; those of the attempt that Spark did not take are never named, so they do not
count (a Parquet folder removes them with its staging, a Delta table when it is vacuumed).
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

from penstock_spark.jobs.spec.lists import unpacked
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
"""Files that a task has open at a time; with more partitions in a batch, the one that waits longest is ended."""
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
SPECIAL = re.compile(r"[^A-Za-z0-9-]")
MAX_PLAIN = 100
MAX_STATS_TEXT = 64


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file that was written. `path` is relative to the root; `stats` as Delta's log has them."""

    path: str
    partition: Mapping[str, str | None]
    rows: int
    bytes: int
    stats: str


@dataclass(frozen=True)
class DataFileWriter:
    """What a task runs. `root` is a folder, or the URL of an object store with its options."""

    root: str
    prefix: str
    schema: pa.Schema
    """Of all columns, those of `partition_by` included: these are in the names of folders, not in files."""
    partition_by: tuple[str, ...]
    compression: str
    file_size: int
    storage: Mapping[str, str] = field(default_factory=dict)
    plain: bool = False
    """Folders are named without escapes, where the values stand in a log: who reads and writes it need not agree on how
    escapes are escaped. Values may then share a folder."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = PartTask(self)
        try:
            for batch in batches:
                rows = unpacked(batch)
                check_text(rows)
                with naming(self.root):
                    task.add(rows)
            with naming(self.root):
                parts = task.end()
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
        return pa.schema([f for f in self.schema if f.name not in self.partition_by])


class PartTask:
    """One task's open files."""

    def __init__(self, writer: DataFileWriter) -> None:
        self._writer = writer
        self._schema = writer.file_schema
        self._filesystem = filesystem(writer.root, writer.storage)
        self._open: OrderedDict[tuple[str | None, ...], OpenDataFile] = OrderedDict()
        self._done: list[DataFile] = []
        # Whoever runs this task once more writes other names.
        self._id = uuid.uuid4().hex[:12]

    def add(self, batch: pa.RecordBatch) -> None:
        for values, rows in split(batch, self._writer.partition_by):
            columns = [rows.column(f.name).cast(f.type) for f in self._schema]
            table = pa.Table.from_arrays(columns, schema=self._schema)
            part = self._part(values)
            part.add(table)
            if part.bytes >= self._writer.file_size:
                self._done.append(self._open.pop(values).end())

    def _part(self, values: tuple[str | None, ...]) -> OpenDataFile:
        part = self._open.get(values)
        if part is None:
            if len(self._open) >= MAX_OPEN:
                _, oldest = self._open.popitem(last=False)
                self._done.append(oldest.end())
            part = self._open[values] = self._create(values)
        self._open.move_to_end(values)
        return part

    def _create(self, values: tuple[str | None, ...]) -> OpenDataFile:
        partition = dict(zip(self._writer.partition_by, values, strict=True))
        number = len(self._done) + len(self._open)
        name = f"{self._writer.prefix}-{self._id}-{number:04d}.parquet"
        folder = "".join(f"{n}={folder_name(v, self._writer.plain)}/" for n, v in partition.items())
        return OpenDataFile(self._filesystem, self._writer, self._schema, folder + name, partition)

    def end(self) -> list[DataFile]:
        while self._open:
            _, part = self._open.popitem(last=False)
            self._done.append(part.end())
        return self._done

    def abandon(self) -> None:
        for part in self._open.values():
            # Where a disk is full its end cannot be written either, and is not what went wrong first.
            with contextlib.suppress(OSError):
                part.close()


class OpenDataFile:
    """A file that is being written; rows are gathered to row groups."""

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
        """In memory, of what was added."""
        self._rows = 0

    def add(self, table: pa.Table) -> None:
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

    def end(self) -> DataFile:
        """The file is whole, and on disk, when this returns."""
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
        self._file.close()


def check_text(rows: pa.RecordBatch) -> None:
    """Text must be UTF-8: a cast of other bytes to text looks like text to Spark, and to no reader of the file. Raises
    `Undecodable`, which names the column, and the record if the rows say which it was."""
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
    """The record of the first text that is not UTF-8, if the rows have topic, partition and offset."""
    if not {"topic", "partition", "offset"} <= set(rows.schema.names):
        return ""
    values = column.view(pa.binary()).to_pylist()
    row = next(i for i, value in enumerate(values) if value is not None and not is_text(value))
    topic, partition, offset = (rows.column(name)[row].as_py() for name in ("topic", "partition", "offset"))
    return f"{topic}-{partition} offset {offset}: "


def is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


@contextlib.contextmanager
def naming(root: str) -> Iterator[None]:
    """What the system says against writing (no space left, read-only, ...) comes without a name of what it is about."""
    try:
        yield
    except OSError as e:
        raise OSError(e.errno, f"{root} cannot be written: {e}") from e


def folder_name(value: str | None, plain: bool) -> str:
    if value is None:
        return NULL_PARTITION
    return SPECIAL.sub("_", value)[:MAX_PLAIN] if plain else quote(value, safe="")


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def filesystem(root: str, storage: Mapping[str, str]) -> pafs.FileSystem:
    """Local files, or an object store through deltalake, which needs no further package."""
    if "://" not in root:
        return pafs.LocalFileSystem()
    from deltalake.fs import DeltaStorageHandler

    return pafs.PyFileSystem(DeltaStorageHandler(root, dict(storage)))


def split(
    batch: pa.RecordBatch, partition_by: Sequence[str]
) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
    """The rows of each combination of values, as text, in the order in which they were. Vectorised: the cost goes with
    columns and combinations, not with rows."""
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
    values: list[str | None] = []
    for dictionary in reversed(dictionaries):
        code, index = divmod(code, max(len(dictionary), 1))
        values.append(dictionary[index])
    return tuple(reversed(values))


def statistics(metadata: pq.FileMetaData, rows: int) -> str:
    """A file's statistics for Delta's log: rows, and bounds of the columns whose bounds text can say exactly."""
    low, high, nulls = bounds(metadata)
    return json.dumps({"numRecords": rows, "minValues": low, "maxValues": high, "nullCount": nulls})


def bounds(metadata: pq.FileMetaData) -> tuple[dict[str, Any], dict[str, Any], dict[str, int]]:
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
    """Whether JSON says it as it is: no bytes, no NaN, no times (Delta cuts these), no long text (Parquet cuts it)."""
    if isinstance(value, str):
        return len(value) <= MAX_STATS_TEXT
    plain_date = isinstance(value, datetime.date) and not isinstance(value, datetime.datetime)
    return plain_date or (isinstance(value, int) and not isinstance(value, bool))


def spelled(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime.date) else value
