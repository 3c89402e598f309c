"""By which addresses clients outside reach each broker: what its own Service was given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock_operator.model.cluster import Cluster
from penstock_operator.ports.kube import SERVICES, Object
from penstock_operator.reconcile.cluster.actions import Remove
from penstock_operator.reconcile.cluster.observed import ObservedCluster
from penstock_operator.specs import names


@dataclass(frozen=True, slots=True)
class ExternalListeners:
    addresses: dict[int, str]
    """HOST:PORT by broker, :PORT where the host is the node's. Those of load balancers come with time."""
    unknown_to: dict[int, str]
    """For the notes."""
    missing: tuple[int, ...] = ()
    unwanted: tuple[Remove, ...] = ()
    """Services of brokers that are not there any more."""


def plan_external(
    cluster: Cluster, observed: ObservedCluster, pods: int, noted: Mapping[int, str]
) -> ExternalListeners:
    """`pods`: how many brokers there are to be. `noted`: to which pods addresses were unknown."""
    name, external = cluster.metadata.name, cluster.spec.external
    count = pods if external is not None else 0
    kept = {names.external_service(name, ordinal) for ordinal in range(count)}
    services = {n: body for (resource, n), body in observed.live.items() if resource == SERVICES}
    unwanted = tuple(
        Remove(SERVICES, n, body["metadata"]["uid"])
        for n, body in sorted(services.items())
        if names.ORDINAL_LABEL in (body["metadata"].get("labels") or {}) and n not in kept and is_own(cluster, body)
    )
    addresses = {}
    for ordinal in range(count):
        address = address_of(cluster, services.get(names.external_service(name, ordinal)))
        if address is not None:
            addresses[ordinal] = address
    told, there = told_addresses(observed), {pod.ordinal: pod.uid for pod in observed.pods}
    unknown_to = {
        ordinal: noted.get(ordinal, "") if told.get(ordinal) == address else there.get(ordinal, "")
        for ordinal, address in addresses.items()
    }
    missing = tuple(ordinal for ordinal in range(count) if ordinal not in addresses)
    return ExternalListeners(addresses, unknown_to, missing, unwanted)


def is_own(cluster: Cluster, body: Object) -> bool:
    """Labels are anybody's: a copy that a user made has them, too."""
    return any(owner.get("uid") == cluster.metadata.uid for owner in body["metadata"].get("ownerReferences") or ())


def told_addresses(observed: ObservedCluster) -> dict[int, str]:
    data: dict[str, Any] = (observed.config_map or {}).get("data") or {}
    return {
        int(key.removeprefix("external-")): str(text).strip()
        for key, text in data.items()
        if key.startswith("external-") and key.removeprefix("external-").isdecimal()
    }


def address_of(cluster: Cluster, service: Object | None) -> str | None:
    external = cluster.spec.external
    if service is None or external is None or service.get("spec", {}).get("type") != external.type:
        return None
    if external.type == "NodePort":
        ports = service["spec"].get("ports") or ()
        number = ports[0].get("nodePort") if ports else None
        return f"{bracketed(external.host or '')}:{number}" if number else None
    ingress = ((service.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ()
    host = ingress[0].get("hostname") or ingress[0].get("ip") if ingress else None
    return f"{bracketed(host)}:{external.port}" if host else None


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
