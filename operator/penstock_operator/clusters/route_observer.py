"""Reads the TLSRoutes of a cluster. Used by `observer`.

They are listed in each observation instead of watched: most Kubernetes clusters have no Gateway API, and few Clusters
have listeners of type tlsroute.
"""

from __future__ import annotations

from penstock_operator.model.cluster import Cluster
from penstock_operator.ports.kube import TLS_ROUTES, Kube, KubeError, KubeResource, Object
from penstock_operator.specs import cluster_annotations, names
from penstock_operator.specs.listeners import routed_listeners

HINTS = {
    403: "set rbac.gatewayApi: true in the chart's values for Clusters with listeners of type tlsroute",
    404: "install the Gateway API, 1.5 or later, for Clusters with listeners of type tlsroute",
}


def may_have_routes(cluster: Cluster, config_map: Object | None) -> bool:
    """Whether the cluster has routes, or had some that may not be deleted yet."""
    annotations = ((config_map or {}).get("metadata") or {}).get("annotations") or {}
    return bool(routed_listeners(cluster)) or cluster_annotations.read(annotations).has_routes


async def observe_routes(kube: Kube, cluster: Cluster) -> tuple[dict[tuple[KubeResource, str], Object], str]:
    """Return the TLSRoutes with the cluster's label by resource and name, and why they were not read, or ""."""
    meta = cluster.metadata
    try:
        listed = await kube.list(TLS_ROUTES, meta.namespace, {names.CLUSTER_LABEL: meta.name})
    except KubeError as e:
        if e.status == 404 and not routed_listeners(cluster):
            return {}, ""  # the Gateway API was uninstalled, with all its objects
        return {}, f"cannot read TLSRoutes: {e}" + (f"; {HINTS[e.status]}" if e.status in HINTS else "")
    return {(TLS_ROUTES, body["metadata"]["name"]): body for body in listed}, ""
