"""Spark reads and writes topics, of Penstock or any Kafka broker, without a jar; and jobs that run by a line of YAML.

    spark.read.format("penstock")             # and readStream, write, writeStream
    penstock_spark.register(spark)            # where Spark does not find the format by itself
    listener = penstock_spark.track(spark)    # publishes how far streaming queries are as offsets of consumer groups

Importing this registers the format in the active session, if there is one.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock_spark.progress.listener import ProgressListener

__all__ = ["register", "track"]


def register(spark: SparkSession) -> None:
    """Makes the format `penstock` known to a session. Spark does so by itself where it finds `pyspark_penstock`."""
    from penstock_spark.source import PenstockDataSource

    spark.dataSource.register(PenstockDataSource)


def track(spark: SparkSession) -> ProgressListener:
    """From now on each finished batch of a streaming query that reads this format commits its offsets to a group.

    See `progress.listener`. Once for each session; a second call returns the same listener.
    """
    from penstock_spark.progress.listener import attach

    return attach(spark)


def _register_in_active_session() -> None:
    # Spark's workers import this too: they have no session, and shall not pay for looking for one.
    if "pyspark.sql.session" not in sys.modules or "pyspark.worker" in sys.modules:
        return
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is not None:
        register(session)


_register_in_active_session()
