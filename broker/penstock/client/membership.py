"""What the group protocols of a consumer have in common: the member, and when it must rejoin or leave.

`classic_membership` and `consumer_membership` implement the protocols; `rebalancing` drives them.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from penstock.client.assignors import Assignor
from penstock.client.cluster import COORDINATOR, ClusterConnections
from penstock.client.errors import ClientError, GroupFenced
from penstock.wire.schema import Payload

R = TypeVar("R", bound=Payload)

GroupProtocol = Literal["classic", "consumer"]
"""The protocol in which the group's leader assigns partitions, or that in which the coordinator does (KIP-848)."""
LEAVE_TIMEOUT_MS = 3_000


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """A member's settings. Times are in ms, with the meaning of Kafka's settings of the same names.

    `assignors`, `session_timeout_ms` and `heartbeat_interval_ms` are of the classic protocol; `remote_assignor` and
    `rack_id` are of the consumer protocol, whose timeouts are settings of the group.
    """

    group_id: str
    assignors: Sequence[Assignor] = ()
    instance_id: str | None = None
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    protocol: GroupProtocol = "classic"
    remote_assignor: str | None = None
    rack_id: str | None = None

    @property
    def cooperative(self) -> bool:
        """Return whether members keep reading through a rebalance, which every assignor must support."""
        return self.protocol == "consumer" or all(assignor.cooperative for assignor in self.assignors)


class MembershipLost(Exception):
    """The group has continued without this member: its partitions have other owners."""


class GroupMembership(ABC):
    """`wake` is called when a heartbeat sets `rejoin_needed` or `fatal`.

    `generation` is the generation or the member epoch, and -1 outside the group. `lost` means that the partitions were
    lost without being revoked. `polled` is set for each record that the user reads; heartbeats update `last_poll` (loop
    time in seconds) from it.
    """

    def __init__(self, cluster: ClusterConnections, options: GroupOptions, wake: Callable[[], None]) -> None:
        self.cluster, self.options = cluster, options
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self.member_id = ""
        self.generation = -1
        self.rejoin_needed = True
        self.lost = False
        self.fatal: ClientError | None = None
        self.last_poll = self._loop.time()
        self.polling = self.polled = False
        self._heartbeats: asyncio.Task[None] | None = None

    @abstractmethod
    async def close(self, *, leave: bool) -> None:
        """Stop heartbeats and, if `leave`, leave the group as the protocol requires of the member."""

    @abstractmethod
    async def leave(self, reason: str) -> None:
        """Leave, so that the group need not wait for the session timeout. Never raises."""

    @abstractmethod
    async def has_new_generation(self, generation: int) -> bool:
        """Return whether a commit that was rejected as of an older `generation` can be repeated with a newer one."""

    @abstractmethod
    async def has_final_assignment(self) -> bool:
        """Return whether the group has assigned all that this member gets until something changes."""

    @property
    def joined(self) -> bool:
        """Return whether this is a member of a generation."""
        return self.generation >= 0

    def request_rejoin(self) -> None:
        """Rebalance with the next poll."""
        self.rejoin_needed = True
        self._wake()

    @property
    def idle_ms(self) -> float:
        """Return the time since the last poll; 0 during one."""
        if self.polled:
            self.polled, self.last_poll = False, self._loop.time()
        return 0.0 if self.polling else (self._loop.time() - self.last_poll) * 1000

    async def leave_if_idle(self) -> bool:
        """Leave the group if `max_poll_interval_ms` has passed without a poll. Returns whether it has."""
        idle_ms = self.idle_ms
        if idle_ms <= self.options.max_poll_interval_ms:
            return False
        await self.leave(f"no poll for {idle_ms:.0f} ms (max_poll_interval_ms)")
        self.lost = True
        self.request_rejoin()
        return True

    async def _call(
        self, request: Payload, response: type[R], purpose: str = COORDINATOR, timeout_ms: float | None = None
    ) -> R:
        return await self.cluster.call_coordinator(
            self.options.group_id, request, response, purpose=purpose, timeout_ms=timeout_ms
        )

    async def _stop_heartbeats(self) -> None:
        task, self._heartbeats = self._heartbeats, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _fenced(self) -> GroupFenced:
        return GroupFenced(
            f'another member joined group "{self.options.group_id}" as "{self.options.instance_id}"; '
            "use a unique group_instance_id for each consumer"
        )
