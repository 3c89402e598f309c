"""What goes into a group and what comes out of it: requests and answers without the protocol's encoding, and effects.

Made and read by `coordinator`, the handlers of `api`, and tests.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.wire.errors import ErrorCode

Waiter = object
"""Who waits for an answer: opaque to a group, which hands it back in an `Answer`."""


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A wish to be a member. `protocols` is in order of preference; `member_id` is empty for who has none yet."""

    protocol_type: str
    protocols: dict[str, bytes]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    member_id: str = ""
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    two_step: bool = True
    """A newcomer is given an id first and joins with it (JoinGroup 4 and later, KIP-394)."""
    can_skip_assignment: bool = True
    """The client understands `skip_assignment` (JoinGroup 9 and later, KIP-814)."""


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member as its leader gets to know it; `metadata` is what it sent for the chosen protocol."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(slots=True)
class JoinAnswer:
    """`members` only for the leader; `skip_assignment` tells a leader that nothing is to be assigned."""

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
    """A member's wish for its assignment; the leader brings everybody's. The protocol is checked where it is given."""

    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class Answer:
    """An effect: `waiter` is to get `answer`."""

    waiter: Waiter
    answer: JoinAnswer | SyncAnswer


@dataclass(frozen=True, slots=True)
class Persist:
    """An effect: the group as it is now is to be made durable, then `persisted(sequence)` to be called."""

    sequence: int


Effect = Answer | Persist
