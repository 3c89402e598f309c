"""Plans the volumes of the companion etcd: claims are expanded one at a time. Part of condition Storage.

The chart's StatefulSet keeps the size of its claim template, which is immutable. A claim that is created again has that
size, and is expanded again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from penstock_operator.model.cluster import Cluster
from penstock_operator.reconcile.cluster.actions import ExpandClaim
from penstock_operator.reconcile.cluster.observed import ObservedCluster
from penstock_operator.reconcile.cluster.observed_store import ObservedStoreClaim
from penstock_operator.reconcile.cluster.storage import StoragePlan
from penstock_operator.specs.quantity import amount

STEP_INTERVAL_S = 3.0
"""Requeue interval while a claim is expanded: its changes cause no event."""


def is_settled(size: str, claims: Iterable[ObservedStoreClaim]) -> bool:
    """Whether no claim has to change."""
    return all(
        not claim.is_terminating
        and amount(claim.requested) >= amount(size)
        and bool(claim.capacity)
        and amount(claim.capacity) >= amount(claim.requested)
        for claim in claims
    )


def plan_store_storage(cluster: Cluster, observed: ObservedCluster) -> StoragePlan:
    """Plan the expansion of the members' claims."""
    storage, store = cluster.spec.etcd.storage, observed.store
    if storage is None or store is None:
        return StoragePlan({})
    size, claims = storage.size, [claim for claim in store.claims if not claim.is_terminating]
    if larger := [claim for claim in claims if amount(claim.requested) > amount(size)]:
        message = f"volumes cannot shrink: {larger[0].name} of etcd stays at {larger[0].requested} instead of {size}"
        return StoragePlan({}, reason="SmallerRefused", message=message)
    small = [claim for claim in claims if amount(claim.requested) < amount(size)]
    for claim in small:
        if why := observed.refused.get(ExpandClaim(claim.name, size).key):
            message = f"cannot expand {claim.name} of etcd from {claim.requested} to {size}: {why}"
            return StoragePlan({}, reason="NotExpandable", message=message)
    growing = [c for c in claims if c not in small and c.capacity and amount(c.capacity) < amount(c.requested)]
    if growing:
        message = f"the volume of {growing[0].name} of etcd is being expanded, {len(small)} are left"
        return StoragePlan({}, reason="Expanding", message=message, requeue_after_s=STEP_INTERVAL_S)
    if not small:
        return StoragePlan({})
    message = f"expanding {small[0].name} of etcd to {size}, {len(small) - 1} are left"
    return StoragePlan({}, (ExpandClaim(small[0].name, size),), "Expanding", message, STEP_INTERVAL_S)


def with_store_storage(brokers: StoragePlan, etcd: StoragePlan) -> StoragePlan:
    """Return the plan of all volumes; the condition is that of the brokers if they have something to report."""
    times = [time for time in (brokers.requeue_after_s, etcd.requeue_after_s) if time is not None]
    return replace(
        brokers,
        actions=(*brokers.actions, *etcd.actions),
        reason=brokers.reason or etcd.reason,
        message=brokers.message if brokers.reason else etcd.message,
        requeue_after_s=min(times, default=None),
    )
