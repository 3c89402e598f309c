"""Whether the brokers have ever formed a cluster. From then on they may hold data, and a broker is removed only after
it was drained. Used by the `reconcile.cluster` modules."""

from __future__ import annotations

from penstock_operator.model.cluster import Cluster
from penstock_operator.reconcile.cluster.observed import ObservedCluster
from penstock_operator.specs import etcd


def is_founded(cluster: Cluster, observed: ObservedCluster) -> bool:
    """Whether a cluster was formed: by the status, the brokers' report, annotations of claims, or this Cluster's
    ConfigMap, which survives a lost status. A ConfigMap of an earlier Cluster of the same name does not count."""
    if cluster.status.cluster_id is not None or observed.reported is not None or members_of_claims(observed):
        return True
    body = observed.config_map or {"metadata": {}}
    owners = {owner.get("uid") for owner in body["metadata"].get("ownerReferences") or ()}
    return cluster.metadata.uid in owners and etcd.FOUNDED in (body.get("data") or {})


def members_of_claims(observed: ObservedCluster) -> int:
    """Return the number of etcd members recorded at claims, possibly by an earlier Cluster of this name; 0: unknown."""
    return max((claim.members for claim in observed.claims if not claim.is_terminating), default=0)
