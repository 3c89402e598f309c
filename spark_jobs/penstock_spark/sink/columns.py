"""Checks and converts a data frame's columns, with the rules of Spark's Kafka sink. Called when a write is planned.

`value` (string or binary) is required; `key` (string or binary), `headers`, `topic`, `partition` and `timestamp` are
optional. Any other column is an error, because it would be lost silently.
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
COLUMN_TYPES = {
    "key": "string or binary",
    "value": "string or binary",
    "headers": HEADERS,
    "topic": "string",
    "partition": "int",
    "timestamp": "timestamp",
}
US_PER_MS = 1000


class SinkColumns(NamedTuple):
    """Which columns exist besides `value`. `topic` is False if the option sets the topic, which has precedence."""

    key: bool
    headers: bool
    topic: bool
    partition: bool
    timestamp: bool


def sink_columns(schema: StructType, topic: str | None) -> SinkColumns:
    """Return the columns of a schema. Raises `InvalidOption`, naming the column."""
    for column in schema.fields:
        expected = COLUMN_TYPES.get(column.name)
        if expected is None:
            raise InvalidOption(
                f'column "{column.name}" is not a field of a record ({", ".join(COLUMN_TYPES)}); drop it, or put it '
                'into "value", for example with to_json(struct(...))'
            )
        if not fits(column):
            given = column.dataType.simpleString()
            raise InvalidOption(f'column "{column.name}" is {given}, but must be {expected}; add a cast')
    names = [column.name for column in schema.fields]
    if len(set(names)) < len(names):
        raise InvalidOption(f"duplicate column among {', '.join(names)}; rename or drop one")
    if "value" not in names:
        raise InvalidOption('column "value" is missing; add it as string or binary')
    if topic is None and "topic" not in names:
        raise InvalidOption('the topic is missing; set option "topic", or add a column "topic"')
    return SinkColumns("key" in names, "headers" in names, topic is None, "partition" in names, "timestamp" in names)


def fits(column: StructField) -> bool:
    """Return whether a column has the type that its name requires."""
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
    """Return whether a type is that of a header."""
    if not isinstance(kind, StructType) or [f.name for f in kind.fields] != ["key", "value"]:
        return False
    return isinstance(kind.fields[0].dataType, StringType) and isinstance(kind.fields[1].dataType, BinaryType)


def encodable_rows(batch: pa.RecordBatch, columns: SinkColumns, now_ms: int) -> EncodableRows:
    """Return the rows to encode; rows without a timestamp get `now_ms`."""
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
    """Return an array as binary, without a copy if it is binary already."""
    return array if pa.types.is_binary(array.type) else array.cast(pa.binary())


def slice_rows(rows: EncodableRows, start: int, length: int) -> EncodableRows:
    """Return a slice of the rows, without a copy."""
    headers = None if rows.headers is None else rows.headers.slice(start, length)
    times = rows.timestamp_ms[start : start + length]
    return EncodableRows(rows.key.slice(start, length), rows.value.slice(start, length), headers, times)


def reorder_rows(rows: EncodableRows, order: np.ndarray) -> EncodableRows:
    """Return the rows in another order."""
    indices = pa.array(order)
    headers = None if rows.headers is None else rows.headers.take(indices)
    return EncodableRows(rows.key.take(indices), rows.value.take(indices), headers, rows.timestamp_ms[order])
