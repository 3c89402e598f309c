"""Runs the rebalances of a group whose leader assigns (classic protocol). Created by `polling`."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from penstock.client.classic_membership import ClassicMembership
from penstock.client.cluster import ClusterConnections
from penstock.client.membership import GroupOptions, MembershipLost
from penstock.client.metadata import MetadataCache
from penstock.client.positions import Positions
from penstock.client.rebalancing import RebalanceListener, Rebalancing


class ClassicRebalancing(Rebalancing):
    """Rejoins the group in each rebalance. A pattern is matched here, against the topics in the metadata."""

    membership: ClassicMembership

    def __init__(
        self,
        cluster: ClusterConnections,
        group: GroupOptions,
        positions: Positions,
        wake: Callable[[], None],
        before_revoking: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(cluster, group, positions, wake, before_revoking)
        self.membership = ClassicMembership(cluster, group, wake)
        self.topics: list[str] = []
        self._pattern: re.Pattern[str] | None = None

    def subscribe(self, topics: list[str], pattern: str | None, listener: RebalanceListener | None) -> None:
        """Replace the subscription; the next poll rejoins the group. Raises `re.error` for an invalid pattern."""
        self.topics, self._pattern = topics, re.compile(pattern) if pattern is not None else None
        self._listener = listener or RebalanceListener()
        self.cluster.wants_all_topics = pattern is not None
        self.cluster.follow(topics)
        self.cluster.invalidate()
        self.membership.request_rejoin()

    def metadata_changed(self, _: MetadataCache) -> None:
        """Rejoin if other topics match the pattern; as leader, also if partition counts changed."""
        if self._pattern is not None and set(self._matching()) != set(self.topics):
            self.topics = self._matching()
            self.membership.request_rejoin()
        self.membership.metadata_changed()

    def _matching(self) -> list[str]:
        assert self._pattern is not None, "no pattern to match"
        known = self.cluster.metadata.topics.values()
        return sorted(info.name for info in known if not info.is_internal and self._pattern.fullmatch(info.name))

    async def _rebalance(self, lost: bool) -> None:
        """Run one rejoin."""
        membership = self.membership
        if lost:
            await self._revoke(set(self.positions.states), lost=True)
        elif not self.group.cooperative:
            await self._revoke(set(self.positions.states), lost=False)
        owned = set(self.positions.states)
        if self._pattern is not None:
            await self.cluster.refresh()
            self.topics = self._matching()
        try:
            assigned = set(await membership.join(self.topics, owned))
            if owned:
                await self._wait_for_poll()
        except MembershipLost:
            await self._wait_for_poll()
            self.may_return_records = False
            await self._revoke(owned, lost=True)
            assigned = set(await membership.join(self.topics, ()))
        self._wake()
        self.may_return_records = False
        revoked = set(self.positions.states) - assigned
        await self._revoke(revoked, lost=False)
        new = self.positions.assign(assigned)
        self.cluster.follow({tp.topic for tp in assigned})
        await self._listener.on_partitions_assigned(new)
        if revoked and self.group.cooperative:
            membership.request_rejoin()  # so that the revoked partitions are assigned to others (KIP-429)
