"""Volumes: expansion of claims, and condition Storage.

Claims are compared individually: a claim of an earlier Cluster, or one created by a user, may be smaller than others.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock_operator.model.cluster import Cluster
from penstock_operator.ports.kube import STATEFUL_SETS
from penstock_operator.reconcile.cluster.actions import DeleteObject, ExpandClaim
from penstock_operator.reconcile.cluster.observed import ObservedClaim, ObservedCluster, storage_of
from penstock_operator.specs import names
from penstock_operator.specs.quantity import amount


@dataclass(frozen=True, slots=True)
class StoragePlan:
    """Result of planning volumes. `sizes`: current sizes of the StatefulSet's claim templates. Empty `reason`: nothing
    to report."""

    sizes: dict[str, str]
    actions: tuple[ExpandClaim | DeleteObject, ...] = ()
    reason: str = ""
    message: str = ""
    requeue_after_s: float | None = None


def plan_storage(cluster: Cluster, observed: ObservedCluster) -> StoragePlan:
    """Plan volumes. Claims are patched first. When all request the new size, the StatefulSet is deleted with orphaned
    pods and recreated, because claim templates are immutable."""
    desired = {names.DATA_CLAIM: cluster.spec.brokers.storage.size}
    if cluster.spec.etcd.sidecar is not None:
        desired[names.ETCD_CLAIM] = cluster.spec.etcd.sidecar.storage.size
    live = template_sizes(observed)
    if not live:
        return StoragePlan(desired)
    sizes, actions = dict(desired), []
    reason = message = ""
    for template, size in desired.items():
        now = live.get(template, size)
        sizes[template] = now
        if amount(size) < amount(now):
            reason, message = "SmallerRefused", f"volumes cannot shrink: {template} stays at {now} instead of {size}"
            continue
        small = small_claims(cluster, observed, template, size)
        grow = [ExpandClaim(claim.name, size) for claim in small]
        if refused := [g for g in grow if g.key in observed.refused]:
            what = f"{template} from {now}" if amount(now) < amount(size) else refused[0].name
            reason, message = "NotExpandable", f"cannot expand {what} to {size}: {observed.refused[refused[0].key]}"
        elif grow:
            actions += grow
            reason, message = "Expanding", f"expanding {len(grow)} volumes to {size}"
        else:
            sizes[template] = size
    remake = _remake(observed, sizes, live) if not actions else ()
    problem = lost_volume(observed)
    if problem and not reason:
        reason, message = "VolumeLost", problem
    elif not reason and (growing := _growing(observed)):
        reason, message = "Expanding", f"{len(growing)} volumes are being expanded: {growing[0].name}"
    return StoragePlan(sizes, (*actions, *remake), reason, message, 2.0 if actions or remake else None)


def small_claims(cluster: Cluster, observed: ObservedCluster, template: str, size: str) -> list[ObservedClaim]:
    """Return the claims below `size` of existing or desired brokers; unused volumes are ignored."""
    pods = max(cluster.spec.brokers.replicas, *(pod.ordinal + 1 for pod in observed.pods), 1)
    return [
        claim
        for claim in observed.claims
        if claim.template == template and claim.ordinal < pods and not claim.is_terminating
        if amount(claim.requested) < amount(size)
    ]


def template_sizes(observed: ObservedCluster) -> dict[str, str]:
    """Return the sizes of the StatefulSet's claim templates; empty if it does not exist."""
    live = observed.stateful_set
    if live is None:
        return {}
    templates = live.get("spec", {}).get("volumeClaimTemplates") or ()
    return {t["metadata"]["name"]: storage_of(t.get("spec") or {}) or "0" for t in templates}


def _remake(observed: ObservedCluster, sizes: dict[str, str], live: dict[str, str]) -> tuple[DeleteObject, ...]:
    body = observed.stateful_set
    if body is None or all(amount(sizes[t]) == amount(live.get(t, sizes[t])) for t in sizes):
        return ()
    return (DeleteObject(STATEFUL_SETS, body["metadata"]["name"], body["metadata"]["uid"], orphan=True),)


def _growing(observed: ObservedCluster) -> list[ObservedClaim]:
    return [
        claim
        for claim in observed.claims
        if claim.phase == "Bound" and claim.capacity and amount(claim.capacity) < amount(claim.requested)
    ]


def lost_volume(observed: ObservedCluster) -> str:
    """Return the instructions for a claim whose volume is lost, or ""."""
    for claim in observed.claims:
        if claim.phase == "Lost":
            pod = claim.name.removeprefix(f"{claim.template}-")
            return (
                f"the volume of claim {claim.name} is lost: delete the claim and pod {pod}; the broker restarts empty"
                " and fetches its replicas from the other brokers"
            )
    return ""
