"""Plans moves of pods that share a node although another node is free: condition Spread.

The scheduler prefers to spread pods but decides only once: after a drain, pods stay where they are. The operator
deletes one pod at a time, only while everything is healthy, and the scheduler places it again. It may return to its
node, for example because its volume is there, so each further move waits longer (`MOVE_BACKOFF_S`). Moves are recorded
before they start. Zones are not a reason for a move: volumes rarely leave them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock_operator.reconcile.cluster.actions import MovePod
from penstock_operator.reconcile.cluster.observed import seconds_between
from penstock_operator.reconcile.cluster.observed_nodes import NodeRequirements, ObservedNode
from penstock_operator.specs.cluster_annotations import SpreadMove

MOVE_BACKOFF_S = (600.0, 3_600.0, 21_600.0, 86_400.0, 604_800.0)
"""Minimum time between moves of a group; the last one repeats."""
FORGET_S = 86_400.0
"""Time after which the moves of a group that is spread are forgotten. Until then, another program that moves pods back
meets longer and longer pauses."""
WAIT_INTERVAL_S = 30.0


@dataclass(frozen=True, slots=True)
class PlacedPod:
    """A pod of a group. The pod with the highest `rank` moves last."""

    name: str
    uid: str
    node: str | None
    requirements: NodeRequirements = field(default_factory=NodeRequirements)
    rank: int = 0
    blocker: str = ""
    """Why this pod may not stop now, or ""."""


@dataclass(frozen=True, slots=True)
class PodGroup:
    """Pods that should run on different nodes."""

    key: str
    title: str
    pods: tuple[PlacedPod, ...]
    size: int
    """Desired number of pods."""
    blocker: str = ""
    """Why none of the pods may stop now, or ""."""


@dataclass(frozen=True, slots=True)
class SpreadPlan:
    """Condition Spread, the next move, and the moves to record. `reason` "": there is nothing to report."""

    is_spread: bool | None = None
    reason: str = ""
    message: str = ""
    move: MovePod | None = None
    moves: Mapping[str, SpreadMove] = field(default_factory=dict)
    requeue_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class SkewedNode:
    """A node with at least two more pods of a group than another node, which may run the `candidates`."""

    node: str
    count: int
    free: str
    free_count: int
    candidates: tuple[PlacedPod, ...]


def plan_spread(
    groups: Sequence[PodGroup], nodes: Sequence[ObservedNode] | None, moves: Mapping[str, SpreadMove], now: str
) -> SpreadPlan:
    """Plan the spread of the groups; the first one that may move a pod does. `moves`: recorded moves."""
    if nodes is None:
        message = "the operator cannot read nodes: set rbac.nodes: true in the chart's values"
        return SpreadPlan(None, "NodesUnknown", message, moves=moves)
    crowds = {group.key: crowd for group in groups if (crowd := find_crowd(group.pods, nodes)) is not None}
    left = {key: move for key, move in moves.items() if key in crowds or (elapsed(move, now) or 0.0) <= FORGET_S}
    if not crowds:
        placed = "; ".join(describe(group) for group in groups)
        if any(sum(pod.node is not None for pod in group.pods) < group.size for group in groups):
            return SpreadPlan(None, "Scheduling", placed, moves=left)
        return SpreadPlan(True, "Spread", placed, moves=left)
    chosen: MovePod | None = None
    reason, texts = "Crowded", []
    for group in groups:
        if (crowd := crowds.get(group.key)) is None:
            continue
        text = f"{crowd.count} {group.title} share node {crowd.node} although node {crowd.free} has {crowd.free_count}"
        last = left.get(group.key)
        pod = choose(crowd, last)
        if group.blocker or pod.blocker:
            text += f"; waiting: {group.blocker or pod.blocker}"
        elif last is not None and not is_due(last, now):
            reason = "PlacedBack"
            text += f"; pod {last.pod} was moved at {last.at} and a pod came back; the next move waits longer"
        elif chosen is None:
            chosen = MovePod(pod.name, pod.uid, group.key, crowd.node)
            text += f"; moving pod {pod.name}"
            left |= {group.key: SpreadMove(pod.name, now, last.attempts + 1 if last is not None else 1)}
        texts.append(text)
    return SpreadPlan(False, "Moving" if chosen else reason, "; ".join(texts), chosen, left, WAIT_INTERVAL_S)


def find_crowd(pods: Sequence[PlacedPod], nodes: Sequence[ObservedNode]) -> SkewedNode | None:
    """Return the fullest node with a pod that could run on a node with at least two pods less."""
    counts = Counter(pod.node for pod in pods if pod.node is not None)
    for node, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        here = [pod for pod in pods if pod.node == node]
        by_free: dict[str, list[PlacedPod]] = {}
        for pod in here:
            free = [other.name for other in nodes if counts[other.name] <= count - 2 and pod.requirements.allow(other)]
            if free:
                by_free.setdefault(min(free, key=lambda name: (counts[name], name)), []).append(pod)
        if by_free:
            name, candidates = min(by_free.items())
            return SkewedNode(node, count, name, counts[name], tuple(candidates))
    return None


def choose(crowd: SkewedNode, last: SpreadMove | None) -> PlacedPod:
    """Return the next pod to move: one that may stop, and another one than the last time if possible, because its
    volume may be able to follow it."""
    return min(
        crowd.candidates,
        key=lambda pod: (bool(pod.blocker), last is not None and pod.name == last.pod, pod.rank, pod.name),
    )


def is_due(last: SpreadMove, now: str) -> bool:
    """Whether the pause after the last move is over. A time in the future is not trusted."""
    since = elapsed(last, now)
    return since is None or not 0 <= since < MOVE_BACKOFF_S[min(last.attempts, len(MOVE_BACKOFF_S)) - 1]


def elapsed(move: SpreadMove, now: str) -> float | None:
    """Return the seconds since a move; None if its time is invalid."""
    return seconds_between(move.at, now)


def describe(group: PodGroup) -> str:
    """Return on how many nodes a group runs."""
    nodes = {pod.node for pod in group.pods if pod.node is not None}
    return f"{len(group.pods)} {group.title} run on {len(nodes)} nodes"
