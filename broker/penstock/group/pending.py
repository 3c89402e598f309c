"""What the group coordinator must know of transactions: protocols, since they are the business of a room above.
`txn.offsets` and `txn.service` implement them.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Protocol

from penstock.group.offset_table import OffsetKey
from penstock.group.shard_tenancy import ShardTenancy
from penstock.state.store import StoreEntry


class ShardFollower(Protocol):
    """Whoever else keeps something of each shard that this broker owns: the shard is served when all of it is there."""

    async def read(self, number: int) -> Sequence[list[StoreEntry]]:
        """What the store has of a shard that this broker is about to take. Raises StoreError."""

    def taken(self, tenure: ShardTenancy, found: Sequence[list[StoreEntry]]) -> None:
        """The shard is this broker's, with what was read."""

    def resigned(self, number: int) -> None:
        """The shard is not, or no longer, this broker's."""


class PendingOffsets(Protocol):
    """Offsets that a transaction has brought and that are not the group's yet."""

    def pending(self, group_id: str) -> Container[OffsetKey]:
        """The partitions for which it is open, or decided and not yet told here, where the group is."""

    def has_pending(self, group_id: str) -> bool:
        """Whether there are any."""

    def forget_group(self, group_id: str) -> None:
        """The group is deleted, and what was pending for it."""


class NothingPending:
    """A broker without transactions."""

    def pending(self, group_id: str) -> Container[OffsetKey]:
        return ()

    def has_pending(self, group_id: str) -> bool:
        return False

    def forget_group(self, group_id: str) -> None:
        pass
