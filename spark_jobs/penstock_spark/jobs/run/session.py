"""The Spark session of a job. Called by `running`, and by whoever runs a job in a session of their own.

A job runs in one session for its life; what a job sets there is of that job alone.
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
    # Times are instants; what a task sees must not depend on where it runs.
    TIME_ZONE: "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # All rows go from Python to the virtual machine by a socket, and TCP's costs a tenth of the throughput.
    # Spark's own choice is the JVM's folder for temporary files, whose path may be too long for a socket.
    UNIX_SOCKETS: "true",
    SOCKETS_FOLDER: "/tmp",  # noqa: S108 - names in it are random, and their owner alone can connect
    # What is done for each batch is little by then. Spark's 10,000 would cost a query with lists within lists dearly:
    # see `lists`.
    ARROW_ROWS: "4000",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # A job that reads little should not wait for 200 empty tasks; large jobs set it.
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.streaming.metricsEnabled": "false",
    # On Kubernetes and YARN Spark ends the driver after a few lost executors (twice as many as there are, at least 3),
    # and forgets none of them by itself: what was lost in months of a job's life would add up.
    FAILURES_COUNT_FOR: "1h",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
FIXED: Mapping[str, str] = {
    # Two copies of a task would write twice; the sink refuses it too.
    "spark.speculation": "false",
}


def settings(job: JobSpec) -> dict[str, str]:
    """The session's settings: the job's own over the defaults, under what must be so."""
    return {**DEFAULTS, **{name: text(value) for name, value in job.spark.items()}, **FIXED}


def text(value: Scalar) -> str:
    """As Spark spells it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def session(job: JobSpec) -> SparkSession:
    """A session for a job, with the format registered. An existing session is used, with the job's SQL settings."""
    from pyspark.sql import SparkSession

    import penstock_spark

    # Spark's workers are to have the packages that this process has.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    # Under spark-submit Spark knows master and the rest already; it says so in this variable.
    builder = SparkSession.builder.appName(job.name)
    wanted = settings(job)
    if "spark.master" not in wanted and "PYSPARK_GATEWAY_PORT" not in os.environ and "SPARK_REMOTE" not in os.environ:
        wanted["spark.master"] = os.environ.get("SPARK_MASTER", "local[*]")
    spark_home.prepare(wanted.get("spark.master", ""))
    for name, value in wanted.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    penstock_spark.register(spark)
    return spark
