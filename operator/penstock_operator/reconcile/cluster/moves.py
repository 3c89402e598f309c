"""Gives new brokers their share: the fewest moves to balance, as `penstock.placement` says, so many at a time.

The plan is for the whole cluster and takes seconds for 10,000 topics, so it is kept by whoever calls this, and made
anew when it no longer fits. That there are moves to be made is noted, and which are under way is observed: the operator
may be killed at any time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.placement.model import Move, NoBrokersError, PartitionKey, PlacementBroker
from penstock.placement.plan import plan_feasible_moves
from penstock_operator.ports.brokers import BrokerSnapshot, ObservedTopicState
from penstock_operator.reconcile.cluster.observed import ObservedCluster, ReportedState

AT_A_TIME = 200
"""Partitions that move at the same time. How fast they do is bounded by the brokers' throttle."""


@dataclass(frozen=True, slots=True)
class PlannedMoves:
    """The moves of one plan, and the brokers that it is for."""

    moves: tuple[Move, ...]
    brokers: tuple[PlacementBroker, ...]


@dataclass(frozen=True, slots=True)
class MoveReconciler:
    """What is to be begun now, and how far it is. `planned` is to be given again at the next look."""

    begin: Mapping[tuple[str, int], tuple[int, ...]]
    left: int
    planned: PlannedMoves | None
    why_not: str = ""


def next_moves(observed: ObservedCluster, planned: PlannedMoves | None) -> MoveReconciler:
    """Raises nothing: where nothing can be planned, nothing is left."""
    said = observed.said
    assert said is not None, "replicas are moved only where brokers answer"
    brokers = placement_brokers(said.picture)
    moves = open_moves(planned, brokers, said.topics)
    if moves is None:
        try:
            made, _ = plan_feasible_moves(brokers, existing(said.topics))
        except NoBrokersError as e:
            return MoveReconciler({}, 0, None, str(e))
        planned = PlannedMoves(tuple(made), brokers)
        moves = made
    under_way = {
        (name, index)
        for name, topic in said.topics.items()
        for index, part in enumerate(topic.partitions)
        if part.adding or part.removing
    }
    waiting = [move for move in moves if move.key not in under_way]
    room = max(AT_A_TIME - len(under_way), 0)
    begin = {(move.key.topic, move.key.partition): move.after for move in waiting[:room]}
    return MoveReconciler(begin, len(waiting) + len(under_way), planned)


def open_moves(
    planned: PlannedMoves | None, brokers: tuple[PlacementBroker, ...], topics: Mapping[str, ObservedTopicState]
) -> Sequence[Move] | None:
    """Moves of a plan that are still to be made; None where it no longer fits what there is."""
    if planned is None or planned.brokers != brokers:
        return None
    left = []
    for move in planned.moves:
        topic = topics.get(move.key.topic)
        if topic is None or move.key.partition >= len(topic.partitions):
            continue  # deleted since
        part = topic.partitions[move.key.partition]
        now = tuple(broker for broker in part.replicas if broker not in part.removing)
        if now == move.after:
            continue
        if now != move.before:
            return None  # somebody else moves too
        left.append(move)
    return left


def placement_brokers(picture: BrokerSnapshot) -> tuple[PlacementBroker, ...]:
    return tuple(
        PlacementBroker(
            broker.broker_id,
            tuple(part for part in (broker.failure_domain or broker.rack or "").split("/") if part),
            broker.is_draining,
        )
        for broker in sorted(picture.brokers, key=lambda broker: broker.broker_id)
    )


def existing(topics: Mapping[str, ObservedTopicState]) -> dict[PartitionKey, tuple[int, ...]]:
    """The replicas that are wanted: what is under way counts as done."""
    return {
        PartitionKey(name, index): wanted
        for name, topic in topics.items()
        for index, part in enumerate(topic.partitions)
        if (wanted := tuple(broker for broker in part.replicas if broker not in part.removing))
    }


def why_not_now(observed: ObservedCluster, pods: int) -> str:
    """Why replicas are not moved now; empty where they are. A broker that is away would be planned around."""
    said = observed.said
    if said is None:
        return f"the brokers cannot be asked: {observed.brokers_error}"
    registered = {broker.broker_id for broker in said.picture.brokers}
    away = [n for n in range(pods) if n not in registered]
    if away:
        return f"broker {', '.join(map(str, away))} is not there yet"
    silent = registered - said.settings.keys()
    if silent:
        return f"broker {', '.join(map(str, sorted(silent)))} does not answer"
    return ""


def gets_nothing(said: ReportedState, pods: int) -> list[int]:
    """Brokers that hold nothing although there are partitions: new ones, or such as lost what they had for good."""
    if not said.partitions.total:
        return []
    return [
        broker.broker_id
        for broker in said.picture.brokers
        if broker.broker_id < pods and not broker.is_draining and not said.partitions.held.get(broker.broker_id)
    ]
