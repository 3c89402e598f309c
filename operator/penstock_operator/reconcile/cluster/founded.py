"""Whether brokers have formed a cluster, ever: from then on they hold what cannot be made again, and none of them goes
without having been emptied. Used by `reconcile.cluster` and its parts."""

from __future__ import annotations

from penstock_operator.model.cluster import Cluster
from penstock_operator.reconcile.cluster.observed import ObservedCluster
from penstock_operator.specs import etcd


def is_founded(cluster: Cluster, observed: ObservedCluster) -> bool:
    """The ConfigMap outlives a status that was lost; that of an earlier Cluster of this name, whose claims may be gone,
    does not count, but what is noted at claims does."""
    if cluster.status.cluster_id is not None or observed.said is not None or members_of_claims(observed):
        return True
    body = observed.config_map or {"metadata": {}}
    owners = {owner.get("uid") for owner in body["metadata"].get("ownerReferences") or ()}
    return cluster.metadata.uid in owners and etcd.FOUNDED in (body.get("data") or {})


def members_of_claims(observed: ObservedCluster) -> int:
    """How many members the etcd has whose data are there, maybe an earlier Cluster's of this name; 0: not known."""
    return max((claim.members for claim in observed.claims if not claim.is_terminating), default=0)
