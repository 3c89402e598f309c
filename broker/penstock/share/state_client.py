"""The interface between the leader of a share-partition and the coordinator of its group, which stores the state.

`coordinator.ShareStates` implements it for the groups that this broker coordinates, `routing.RoutedStates` for all.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol
from uuid import UUID

from penstock.share.state import ShareState
from penstock.wire.errors import ErrorCode


class SharePartitionKey(NamedTuple):
    """A partition as a group sees it."""

    group_id: str
    topic_id: UUID
    partition: int


class StateWrite(NamedTuple):
    """A leader's write: an encoded state."""

    key: SharePartitionKey
    data: bytes


class ClaimResult(NamedTuple):
    """The claimed state, or the error."""

    error: ErrorCode
    state: ShareState | None = None


class StateWriter(Protocol):
    """Writes states through the group's coordinator."""

    async def write(self, write: StateWrite) -> ErrorCode:
        """Store a state that its claimer has changed. Returns NONE once it is durable; does not raise.

        Errors: FENCED_LEADER_EPOCH after a later claim, FENCED_STATE_EPOCH if an administrator has set the start
        offset, INVALID_REQUEST for malformed bytes, and those of coordinators.
        """


class StateClient(StateWriter, Protocol):
    """Claims and writes states through the group's coordinator."""

    async def claim(self, key: SharePartitionKey, leader_epoch: int, initial_offset: int) -> ClaimResult:
        """Return the state to the partition's leader of `leader_epoch`, durably fencing earlier leaders and claims.

        Without a state, records are delivered from `initial_offset`. Does not raise. Errors: GROUP_ID_NOT_FOUND if
        there is no such share group, UNKNOWN_TOPIC_OR_PARTITION for a topic that the coordinator does not know,
        FENCED_LEADER_EPOCH for an earlier leader, UNKNOWN_SERVER_ERROR for an unreadable state, and those of
        coordinators.
        """
