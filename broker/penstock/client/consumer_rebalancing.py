"""Moves a consumer to the partitions that its coordinator assigns (KIP-848). Created by `polling`.

Only partitions that move stop: the consumer revokes those that it has to release, reports what it has, and starts with
those that it may use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from uuid import UUID

from penstock.client.cluster import ClusterConnections
from penstock.client.consumer_membership import ConsumerMembership
from penstock.client.membership import GroupOptions
from penstock.client.metadata import MetadataCache
from penstock.client.positions import Positions
from penstock.client.rebalancing import RebalanceListener, Rebalancing
from penstock.client.topic_names import find_topic_names
from penstock.client.types import TopicPartition

NAME_ATTEMPTS = 4
"""Attempts to find the name of a new topic. The next heartbeat starts others."""


class ConsumerRebalancing(Rebalancing):
    """Reconciles the partitions in use with the assignment. The coordinator matches patterns (RE2)."""

    membership: ConsumerMembership

    def __init__(
        self,
        cluster: ClusterConnections,
        group: GroupOptions,
        positions: Positions,
        wake: Callable[[], None],
        before_revoking: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(cluster, group, positions, wake, before_revoking)
        self.membership = ConsumerMembership(cluster, group, wake)
        self._owned: dict[TopicPartition, UUID] = {}
        """The partitions in use with their topics' ids: a topic that was created again is another one."""

    def subscribe(self, topics: list[str], pattern: str | None, listener: RebalanceListener | None) -> None:
        """Replace the subscription; the next heartbeat reports it."""
        self._listener = listener or RebalanceListener()
        self.cluster.follow(topics)
        self.membership.subscribe(topics, pattern)

    def metadata_changed(self, metadata: MetadataCache) -> None:
        """Do nothing: the coordinator watches topics."""

    async def _rebalance(self, lost: bool) -> None:
        """Join if necessary, and move to the current assignment."""
        membership = self.membership
        if lost:
            await self._revoke(set(self.positions.states), lost=True)
            self._owned = {}
        if not membership.joined:
            await membership.join()
        target = await self._partitions(membership.assigned)
        if target == self._owned:
            return
        await self._wait_for_poll()
        self.may_return_records = False
        if not membership.lost:
            await self._move(target)

    async def _move(self, target: Mapping[TopicPartition, UUID]) -> None:
        """Revoke what is not in the target, report that, and add the rest of the target."""
        membership = self.membership
        await self._revoke({tp for tp, topic_id in self._owned.items() if target.get(tp) != topic_id}, lost=False)
        if membership.lost:
            return  # removed in the meantime: a rebalance that abandons everything follows
        # The assignment may have changed while partitions were revoked: others may use what is no longer in it.
        assigned = membership.assigned
        self._owned = {
            tp: topic_id for tp, topic_id in target.items() if tp.partition in assigned.get(topic_id, frozenset())
        }
        self.cluster.follow({tp.topic for tp in self._owned})
        new = self.positions.assign(self._owned)
        membership.acknowledge(by_topic_id(self._owned))
        await self._listener.on_partitions_assigned(new)

    async def _partitions(self, assigned: Mapping[UUID, frozenset[int]]) -> dict[TopicPartition, UUID]:
        """Return the partitions of topics whose names are known, after some attempts to find them."""
        attempt = 0
        while True:
            names = await find_topic_names(self.cluster, assigned)
            attempt += 1
            if len(names) == len(assigned) or attempt == NAME_ATTEMPTS:
                break
            await asyncio.sleep(self.cluster.backoff.delay_s(attempt))
        return {
            TopicPartition(name, index): topic_id for topic_id, name in names.items() for index in assigned[topic_id]
        }


def by_topic_id(partitions: Mapping[TopicPartition, UUID]) -> dict[UUID, frozenset[int]]:
    """Return partition indexes by topic id."""
    found: dict[UUID, set[int]] = {}
    for tp, topic_id in partitions.items():
        found.setdefault(topic_id, set()).add(tp.partition)
    return {topic_id: frozenset(indexes) for topic_id, indexes in found.items()}
