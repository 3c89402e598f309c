"""Columns are those of Spark's Kafka sink; an invalid one raises an error that names the column and the fix."""

from __future__ import annotations

import pyarrow as pa
import pytest
from penstock_spark_kit.batches_written import schema

from penstock_spark.model.errors import InvalidOption
from penstock_spark.sink.columns import SinkColumns, encodable_rows, sink_columns


@pytest.mark.parametrize(
    ("ddl", "topic", "wanted"),
    [
        ("value binary", "t", SinkColumns(False, False, False, False, False)),
        ("value string, key string", "t", SinkColumns(True, False, False, False, False)),
        ("topic string, value binary, headers headers", None, SinkColumns(False, True, True, False, False)),
        ("topic string, value binary, partition int", "t", SinkColumns(False, False, False, True, False)),
        ("value binary, timestamp timestamp", "t", SinkColumns(False, False, False, False, True)),
    ],
)
def test_the_columns_of_a_record_are_taken(ddl: str, topic: str | None, wanted: SinkColumns) -> None:
    assert sink_columns(schema(ddl), topic) == wanted


@pytest.mark.parametrize(
    ("ddl", "topic", "says"),
    [
        ("key string", "t", 'column "value" is missing'),
        ("value binary", None, 'set option "topic", or add a column "topic"'),
        ("value binary, offset bigint", "t", 'column "offset" is not a field of a record'),
        ("value int", "t", 'column "value" is int, but must be string or binary'),
        ("value binary, key bigint", "t", 'column "key" is bigint'),
        ("value binary, partition bigint", "t", 'column "partition" is bigint, but must be int'),
        ("value binary, headers map", "t", 'column "headers" is map'),
        ("value binary, headers wrong headers", "t", 'column "headers"'),
        ("value binary, topic binary", None, 'column "topic" is binary'),
        ("value binary, timestamp bigint", "t", 'column "timestamp" is bigint'),
    ],
)
def test_other_columns_are_errors_that_name_the_column(ddl: str, topic: str | None, says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        sink_columns(schema(ddl), topic)


def test_strings_become_their_utf8_bytes_and_rows_without_a_time_get_the_present_one() -> None:
    batch = pa.record_batch(
        {
            "key": pa.array(["ä", None]),
            "value": pa.array(["x", None]),
            "timestamp": pa.array([1_500, None], pa.timestamp("us", tz="UTC")),
        }
    )
    rows = encodable_rows(batch, SinkColumns(True, False, False, False, True), now_ms=99)
    assert rows.key.to_pylist() == ["ä".encode(), None]
    assert rows.value.to_pylist() == [b"x", None]
    assert rows.timestamp_ms.tolist() == [1, 99]
    assert rows.headers is None
