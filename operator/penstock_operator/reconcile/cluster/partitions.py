"""Summary of all partitions of a cluster in one pass; 10,000 topics take tens of ms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from penstock_operator.ports.brokers import ObservedTopicState

MAX_NAMED_TOPICS = 5
"""Maximum number of topics that a message names."""


@dataclass(frozen=True, slots=True)
class PartitionSummary:
    """Counts of partitions and replicas."""

    total: int = 0
    offline: int = 0
    """Partitions without a leader."""
    under_replicated: int = 0
    """Partitions with a replica that is not in sync, not counting replicas that are being added."""
    moving: int = 0
    replica_counts: Mapping[int, int] = field(default_factory=dict)
    """Replicas by broker, including adding and removing ones."""
    leader_counts: Mapping[int, int] = field(default_factory=dict)
    """Leaders by broker."""
    out_of_sync: Mapping[int, int] = field(default_factory=dict)
    """Out-of-sync replicas by broker."""
    in_sync: Mapping[int, int] = field(default_factory=dict)
    """In-sync replicas by broker."""
    single_replica: Mapping[int, int] = field(default_factory=dict)
    """Partitions by broker of which it has the only replica."""
    at_min_isr: Mapping[tuple[int, ...], int] = field(default_factory=dict)
    """By replica set: partitions with several replicas, but not more than min.insync.replicas. They reject writes with
    acks=all while one of these brokers is down."""
    at_min_isr_example: str = ""
    factors: Mapping[int, tuple[int, tuple[str, ...]]] = field(default_factory=dict)
    """By replication factor: number of topics and the names of the first ones."""

    def topics_needing_more_than(self, brokers: int) -> str:
        """Return the topics with more replicas than `brokers`, as text, or ""."""
        found = sorted((item for item in self.factors.items() if item[0] > brokers), reverse=True)
        named = [f"{name} ({factor})" for factor, (_, topics) in found for name in topics][:MAX_NAMED_TOPICS]
        more = sum(count for _, (count, _) in found) - len(named)
        return ", ".join(named) + (f" and {more:,} more" if more > 0 else "")

    def count_at_min_isr(self, brokers: Iterable[int]) -> int:
        """Return the number of `at_min_isr` partitions with a replica on one of these brokers."""
        chosen = set(brokers)
        return sum(count for replicas, count in self.at_min_isr.items() if not chosen.isdisjoint(replicas))


def summary(topics: Mapping[str, ObservedTopicState], min_insync: Mapping[str, int] | None = None) -> PartitionSummary:
    """Summarize partitions. `min_insync`: known min.insync.replicas by topic; replicas that are being added do not
    count."""
    offline = under = moving = total = 0
    replica_counts: Counter[int] = Counter()
    leader_counts: Counter[int] = Counter()
    out_of_sync: Counter[int] = Counter()
    in_sync: Counter[int] = Counter()
    single_replica: Counter[int] = Counter()
    at_min_isr: Counter[tuple[int, ...]] = Counter()
    example = ""
    factors: dict[int, tuple[int, list[str]]] = {}
    for name in sorted(topics):
        factor = 0
        least = (min_insync or {}).get(name, 0)
        for part in topics[name].partitions:
            total += 1
            replica_counts.update(part.replicas)
            in_sync.update(part.isr)
            offline += part.leader < 0
            leader_counts[part.leader] += 1
            moving += bool(part.adding or part.removing)
            due = [b for b in part.replicas if b not in part.adding] if part.adding else part.replicas
            factor = max(factor, len(part.replicas) - max(len(part.removing), len(part.adding)))
            missing = [broker for broker in due if broker not in part.isr]
            if missing:
                under += 1
                out_of_sync.update(missing)
            if len(due) == 1:
                single_replica.update(due)
            elif len(due) <= least:
                at_min_isr[tuple(sorted(due))] += 1
                example = example or f"{name} ({len(due)} replicas, min.insync.replicas {least})"
        count, first = factors.get(factor, (0, []))
        if count < MAX_NAMED_TOPICS:
            first = [*first, name]
        factors[factor] = (count + 1, first)
    return PartitionSummary(
        total=total,
        offline=offline,
        under_replicated=under,
        moving=moving,
        replica_counts=replica_counts,
        leader_counts=leader_counts,
        out_of_sync=out_of_sync,
        in_sync=in_sync,
        single_replica=single_replica,
        at_min_isr=at_min_isr,
        at_min_isr_example=example,
        factors={factor: (count, tuple(first)) for factor, (count, first) in factors.items()},
    )
