"""Synchronous access to brokers: topics, offsets, fetches and commits.

`Link.to(connection)` returns the process's only link for a connection.
"""

from penstock_spark.link.link import Link
from penstock_spark.link.ports import FetchSizes, TopicPartitions

__all__ = ["FetchSizes", "Link", "TopicPartitions"]
