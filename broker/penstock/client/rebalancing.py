"""How a subscribed consumer takes part in its group's rebalances, step by step, as far as the user's calls allow.

A rebalance runs in a task of its own, so that a call for records that is short or cancelled does not tear it apart.
Partitions are given up only while the user asks for records: what was handed out before has been dealt with then.
`polling` owns one.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

from penstock.client.cluster import ClusterConnections
from penstock.client.membership import GroupMembership, GroupOptions, MembershipLost
from penstock.client.metadata import MetadataCache
from penstock.client.positions import Positions
from penstock.client.types import TopicPartition


class RebalanceListener:
    """Hears of partitions that come and go; override what matters. Called from inside the calls for records."""

    async def on_partitions_assigned(self, partitions: set[TopicPartition]) -> None:
        """These came; positions can be changed by `seek` here."""

    async def on_partitions_revoked(self, partitions: set[TopicPartition]) -> None:
        """These are about to go; the last moment to commit for them."""

    async def on_partitions_lost(self, partitions: set[TopicPartition]) -> None:
        """These went already: others may be reading them. Commits for them would fail."""


class Rebalancing:
    """`handing_out` says whether records may be handed out now. `before_revoking` commits, where that is wanted."""

    def __init__(
        self,
        cluster: ClusterConnections,
        group: GroupOptions,
        positions: Positions,
        wake: Callable[[], None],
        before_revoking: Callable[[], Awaitable[None]],
    ) -> None:
        self.cluster, self.group, self.positions = cluster, group, positions
        self.membership = GroupMembership(cluster, group, wake)
        self.handing_out = True
        self.topics: list[str] = []
        self._listener = RebalanceListener()
        self._pattern: re.Pattern[str] | None = None
        self._wake = wake
        self._before_revoking = before_revoking
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._due = False
        self._asked = asyncio.Event()

    def subscribe(self, topics: list[str], pattern: re.Pattern[str] | None, listener: RebalanceListener | None) -> None:
        """Another subscription; the group hears of it with the next call for records."""
        self.topics, self._pattern = topics, pattern
        self._listener = listener or RebalanceListener()
        self.cluster.wants_all_topics = pattern is not None
        self.cluster.follow(topics)
        self.cluster.invalidate()
        self.membership.request_rejoin()

    def metadata_changed(self, _: MetadataCache) -> None:
        """New topics may match the pattern; the leader looks for new partitions."""
        if self._pattern is not None and set(self._matching()) != set(self.topics):
            self.topics = self._matching()
            self.membership.request_rejoin()
        self.membership.metadata_changed()

    def note_poll(self, polling: bool) -> None:
        """The user's call for records begins or ends."""
        self.membership.polling = polling
        self.membership.last_poll = self._loop.time()

    @property
    def interrupts(self) -> bool:
        """Whether `step` has to come before the next record. While one rebalance is under way, another has to wait."""
        if self._task is not None and not self._task.done():
            return self._due or not self.handing_out
        return self._task is not None or self.membership.rejoin_needed or not self.handing_out

    @property
    def is_settled(self) -> bool:
        """Whether this member has its share of a generation, and knows of none that follows."""
        return self.membership.joined and self._task is None and not self.membership.rejoin_needed

    async def step(self, deadline: float, has_records: bool) -> None:
        """Begins a rebalance where one is needed, and waits for it until `deadline`, or not at all where there are
        records that may be handed out meanwhile. Raises what joining ran into.
        """
        membership = self.membership
        if membership.fatal is not None:
            error, membership.fatal = membership.fatal, None
            raise error
        if self._task is None and membership.rejoin_needed:
            membership.rejoin_needed = False
            lost, membership.lost = membership.lost, False
            self.handing_out = self.group.cooperative and not lost
            self._task = self._loop.create_task(self._rebalance(lost), name="penstock-rebalance")
        if self._task is None:
            return
        if self._due:
            self._due = self.handing_out = False
            self._asked.set()
        task = self._task
        if not (self.handing_out and has_records):
            await asyncio.wait({task}, timeout=max(deadline - self._loop.time(), 0))
        if task.done() and not task.cancelled():  # else `stop` ended it
            self._task = None
            self.handing_out = True
            if task.exception() is not None:
                membership.rejoin_needed = True
            task.result()

    async def close(self, *, leave: bool) -> None:
        """Stops, and leaves the group."""
        await self.stop()
        await self.membership.close(leave=leave)

    async def stop(self) -> None:
        """Gives up a rebalance that is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def _matching(self) -> list[str]:
        assert self._pattern is not None, "no pattern to match"
        known = self.cluster.metadata.topics.values()
        return sorted(info.name for info in known if not info.is_internal and self._pattern.fullmatch(info.name))

    async def _rebalance(self, lost: bool) -> None:
        """One rejoin from beginning to end."""
        membership = self.membership
        if lost:
            await self._give_up(set(self.positions.states), lost=True)
        elif not self.group.cooperative:
            await self._give_up(set(self.positions.states), lost=False)
        owned = set(self.positions.states)
        if self._pattern is not None:
            await self.cluster.refresh()
            self.topics = self._matching()
        try:
            assigned = set(await membership.join(self.topics, owned))
            if owned:
                await self._until_asked()
        except MembershipLost:
            await self._until_asked()
            self.handing_out = False
            await self._give_up(owned, lost=True)
            assigned = set(await membership.join(self.topics, ()))
        self._wake()
        self.handing_out = False
        gone = set(self.positions.states) - assigned
        await self._give_up(gone, lost=False)
        new = self.positions.assign(assigned)
        self.cluster.follow({tp.topic for tp in assigned})
        await self._listener.on_partitions_assigned(new)
        if gone and self.group.cooperative:
            membership.request_rejoin()  # so that what was given up here is given to others (KIP-429)

    async def _until_asked(self) -> None:
        """Returns inside the user's next call for records, or at once where one is under way."""
        self._wake()
        if not self.membership.polling:
            self._asked.clear()
            self._due = True
            await self._asked.wait()

    async def _give_up(self, partitions: set[TopicPartition], *, lost: bool) -> None:
        if not partitions:
            return
        if lost:
            await self._listener.on_partitions_lost(partitions)
        else:
            await self._before_revoking()
            await self._listener.on_partitions_revoked(partitions)
        self.positions.assign(tp for tp in self.positions.states if tp not in partitions)
