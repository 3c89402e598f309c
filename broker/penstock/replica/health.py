"""Counts under-replicated and leaderless partitions for the metrics.

Iterates over all partitions of the cluster, so it runs in a thread.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from penstock.replica.isr import effective_min_isr
from penstock.state.view import TopicView


class ReplicaHealth(NamedTuple):
    """Partition counts, of those that the broker leads; `leaderless` of those that it has a replica of.

    `at_min_isr` have min.insync.replicas in-sync replicas and fewer than their replication factor; `under_min_isr` have
    fewer still. Replicas being added do not count as missing.
    """

    under_replicated: int = 0
    at_min_isr: int = 0
    under_min_isr: int = 0
    leaderless: int = 0


def count_health(topics: Sequence[TopicView], alive: Collection[int], broker_id: int) -> ReplicaHealth:
    """Count the partitions of a broker. `alive` are the registered brokers; others lead nothing."""
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
