"""The way to the brokers: topics, offsets, fetches and commits, for callers that are synchronous.

`Link.to(connection)` gives the process's one link for a connection.
"""

from penstock_spark.link.link import Link
from penstock_spark.link.ports import FetchSizes, TopicPartitions

__all__ = ["FetchSizes", "Link", "TopicPartitions"]
