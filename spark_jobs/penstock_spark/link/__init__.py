"""Synchronous access to brokers: topics, offsets, fetches and commits.

`Link.to(connection)` returns the process's only link for a connection.
"""

from penstock.client import FetchSizes, TopicPartitions
from penstock_spark.link.link import Link

__all__ = ["FetchSizes", "Link", "TopicPartitions"]
