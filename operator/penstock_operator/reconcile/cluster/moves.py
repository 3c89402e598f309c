"""Moves replicas to new brokers: the minimal moves that `penstock.placement` computes, a bounded number at a time.

A plan covers the whole cluster and takes seconds for 10,000 topics, so the caller keeps it until it no longer fits. An
annotation records that moves are pending, and ongoing moves are observed, so the operator can be killed at any time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.placement.model import Move, NoBrokersError, PartitionKey, PlacementBroker
from penstock.placement.plan import plan_feasible_moves
from penstock_operator.ports.brokers import BrokerSnapshot, ObservedTopicState
from penstock_operator.reconcile.cluster.observed import ObservedCluster, ReportedState

MAX_MOVING_PARTITIONS = 200
"""Maximum number of partitions that move concurrently; the brokers' throttle limits the bandwidth."""


@dataclass(frozen=True, slots=True)
class PlannedMoves:
    """A plan of moves and the brokers for which it was computed."""

    moves: tuple[Move, ...]
    brokers: tuple[PlacementBroker, ...]


@dataclass(frozen=True, slots=True)
class ReplicaMoves:
    """Moves to start now and the number of partitions left. The caller passes `planned` to the next call."""

    begin: Mapping[tuple[str, int], tuple[int, ...]]
    left: int
    planned: PlannedMoves | None
    blocker: str = ""


def next_moves(observed: ObservedCluster, planned: PlannedMoves | None) -> ReplicaMoves:
    """Return the next moves. If no plan is possible, none are left and `blocker` states why."""
    reported = observed.reported
    assert reported is not None, "moves require a broker report"
    brokers = placement_brokers(reported.snapshot)
    moves = open_moves(planned, brokers, reported.topics)
    if moves is None:
        try:
            made, _ = plan_feasible_moves(brokers, existing(reported.topics))
        except NoBrokersError as e:
            return ReplicaMoves({}, 0, None, str(e))
        planned = PlannedMoves(tuple(made), brokers)
        moves = made
    under_way = {
        (name, index)
        for name, topic in reported.topics.items()
        for index, part in enumerate(topic.partitions)
        if part.adding or part.removing
    }
    waiting = [move for move in moves if move.key not in under_way]
    room = max(MAX_MOVING_PARTITIONS - len(under_way), 0)
    begin = {(move.key.topic, move.key.partition): move.after for move in waiting[:room]}
    return ReplicaMoves(begin, len(waiting) + len(under_way), planned)


def open_moves(
    planned: PlannedMoves | None, brokers: tuple[PlacementBroker, ...], topics: Mapping[str, ObservedTopicState]
) -> Sequence[Move] | None:
    """Return the unfinished moves of a plan; None if the plan no longer matches the cluster."""
    if planned is None or planned.brokers != brokers:
        return None
    left = []
    for move in planned.moves:
        topic = topics.get(move.key.topic)
        if topic is None or move.key.partition >= len(topic.partitions):
            continue  # deleted meanwhile
        part = topic.partitions[move.key.partition]
        now = tuple(broker for broker in part.replicas if broker not in part.removing)
        if now == move.after:
            continue
        if now != move.before:
            return None  # moved by another client
        left.append(move)
    return left


def placement_brokers(snapshot: BrokerSnapshot) -> tuple[PlacementBroker, ...]:
    """Return the brokers for the placement, sorted by id."""
    return tuple(
        PlacementBroker(
            broker.broker_id,
            tuple(part for part in (broker.failure_domain or broker.rack or "").split("/") if part),
            broker.is_draining,
        )
        for broker in sorted(snapshot.brokers, key=lambda broker: broker.broker_id)
    )


def existing(topics: Mapping[str, ObservedTopicState]) -> dict[PartitionKey, tuple[int, ...]]:
    """Return the replicas by partition; ongoing reassignments count as completed."""
    return {
        PartitionKey(name, index): desired
        for name, topic in topics.items()
        for index, part in enumerate(topic.partitions)
        if (desired := tuple(broker for broker in part.replicas if broker not in part.removing))
    }


def move_blocker(observed: ObservedCluster, pods: int) -> str:
    """Return why replicas cannot move now, or "". A missing broker would get no replicas in the plan."""
    reported = observed.reported
    if reported is None:
        return f"the brokers do not answer: {observed.brokers_error}"
    registered = {broker.broker_id for broker in reported.snapshot.brokers}
    away = [n for n in range(pods) if n not in registered]
    if away:
        return f"broker {', '.join(map(str, away))} has not registered yet"
    silent = registered - reported.settings.keys()
    if silent:
        return f"broker {', '.join(map(str, sorted(silent)))} does not answer"
    return ""


def empty_brokers(reported: ReportedState, pods: int) -> list[int]:
    """Return brokers without replicas although partitions exist: new brokers, or brokers that lost their volume."""
    if not reported.partitions.total:
        return []
    return [
        broker.broker_id
        for broker in reported.snapshot.brokers
        if broker.broker_id < pods
        and not broker.is_draining
        and not reported.partitions.replica_counts.get(broker.broker_id)
    ]
