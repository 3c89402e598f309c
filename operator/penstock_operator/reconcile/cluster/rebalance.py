"""Decides when replicas move: at once, or after a user has approved the plan. Used by `reconcile`.

With `moving.automatic`, moves start when a broker holds nothing. Without it, and if annotation `penstock.io/rebalance`
is "plan", the plan stands in the status with a hash as its id, and starts when the annotation has that id: an approval
is valid for the moves that the user saw.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from penstock.placement.model import Move
from penstock_operator.model.cluster import Cluster, ProposedMove, RebalanceStatus
from penstock_operator.reconcile.cluster.moves import (
    PlannedMoves,
    ReplicaMoves,
    empty_brokers,
    move_blocker,
    next_moves,
)
from penstock_operator.reconcile.cluster.observed import ObservedCluster
from penstock_operator.reconcile.cluster.roll import RollingRestart
from penstock_operator.reconcile.cluster.scale import ScalePlan
from penstock_operator.specs import compare, names

MAX_LISTED_MOVES = 20
"""Maximum number of moves of a proposed plan that the status lists."""
PLAN = "plan"
"""Value of the annotation that requests a plan although all brokers hold replicas."""
BALANCED = "none"
"""Id of a requested plan without moves."""


@dataclass(frozen=True, slots=True)
class RebalancePlan:
    """Moves, the reason of ongoing moves to record, why they wait, and the plan that waits for an approval."""

    moves: ReplicaMoves | None = None
    moving: str = ""
    waits: str = ""
    proposal: RebalanceStatus | None = None


def plan_moves(
    cluster: Cluster,
    observed: ObservedCluster,
    scale: ScalePlan,
    roll: RollingRestart,
    is_reconfiguring: bool,
    moving: str,
    planned: PlannedMoves | None,
) -> RebalancePlan:
    """Plan the moves of replicas. `moving`: the recorded reason of ongoing moves."""
    answer = cluster.metadata.annotations.get(names.REBALANCE, "")
    if moving and not cluster.spec.moving.automatic and moving != approval_of(answer):
        moving = ""  # moves that were not approved, or whose approval was withdrawn; those that run complete
    if not moving:
        if observed.reported is None or scale.leaving or not scale.ok or roll.outdated or is_reconfiguring:
            return RebalancePlan(proposal=cluster.status.rebalance)
        return plan_start(cluster, observed, scale, answer, planned)
    waits = ""
    if scale.changes or scale.reason == "ScalingUp":
        waits = scale.message
    elif roll.outdated:
        waits = "brokers are being restarted"
    elif is_reconfiguring:
        waits = "broker settings are being changed"
    else:
        waits = move_blocker(observed, scale.pods)
    if waits:
        return RebalancePlan(None, moving, waits)
    moves = next_moves(observed, planned)
    if moving == approval_of(answer) and planned is not None and moves.planned is not planned:
        # Brokers or replicas changed: this is another plan.
        return RebalancePlan(hold(moves), proposal=propose(observed, moves, moving, cluster.status.rebalance))
    return RebalancePlan(moves, moving if moves.left else "", moves.blocker)


def plan_start(
    cluster: Cluster, observed: ObservedCluster, scale: ScalePlan, answer: str, planned: PlannedMoves | None
) -> RebalancePlan:
    """Plan the start of moves. The reason is recorded first; the moves start at the next reconciliation."""
    reported = observed.reported
    assert reported is not None, "plan_moves requires a broker report"
    idle, before = empty_brokers(reported, scale.pods), cluster.status.rebalance
    is_asked = answer == PLAN or (before is not None and answer == before.id)
    if not (idle or is_asked):
        return RebalancePlan()
    if move_blocker(observed, scale.pods):
        return RebalancePlan(proposal=before)
    moves = next_moves(observed, planned)
    fills = any(broker in after for after in moves.begin.values() for broker in idle)
    reason = f"broker {', '.join(map(str, idle))} holds nothing" if fills else "requested by annotation"
    if cluster.spec.moving.automatic and fills:
        return RebalancePlan(hold(moves), reason)
    if not (fills or is_asked):
        return RebalancePlan(hold(moves))
    proposal = propose(observed, moves, reason, before)
    if proposal is not None and proposal.id == answer and proposal.id != BALANCED:
        return RebalancePlan(hold(moves), approval_of(answer))
    return RebalancePlan(hold(moves), proposal=proposal)


def approval_of(plan_id: str) -> str:
    """Return the reason of moves that a user approved."""
    return f"plan {plan_id} was approved"


def hold(moves: ReplicaMoves) -> ReplicaMoves | None:
    """Return the moves without starting any; keeps the plan."""
    return replace(moves, begin={}) if moves.planned is not None else None


def propose(
    observed: ObservedCluster, moves: ReplicaMoves, reason: str, before: RebalanceStatus | None
) -> RebalanceStatus | None:
    """Return the plan for the status; None if no plan is possible. `before`: the plan in the status."""
    if moves.planned is None:
        return None
    made = moves.planned.moves
    if not made:
        return RebalanceStatus(id=BALANCED, reason="the replicas are balanced", partitions=0, bytes=0)
    sizes, made_id = observed.replica_sizes, plan_id(made)
    if sizes is None and before is not None and before.id == made_id:
        return before  # with the sizes of an earlier query
    by_size = sorted(made, key=lambda move: (-moved_bytes(move, sizes or {}), move.key))
    return RebalanceStatus(
        id=made_id,
        reason=reason,
        partitions=len(made),
        bytes=sum(moved_bytes(move, sizes) for move in made) if sizes is not None else None,
        moves=tuple(
            ProposedMove(
                topic=move.key.topic,
                partition=move.key.partition,
                from_brokers=tuple(sorted(move.removes)),
                to_brokers=tuple(sorted(move.adds)),
                bytes=moved_bytes(move, sizes) if sizes is not None else None,
            )
            for move in by_size[:MAX_LISTED_MOVES]
        ),
    )


def plan_id(moves: tuple[Move, ...]) -> str:
    """Return the id of a plan: a hash of its moves."""
    return compare.digest([[*move.key, list(move.before), list(move.after)] for move in moves])[:12]


def moved_bytes(move: Move, sizes: Mapping[tuple[str, int], int]) -> int:
    """Return the bytes that a move copies. `sizes`: bytes of one replica by partition."""
    return sizes.get((move.key.topic, move.key.partition), 0) * len(move.adds)
