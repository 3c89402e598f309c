"""Spark looks for installed modules whose names begin with `pyspark_` and registers their `DefaultSource` by itself."""

from penstock_spark.source import PenstockDataSource as DefaultSource

__all__ = ["DefaultSource"]
