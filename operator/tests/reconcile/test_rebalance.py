"""Plans of moves as a table: what approves one, and what its id depends on."""

from __future__ import annotations

import pytest
from msgspec.structs import replace as changed
from reconcile.cluster_tables import cluster, observed, part, pod, reported, topics

from penstock.placement.model import Move, PartitionKey
from penstock_operator.model.cluster import Cluster
from penstock_operator.reconcile.cluster.observed import ObservedCluster
from penstock_operator.reconcile.cluster.rebalance import RebalancePlan, plan_id, plan_moves
from penstock_operator.reconcile.cluster.roll import RollingRestart
from penstock_operator.reconcile.cluster.scale import ScalePlan
from penstock_operator.specs import names

PODS = [pod(n) for n in range(4)]
FOUR = reported(range(4), topics(t=[part([0, 1, 2])] * 4))


def wanted(answer: str = "", *, automatic: bool = False, **status: object) -> Cluster:
    made = cluster(4, moving={"automatic": automatic}, status=status)
    return changed(made, metadata=changed(made.metadata, annotations={names.REBALANCE: answer}))


def plan(
    desired: Cluster,
    seen: ObservedCluster | None = None,
    moving: str = "",
    *,
    scale: ScalePlan | None = None,
    roll: RollingRestart | None = None,
) -> RebalancePlan:
    found = seen or observed(PODS, FOUR)
    return plan_moves(desired, found, scale or ScalePlan(4), roll or RollingRestart(), False, moving, None)


def proposed() -> str:
    proposal = plan(wanted()).proposal
    assert proposal is not None
    return proposal.id


@pytest.mark.parametrize("automatic", [True, False])
def test_a_broker_without_replicas_gets_some_at_once_or_after_an_approval(automatic: bool) -> None:
    found = plan(wanted(automatic=automatic))
    assert found.moving == ("broker 3 holds nothing" if automatic else "")
    assert (found.proposal is None) == automatic
    assert found.moves is not None
    assert not found.moves.begin


def test_only_the_id_of_this_plan_approves_it() -> None:
    approved = plan(wanted(proposed()))
    assert approved.moving == f"plan {proposed()} was approved"
    assert approved.proposal is None
    for answer in ("", "yes", "plan", "none", proposed()[:-1], proposed().upper() + "x"):
        assert plan(wanted(answer)).moving == ""


def test_an_approved_plan_goes_on_only_with_its_approval() -> None:
    moving = f"plan {proposed()} was approved"
    going = plan(wanted(proposed()), moving=moving)
    assert going.moves is not None
    assert going.moves.begin
    assert plan(wanted(""), moving=moving).moving == ""
    assert plan(wanted("other"), moving=moving).moving == ""


@pytest.mark.parametrize(
    "more",
    [
        {"scale": ScalePlan(4, leaving=frozenset({3}))},
        {"scale": ScalePlan(4, ok=False)},
        {"roll": RollingRestart((1,))},
        {"seen": observed(PODS)},
    ],
)
def test_no_plan_is_made_or_dropped_while_something_else_is_in_progress(more: dict[str, object]) -> None:
    before = {"id": "abc", "reason": "r", "partitions": 1}
    found = plan(wanted("abc", rebalance=before), **more)  # type: ignore[arg-type]
    assert found.moving == ""
    assert found.proposal is not None
    assert found.proposal.id == "abc"


def test_replicas_that_another_client_moved_make_an_approved_plan_another_one() -> None:
    first = plan(wanted()).moves
    assert first is not None
    assert first.planned is not None
    elsewhere = observed(PODS, reported(range(4), topics(t=[part([1, 0, 2])] * 4)))
    desired, moving = wanted(proposed()), f"plan {proposed()} was approved"
    found = plan_moves(desired, elsewhere, ScalePlan(4), RollingRestart(), False, moving, first.planned)
    assert found.moving == ""
    assert found.proposal is not None
    assert found.proposal.id != proposed()
    assert found.moves is not None
    assert not found.moves.begin


def test_the_id_depends_on_each_move() -> None:
    move = Move(PartitionKey("t", 0), (0, 1, 2), (0, 1, 3))
    others = [
        (),
        (Move(PartitionKey("t", 1), (0, 1, 2), (0, 1, 3)),),
        (Move(PartitionKey("t", 0), (0, 1, 2), (0, 3, 1)),),
        (Move(PartitionKey("u", 0), (0, 1, 2), (0, 1, 3)),),
        (move, move),
    ]
    ids = {plan_id((move,)), *map(plan_id, others)}
    assert len(ids) == 6
    assert all(len(each) == 12 for each in ids)
