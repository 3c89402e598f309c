"""A member of a group whose broker assigns partitions. Used by `group`, `reconciliation` and `persistence`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from penstock.group.modern.assignment import Assignment
from penstock.group.modern.topics import TopicFilter
from penstock.wire.errors import ErrorCode

JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH = 0, -1, -2
"""Epochs in heartbeats of members that join, leave, and stop for a restart."""


class GroupError(Exception):
    """A request that the group rejects; `error` and the message are the response."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error, self.message = error, message


class MemberState(StrEnum):
    """The progress of a member towards its target."""

    STABLE = "stable"
    UNREVOKED = "unrevoked_partitions"
    """The member has to stop using partitions."""
    UNRELEASED = "unreleased_partitions"
    """The member waits for partitions that others have to stop using."""


class Subscription(NamedTuple):
    """What a member wants: topics by name and by expression, and the assignor that it prefers."""

    topic_names: tuple[str, ...] = ()
    topic_pattern: str = ""
    assignor: str | None = None
    rack: str | None = None


NO_SUBSCRIPTION = Subscription()


class ClassicProtocols(NamedTuple):
    """What a member of the classic protocol sends with each join: its protocols in order of preference, each with its
    metadata, and its session timeout in ms.
    """

    metadata: Mapping[str, bytes]
    session_timeout_ms: int


@dataclass(slots=True, eq=False)
class ModernMember:
    """A member. Times are the event loop's, in milliseconds."""

    member_id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    subscription: Subscription = NO_SUBSCRIPTION
    topics: frozenset[UUID] = frozenset()
    """The existing topics that the subscription selects."""
    topic_filter: TopicFilter | None = None
    """The topics that an expression can select; None after a restart of the coordinator until the next heartbeat."""
    classic: ClassicProtocols | None = None
    """Set for a member of the classic protocol. Its epoch is its generation."""
    epoch: int = 0
    previous_epoch: int = 0
    """The epoch before the last change, which the member has if it missed a response."""
    assigned: Assignment = field(default_factory=dict)
    revoking: Assignment = field(default_factory=dict)
    """Partitions that the member has to stop using."""
    state: MemberState = MemberState.STABLE
    assigned_epochs: dict[UUID, dict[int, int]] = field(default_factory=dict)
    """The epoch at which each partition was assigned."""
    session_deadline_ms: float = 0.0
    revocation_deadline_ms: float | None = None
    """When the member is removed unless it has stopped using `revoking`; if it is classic, unless it has rejoined."""

    def advance_epoch(self, epoch: int) -> None:
        """Move to an epoch."""
        if epoch != self.epoch:
            self.previous_epoch, self.epoch = self.epoch, epoch
