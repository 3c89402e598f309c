"""All objects of a cluster, from its resource and the few facts that are not in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock_operator.model.cluster import Cluster
from penstock_operator.ports.kube import (
    BUDGETS,
    CONFIG_MAPS,
    SERVICES,
    STATEFUL_SETS,
    KubeResource,
    Object,
)
from penstock_operator.specs import cluster_annotations, compare, etcd, names, pod, settings


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """What objects depend on beside the resource: `reconcile` decides it."""

    image: str
    """Of the brokers, where the resource names none."""
    replicas: int
    """Pods that there are to be now: while brokers are drained, more than are wanted."""
    services: int = 0
    """Brokers that are to have a Service of their own; at least as many as `replicas`, where they are reached so."""
    etcd_members: int = 1
    annotations: cluster_annotations.ClusterAnnotations = field(default_factory=cluster_annotations.ClusterAnnotations)
    external: Mapping[int, str] = field(default_factory=dict)
    """HOST:PORT by broker; :PORT where the host is the node's."""
    data_size: str | None = None
    """Of the claims in the StatefulSet, where that is not yet what is wanted."""
    etcd_size: str | None = None
    is_founded: bool = False
    may_leave: bool = True
    """Whether a node that is drained may take a broker that is ready."""
    may_unready_leave: bool = True
    """Whether it may take brokers that are not."""


def render(cluster: Cluster, facts: ClusterFacts) -> list[tuple[KubeResource, Object]]:
    """In the order in which they are to be applied: pods come last, when all is there that they need."""
    found = [
        (SERVICES, headless_service(cluster)),
        (SERVICES, bootstrap_service(cluster)),
        *((SERVICES, external_service(cluster, ordinal)) for ordinal in external_ordinals(cluster, facts)),
        (BUDGETS, budget(cluster, facts)),
        (CONFIG_MAPS, config_map(cluster, facts)),
        (STATEFUL_SETS, stateful_set(cluster, facts)),
    ]
    return [(resource, compare.rendered(body)) for resource, body in found]


def external_ordinals(cluster: Cluster, facts: ClusterFacts) -> range:
    return range(max(facts.replicas, facts.services) if cluster.spec.external is not None else 0)


def headless_service(cluster: Cluster) -> Object:
    """Gives each pod its name, ready or not: brokers find each other while they start."""
    ports = [port("kafka", cluster.spec.port), port("http", names.HTTP_PORT)]
    if cluster.spec.etcd.sidecar is not None:
        ports += [port("etcd", names.ETCD_PORT), port("etcd-peer", names.ETCD_PEER_PORT)]
    name = cluster.metadata.name
    return names.owned(cluster, "v1", "Service", names.headless(name)) | {
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": names.selector(name),
            "ports": ports,
        }
    }


def bootstrap_service(cluster: Cluster) -> Object:
    """Where clients begin."""
    name = cluster.metadata.name
    return names.owned(cluster, "v1", "Service", name) | {
        "spec": {"type": "ClusterIP", "selector": names.selector(name), "ports": [port("kafka", cluster.spec.port)]}
    }


def external_service(cluster: Cluster, ordinal: int) -> Object:
    """One broker for clients from outside."""
    external = cluster.spec.external
    assert external is not None, "there are such Services only where there is such a listener"
    name = cluster.metadata.name
    made = names.owned(cluster, "v1", "Service", names.external_service(name, ordinal))
    made["metadata"]["labels"] |= {"app.kubernetes.io/component": "external", names.ORDINAL_LABEL: str(ordinal)}
    if external.annotations:
        made["metadata"]["annotations"] = dict(external.annotations)
    made["spec"] = {
        "type": external.type,
        "selector": names.selector(name) | {"statefulset.kubernetes.io/pod-name": names.pod(name, ordinal)},
        "ports": [port("external", external.port)],
        "publishNotReadyAddresses": True,
    }
    return made


def port(name: str, number: int) -> Object:
    return {"name": name, "port": number, "targetPort": name, "protocol": "TCP"}


def budget(cluster: Cluster, facts: ClusterFacts) -> Object:
    """Nodes are drained one broker at a time, and the next one when the last is in sync again: to be ready, which is
    what Kubernetes sees, a broker needs no more than its lease."""
    name = cluster.metadata.name
    return names.owned(cluster, "policy/v1", "PodDisruptionBudget", names.budget(name)) | {
        "spec": {
            "maxUnavailable": 1 if facts.may_leave else 0,
            "unhealthyPodEvictionPolicy": "AlwaysAllow" if facts.may_unready_leave else "IfHealthyBudget",
            "selector": {"matchLabels": names.selector(name)},
        }
    }


def config_map(cluster: Cluster, facts: ClusterFacts) -> Object:
    """Settings, external addresses, and the operator's notes."""
    made = names.owned(cluster, "v1", "ConfigMap", names.config_map(cluster.metadata.name))
    made["metadata"]["annotations"] = cluster_annotations.written(facts.annotations)
    made["data"] = {
        "penstock.toml": settings.toml(settings.start_settings(cluster.spec)),
        **{f"external-{ordinal}": f"{address}\n" for ordinal, address in sorted(facts.external.items())},
        **etcd.config_data(cluster, facts.is_founded),
    }
    return made


def stateful_set(cluster: Cluster, facts: ClusterFacts) -> Object:
    """Pods are restarted by the operator, never by this: it does not know what brokers hold."""
    name, spec = cluster.metadata.name, cluster.spec
    claims = [claim_template(cluster, names.DATA_CLAIM, facts.data_size or spec.brokers.storage.size)]
    if spec.etcd.sidecar is not None:
        size = facts.etcd_size or spec.etcd.sidecar.storage.size
        claims.append(claim_template(cluster, names.ETCD_CLAIM, size))
    return names.owned(cluster, "apps/v1", "StatefulSet", names.stateful_set(name)) | {
        "spec": {
            "replicas": facts.replicas,
            "serviceName": names.headless(name),
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "revisionHistoryLimit": 3,
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
            "selector": {"matchLabels": names.selector(name)},
            "template": pod.template(cluster, spec.image or facts.image, facts.etcd_members),
            "volumeClaimTemplates": claims,
        }
    }


def claim_template(cluster: Cluster, template: str, size: str) -> Object:
    sidecar = cluster.spec.etcd.sidecar
    storage = cluster.spec.brokers.storage if template == names.DATA_CLAIM or sidecar is None else sidecar.storage
    made: Object = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": template, "labels": names.labels(cluster.metadata.name)},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "volumeMode": "Filesystem",
            "resources": {"requests": {"storage": size}},
        },
    }
    if storage.class_name is not None:
        made["spec"]["storageClassName"] = storage.class_name
    return made
