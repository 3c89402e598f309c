"""A driver for crash tests: archives a topic to a Parquet folder and a Delta table at once, one of them directly and
the other with a query. See `test_archive_crash`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from penstock_spark_kit.jobs import build_job
from penstock_spark_kit.sessions import make_session

import penstock_spark
from penstock_spark.jobs.launcher import start
from penstock_spark.jobs.spec.specs import JobSpec

FORMATS = ("parquet", "delta")
JOB = """
kind: archive
name: archive-{format}
source:
  brokers: {brokers}
  topics: [{topic}]
  max_records_per_batch: 400
transform:
  key: {{format: string}}
  value: {{format: string}}
  {query}
checkpoint: {home}/checkpoint-{format}
to:
  format: {format}
  path: {home}/{format}
  partition_by: [{column}]
  compact: {{every_batches: 3, min_files: 2}}
trigger: {{{trigger}}}
"""
SQL = "sql: SELECT value, CAST(value AS INT) % 3 AS part, partition, offset FROM source"


def job(format_: str, direct: bool, words: argparse.Namespace) -> JobSpec:
    column, query = ("partition", "") if direct else ("part", SQL)
    return build_job(
        JOB.format(
            format=format_,
            query=query,
            column=column,
            brokers=words.brokers,
            topic=words.topic,
            home=words.home,
            trigger="every: 1h" if words.waits else "once: true",
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--brokers", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--direct", choices=FORMATS, required=True)
    parser.add_argument("--waits", action="store_true", help="look for new data now and in an hour, and do not end")
    words = parser.parse_args()
    home = words.home / "spark"
    home.mkdir(exist_ok=True)
    spark = make_session(home)
    penstock_spark.register(spark)
    penstock_spark.track(spark)
    queries = [start(spark, job(format_, format_ == words.direct, words)) for format_ in FORMATS]  # type: ignore[arg-type]
    sys.stdout.write("started\n")
    sys.stdout.flush()
    for query in queries:
        query.awaitTermination()
    spark.stop()
    sys.stdout.write("finished\n")


if __name__ == "__main__":
    main()
