"""Lists are sent to tasks without nulls, and arrive unchanged."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from penstock_spark.jobs.run.batches import JobRows
from penstock_spark.jobs.run.data_files import DataFileWriter
from penstock_spark.jobs.run.writing import topic_rows
from penstock_spark.jobs.spec.lists import NULL_MARKER, pack_lists, unpack_lists
from penstock_spark.jobs.spec.specs import TopicTarget

pytestmark = pytest.mark.integration

NAMES = st.lists(st.text(max_size=3), max_size=3)
HEADERS = "array<struct<key: string, value: binary>>"
ROWS = [
    (1, [("a", b"x"), ("b", None)], [[1], None, []], {"k": 1}),
    (2, None, None, None),
    (3, [], [], {}),
    (4, None, [None], {"k": None}),
]


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    columns = f"id int, headers {HEADERS}, nested array<array<int>>, map map<string, int>"
    return spark.createDataFrame(ROWS, columns)


@given(st.lists(st.none() | NAMES, max_size=20))
def test_a_mark_makes_null_of_what_travelled_empty(lists: list[list[str] | None]) -> None:
    type_ = pa.list_(pa.string())
    travelling = pa.record_batch(
        {
            "id": pa.array(range(len(lists)), pa.int64()),
            "l": pa.array([found or [] for found in lists], type_),
            NULL_MARKER + "l": pa.array([found is None for found in lists], pa.bool_()),
        }
    )
    arrived = unpack_lists(travelling)
    assert arrived.schema.names == ["id", "l"]
    assert arrived.column("l").to_pylist() == lists
    arrived.validate(full=True)


def test_what_has_no_list_travels_as_it_is(spark: SparkSession) -> None:
    plain = spark.range(3)
    assert pack_lists(plain) is plain
    batch = plain.toArrow().to_batches()[0]
    assert unpack_lists(batch) is batch


def test_no_list_is_null_on_its_way_and_each_is_what_it_was_when_it_arrives(rows: DataFrame) -> None:
    travelling = pack_lists(rows).toArrow()
    assert travelling.column("headers").null_count == 0
    assert travelling.column("nested").null_count == 0
    arrived = pa.Table.from_batches([unpack_lists(batch) for batch in travelling.to_batches()])
    assert arrived.to_pylist() == rows.toArrow().to_pylist()


def test_files_have_the_lists_that_rows_have(rows: DataFrame, tmp_path: Path) -> None:
    schema = JobRows(rows).schema()
    JobRows(rows).write(DataFileWriter(str(tmp_path), "part", schema, (), "zstd", 1 << 20))
    table = ds.dataset(tmp_path, format="parquet").to_table()
    assert table.schema.names == schema.names
    assert sorted(table.to_pylist(), key=lambda row: row["id"]) == rows.toArrow().to_pylist()


def test_a_topic_gets_no_headers_where_there_were_none(rows: DataFrame) -> None:
    given = rows.selectExpr("cast(id as string) as key", "cast(id as string) as value", "headers")
    sent = topic_rows(given, TopicTarget(brokers="localhost:1", topic="t")).collect()
    assert [len(row.headers) for row in sent] == [2, 0, 0, 0]
