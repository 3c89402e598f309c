"""The schema of records as Spark sees them: that of its own Kafka connector."""

from __future__ import annotations

import pyarrow as pa

# Nothing in it is declared to be without nulls: Spark compares a batch's schema with its own, where all may be null.
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
"""What a task is to read, where it reads records itself: the fields of `OffsetRange`, and of which topic it is."""
RANGES_DDL = "topic string, partition int, start long, end long, topic_id string"
