"""Protocols by which the group coordinator uses transactions, a higher layer: `txn.offsets` and `txn.service` implement
them."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Protocol

from penstock.group.coordinator_shard import CoordinatorShard
from penstock.group.offset_table import OffsetKey
from penstock.state.store import StoreEntry


class ShardListener(Protocol):
    """Keeps further state for each owned shard. A shard is served once all listeners have read theirs."""

    async def read(self, number: int) -> Sequence[list[StoreEntry]]:
        """Read the listener's entries of a shard that is being acquired. Raises StoreError."""

    def on_acquired(self, shard: CoordinatorShard, found: Sequence[list[StoreEntry]]) -> None:
        """Load the entries that `read` returned: this broker now owns the shard."""

    def on_resigned(self, number: int) -> None:
        """Drop the shard's state: this broker does not own the shard, or no longer."""


class PendingOffsets(Protocol):
    """Offsets added by transactions that are not completed yet."""

    def pending(self, group_id: str) -> Container[OffsetKey]:
        """Return the partitions with offsets of a transaction that is ongoing, or not known to be completed."""

    def has_pending(self, group_id: str) -> bool:
        """Return whether the group has pending offsets."""

    def forget_group(self, group_id: str) -> None:
        """Drop the pending offsets of a deleted group."""


class NothingPending:
    """`PendingOffsets` of a broker without transactions."""

    def pending(self, group_id: str) -> Container[OffsetKey]:
        """Return no partitions."""
        return ()

    def has_pending(self, group_id: str) -> bool:
        """Return False."""
        return False

    def forget_group(self, group_id: str) -> None:
        """Do nothing."""
