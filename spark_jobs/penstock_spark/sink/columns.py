"""What a data frame's columns mean to the sink, as Spark's Kafka sink takes them; checked when the write is planned.

`value` (string or binary) is needed; `key` (string or binary), `headers`, `topic`, `partition` and `timestamp` may be
there. Any other column is an error: it would be lost without a word.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock_spark.encode.ports import EncodableRows
from penstock_spark.model.columns import HEADER
from penstock_spark.model.errors import InvalidOption

HEADERS = "array<struct<key: string, value: binary>>"
TAKEN = {
    "key": "string or binary",
    "value": "string or binary",
    "headers": HEADERS,
    "topic": "string",
    "partition": "int",
    "timestamp": "timestamp",
}
US_PER_MS = 1000


class Columns(NamedTuple):
    """Which of the columns are there besides `value`. `topic` is False where the option names one, which wins."""

    key: bool
    headers: bool
    topic: bool
    partition: bool
    timestamp: bool


def columns_of(schema: StructType, topic: str | None) -> Columns:
    """Raises `InvalidOption`, naming the column."""
    for column in schema.fields:
        wanted = TAKEN.get(column.name)
        if wanted is None:
            raise InvalidOption(
                f"column {column.name!r} has no place in a record, which takes {', '.join(TAKEN)}: drop it, or put it "
                "into 'value', as with to_json(struct(...))"
            )
        if not fits(column):
            given = column.dataType.simpleString()
            raise InvalidOption(f"column {column.name!r} is {given}, but must be {wanted}: cast it")
    names = [column.name for column in schema.fields]
    if len(set(names)) < len(names):
        raise InvalidOption(f"a column is there twice among {', '.join(names)}")
    if "value" not in names:
        raise InvalidOption("column 'value' (string or binary) is needed")
    if topic is None and "topic" not in names:
        raise InvalidOption("no topic: set option 'topic', or have a column 'topic'")
    return Columns("key" in names, "headers" in names, topic is None, "partition" in names, "timestamp" in names)


def fits(column: StructField) -> bool:
    kind = column.dataType
    if column.name == "headers":
        return isinstance(kind, ArrayType) and are_headers(kind.elementType)
    if column.name == "topic":
        return isinstance(kind, StringType)
    if column.name == "partition":
        return isinstance(kind, IntegerType)
    if column.name == "timestamp":
        return isinstance(kind, TimestampType)
    return isinstance(kind, StringType | BinaryType)


def are_headers(kind: DataType) -> bool:
    if not isinstance(kind, StructType) or [f.name for f in kind.fields] != ["key", "value"]:
        return False
    return isinstance(kind.fields[0].dataType, StringType) and isinstance(kind.fields[1].dataType, BinaryType)


def rows_of(batch: pa.RecordBatch, columns: Columns, now_ms: int) -> EncodableRows:
    """The columns as records have them; rows without a time get `now_ms`."""
    count = batch.num_rows
    key = as_binary(batch.column("key")) if columns.key else pa.nulls(count, pa.binary())
    headers = batch.column("headers").cast(pa.list_(HEADER)) if columns.headers else None
    if headers is not None and headers.null_count == count:
        headers = None
    times = np.full(count, now_ms, dtype=np.int64)
    if columns.timestamp:
        given = batch.column("timestamp")
        micros = given.cast(pa.timestamp("us", given.type.tz)).cast(pa.int64())
        times = micros.fill_null(now_ms * US_PER_MS).to_numpy(zero_copy_only=False) // US_PER_MS
    return EncodableRows(key, as_binary(batch.column("value")), headers, times)


def as_binary(array: pa.Array) -> pa.BinaryArray:
    return array if pa.types.is_binary(array.type) else array.cast(pa.binary())


def part_of(rows: EncodableRows, start: int, length: int) -> EncodableRows:
    """Some of the rows, without a copy."""
    headers = None if rows.headers is None else rows.headers.slice(start, length)
    times = rows.timestamp_ms[start : start + length]
    return EncodableRows(rows.key.slice(start, length), rows.value.slice(start, length), headers, times)


def in_order(rows: EncodableRows, order: np.ndarray) -> EncodableRows:
    """The rows in another order."""
    indices = pa.array(order)
    headers = None if rows.headers is None else rows.headers.take(indices)
    return EncodableRows(rows.key.take(indices), rows.value.take(indices), headers, rows.timestamp_ms[order])
