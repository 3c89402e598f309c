"""Volumes: they grow where that is wanted and possible, never shrink, and one that is gone is told.

Each claim counts by itself: one that outlived an earlier Cluster, or was made by hand, may be smaller than all others.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock_operator.model.cluster import Cluster
from penstock_operator.ports.kube import STATEFUL_SETS
from penstock_operator.reconcile.cluster.actions import GrowClaim, Remove
from penstock_operator.reconcile.cluster.observed import ObservedClaim, ObservedCluster, storage_of
from penstock_operator.specs import names
from penstock_operator.specs.quantity import amount


@dataclass(frozen=True, slots=True)
class StorageReconciler:
    """`sizes` are those of the StatefulSet's templates for now, by template. `reason` is empty where all is well."""

    sizes: dict[str, str]
    actions: tuple[GrowClaim | Remove, ...] = ()
    reason: str = ""
    message: str = ""
    look_again_s: float | None = None


def plan_storage(cluster: Cluster, observed: ObservedCluster) -> StorageReconciler:
    """Claims are patched first. When all ask for the new size the StatefulSet is deleted without its pods, and made
    again with the new template, since templates cannot be changed."""
    wanted = {names.DATA_CLAIM: cluster.spec.brokers.storage.size}
    if cluster.spec.etcd.sidecar is not None:
        wanted[names.ETCD_CLAIM] = cluster.spec.etcd.sidecar.storage.size
    live = template_sizes(observed)
    if not live:
        return StorageReconciler(wanted)
    sizes, actions = dict(wanted), []
    reason = message = ""
    for template, size in wanted.items():
        now = live.get(template, size)
        sizes[template] = now
        if amount(size) < amount(now):
            reason, message = "SmallerRefused", f"volumes do not shrink: {template} stays {now}, not {size}"
            continue
        small = small_claims(cluster, observed, template, size)
        grow = [GrowClaim(claim.name, size) for claim in small]
        if refused := [g for g in grow if g.key in observed.refused]:
            stays = f"{template} stays {now}" if amount(now) < amount(size) else f"{refused[0].name} stays as it is"
            reason, message = "NotExpandable", f"{stays}, not {size}: {observed.refused[refused[0].key]}"
        elif grow:
            actions += grow
            reason, message = "Expanding", f"{len(grow)} volumes grow to {size}"
        else:
            sizes[template] = size
    remake = _remake(observed, sizes, live) if not actions else ()
    problem = lost_volume(observed)
    if problem and not reason:
        reason, message = "VolumeLost", problem
    elif not reason and (growing := _growing(observed)):
        reason, message = "Expanding", f"{len(growing)} volumes are being expanded: {growing[0].name}"
    return StorageReconciler(sizes, (*actions, *remake), reason, message, 2.0 if actions or remake else None)


def small_claims(cluster: Cluster, observed: ObservedCluster, template: str, size: str) -> list[ObservedClaim]:
    """Those of brokers that are there, or are to be: volumes that nobody uses are nobody's business."""
    pods = max(cluster.spec.brokers.replicas, *(pod.ordinal + 1 for pod in observed.pods), 1)
    return [
        claim
        for claim in observed.claims
        if claim.template == template and claim.ordinal < pods and not claim.is_terminating
        if amount(claim.requested) < amount(size)
    ]


def template_sizes(observed: ObservedCluster) -> dict[str, str]:
    live = observed.stateful_set
    if live is None:
        return {}
    templates = live.get("spec", {}).get("volumeClaimTemplates") or ()
    return {t["metadata"]["name"]: storage_of(t.get("spec") or {}) or "0" for t in templates}


def _remake(observed: ObservedCluster, sizes: dict[str, str], live: dict[str, str]) -> tuple[Remove, ...]:
    body = observed.stateful_set
    if body is None or all(amount(sizes[t]) == amount(live.get(t, sizes[t])) for t in sizes):
        return ()
    return (Remove(STATEFUL_SETS, body["metadata"]["name"], body["metadata"]["uid"], orphan=True),)


def _growing(observed: ObservedCluster) -> list[ObservedClaim]:
    return [
        claim
        for claim in observed.claims
        if claim.phase == "Bound" and claim.capacity and amount(claim.capacity) < amount(claim.requested)
    ]


def lost_volume(observed: ObservedCluster) -> str:
    """What to do about a claim whose volume is gone; empty where none is."""
    for claim in observed.claims:
        if claim.phase == "Lost":
            pod = claim.name.removeprefix(f"{claim.template}-")
            return (
                f"the volume of {claim.name} is gone: delete the claim and the pod {pod}; the broker comes back empty"
                " and gets its replicas from the others"
            )
    return ""
