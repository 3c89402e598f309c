"""Host names and addresses in the brokers' certificates."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from penstock_operator.model.cluster import Cluster
from penstock_operator.specs import names


def internal_hosts(cluster: Cluster, brokers: int) -> list[str]:
    """Return the DNS names of the Services and pods; a wildcard stands for all pods, present and later ones."""
    meta = cluster.metadata
    suffix = f"{meta.namespace}.svc"
    found = []
    for service in (meta.name, names.headless(meta.name), f"*.{names.headless(meta.name)}"):
        found += [f"{service}.{suffix}", f"{service}.{suffix}.cluster.local"]
    return [meta.name, f"{meta.name}.{meta.namespace}", *found, *broker_hosts(cluster, brokers)]


def broker_hosts(cluster: Cluster, brokers: int) -> list[str]:
    """Return the names that `brokers` brokers advertise inside the Kubernetes cluster. A wildcard would match all
    Services of the namespace."""
    return [names.broker_host(cluster, names.pod(cluster.metadata.name, ordinal)) for ordinal in range(brokers)]


def certificate_hosts(cluster: Cluster, brokers: int, external: Iterable[str]) -> tuple[str, ...]:
    """Return all names of the brokers' certificate, sorted. `external`: hosts that brokers advertise outside."""
    return tuple(sorted({*internal_hosts(cluster, brokers), *(host.lower() for host in external if host)}))


def is_ip_address(host: str) -> bool:
    """Whether it is an IPv4 or IPv6 address, without brackets."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def host_of(address: str) -> str:
    """Return the host of `HOST:PORT`, without the brackets of an IPv6 address."""
    return address.rpartition(":")[0].removeprefix("[").removesuffix("]")
