"""Runs a subscribed consumer's rebalances in steps, as the user's polls allow. Owned by `polling`.

`classic_rebalancing` and `consumer_rebalancing` implement the group protocols.

A rebalance runs in its own task, so that a short or cancelled poll does not interrupt it. Partitions are revoked only
during a poll: the records returned before have been processed by then.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable

from penstock.client.cluster import ClusterConnections
from penstock.client.errors import ClientError
from penstock.client.membership import GroupMembership, GroupOptions
from penstock.client.metadata import MetadataCache
from penstock.client.positions import Positions
from penstock.client.types import TopicPartition


class RebalanceListener:
    """Callbacks for assigned and revoked partitions, to be overridden. Called during polls."""

    async def on_partitions_assigned(self, partitions: set[TopicPartition]) -> None:
        """Partitions were assigned; `seek` can change their positions here."""

    async def on_partitions_revoked(self, partitions: set[TopicPartition]) -> None:
        """Partitions are about to be revoked; commits for them are still possible."""

    async def on_partitions_lost(self, partitions: set[TopicPartition]) -> None:
        """Partitions were lost: other members may read them, and commits for them would fail."""


class Rebalancing(ABC):
    """`may_return_records` tells whether a poll may return records now. `before_revoking` commits with auto-commit."""

    membership: GroupMembership

    def __init__(
        self,
        cluster: ClusterConnections,
        group: GroupOptions,
        positions: Positions,
        wake: Callable[[], None],
        before_revoking: Callable[[], Awaitable[None]],
    ) -> None:
        self.cluster, self.group, self.positions = cluster, group, positions
        self.may_return_records = True
        self._listener = RebalanceListener()
        self._wake = wake
        self._before_revoking = before_revoking
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._due = False
        self._polled = asyncio.Event()

    @abstractmethod
    def subscribe(self, topics: list[str], pattern: str | None, listener: RebalanceListener | None) -> None:
        """Replace the subscription. Raises `re.error` or ValueError for an invalid pattern that is matched here."""

    @abstractmethod
    def metadata_changed(self, metadata: MetadataCache) -> None:
        """Rebalance if new metadata requires it."""

    def record_poll(self, polling: bool) -> None:
        """Record that a poll starts or ends."""
        self.membership.polling = polling
        self.membership.last_poll = self._loop.time()

    @property
    def must_step(self) -> bool:
        """Return whether `step` must run before the next record. During a rebalance, another one has to wait."""
        if self._task is not None and not self._task.done():
            return self._due or not self.may_return_records
        return self._task is not None or self.membership.rejoin_needed or not self.may_return_records

    async def is_settled(self) -> bool:
        """Return whether this member has its whole assignment, and no further rebalance is known.

        Raises `ClientError`.
        """
        try:
            return self._is_quiet and await self.membership.has_final_assignment() and self._is_quiet
        except ClientError as e:
            if not e.retriable:
                raise
            return False

    @property
    def _is_quiet(self) -> bool:
        return self.membership.joined and self._task is None and not self.membership.rejoin_needed

    async def step(self, deadline: float, has_records: bool) -> None:
        """Start a rebalance if needed, and wait for it until `deadline`, or not at all if records can be returned
        meanwhile. Raises the errors of joining.
        """
        membership = self.membership
        if membership.fatal is not None:
            error, membership.fatal = membership.fatal, None
            raise error
        if self._task is None and membership.rejoin_needed:
            membership.rejoin_needed = False
            lost, membership.lost = membership.lost, False
            self.may_return_records = self.group.cooperative and not lost
            self._task = self._loop.create_task(self._rebalance(lost), name="penstock-rebalance")
        if self._task is None:
            return
        if self._due:
            self._due = self.may_return_records = False
            self._polled.set()
        task = self._task
        if not (self.may_return_records and has_records):
            await asyncio.wait({task}, timeout=max(deadline - self._loop.time(), 0))
        if task.done() and not task.cancelled():  # otherwise `stop` cancelled it
            self._task = None
            self.may_return_records = True
            if task.exception() is not None:
                membership.rejoin_needed = True
            task.result()

    async def close(self, *, leave: bool) -> None:
        """Stop, and leave the group if `leave`."""
        await self.stop()
        await self.membership.close(leave=leave)

    async def stop(self) -> None:
        """Cancel a running rebalance."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    @abstractmethod
    async def _rebalance(self, lost: bool) -> None:
        """Run one rebalance. `lost` tells that the partitions have other owners already."""

    async def _wait_for_poll(self) -> None:
        """Wait for the user's next poll; return at once during one."""
        self._wake()
        if not self.membership.polling:
            self._polled.clear()
            self._due = True
            await self._polled.wait()

    async def _revoke(self, partitions: set[TopicPartition], *, lost: bool) -> None:
        if not partitions:
            return
        if lost:
            await self._listener.on_partitions_lost(partitions)
        else:
            await self._before_revoking()
            await self._listener.on_partitions_revoked(partitions)
        self.positions.assign(tp for tp in self.positions.states if tp not in partitions)
