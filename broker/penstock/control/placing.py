"""Where new partitions go: `placement` asked with what each broker has now. Used by `topic_admin`.

Placement looks at all partitions there are, which would make each creation dearer than the one before. What it makes of
them is how much more one broker has than another; that is counted here as topics come and go, and told by a few
partitions that stand for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from penstock.control.results import AdminError
from penstock.placement.model import PartitionKey, PlacementBroker
from penstock.placement.place import place
from penstock.state.view import BrokerView, ClusterView, TopicChange, TopicView
from penstock.wire.errors import ErrorCode

MAX_STAND_INS = 1000
"""Partitions that stand for all there are, about; larger differences between brokers are scaled down to that."""


class Placing:
    """Counts of replicas and preferred leaders by broker; those of topics that are being created included."""

    def __init__(self, view: ClusterView) -> None:
        self.view = view
        self._replicas: Counter[int] = Counter()
        self._leaders: Counter[int] = Counter()
        self.take([TopicChange(None, topic) for topic in view.topics.values()])

    def take(self, changes: Iterable[TopicChange]) -> None:
        """Follows the view."""
        for change in changes:
            for before, after in change.differences():
                if before is not None and after is not None and before.replicas == after.replicas:
                    continue
                if before is not None:
                    self.count([before.replicas], -1)
                if after is not None:
                    self.count([after.replicas], 1)

    def count(self, assignment: Iterable[Sequence[int]], by: int) -> None:
        """Counts partitions that are about to be written (`by` 1), or no longer (-1)."""
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
        away: Collection[int] = (),
    ) -> list[list[int]]:
        """Replicas of new partitions, `topic`'s where it is there already. Raises `AdminError`.

        Brokers that are `away` get the last replicas of each partition where the others do not suffice.
        """
        usable = usable_brokers(self.view, draining)
        check_factor(factor, len(usable), len(away))
        lacking = factor - len(usable)
        if lacking <= 0:
            return self._place(count, factor, usable, topic)
        placed = self._place(count, len(usable), usable, topic)
        held = {broker: self._replicas[broker] for broker in away}
        for replicas in placed:
            for broker in sorted(held, key=lambda b: (held[b], b))[:lacking]:
                held[broker] += 1
                replicas.append(broker)
        return placed

    def _place(self, count: int, factor: int, usable: list[BrokerView], topic: TopicView | None) -> list[list[int]]:
        """As `place`, where `usable` suffice."""
        if len(usable) == 1:
            return [[usable[0].broker_id] for _ in range(count)]
        of_topic = [partition.replicas for partition in topic.partitions] if topic is not None else []
        self.count(of_topic, -1)
        existing = stand_ins(self._replicas, self._leaders, [broker.broker_id for broker in usable])
        self.count(of_topic, 1)
        name = "" if topic is None else topic.name
        existing.update({PartitionKey(name, index): tuple(replicas) for index, replicas in enumerate(of_topic)})
        brokers = [
            PlacementBroker(b.broker_id, tuple(part for part in b.failure_domain.split("/") if part)) for b in usable
        ]
        return place(brokers, existing, count, factor, topic=name or None)


def usable_brokers(view: ClusterView, draining: Collection[int]) -> list[BrokerView]:
    """Brokers that may take new replicas, by id."""
    there = [view.brokers[broker_id] for broker_id in sorted(view.brokers)]
    return [broker for broker in there if not broker.draining and broker.broker_id not in draining]


def check_factor(factor: int, usable: int, away: int) -> None:
    """Raises `AdminError` where so many replicas have no room."""
    if not usable:
        raise AdminError(
            ErrorCode.LEADER_NOT_AVAILABLE, "No broker that may take replicas has registered yet: try again."
        )
    if factor > usable + away:
        raise AdminError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {factor} time(s): only {usable} broker(s) may take replicas"
            f" and {away} are away for a short time; add brokers or create it with fewer replicas.",
        )


def stand_ins(
    replicas: Counter[int], leaders: Counter[int], brokers: Sequence[int]
) -> dict[PartitionKey, tuple[int, ...]]:
    """A few partitions of which each broker holds, and leads, as many more than another as it does in truth."""
    ahead = above_least(replicas, brokers)
    leads = above_least(leaders, brokers)
    follows = {broker: ahead[broker] - leads[broker] for broker in brokers}
    lift = -min(0, *follows.values())
    # As many more for each broker to lead as it takes for the others to have partitions to follow.
    each = 0
    while any(follows[b] + lift > sum(leads.values()) - leads[b] + each * (len(brokers) - 1) for b in brokers):
        each += 1
    made = [[broker] for broker in brokers for _ in range(leads[broker] + each)]
    for broker in brokers:
        others = [held for held in made if held[0] != broker]
        others.sort(key=len)
        for held in others[: follows[broker] + lift]:
            held.append(broker)
    return {PartitionKey("stand-in", index): tuple(held) for index, held in enumerate(made)}


def above_least(counts: Counter[int], brokers: Sequence[int]) -> dict[int, int]:
    """By how much each is above the least; large differences are scaled down."""
    bound = max(MAX_STAND_INS // len(brokers), 4)
    least = min(counts[broker] for broker in brokers)
    most = max(counts[broker] for broker in brokers) - least
    if most <= bound:
        return {broker: counts[broker] - least for broker in brokers}
    return {broker: (counts[broker] - least) * bound // most for broker in brokers}
