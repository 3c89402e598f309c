"""Whether an object that a cluster needs belongs to another owner. Used by `action_runner` and `certificate_issuer`."""

from __future__ import annotations

from penstock_operator.model.cluster import Cluster
from penstock_operator.ports.kube import KubeResource, Object
from penstock_operator.specs import names


def ownership_conflict(cluster: Cluster, resource: KubeResource, there: Object | None) -> str:
    """Return why an object cannot be created: another owner has one with this name. Otherwise ""."""
    meta = cluster.metadata
    if there is None or there["metadata"].get("labels", {}).get(names.CLUSTER_LABEL) == meta.name:
        return ""
    owners = there["metadata"].get("ownerReferences") or ()
    if any(owner.get("uid") == meta.uid for owner in owners):
        return ""
    whose = next((f"{owner.get('kind')} {owner.get('name')}" for owner in owners), "another owner")
    return (
        f"{there.get('kind', resource.plural)} {there['metadata']['name']} exists and belongs to {whose}, not to this"
        " Cluster: delete it, or create the Cluster with another name"
    )
