"""Renders the NetworkPolicy of the brokers: who may connect to which port."""

from __future__ import annotations

from typing import Any

from penstock_operator.model.cluster import Cluster
from penstock_operator.ports.kube import NETWORK_POLICIES, KubeResource, Object
from penstock_operator.specs import names
from penstock_operator.specs.listeners import Transition, is_secured, listeners_of

OPERATOR_LABELS = {"app.kubernetes.io/name": "penstock", "app.kubernetes.io/component": "operator"}


def network_policies(cluster: Cluster, transition: Transition) -> list[tuple[KubeResource, Object]]:
    """Return the NetworkPolicy of a cluster with `listeners`, if it is enabled."""
    if not has_network_policy(cluster):
        return []
    name = cluster.metadata.name
    made = names.owned(cluster, "networking.k8s.io/v1", "NetworkPolicy", names.network_policy(name))
    made["spec"] = {
        "podSelector": {"matchLabels": names.selector(name)},
        "policyTypes": ["Ingress"],
        "ingress": ingress(cluster, transition),
    }
    return [(NETWORK_POLICIES, made)]


def has_network_policy(cluster: Cluster) -> bool:
    """Whether the cluster has a NetworkPolicy."""
    return is_secured(cluster) and cluster.spec.network_policy


def ingress(cluster: Cluster, transition: Transition) -> list[Object]:
    """Return the rules: all may connect to client listeners and health, brokers and the operator to the listener for
    brokers, and brokers to the sidecar etcd."""
    listeners = listeners_of(cluster, transition)
    brokers: dict[str, Any] = {"podSelector": {"matchLabels": names.selector(cluster.metadata.name)}}
    operator: dict[str, Any] = {"namespaceSelector": {}, "podSelector": {"matchLabels": OPERATOR_LABELS}}
    open_ports = [*(each.port_name for each in listeners if each.is_for_clients), "http"]
    rules = [
        {"ports": ports(open_ports)},
        {
            "from": [brokers, operator],
            "ports": ports([each.port_name for each in listeners if not each.is_for_clients]),
        },
    ]
    if cluster.spec.etcd.sidecar is not None:
        rules.append({"from": [brokers], "ports": ports(["etcd", "etcd-peer"])})
    return rules


def ports(port_names: list[str]) -> list[Object]:
    """Return ports of a rule, by their names in the pods."""
    return [{"port": name, "protocol": "TCP"} for name in port_names]
