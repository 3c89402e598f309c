"""The schema of records in Spark, equal to that of Spark's Kafka connector."""

from __future__ import annotations

import pyarrow as pa

# All fields are nullable, because Spark compares a batch's schema with its own, in which they are.
HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
    ]
)
SCHEMA_WITH_HEADERS = SCHEMA.append(pa.field("headers", pa.list_(HEADER)))
CREATE_TIME, LOG_APPEND_TIME = 0, 1
"""Values of timestampType."""

DDL = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
DDL_WITH_HEADERS = f"{DDL}, headers array<struct<key: string, value: binary>>"

RANGES = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("start", pa.int64()),
        pa.field("end", pa.int64()),
        pa.field("topic_id", pa.string()),
    ]
)
"""Ranges for tasks that read records themselves: the fields of `OffsetRange`, and the topic id."""
RANGES_DDL = "topic string, partition int, start long, end long, topic_id string"
