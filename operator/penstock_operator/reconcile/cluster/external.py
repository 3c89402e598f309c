"""External addresses of the brokers, read from their Services."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock_operator.model.cluster import Cluster
from penstock_operator.ports.kube import SERVICES, Object
from penstock_operator.reconcile.cluster.actions import DeleteObject
from penstock_operator.reconcile.cluster.observed import ObservedCluster
from penstock_operator.specs import names


@dataclass(frozen=True, slots=True)
class ExternalListeners:
    """External addresses and the Services to delete."""

    addresses: dict[int, str]
    """HOST:PORT by broker; :PORT if the host is the node's. Load balancers assign addresses asynchronously."""
    unknown_to: dict[int, str]
    """`ClusterAnnotations.external_unknown_to` to record."""
    missing: tuple[int, ...] = ()
    """Brokers without an address."""
    unwanted: tuple[DeleteObject, ...] = ()
    """Services of removed brokers."""


def plan_external(
    cluster: Cluster, observed: ObservedCluster, pods: int, recorded: Mapping[int, str]
) -> ExternalListeners:
    """Return the external listeners. `pods`: desired number of pods. `recorded`: the recorded `external_unknown_to`."""
    name, external = cluster.metadata.name, cluster.spec.external
    count = pods if external is not None else 0
    kept = {names.external_service(name, ordinal) for ordinal in range(count)}
    services = {n: body for (resource, n), body in observed.live.items() if resource == SERVICES}
    unwanted = tuple(
        DeleteObject(SERVICES, n, body["metadata"]["uid"])
        for n, body in sorted(services.items())
        if names.ORDINAL_LABEL in (body["metadata"].get("labels") or {}) and n not in kept and is_own(cluster, body)
    )
    addresses = {}
    for ordinal in range(count):
        address = address_of(cluster, services.get(names.external_service(name, ordinal)))
        if address is not None:
            addresses[ordinal] = address
    published, there = published_addresses(observed), {pod.ordinal: pod.uid for pod in observed.pods}
    unknown_to = {
        ordinal: recorded.get(ordinal, "") if published.get(ordinal) == address else there.get(ordinal, "")
        for ordinal, address in addresses.items()
    }
    missing = tuple(ordinal for ordinal in range(count) if ordinal not in addresses)
    return ExternalListeners(addresses, unknown_to, missing, unwanted)


def is_own(cluster: Cluster, body: Object) -> bool:
    """Whether the Cluster owns an object. The labels do not prove it: a user's copy has them, too."""
    return any(owner.get("uid") == cluster.metadata.uid for owner in body["metadata"].get("ownerReferences") or ())


def published_addresses(observed: ObservedCluster) -> dict[int, str]:
    """Return the external addresses in the ConfigMap, by broker."""
    data: dict[str, Any] = (observed.config_map or {}).get("data") or {}
    return {
        int(key.removeprefix("external-")): str(text).strip()
        for key, text in data.items()
        if key.startswith("external-") and key.removeprefix("external-").isdecimal()
    }


def address_of(cluster: Cluster, service: Object | None) -> str | None:
    """Return the external address of a broker's Service; None if it has none yet."""
    external = cluster.spec.external
    if service is None or external is None or service.get("spec", {}).get("type") != external.type:
        return None
    if external.type == "NodePort":
        ports = service["spec"].get("ports") or ()
        number = ports[0].get("nodePort") if ports else None
        return f"{bracket_ipv6(external.host or '')}:{number}" if number else None
    ingress = ((service.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ()
    host = ingress[0].get("hostname") or ingress[0].get("ip") if ingress else None
    return f"{bracket_ipv6(host)}:{external.port}" if host else None


def bracket_ipv6(host: str) -> str:
    """Return a host with an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host
