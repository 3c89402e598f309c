"""Renders the TLSRoutes of a cluster, by which a Gateway finds brokers (Gateway API)."""

from __future__ import annotations

from penstock_operator.model.cluster import Cluster
from penstock_operator.ports.kube import TLS_ROUTES, KubeResource, Object
from penstock_operator.specs import names
from penstock_operator.specs.listeners import BrokerListener, routed_listeners


def tls_routes(cluster: Cluster, brokers: int) -> list[tuple[KubeResource, Object]]:
    """Return the routes of `brokers` brokers, and the bootstrap route if a listener has a bootstrap host."""
    name, found = cluster.metadata.name, []
    for listener in routed_listeners(cluster):
        if listener.route is not None and listener.route.bootstrap_host is not None:
            found.append(tls_route(cluster, listener, f"{name}-bootstrap-{listener.port_name}", name, None))
        found += [
            tls_route(cluster, listener, listener.service(name, ordinal), names.pod(name, ordinal), ordinal)
            for ordinal in range(brokers)
        ]
    return [(TLS_ROUTES, body) for body in found]


def tls_route(cluster: Cluster, listener: BrokerListener, name: str, service: str, ordinal: int | None) -> Object:
    """Render the route from a host to a Service: that of a broker, or the bootstrap host with `ordinal` None."""
    route = listener.route
    assert route is not None, f"listener {listener.name} has no route"
    parent = {"name": route.gateway}
    if route.namespace is not None:
        parent["namespace"] = route.namespace
    if route.section_name is not None:
        parent["sectionName"] = route.section_name
    made = names.owned(cluster, "gateway.networking.k8s.io/v1", "TLSRoute", name)
    made["metadata"]["labels"] |= {"app.kubernetes.io/component": "external"}
    if ordinal is not None:
        made["metadata"]["labels"] |= {names.ORDINAL_LABEL: str(ordinal)}
    if listener.annotations:
        made["metadata"]["annotations"] = dict(listener.annotations)
    made["spec"] = {
        "parentRefs": [parent],
        "hostnames": [route.bootstrap_host if ordinal is None else listener.host_of(ordinal)],
        "rules": [{"backendRefs": [{"name": service, "port": listener.port}]}],
    }
    return made
