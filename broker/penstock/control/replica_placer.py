"""Places the replicas of new partitions with `placement`. Called by `topic_admin`.

Placement takes existing partitions as input, so with all of them each creation would cost more than the one before.
Only the differences between brokers matter: this module counts replicas as topics change, and passes a few
representative partitions with the same differences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from penstock.control.results import AdminError
from penstock.placement.model import PartitionKey, PlacementBroker
from penstock.placement.place import place_partitions
from penstock.state.view import BrokerView, ClusterView, TopicChange, TopicView
from penstock.wire.errors import ErrorCode

MAX_REPRESENTATIVES = 1000
"""Approximate maximum number of representative partitions; larger differences are scaled down."""


class ReplicaPlacer:
    """Counts replicas and preferred leaders per broker, including topics that are being created."""

    def __init__(self, view: ClusterView) -> None:
        self.view = view
        self._replicas: Counter[int] = Counter()
        self._leaders: Counter[int] = Counter()
        self.apply_changes([TopicChange(None, topic) for topic in view.topics.values()])

    def apply_changes(self, changes: Iterable[TopicChange]) -> None:
        """Update the counts from changes of the view."""
        for change in changes:
            for before, after in change.differences():
                if before is not None and after is not None and before.replicas == after.replicas:
                    continue
                if before is not None:
                    self.count([before.replicas], -1)
                if after is not None:
                    self.count([after.replicas], 1)

    def count(self, assignment: Iterable[Sequence[int]], by: int) -> None:
        """Add partitions that are about to be written (`by` 1), or remove them (-1)."""
        for replicas in assignment:
            self._leaders[replicas[0]] += by
            for broker in replicas:
                self._replicas[broker] += by

    def place(
        self,
        count: int,
        factor: int,
        draining: Collection[int],
        topic: TopicView | None = None,
        absent: Collection[int] = (),
    ) -> list[list[int]]:
        """Return replicas for new partitions, of `topic` if that exists. Raises `AdminError`.

        `absent` brokers get the last replicas of each partition if the others are too few.
        """
        usable = usable_brokers(self.view, draining)
        check_factor(factor, len(usable), len(absent))
        lacking = factor - len(usable)
        if lacking <= 0:
            return self._place(count, factor, usable, topic)
        placed = self._place(count, len(usable), usable, topic)
        held = {broker: self._replicas[broker] for broker in absent}
        for replicas in placed:
            for broker in sorted(held, key=lambda b: (held[b], b))[:lacking]:
                held[broker] += 1
                replicas.append(broker)
        return placed

    def _place(self, count: int, factor: int, usable: list[BrokerView], topic: TopicView | None) -> list[list[int]]:
        """Implement `place` with enough `usable` brokers."""
        if len(usable) == 1:
            return [[usable[0].broker_id] for _ in range(count)]
        of_topic = [partition.replicas for partition in topic.partitions] if topic is not None else []
        self.count(of_topic, -1)
        existing = representative_partitions(self._replicas, self._leaders, [broker.broker_id for broker in usable])
        self.count(of_topic, 1)
        name = "" if topic is None else topic.name
        existing.update({PartitionKey(name, index): tuple(replicas) for index, replicas in enumerate(of_topic)})
        brokers = [
            PlacementBroker(b.broker_id, tuple(part for part in b.failure_domain.split("/") if part)) for b in usable
        ]
        return place_partitions(brokers, existing, count, factor, topic=name or None)


def usable_brokers(view: ClusterView, draining: Collection[int]) -> list[BrokerView]:
    """Return the registered brokers that can get new replicas, by id."""
    registered = [view.brokers[broker_id] for broker_id in sorted(view.brokers)]
    return [broker for broker in registered if not broker.draining and broker.broker_id not in draining]


def check_factor(factor: int, usable: int, absent: int) -> None:
    """Raise `AdminError` if there are too few brokers for so many replicas."""
    if not usable:
        raise AdminError(
            ErrorCode.LEADER_NOT_AVAILABLE, "No broker that can get replicas has registered yet; try again."
        )
    if factor > usable + absent:
        raise AdminError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {factor} time(s): only {usable} broker(s) can get replicas"
            f" and {absent} are temporarily absent; add brokers or use fewer replicas.",
        )


def representative_partitions(
    replicas: Counter[int], leaders: Counter[int], brokers: Sequence[int]
) -> dict[PartitionKey, tuple[int, ...]]:
    """Return a few partitions with the same differences in replicas and leaders between brokers."""
    held_above = relative_counts(replicas, brokers)
    leads = relative_counts(leaders, brokers)
    follows = {broker: held_above[broker] - leads[broker] for broker in brokers}
    lift = -min(0, *follows.values())
    # Each broker leads `each` more, so that the others have enough partitions to follow.
    each = 0
    while any(follows[b] + lift > sum(leads.values()) - leads[b] + each * (len(brokers) - 1) for b in brokers):
        each += 1
    made = [[broker] for broker in brokers for _ in range(leads[broker] + each)]
    for broker in brokers:
        others = [held for held in made if held[0] != broker]
        others.sort(key=len)
        for held in others[: follows[broker] + lift]:
            held.append(broker)
    return {PartitionKey("representative", index): tuple(held) for index, held in enumerate(made)}


def relative_counts(counts: Counter[int], brokers: Sequence[int]) -> dict[int, int]:
    """Return each broker's count above the minimum; large differences are scaled down."""
    bound = max(MAX_REPRESENTATIVES // len(brokers), 4)
    least = min(counts[broker] for broker in brokers)
    most = max(counts[broker] for broker in brokers) - least
    if most <= bound:
        return {broker: counts[broker] - least for broker in brokers}
    return {broker: (counts[broker] - least) * bound // most for broker in brokers}
