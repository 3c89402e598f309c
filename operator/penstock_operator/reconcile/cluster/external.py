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
from penstock_operator.specs.hosts import host_of
from penstock_operator.specs.listeners import BrokerListener, client_listeners, routed_listeners, service_listeners

MAX_BOOTSTRAP_SERVERS = 3
"""Number of brokers in the bootstrap servers of an external listener."""


@dataclass(frozen=True, slots=True)
class ExternalListeners:
    """External addresses and the Services to delete."""

    addresses: dict[str, str]
    """HOST:PORT by key of the ConfigMap; :PORT if the host is the node's. Load balancers assign addresses
    asynchronously."""
    unknown_to: dict[int, str]
    """`ClusterAnnotations.external_unknown_to` to record."""
    is_held: bool = False
    """Whether node ports are missing that brokers need at their start."""
    unwanted: tuple[DeleteObject, ...] = ()
    """Services of removed brokers."""


def plan_external(
    cluster: Cluster, observed: ObservedCluster, pods: int, recorded: Mapping[int, str]
) -> ExternalListeners:
    """Return the external listeners. `pods`: desired number of pods. `recorded`: the recorded `external_unknown_to`."""
    listeners = service_listeners(cluster)
    services = {n: body for (resource, n), body in observed.live.items() if resource == SERVICES}
    name = cluster.metadata.name
    kept = {listener.service(name, ordinal) for listener in listeners for ordinal in range(pods)}
    kept |= {names.pod(name, ordinal) for ordinal in range(pods)}
    unwanted = tuple(
        DeleteObject(SERVICES, n, body["metadata"]["uid"])
        for n, body in sorted(services.items())
        if is_of_broker(body) and n not in kept and is_own(cluster, body)
    )
    addresses, unknown_to, is_held = dict[str, str](), dict[int, str](), False
    published, there = published_addresses(observed), {pod.ordinal: pod.uid for pod in observed.pods}
    for ordinal in range(pods):
        for listener in listeners:
            address = address_of(listener, ordinal, services.get(listener.service(name, ordinal)))
            if address is None:
                is_held = is_held or listener.service_type == "NodePort"
                continue
            key = listener.address_key(ordinal)
            addresses[key] = address
            if published.get(key) != address:
                unknown_to[ordinal] = there.get(ordinal, "")
            else:
                unknown_to.setdefault(ordinal, recorded.get(ordinal, ""))
    return ExternalListeners(addresses, unknown_to, is_held, unwanted)


def is_of_broker(service: Object) -> bool:
    """Whether a Service has the label of a single broker's Services."""
    labels = service["metadata"].get("labels") or {}
    return names.ORDINAL_LABEL in labels or names.BROKER_SERVICE_LABEL in labels


def is_own(cluster: Cluster, body: Object) -> bool:
    """Whether the Cluster owns an object. The labels do not prove it: a user's copy has them, too."""
    return any(owner.get("uid") == cluster.metadata.uid for owner in body["metadata"].get("ownerReferences") or ())


def published_addresses(observed: ObservedCluster) -> dict[str, str]:
    """Return the external addresses in the ConfigMap, by key."""
    data: dict[str, Any] = (observed.config_map or {}).get("data") or {}
    return {key: str(text).strip() for key, text in data.items() if key.startswith("external-")}


def address_of(listener: BrokerListener, ordinal: int, service: Object | None) -> str | None:
    """Return the external address of a broker's Service; None if it has none yet."""
    if service is None or service.get("spec", {}).get("type") != listener.service_type:
        return None
    host = listener.host_of(ordinal)
    if listener.service_type == "NodePort":
        ports = service["spec"].get("ports") or ()
        number = ports[0].get("nodePort") if ports else None
        return f"{bracket_ipv6(host or '')}:{number}" if number else None
    ingress = ((service.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ()
    host = host or (ingress[0].get("hostname") or ingress[0].get("ip") if ingress else None)
    return f"{bracket_ipv6(host)}:{listener.port}" if host else None


def external_hosts(
    cluster: Cluster, observed: ObservedCluster, brokers: int, addresses: Mapping[str, str]
) -> list[str]:
    """Return the hosts by which clients outside reach brokers: the brokers' certificate contains them."""
    found = [host_of(address) for address in addresses.values()]
    for listener in routed_listeners(cluster):
        found += listener.routed_hosts(brokers)
    if any(each.service_type == "NodePort" and each.host is None for each in service_listeners(cluster)):
        found += [pod.host_ip for pod in observed.pods]
    return [host for host in found if host]


def listener_addresses(
    cluster: Cluster, observed: ObservedCluster, brokers: int, addresses: Mapping[str, str]
) -> dict[str, str]:
    """Return the bootstrap servers of each entry of `spec.listeners`, by name."""
    found = {}
    for listener in client_listeners(cluster):
        if listener.spec is None:
            continue
        if listener.route is not None:
            hosts = listener.routed_hosts(brokers)[: 1 if listener.route.bootstrap_host else MAX_BOOTSTRAP_SERVERS]
            found[listener.port_name] = ",".join(f"{host}:{listener.route.port}" for host in hosts)
            continue
        if listener.service_type is None:
            found[listener.port_name] = f"{names.service_host(cluster)}:{listener.port}"
            continue
        known = [
            f"{bracket_ipv6(pod.host_ip)}{address}" if address.startswith(":") else address
            for pod in observed.pods
            if (address := addresses.get(listener.address_key(pod.ordinal), "")) and (pod.host_ip or address[0] != ":")
        ]
        found[listener.port_name] = ",".join(known[:MAX_BOOTSTRAP_SERVERS])
    return found


def bracket_ipv6(host: str) -> str:
    """Return a host with an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host
