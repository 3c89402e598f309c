"""Rate limits for out-of-sync replicas, so that moving them leaves bandwidth for clients.

Two limits in bytes per second, each for sending as leader and for fetching as follower:
- KIP-73: `leader.replication.throttled.rate` and `follower.replication.throttled.rate`, for the replicas in a topic's
  `leader.replication.throttled.replicas` and `follower.replication.throttled.replicas`;
- `reassignment.throttle.bytes.per.second`, for all replicas being added.

In-sync replicas are never throttled: acknowledgements depend on them. `ReplicaManager` creates one `Throttles`;
`fetcher` checks it before it names a partition, `api.replica_fetch` before it reads one. No I/O; the time is an
argument.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from penstock.config.broker import BrokerConfig
from penstock.config.topic import FOREVER, TopicConfig, names_replica
from penstock.state.view import ClusterView, PartitionView

BURST_S = 1.0
"""Unused capacity is saved for this long, so that late timers cost nothing."""
MIN_WAIT_S = 0.02
MAX_WAIT_S = 1.0
"""Delay after which the throttle is checked again, because settings may have changed."""


class Throttle:
    """One direction. Copied bytes create a debt, which is paid as time passes; copying continues when it is paid.

    Replicas with different rates share it: each byte costs the time of its replica's rate.
    """

    __slots__ = ("paid_until_s",)

    def __init__(self) -> None:
        self.paid_until_s = float("-inf")
        """When all copied bytes are paid for."""

    def is_open(self, rate: int, now_s: float) -> bool:
        """Return whether a replica with this rate may copy now."""
        return rate > 0 and now_s >= self.paid_until_s

    def charge(self, size_bytes: int, rate: int, now_s: float) -> None:
        """Charge copied bytes. One read may exceed the rate; the next waits until it is paid."""
        self.paid_until_s = max(self.paid_until_s, now_s - BURST_S) + size_bytes / max(rate, 1)

    def wait_s(self, now_s: float) -> float:
        """Return the delay until the next check, in seconds."""
        return min(max(self.paid_until_s - now_s, MIN_WAIT_S), MAX_WAIT_S)

    def reset(self) -> None:
        """Drop the debt, which was computed with an old rate."""
        self.paid_until_s = float("-inf")


class Throttles:
    """Both directions of one broker. A rate of None is unlimited."""

    def __init__(self, view: ClusterView, config: BrokerConfig) -> None:
        self.view, self.config = view, config
        self.leading, self.following = Throttle(), Throttle()
        config.subscribe(self.reset)

    def reset(self) -> None:
        """Drop the debt of both directions."""
        self.leading.reset()
        self.following.reset()

    def fetch_rate(self, key: tuple[UUID, int], topic: TopicConfig) -> int | None:
        """Return the rate limit for this broker's fetches of a partition that it follows."""
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

    def send_rate(self, placed: PartitionView, broker_id: int, topic: TopicConfig) -> int | None:
        """Return the rate limit for sending a partition, as leader, to an out-of-sync follower.

        The topic's list names the leader's replica, not the follower's, as Kafka's tools set it.
        """
        config, listed = self.config, topic.leader_replication_throttled_replicas
        if not listed and config.reassignment_throttle_bytes_per_second == FOREVER:
            return None
        return self.rate(placed, broker_id, listed, config.leader_replication_throttled_rate)

    def rate(
        self, placed: PartitionView, follower_id: int, listed: Collection[tuple[int, int]], listed_rate: int
    ) -> int | None:
        """Return the lower of the two limits that apply, None if unlimited."""
        rate = listed_rate if names_replica(listed, placed.index, self.config.node_id) else FOREVER
        if follower_id in placed.adding:
            rate = min(rate, self.config.reassignment_throttle_bytes_per_second)
        return None if rate == FOREVER else rate
