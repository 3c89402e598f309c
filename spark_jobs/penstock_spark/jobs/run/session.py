"""The Spark session of a job. Called by the command line, and by user code with its own session.

A job runs in one session for its whole life; what it sets there concerns only this job.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock_spark.jobs.run import spark_home
from penstock_spark.jobs.spec.specs import JobSpec, Scalar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIME_ZONE = "spark.sql.session.timeZone"
ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
UNIX_SOCKETS = "spark.python.unix.domain.socket.enabled"
SOCKETS_FOLDER = "spark.python.unix.domain.socket.dir"
FAILURES_COUNT_FOR = "spark.executor.failuresValidityInterval"
DEFAULTS: Mapping[str, str] = {
    # Times are instants; results must not depend on the time zone of the executor.
    TIME_ZONE: "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Python sends all rows to the JVM over a socket, and TCP takes a tenth of the throughput. Spark's default for
    # the directory is the JVM's temporary one, whose path may be too long for a Unix socket.
    UNIX_SOCKETS: "true",
    SOCKETS_FOLDER: "/tmp",  # noqa: S108 - names are random, and only their owner can connect
    # The cost per batch is small at this size. Spark's 10,000 makes queries with nested lists slow: see `lists`.
    ARROW_ROWS: "4000",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # A small job should not wait for 200 empty tasks; large jobs set this.
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.streaming.metricsEnabled": "false",
    # On Kubernetes and YARN Spark ends the driver after a few lost executors (twice their number, at least 3) and
    # never forgets one, so the losses of months would add up.
    FAILURES_COUNT_FOR: "1h",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
FIXED: Mapping[str, str] = {
    # Two copies of a task would write twice; the sink rejects speculation too.
    "spark.speculation": "false",
}


def settings(job: JobSpec) -> dict[str, str]:
    """Return the session's settings: defaults, overridden by the job's, overridden by fixed ones."""
    return {**DEFAULTS, **{name: text(value) for name, value in job.spark.items()}, **FIXED}


def text(value: Scalar) -> str:
    """Return a value as Spark writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def session(job: JobSpec) -> SparkSession:
    """Return a session for a job, with the format registered. An existing session gets the job's SQL settings."""
    from pyspark.sql import SparkSession

    import penstock_spark

    # Spark's workers must run the same interpreter, with the same packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    # Under spark-submit the master is set already, and one of these variables exists.
    builder = SparkSession.builder.appName(job.name)
    options = settings(job)
    if "spark.master" not in options and "PYSPARK_GATEWAY_PORT" not in os.environ and "SPARK_REMOTE" not in os.environ:
        options["spark.master"] = os.environ.get("SPARK_MASTER", "local[*]")
    spark_home.prepare(options.get("spark.master", ""))
    for name, value in options.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    penstock_spark.register(spark)
    return spark
