"""TLSRoutes of listeners and brokers that are no longer there."""

from __future__ import annotations

from dataclasses import dataclass

from penstock_operator.model.cluster import Cluster
from penstock_operator.ports.kube import TLS_ROUTES
from penstock_operator.reconcile.cluster.actions import DeleteObject
from penstock_operator.reconcile.cluster.external import is_own
from penstock_operator.reconcile.cluster.observed import ObservedCluster
from penstock_operator.specs.listeners import routed_listeners
from penstock_operator.specs.routes import tls_routes


@dataclass(frozen=True, slots=True)
class RoutePlan:
    """The TLSRoutes to delete."""

    has_routes: bool
    """`ClusterAnnotations.has_routes` to record: it precedes the first route, and outlasts the last one."""
    unwanted: tuple[DeleteObject, ...] = ()


def plan_routes(cluster: Cluster, observed: ObservedCluster, brokers: int, recorded: bool) -> RoutePlan:
    """Plan the routes of `brokers` brokers. `recorded`: the recorded `has_routes`."""
    wanted = {body["metadata"]["name"] for _, body in tls_routes(cluster, brokers)}
    there = {
        name: body
        for (resource, name), body in observed.live.items()
        if resource == TLS_ROUTES and is_own(cluster, body)
    }
    unwanted = tuple(
        DeleteObject(TLS_ROUTES, name, there[name]["metadata"]["uid"]) for name in sorted(there.keys() - wanted)
    )
    may_remain = recorded and (bool(there) or bool(observed.routes_error))
    return RoutePlan(bool(routed_listeners(cluster)) or may_remain, unwanted)
