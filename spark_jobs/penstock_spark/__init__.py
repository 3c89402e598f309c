"""Spark data source for topics of Penstock or any Kafka broker, without a jar, and jobs defined in YAML files.

    spark.read.format("penstock")             # and readStream, write, writeStream
    penstock_spark.register(spark)            # if Spark does not discover the format
    listener = penstock_spark.track(spark)    # commits the progress of streaming queries to consumer groups

Importing this package registers the format in the active session, if there is one.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock_spark.progress.listener import ProgressListener

__all__ = ["register", "track"]


def register(spark: SparkSession) -> None:
    """Register the format `penstock` in a session. Spark registers it itself if it finds `pyspark_penstock`."""
    from penstock_spark.source import PenstockDataSource

    spark.dataSource.register(PenstockDataSource)


def track(spark: SparkSession) -> ProgressListener:
    """Commit the offsets of each finished batch of the session's streaming queries to a consumer group.

    A second call for the same session returns the same listener. See `progress.listener`.
    """
    from penstock_spark.progress.listener import attach

    return attach(spark)


def _register_in_active_session() -> None:
    # Spark's Python workers import this package too. They have no session and skip the import of pyspark.sql.
    if "pyspark.sql.session" not in sys.modules or "pyspark.worker" in sys.modules:
        return
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is not None:
        register(session)


_register_in_active_session()
