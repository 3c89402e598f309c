"""Topics as DataFrames, in batches and streams: what Spark's Python Data Source API asks of a reader."""

from penstock_spark.source.datasource import PenstockDataSource

__all__ = ["PenstockDataSource"]
