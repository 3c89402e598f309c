"""A driver for crash tests: writes numbers from text files, or from a topic, to a topic, exactly once. Run by
`test_topic_sink_crash`.

With `--dies-after-commit FILE` it kills itself once (FILE records this) when a batch's transaction is committed and the
checkpoint does not have the batch yet.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path
from typing import Any

from penstock_spark_kit.sessions import make_session
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSourceStreamArrowWriter, DataSourceStreamWriter

import penstock_spark
from penstock_spark.sink import stream_writer
from penstock_spark.sink.driver import find_driver
from penstock_spark.source import PenstockDataSource

ROWS_OF_A_BATCH = 800


class DiesAfterCommit(PenstockDataSource):
    """The real data source, whose driver dies before it learns of a commit."""

    @classmethod
    def name(cls) -> str:
        return "penstock_dies_after_commit"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802
        options = dict(self.options)
        flag = options.pop("flag")
        return DyingWriter(stream_writer(options, schema, overwrite), flag)


class DyingWriter(DataSourceStreamArrowWriter):
    def __init__(self, writer: DataSourceStreamWriter, flag: str) -> None:
        self.writer, self.flag = writer, flag

    def write(self, iterator: Any) -> Any:
        return self.writer.write(iterator)

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
        self.writer.commit(messages, batchId)
        if batchId == 1 and not Path(self.flag).exists():
            Path(self.flag).touch()
            os.kill(find_driver().pid, signal.SIGKILL)

    def abort(self, messages: Any, batchId: int) -> None:  # noqa: N803
        self.writer.abort(messages, batchId)


def numbers(spark: SparkSession, arguments: argparse.Namespace) -> DataFrame:
    if arguments.files:
        return spark.readStream.option("maxFilesPerTrigger", 2).text(arguments.files)
    options = {
        "kafka.bootstrap.servers": arguments.bootstrap,
        "subscribe": arguments.source,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(ROWS_OF_A_BATCH),
        "penstock.progress.group": arguments.group,
    }
    rows = spark.readStream.format("penstock").options(**options).load()
    return rows.select(f.col("value").cast("string").alias("value"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    sources = parser.add_mutually_exclusive_group(required=True)
    sources.add_argument("--files")
    sources.add_argument("--source", help="a topic")
    parser.add_argument("--group", help="which shows how far the topic is read")
    parser.add_argument("--waits", action="store_true", help="look for new data now and in an hour, and do not end")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--dies-after-commit", default="")
    arguments = parser.parse_args()
    arguments.home.mkdir(exist_ok=True)
    spark = make_session(arguments.home)
    spark.dataSource.register(DiesAfterCommit)
    penstock_spark.track(spark)
    rows = numbers(spark, arguments)
    name = "penstock"
    options = {}
    if arguments.dies_after_commit:
        name, options = DiesAfterCommit.name(), {"flag": arguments.dies_after_commit}
    os.write(1, b"started\n")
    writer = (
        rows.repartition(3)
        .select((f.col("value").cast("long") % 97).cast("string").alias("key"), "value")
        .writeStream.format(name)
        .options(**options)
        .option("kafka.bootstrap.servers", arguments.bootstrap)
        .option("topic", arguments.topic)
        .option("checkpointLocation", str(arguments.home / "checkpoint"))
        .option("penstock.delivery", "exactly-once")
        .option("kafka.batch.size", "8192")
    )
    query = (writer.trigger(processingTime="1 hour") if arguments.waits else writer.trigger(availableNow=True)).start()
    query.awaitTermination()
    os.write(1, b"finished\n")


if __name__ == "__main__":
    main()
