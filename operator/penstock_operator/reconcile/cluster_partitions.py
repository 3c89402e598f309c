"""What all partitions of a cluster come to: one pass over one answer, 10,000 topics in tens of ms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock_operator.ports.brokers import TopicState

NAMED = 5
"""Topics that a message names."""


@dataclass(frozen=True, slots=True)
class Partitions:
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
    unspared: Mapping[int, int] = field(default_factory=dict)
    """By broker, partitions of which it is in sync and another replica is not: without it they would lack two."""
    alone: Mapping[int, int] = field(default_factory=dict)
    """By broker, partitions of which it has the only replica: they are away while it is."""
    factors: Mapping[int, tuple[int, tuple[str, ...]]] = field(default_factory=dict)
    """By replication factor: how many topics have it, and the names of the first of them."""

    def wanting_more_than(self, brokers: int) -> str:
        """Topics that cannot live on so few brokers, as text; empty where all can."""
        found = sorted((item for item in self.factors.items() if item[0] > brokers), reverse=True)
        named = [f"{name} ({factor})" for factor, (_, topics) in found for name in topics][:NAMED]
        more = sum(count for _, (count, _) in found) - len(named)
        return ", ".join(named) + (f" and {more:,} more" if more > 0 else "")


def summary(topics: Mapping[str, TopicState]) -> Partitions:
    offline = under = moving = total = 0
    held: Counter[int] = Counter()
    behind: Counter[int] = Counter()
    unspared: Counter[int] = Counter()
    alone: Counter[int] = Counter()
    factors: dict[int, tuple[int, list[str]]] = {}
    for name in sorted(topics):
        factor = 0
        for part in topics[name].partitions:
            total += 1
            held.update(part.replicas)
            offline += part.leader < 0
            moving += bool(part.adding or part.removing)
            due = [b for b in part.replicas if b not in part.adding] if part.adding else part.replicas
            factor = max(factor, len(part.replicas) - max(len(part.removing), len(part.adding)))
            missing = [broker for broker in due if broker not in part.isr]
            if missing:
                under += 1
                behind.update(missing)
                unspared.update(broker for broker in part.isr if broker in due)
            if len(due) == 1:
                alone.update(due)
        count, first = factors.get(factor, (0, []))
        if count < NAMED:
            first = [*first, name]
        factors[factor] = (count + 1, first)
    return Partitions(
        total=total,
        offline=offline,
        under_replicated=under,
        moving=moving,
        held=held,
        behind=behind,
        unspared=unspared,
        alone=alone,
        factors={factor: (count, tuple(first)) for factor, (count, first) in factors.items()},
    )
