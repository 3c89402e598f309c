"""Streaming queries of tests: from topics into a folder of Parquet, with Spark's own sink."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from penstock_spark_kit.broker import Broker

LIMIT_S = 300


class Query:
    """A query into Parquet that tests can start repeatedly on the same checkpoint."""

    def __init__(self, spark: SparkSession, home: Path, broker: Broker, **options: str) -> None:
        self.spark, self.home = spark, home
        self.options = {"kafka.bootstrap.servers": broker.bootstrap, "startingOffsets": "earliest", **options}

    def start(self, *, available_now: bool = True, **more: str) -> StreamingQuery:
        reading = self.spark.readStream.format("penstock").options(**(self.options | more)).load()
        writing = (
            reading.selectExpr("topic", "partition", "offset", "CAST(value AS STRING) AS value")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(self.home / "checkpoint"))
            .option("path", str(self.home / "out"))
        )
        return (writing.trigger(availableNow=True) if available_now else writing).start()

    def run(self, **more: str) -> StreamingQuery:
        """Process all existing data."""
        query = self.start(**more)
        assert query.awaitTermination(LIMIT_S), "the query did not end"
        return query

    def values(self) -> list[str]:
        rows = self.spark.read.parquet(str(self.home / "out")).select("value").collect()
        return sorted(row.value for row in rows)

    def offsets(self) -> dict[str, Any]:
        """Return the newest offsets in the checkpoint."""
        newest = max((self.home / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
        found: dict[str, Any] = json.loads(newest.read_text().splitlines()[-1])
        return found
