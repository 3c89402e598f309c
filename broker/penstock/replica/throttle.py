"""Bounds what replicas that are not in sync copy, so that moving them leaves room for everything else.

Two bounds, each for what this broker sends as a leader and for what it fetches as a follower, in bytes a second:
- KIP-73: `leader.replication.throttled.rate` and `follower.replication.throttled.rate`, for the replicas that a topic's
  `leader.replication.throttled.replicas` and `follower.replication.throttled.replicas` name;
- `reassignment.throttle.bytes.per.second`, for all replicas that are being added.

A replica in sync is never held back: acknowledgements wait for it. `ReplicaManager` makes one `Throttles`; `fetcher`
asks before it names a partition, `api.replica_fetch` before it reads one. No I/O, no clock: the time is given.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from penstock.config.broker import BrokerConfig
from penstock.config.values import FOREVER, TopicConfig, names_replica
from penstock.state.view import ClusterView, PartitionView

BURST_S = 1.0
"""What was not used is saved up for so long: a timer that comes late costs nothing."""
SHORTEST_WAIT_S = 0.02
LONGEST_WAIT_S = 1.0
"""After which is looked again: meanwhile a setting may have changed."""


class Throttle:
    """One direction. A replica may go on while no debt is left; what it copies makes one, paid as time passes.

    Replicas with different rates share it: each byte costs the time that the replica's own rate gives it.
    """

    __slots__ = ("paid_s",)

    def __init__(self) -> None:
        self.paid_s = float("-inf")
        """When all that was copied is paid for."""

    def is_open(self, rate: int, now_s: float) -> bool:
        return rate > 0 and now_s >= self.paid_s

    def take(self, size_bytes: int, rate: int, now_s: float) -> None:
        """Notes that so much was copied. One read may overdraw; the next waits until that is paid."""
        self.paid_s = max(self.paid_s, now_s - BURST_S) + size_bytes / max(rate, 1)

    def wait_s(self, now_s: float) -> float:
        """When to look again."""
        return min(max(self.paid_s - now_s, SHORTEST_WAIT_S), LONGEST_WAIT_S)

    def forgive(self) -> None:
        """The rate is another now, and what is owed was counted by the old one."""
        self.paid_s = float("-inf")


class Throttles:
    """Both directions of one broker, and who is held back. A rate of None is no bound."""

    def __init__(self, view: ClusterView, config: BrokerConfig) -> None:
        self.view, self.config = view, config
        self.leading, self.following = Throttle(), Throttle()
        config.subscribe(self.forgive)

    def forgive(self) -> None:
        self.leading.forgive()
        self.following.forgive()

    def rate_of_own(self, key: tuple[UUID, int], topic: TopicConfig) -> int | None:
        """The bound on what this broker fetches of a partition that it follows."""
        config, listed = self.config, topic.follower_replication_throttled_replicas
        if not listed and config.reassignment_throttle_bytes_per_second == FOREVER:
            return None
        known = self.view.topics_by_id.get(key[0])
        if known is None or key[1] >= len(known.partitions):
            return None
        placed, broker_id = known.partitions[key[1]], config.node_id
        if broker_id in placed.isr:
            return None
        return self.rate(placed, broker_id, listed, config.follower_replication_throttled_rate)

    def rate_of_follower(self, placed: PartitionView, broker_id: int, topic: TopicConfig) -> int | None:
        """The bound on what this broker, the leader, sends of a partition to a follower that is not in sync.

        The list names the replica that leads, not the follower: so do the tools that set it.
        """
        config, listed = self.config, topic.leader_replication_throttled_replicas
        if not listed and config.reassignment_throttle_bytes_per_second == FOREVER:
            return None
        return self.rate(placed, broker_id, listed, config.leader_replication_throttled_rate)

    def rate(
        self, placed: PartitionView, follower_id: int, listed: Collection[tuple[int, int]], listed_rate: int
    ) -> int | None:
        rate = listed_rate if names_replica(listed, placed.index, self.config.node_id) else FOREVER
        if follower_id in placed.adding:
            rate = min(rate, self.config.reassignment_throttle_bytes_per_second)
        return None if rate == FOREVER else rate
