"""Volumes of the companion etcd: which claim is expanded, and what condition Storage says."""

from __future__ import annotations

from typing import Any

import pytest
from reconcile.cluster_tables import cluster, observed

from penstock_operator.reconcile.cluster.actions import ExpandClaim
from penstock_operator.reconcile.cluster.observed_store import (
    ObservedStore,
    ObservedStoreClaim,
    read_store_claim,
    read_store_pod,
)
from penstock_operator.reconcile.cluster.storage import StoragePlan
from penstock_operator.reconcile.cluster.store_storage import (
    is_settled,
    plan_store_storage,
    with_store_storage,
)

URLS = [f"http://p-etcd-{n}.ns.svc:2379" for n in range(3)]


def claim(n: int, requested: str = "2Gi", capacity: str | None = None, **more: Any) -> ObservedStoreClaim:
    return ObservedStoreClaim(
        f"data-p-etcd-{n}", f"uid-{n}", requested, requested if capacity is None else capacity, **more
    )


def plan(*claims: ObservedStoreClaim, size: str = "4Gi", **more: Any) -> StoragePlan:
    etcd = {"endpoints": URLS, "managed": True, "statefulSet": "p-etcd", "storage": {"size": size}}
    return plan_store_storage(cluster(etcd=etcd), observed(store=ObservedStore(None, claims=claims), **more))


def test_volumes_of_the_right_size_are_left_alone() -> None:
    assert plan(claim(0), claim(1, "2048Mi"), size="2Gi") == StoragePlan({})
    assert plan_store_storage(cluster(), observed(store=ObservedStore(None))) == StoragePlan({})
    assert plan_store_storage(cluster(), observed()) == StoragePlan({})


def test_claims_are_expanded_one_at_a_time() -> None:
    first = plan(claim(0), claim(1), claim(2))
    assert first.actions == (ExpandClaim("data-p-etcd-0", "4Gi"),)
    assert (first.reason, first.message) == ("Expanding", "expanding data-p-etcd-0 of etcd to 4Gi, 2 are left")
    waits = plan(claim(0, "4Gi", "2Gi"), claim(1), claim(2))
    assert (waits.actions, waits.reason) == ((), "Expanding")
    assert waits.requeue_after_s == 3.0
    assert plan(claim(0, "4Gi"), claim(1), claim(2)).actions == (ExpandClaim("data-p-etcd-1", "4Gi"),)
    assert plan(*(claim(n, "4Gi") for n in range(3))) == StoragePlan({})


def test_a_class_that_does_not_expand_is_told_and_the_wish_can_be_taken_back() -> None:
    refused = plan(claim(0), claim(1), refused={"data-p-etcd-0=4Gi": "only dynamically provisioned"})
    assert (refused.reason, refused.actions) == ("NotExpandable", ())
    assert "cannot expand data-p-etcd-0 of etcd from 2Gi to 4Gi: only dynamically provisioned" in refused.message
    back = plan(claim(0), claim(1), size="2Gi", refused={"data-p-etcd-0=4Gi": "only dynamically provisioned"})
    assert back == StoragePlan({})


def test_volumes_never_shrink() -> None:
    found = plan(claim(0, "8Gi"), claim(1))
    assert (found.reason, found.actions) == ("SmallerRefused", ())
    assert "data-p-etcd-0 of etcd stays at 8Gi instead of 4Gi" in found.message


def test_a_claim_that_is_being_deleted_is_not_expanded() -> None:
    assert plan(claim(0, is_terminating=True), claim(1, "4Gi")) == StoragePlan({})


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ((claim(0, "4Gi"), claim(1, "5Gi")), True),
        ((claim(0, "2Gi"),), False),
        ((claim(0, "4Gi", "2Gi"),), False),
        ((claim(0, "4Gi", ""),), False),
        ((claim(0, "4Gi", is_terminating=True),), False),
    ],
)
def test_claims_are_read_again_until_they_are_as_they_should_be(
    claims: tuple[ObservedStoreClaim, ...], expected: bool
) -> None:
    assert is_settled("4Gi", claims) == expected


def test_the_condition_is_that_of_the_brokers_first() -> None:
    brokers = StoragePlan({"data": "1Gi"}, reason="VolumeLost", message="lost", requeue_after_s=5.0)
    both = with_store_storage(brokers, plan(claim(0)))
    assert (both.sizes, both.reason, both.message, both.requeue_after_s) == ({"data": "1Gi"}, "VolumeLost", "lost", 3.0)
    assert both.actions == (ExpandClaim("data-p-etcd-0", "4Gi"),)
    assert with_store_storage(StoragePlan({}), plan(claim(0))).reason == "Expanding"


def test_the_claim_of_a_member_is_the_one_that_its_pod_mounts() -> None:
    meta = {"name": "p-etcd-1", "ownerReferences": [{"kind": "StatefulSet", "name": "p-etcd"}]}
    volumes = [{"name": "tls", "secret": {}}, {"name": "data", "persistentVolumeClaim": {"claimName": "data-p-etcd-1"}}]
    found = read_store_pod("p-etcd", {"metadata": meta, "spec": {"volumes": volumes}})
    assert found is not None
    assert found.claim == "data-p-etcd-1"
    body = {
        "metadata": {"name": "data-p-etcd-1"},
        "spec": {"resources": {"requests": {"storage": "2Gi"}}},
        "status": {"capacity": {"storage": "1Gi"}},
    }
    assert read_store_claim("u", body) == ObservedStoreClaim("data-p-etcd-1", "u", "2Gi", "1Gi")
