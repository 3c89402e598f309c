"""Reads topics as DataFrames, in batches and streams: the reader side of Spark's Python Data Source API."""

from penstock_spark.source.datasource import PenstockDataSource

__all__ = ["PenstockDataSource"]
