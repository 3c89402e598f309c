"""Reads topics as DataFrames: a job's source and transform. Called by every kind that reads topics."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from penstock_spark.jobs.run.session import text
from penstock_spark.jobs.spec.conditions import fail_if
from penstock_spark.jobs.spec.specs import DecodingSpec, SourceSpec, TransformSpec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

VIEW = "source"
CORRUPT = "__corrupt"


def options(source: SourceSpec, group: str | None = None) -> dict[str, str]:
    """Return the source as options of the format `penstock`; the job's own options come last."""
    found = {
        "kafka.bootstrap.servers": source.brokers,
        "kafka.isolation.level": source.isolation,
        "failOnDataLoss": text(source.fail_on_data_loss),
        "includeHeaders": "true",
    }
    if source.topics:
        found["subscribe"] = ",".join(source.topics)
    elif source.pattern is not None:
        found["subscribePattern"] = source.pattern
    else:
        found["assign"] = json.dumps(source.assign)
    starting_ms = source.starting_ms()
    if starting_ms is not None:
        found["startingTimestamp"] = str(starting_ms)
        found["startingOffsetsByTimestampStrategy"] = "latest"
    else:
        found["startingOffsets"] = source.starting if isinstance(source.starting, str) else json.dumps(source.starting)
    if source.max_records_per_batch is not None:
        found["maxOffsetsPerTrigger"] = str(source.max_records_per_batch)
    if source.min_partitions is not None:
        found["minPartitions"] = str(source.min_partitions)
    if group is not None:
        found["penstock.progress.group"] = group
    return {**found, **{name: text(value) for name, value in source.options.items()}}


def stream(spark: SparkSession, source: SourceSpec, group: str) -> DataFrame:
    """Return a stream of records in the schema of Spark's Kafka connector with headers."""
    return spark.readStream.format("penstock").options(**options(source, group)).load()


def ranges(spark: SparkSession, source: SourceSpec, group: str) -> DataFrame:
    """Return the ranges that `stream` would read, a row for each task."""
    from penstock_spark.source.ranges import NAME, RangesDataSource

    spark.dataSource.register(RangesDataSource)
    return spark.readStream.format(NAME).options(**options(source, group)).load()


def batch(spark: SparkSession, source: SourceSpec, ending: str = "latest") -> DataFrame:
    """Return the existing records, up to `ending` (as in the option endingOffsets)."""
    chosen = {name: value for name, value in options(source).items() if name != "maxOffsetsPerTrigger"}
    return spark.read.format("penstock").options(**chosen, endingOffsets=ending).load()


def shape(records: DataFrame, transform: TransformSpec) -> DataFrame:
    """Return decoded records, with the job's query applied if it has one."""
    rows = decode(records, transform)
    return rows.drop("raw_key", "raw_value") if transform.sql is None else query(rows, transform.sql)


def query(rows: DataFrame, sql: str) -> DataFrame:
    """Apply a job's query to rows, which it knows as `source`."""
    rows.createOrReplaceTempView(VIEW)
    return rows.sparkSession.sql(sql)


def decode(records: DataFrame, transform: TransformSpec) -> DataFrame:
    """Return the view for queries: decoded key and value, with their bytes as raw_key and raw_value."""
    from pyspark.sql import functions as F  # noqa: N812

    rows = records.withColumn("raw_key", F.col("key")).withColumn("raw_value", F.col("value"))
    return rows.withColumns({"key": decoded("key", transform.key), "value": decoded("value", transform.value)})


def decoded(column: str, decoding: DecodingSpec) -> Column:
    """Return a column decoded. Null stays null: it is a tombstone, not an error."""
    from pyspark.sql import functions as F  # noqa: N812

    raw = F.col(column)
    if decoding.format == "binary":
        return raw
    if decoding.format == "string":
        text = raw.cast("string")
        return readable(column, decoding, text, ~F.is_valid_utf8(text))
    assert decoding.schema is not None, "JSON has a schema"
    parsed = parse_json(raw, decoding)
    return readable(column, decoding, parsed.dropFields(CORRUPT), unreadable(raw, parsed))


def readable(column: str, decoding: DecodingSpec, value: Column, is_bad: Column) -> Column:
    """Return a decoded value, with the job's handling of undecodable ones."""
    from pyspark.sql import functions as F  # noqa: N812

    if decoding.on_error == "null":
        return F.when(~F.coalesce(is_bad, F.lit(False)), value)
    return fail_if(value, is_bad, undecodable_message(column, decoding))


def undecodable_message(column: str, decoding: DecodingSpec) -> str:
    """Return the error message for a value that cannot be decoded."""
    what = "valid JSON of the job's schema" if decoding.format == "json" else "UTF-8 text"
    return f"the {column} is not {what}; correct it, or set transform.{column}.on_error: null"


def parse_json(raw: Column, decoding: DecodingSpec) -> Column:
    """Return a struct of the schema, with undecodable text in a field `CORRUPT`."""
    from pyspark.sql import functions as F  # noqa: N812

    schema = f"{decoding.schema}, {CORRUPT} STRING"
    return F.from_json(raw.cast("string"), schema, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT})


def unreadable(raw: Column, parsed: Column) -> Column:
    """Return whether a value is present but not JSON of the schema. JSON is UTF-8: Spark would silently replace invalid
    bytes."""
    from pyspark.sql import functions as F  # noqa: N812

    is_text = F.is_valid_utf8(raw.cast("string"))
    return raw.isNotNull() & (parsed.isNull() | parsed[CORRUPT].isNotNull() | ~is_text)
