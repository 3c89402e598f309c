"""What all partitions of a cluster come to: one pass over one answer, 10,000 topics in tens of ms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from penstock_operator.ports.brokers import ObservedTopicState

NAMED = 5
"""Topics that a message names."""


@dataclass(frozen=True, slots=True)
class PartitionReconciler:
    total: int = 0
    offline: int = 0
    """Without a leader."""
    under_replicated: int = 0
    """With a replica that is not in sync; those that are just being added are not missed yet."""
    moving: int = 0
    held: Mapping[int, int] = field(default_factory=dict)
    """Replicas by broker, those that come and go included."""
    behind: Mapping[int, int] = field(default_factory=dict)
    """By broker, its replicas that are not in sync."""
    in_sync: Mapping[int, int] = field(default_factory=dict)
    """By broker, its replicas that are in sync: what it takes away when it goes."""
    alone: Mapping[int, int] = field(default_factory=dict)
    """By broker, partitions of which it has the only replica: they are away while it is."""
    tight: Mapping[tuple[int, ...], int] = field(default_factory=dict)
    """By replicas, partitions of several of them and not of more than min.insync.replicas asks for: while one of these
    brokers is away, nothing is written to them with acks=all."""
    tight_example: str = ""
    factors: Mapping[int, tuple[int, tuple[str, ...]]] = field(default_factory=dict)
    """By replication factor: how many topics have it, and the names of the first of them."""

    def wanting_more_than(self, brokers: int) -> str:
        """Topics that cannot live on so few brokers, as text; empty where all can."""
        found = sorted((item for item in self.factors.items() if item[0] > brokers), reverse=True)
        named = [f"{name} ({factor})" for factor, (_, topics) in found for name in topics][:NAMED]
        more = sum(count for _, (count, _) in found) - len(named)
        return ", ".join(named) + (f" and {more:,} more" if more > 0 else "")

    def tight_on(self, brokers: Iterable[int]) -> int:
        """How many of those partitions have a replica on one of these brokers."""
        chosen = set(brokers)
        return sum(count for replicas, count in self.tight.items() if not chosen.isdisjoint(replicas))


def summary(
    topics: Mapping[str, ObservedTopicState], min_insync: Mapping[str, int] | None = None
) -> PartitionReconciler:
    """`min_insync` has min.insync.replicas of those topics of which it is known. It counts at most the replication
    factor, and not the replicas that are being added."""
    offline = under = moving = total = 0
    held: Counter[int] = Counter()
    behind: Counter[int] = Counter()
    in_sync: Counter[int] = Counter()
    alone: Counter[int] = Counter()
    tight: Counter[tuple[int, ...]] = Counter()
    example = ""
    factors: dict[int, tuple[int, list[str]]] = {}
    for name in sorted(topics):
        factor = 0
        least = (min_insync or {}).get(name, 0)
        for part in topics[name].partitions:
            total += 1
            held.update(part.replicas)
            in_sync.update(part.isr)
            offline += part.leader < 0
            moving += bool(part.adding or part.removing)
            due = [b for b in part.replicas if b not in part.adding] if part.adding else part.replicas
            factor = max(factor, len(part.replicas) - max(len(part.removing), len(part.adding)))
            missing = [broker for broker in due if broker not in part.isr]
            if missing:
                under += 1
                behind.update(missing)
            if len(due) == 1:
                alone.update(due)
            elif len(due) <= least:
                tight[tuple(sorted(due))] += 1
                example = example or f"{name} ({len(due)} replicas, min.insync.replicas {least})"
        count, first = factors.get(factor, (0, []))
        if count < NAMED:
            first = [*first, name]
        factors[factor] = (count + 1, first)
    return PartitionReconciler(
        total=total,
        offline=offline,
        under_replicated=under,
        moving=moving,
        held=held,
        behind=behind,
        in_sync=in_sync,
        alone=alone,
        tight=tight,
        tight_example=example,
        factors={factor: (count, tuple(first)) for factor, (count, first) in factors.items()},
    )
