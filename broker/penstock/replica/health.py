"""How the partitions of one broker are off for replicas, counted when somebody asks for metrics.

Counted from the view, in a thread: it looks at every partition of the cluster.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from penstock.replica.isr import effective_min_isr
from penstock.state.view import TopicView


class ReplicaHealth(NamedTuple):
    """Numbers of partitions, of those that the broker leads; `leaderless` of those that it has a replica of.

    `at_min_isr` have as few replicas in sync as min.insync.replicas asks for, and fewer than they should: one more that
    is lost ends acks=all. `under_min_isr` have fewer still. Replicas that are being added are not missed yet.
    """

    under_replicated: int = 0
    at_min_isr: int = 0
    under_min_isr: int = 0
    leaderless: int = 0


def count_health(topics: Sequence[TopicView], alive: Collection[int], broker_id: int) -> ReplicaHealth:
    """`alive` are the brokers that are registered: who is not leads nothing."""
    under, at_min, below, leaderless = 0, 0, 0, 0
    for topic in topics:
        for placed in topic.partitions:
            if placed.leader == broker_id:
                in_sync, factor = len(placed.isr), len(placed.replicas) - len(placed.adding)
                if in_sync < factor:
                    under += 1
                    least = effective_min_isr(placed, topic.config.min_insync_replicas)
                    at_min += in_sync == least
                    below += in_sync < least
            elif placed.leader not in alive and broker_id in placed.replicas:
                leaderless += 1
    return ReplicaHealth(under, at_min, below, leaderless)
