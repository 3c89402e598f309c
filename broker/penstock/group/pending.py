"""What the group coordinator must know of offsets that are committed in transactions: a protocol, since transactions
are the business of a room above. `txn.offsets` implements it.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Protocol

from penstock.group.offset_table import OffsetKey


class PendingOffsets(Protocol):
    """Offsets that a transaction has brought and that are not the group's yet."""

    def pending(self, group_id: str) -> Container[OffsetKey]:
        """The partitions for which it is open, or decided and not yet told here, where the group is."""

    def forget_group(self, group_id: str) -> None:
        """The group is deleted, and what was pending for it."""


class NothingPending:
    """A broker without transactions."""

    def pending(self, group_id: str) -> Container[OffsetKey]:
        return ()

    def forget_group(self, group_id: str) -> None:
        pass
