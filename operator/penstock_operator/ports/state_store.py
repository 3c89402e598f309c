"""Interface to the etcd of a cluster: observation of members, and changes of the member list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from penstock_operator.ports.brokers import ClientCertificate

NOSPACE, CORRUPT = "NOSPACE", "CORRUPT"
"""Alarms of etcd."""


class StateStoreError(Exception):
    """A request to etcd was rejected or not answered. `is_passing`: whether a retry may succeed."""

    def __init__(self, message: str, *, is_passing: bool = True) -> None:
        super().__init__(message)
        self.is_passing = is_passing


@dataclass(frozen=True, slots=True)
class StateStoreMember:
    """A member in etcd's member list. `name` is empty until an added member has started."""

    member_id: int
    name: str
    peer_urls: tuple[str, ...]
    is_learner: bool = False


@dataclass(frozen=True, slots=True)
class StateStoreStatus:
    """What a member reports about itself. `leader_id` 0: it has no leader."""

    member_id: int
    leader_id: int
    database_bytes: int
    quota_bytes: int = 0
    """0: unknown, as before etcd 3.6."""
    errors: tuple[str, ...] = ()

    @property
    def is_healthy(self) -> bool:
        """Whether the member has a leader and reports no errors."""
        return self.leader_id != 0 and not self.errors


@dataclass(frozen=True, slots=True)
class StateStoreReport:
    """State of an etcd, from one observation."""

    statuses: Mapping[str, StateStoreStatus] = field(default_factory=dict)
    """By endpoint, of the members that answered."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """By endpoint, why its member did not answer."""
    members: tuple[StateStoreMember, ...] | None = None
    """The member list, confirmed by a quorum; None: there is no quorum."""
    members_error: str = ""
    """Why `members` is None."""
    alarms: frozenset[str] = frozenset()


class StateStoreClient(Protocol):
    """Requests to an etcd. `access` is for https:// endpoints; its certificate may be empty. All have a timeout."""

    async def observe(self, endpoints: Sequence[str], access: ClientCertificate | None) -> StateStoreReport:
        """Return the state of all members. Raises `StateStoreError` if `access` is not usable."""

    async def remove_member(self, endpoint: str, access: ClientCertificate | None, member_id: int) -> None:
        """Remove a member; one that does not exist is no error. Raises `StateStoreError`."""

    async def add_member(self, endpoint: str, access: ClientCertificate | None, peer_url: str) -> None:
        """Add a learner, which then has to be started; one that exists is no error. Raises `StateStoreError`."""

    async def promote_member(self, endpoint: str, access: ClientCertificate | None, member_id: int) -> None:
        """Let a learner vote; one that votes is no error. Raises `StateStoreError`, which is passing while the learner
        is not in sync with the leader."""

    async def move_leader(self, endpoint: str, access: ClientCertificate | None, member_id: int) -> None:
        """Let the leader, which is at the endpoint, hand over to another member. Raises `StateStoreError`."""
