"""Protocols by which shard ownership and the group coordinator notify others, transactions among them, which are a
higher layer."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Protocol
from uuid import UUID

from penstock.group.coordinator_shard import CoordinatorShard
from penstock.group.offset_table import OffsetKey
from penstock.state.store import StoreEntry


class ShardListener(Protocol):
    """Keeps state for each owned shard. A shard is served once the state of all listeners has been read."""

    @property
    def prefixes(self) -> Sequence[str]:
        """The prefixes of the keys with the listener's state, which continue with the shard's number and a slash."""

    def on_acquired(self, shard: CoordinatorShard, found: Sequence[list[StoreEntry]]) -> None:
        """Load the shard, which this broker now owns, from its entries by prefix."""

    def on_resigned(self, shard: CoordinatorShard) -> None:
        """Drop the shard's state: this broker no longer owns the shard."""


class PendingOffsets(Protocol):
    """Offsets added by transactions that are not completed yet."""

    def pending(self, group_id: str) -> Container[OffsetKey]:
        """Return the partitions with offsets of a transaction that is ongoing, or not known to be completed."""

    def has_pending(self, group_id: str) -> bool:
        """Return whether the group has pending offsets."""

    def forget_group(self, group_id: str) -> None:
        """Drop the pending offsets of a deleted group."""


class AttachedData(Protocol):
    """Data of groups besides their offsets, which is deleted with the group, or with the topic that it is about."""

    def keys_of_group(self, group_id: str) -> list[str]:
        """Return the store keys to delete with a group."""

    def forget_group(self, group_id: str) -> None:
        """Drop the data of a group whose keys were deleted."""

    async def delete_topics(self, number: int, topic_ids: Container[UUID]) -> None:
        """Delete a shard's data of deleted topics. Raises StoreUnavailable."""


class NoPendingOffsets:
    """`PendingOffsets` of a broker without transactions."""

    def pending(self, group_id: str) -> Container[OffsetKey]:
        """Return no partitions."""
        return ()

    def has_pending(self, group_id: str) -> bool:
        """Return False."""
        return False

    def forget_group(self, group_id: str) -> None:
        """Do nothing."""
