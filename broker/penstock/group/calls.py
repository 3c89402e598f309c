"""Requests, results and effects of a group's state machine, without wire encoding.

Created and read by `coordinator`, the handlers in `api`, and tests.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.wire.errors import ErrorCode

Waiter = object
"""Opaque handle of a waiting caller. The group returns it in a `Reply`."""


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A JoinGroup request. `protocols` is in order of preference; `member_id` is empty for a new member."""

    protocol_type: str
    protocols: dict[str, bytes]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    member_id: str = ""
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    two_step: bool = True
    """A new member first receives a member id and then joins with it (JoinGroup 4 and later, KIP-394)."""
    can_skip_assignment: bool = True
    """The client supports `skip_assignment` (JoinGroup 9 and later, KIP-814)."""


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member in the leader's response; `metadata` is what it sent for the chosen protocol."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(slots=True)
class JoinResult:
    """The result of a join. `members` is set for the leader only; `skip_assignment` tells it to assign nothing."""

    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: list[JoinedMember] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """A SyncGroup request; the leader sends `assignments`. The protocol is compared if given."""

    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SyncResult:
    """The result of a sync: the member's assignment, or an error."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class Reply:
    """Effect: pass `result` to `waiter`."""

    waiter: Waiter
    result: JoinResult | SyncResult


@dataclass(frozen=True, slots=True)
class Persist:
    """Effect: store the group's current state, then call `persisted(sequence)` or `persist_failed(sequence)`."""

    sequence: int


Effect = Reply | Persist
