"""The Spark session of a test process."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from penstock_spark.jobs.run import spark_home


def make_session(home: Path, more: Mapping[str, str] | None = None) -> SparkSession:
    """Create a small, quiet session with two concurrent tasks and all its files below `home`. The format registers
    itself. `more` are further Spark settings."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    spark_home.prepare("local")
    settings = {
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(home / "local"),
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.noDataProgressEventInterval": "100ms",
        # Full JIT optimization slows down a JVM that lives for a minute.
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={home} -XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }
    builder = SparkSession.builder.master("local[2]").appName("penstock-spark-tests")
    for name, value in {**settings, **(more or {})}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session
