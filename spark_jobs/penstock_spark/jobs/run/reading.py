"""From topics to rows: a job's source and transform as DataFrames. Called by every kind that reads topics."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from penstock_spark.jobs.run.session import text
from penstock_spark.jobs.spec.conditions import refused
from penstock_spark.jobs.spec.specs import DecodingSpec, SourceSpec, TransformSpec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

VIEW = "source"
CORRUPT = "__corrupt"


def options(source: SourceSpec, group: str | None = None) -> dict[str, str]:
    """The source as options of the format `penstock`; the job's own options come last."""
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
    """Records as they come, in the schema of Spark's Kafka connector with headers."""
    return spark.readStream.format("penstock").options(**options(source, group)).load()


def ranges(spark: SparkSession, source: SourceSpec, group: str) -> DataFrame:
    """What `stream` would read, a row for each task."""
    from penstock_spark.source.ranges import NAME, RangesDataSource

    spark.dataSource.register(RangesDataSource)
    return spark.readStream.format(NAME).options(**options(source, group)).load()


def batch(spark: SparkSession, source: SourceSpec, ending: str = "latest") -> DataFrame:
    """Records that are there now, up to `ending` (as the option endingOffsets has it)."""
    chosen = {name: value for name, value in options(source).items() if name != "maxOffsetsPerTrigger"}
    return spark.read.format("penstock").options(**chosen, endingOffsets=ending).load()


def shape(records: DataFrame, transform: TransformSpec) -> DataFrame:
    """Keys and values decoded, and the job's query over them. Without a query: the records, decoded."""
    rows = decode(records, transform)
    return rows.drop("raw_key", "raw_value") if transform.sql is None else query(rows, transform.sql)


def query(rows: DataFrame, sql: str) -> DataFrame:
    """A job's query over rows, which it knows as `source`."""
    rows.createOrReplaceTempView(VIEW)
    return rows.sparkSession.sql(sql)


def decode(records: DataFrame, transform: TransformSpec) -> DataFrame:
    """The view that queries see: key and value decoded, their bytes beside them."""
    from pyspark.sql import functions as F  # noqa: N812

    rows = records.withColumn("raw_key", F.col("key")).withColumn("raw_value", F.col("value"))
    return rows.withColumns({"key": decoded("key", transform.key), "value": decoded("value", transform.value)})


def decoded(column: str, decoding: DecodingSpec) -> Column:
    """A column of bytes as what it is said to be. Null stays null: it is a tombstone, not an error."""
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
    """A value, and what becomes of one that is not what it is said to be."""
    from pyspark.sql import functions as F  # noqa: N812

    if decoding.on_error == "null":
        return F.when(~F.coalesce(is_bad, F.lit(False)), value)
    return refused(value, is_bad, said_of(column, decoding))


def said_of(column: str, decoding: DecodingSpec) -> str:
    what = "JSON of the job's schema" if decoding.format == "json" else "text in UTF-8"
    return f"the {column} is no {what} (transform.{column}.on_error)"


def parse_json(raw: Column, decoding: DecodingSpec) -> Column:
    """A struct of the schema, with what could not be read in a field of its own."""
    from pyspark.sql import functions as F  # noqa: N812

    schema = f"{decoding.schema}, {CORRUPT} STRING"
    return F.from_json(raw.cast("string"), schema, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT})


def unreadable(raw: Column, parsed: Column) -> Column:
    """Whether there is a value, and it is no JSON of the schema. JSON is UTF-8: Spark would put other characters in the
    place of bytes that are not."""
    from pyspark.sql import functions as F  # noqa: N812

    is_text = F.is_valid_utf8(raw.cast("string"))
    return raw.isNotNull() & (parsed.isNull() | parsed[CORRUPT].isNotNull() | ~is_text)
