"""Renders the Certificate that cert-manager issues for the client listeners of a Cluster with `issuerRef`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock_operator.model.cluster import Cluster
from penstock_operator.ports.kube import CERT_MANAGER_CERTIFICATES, KubeResource, Object
from penstock_operator.specs import names
from penstock_operator.specs.hosts import is_ip_address
from penstock_operator.specs.listeners import is_secured

HOURS_PER_DAY = 24


def certificates(cluster: Cluster, hosts: Sequence[str]) -> list[tuple[KubeResource, Object]]:
    """Return the Certificate for DNS names and IP addresses, if the Cluster has an issuer."""
    chosen = cluster.spec.certificates
    if not is_secured(cluster) or chosen.issuer_ref is None:
        return []
    name = names.client_tls(cluster.metadata.name)
    made = names.owned(cluster, "cert-manager.io/v1", "Certificate", name)
    spec: dict[str, Any] = {
        "secretName": name,
        "issuerRef": {
            "name": chosen.issuer_ref.name,
            "kind": chosen.issuer_ref.kind,
            "group": chosen.issuer_ref.group,
        },
        "dnsNames": [host for host in hosts if not is_ip_address(host)],
        "duration": f"{chosen.validity_days * HOURS_PER_DAY}h0m0s",
        "renewBefore": f"{chosen.renew_before_days * HOURS_PER_DAY}h0m0s",
        "privateKey": {"algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always"},
        "usages": ["digital signature", "server auth"],
    }
    if addresses := [host for host in hosts if is_ip_address(host)]:
        spec["ipAddresses"] = addresses
    made["spec"] = spec
    return [(CERT_MANAGER_CERTIFICATES, made)]
