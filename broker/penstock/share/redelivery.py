"""Decides how often, and in how large batches, a share-partition delivers a record. Used by `partition`."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class RedeliveryPolicy(Protocol):
    """The rules for records that were delivered before."""

    def is_exhausted(self, delivery_count: int) -> bool:
        """Return whether a record that was delivered so often is archived instead of delivered again."""

    def max_records(self, next_delivery_count: int, available: int) -> int:
        """Return how many of `available` adjacent records one acquisition may take, at least 1."""


class DeliveryLimit(NamedTuple):
    """Apache Kafka's rules: at most `limit` deliveries (`share.delivery.count.limit`), without back-off.

    Past half of the limit each delivery halves the batch, and the last takes a single record, so that one bad record
    does not use up the deliveries of its neighbours.
    """

    limit: int

    def is_exhausted(self, delivery_count: int) -> bool:
        """Return whether the limit is reached."""
        return delivery_count >= self.limit

    def max_records(self, next_delivery_count: int, available: int) -> int:
        """Return `available`, or less near the limit."""
        if next_delivery_count >= self.limit > 1:
            return 1
        excess = next_delivery_count - (self.limit + 1) // 2
        return available if excess <= 0 else max(1, available >> excess)
