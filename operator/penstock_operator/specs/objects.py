"""Renders all objects of a cluster from its resource and `RenderContext`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from penstock_operator.specs import cluster_annotations, compare, etcd, names, pod, security, settings
from penstock_operator.specs.access import network_policies
from penstock_operator.specs.cert_manager import certificates
from penstock_operator.specs.listeners import BrokerListener, Transition, is_secured, listeners_of, service_listeners
from penstock_operator.specs.routes import tls_routes


@dataclass(frozen=True, slots=True)
class RenderContext:
    """Inputs of the objects other than the resource, decided by `reconcile`."""

    image: str
    """Default image of the brokers."""
    replicas: int
    """Current number of pods: while brokers are drained, more than the spec's."""
    services: int = 0
    """Number of brokers with Services; at least `replicas`."""
    etcd_members: int = 1
    annotations: cluster_annotations.ClusterAnnotations = field(default_factory=cluster_annotations.ClusterAnnotations)
    external: Mapping[str, str] = field(default_factory=dict)
    """HOST:PORT by key of the ConfigMap; :PORT if the host is the node's."""
    transition: Transition = Transition.NONE
    hosts: Sequence[str] = ()
    """DNS names and IP addresses of the certificate that cert-manager issues."""
    data_size: str | None = None
    """Size in the StatefulSet's claim template, if it differs from the spec's."""
    etcd_size: str | None = None
    ports: Mapping[int, frozenset[int]] = field(default_factory=dict)
    """Ports of the broker containers that run, by ordinal."""
    restarted_at: str = ""
    """Annotation `names.RESTARTED_AT` of the pod template; empty: none."""
    is_founded: bool = False
    is_stopped: bool = False
    """Whether no pod runs although there are `replicas` brokers: the cluster is hibernated."""
    may_evict: bool = True
    """Whether a node drain may evict a ready broker."""
    may_evict_unready: bool = True
    """Whether a node drain may evict brokers that are not ready."""


def render(cluster: Cluster, facts: RenderContext) -> list[tuple[KubeResource, Object]]:
    """Return the objects in the order in which they must be applied; the StatefulSet is last."""
    found = [
        (SERVICES, headless_service(cluster, facts)),
        (SERVICES, bootstrap_service(cluster, facts)),
        *((SERVICES, broker_service(cluster, facts, ordinal)) for ordinal in service_ordinals(facts)),
        *(
            (SERVICES, external_service(cluster, listener, ordinal))
            for listener in service_listeners(cluster)
            for ordinal in service_ordinals(facts)
        ),
        (BUDGETS, budget(cluster, facts)),
        *network_policies(cluster, facts.transition),
        *certificates(cluster, facts.hosts),
        *tls_routes(cluster, len(service_ordinals(facts))),
        (CONFIG_MAPS, config_map(cluster, facts)),
        (STATEFUL_SETS, stateful_set(cluster, facts)),
    ]
    return [(resource, compare.rendered(body)) for resource, body in found]


def service_ordinals(facts: RenderContext) -> range:
    """Return the ordinals of the brokers with Services."""
    return range(max(facts.replicas, facts.services))


def headless_service(cluster: Cluster, facts: RenderContext) -> Object:
    """Render the headless Service. It publishes pods that are not ready: brokers connect to each other at startup."""
    first, *others = internal_ports(cluster, facts)
    ports = [first, port("http", names.HTTP_PORT), *others]
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


def bootstrap_service(cluster: Cluster, facts: RenderContext) -> Object:
    """Render the bootstrap Service."""
    name, ports = cluster.metadata.name, internal_ports(cluster, facts)
    return names.owned(cluster, "v1", "Service", name) | {
        "spec": {"type": "ClusterIP", "selector": names.selector(name), "ports": ports}
    }


def broker_service(cluster: Cluster, facts: RenderContext, ordinal: int) -> Object:
    """Render the Service whose name a broker advertises to brokers and to clients inside the Kubernetes cluster. It
    publishes a pod that is not ready, like the headless Service. Until the pod restarts, it has the ports of the pod's
    former listeners, too."""
    own = {listener.port for listener in listeners_of(cluster, facts.transition)} | {names.HTTP_PORT}
    former = sorted(facts.ports.get(ordinal, frozenset()) - own)
    name = cluster.metadata.name
    made = names.owned(cluster, "v1", "Service", names.pod(name, ordinal))
    made["metadata"]["labels"] |= {names.BROKER_SERVICE_LABEL: str(ordinal)}
    made["spec"] = {
        "type": "ClusterIP",
        "selector": pod_selector(name, ordinal),
        "ports": [
            *internal_ports(cluster, facts),
            *({"name": f"former-{n}", "port": n, "targetPort": n, "protocol": "TCP"} for n in former),
        ],
        "publishNotReadyAddresses": True,
    }
    return made


def pod_selector(cluster: str, ordinal: int) -> dict[str, str]:
    """Return the selector of one broker's pod."""
    return names.selector(cluster) | {"statefulset.kubernetes.io/pod-name": names.pod(cluster, ordinal)}


def internal_ports(cluster: Cluster, facts: RenderContext) -> list[Object]:
    """Return the Service ports of the listeners that have no external Service of their own."""
    return [
        port(listener.port_name, listener.port)
        for listener in listeners_of(cluster, facts.transition)
        if listener.service_type is None
    ]


def external_service(cluster: Cluster, listener: BrokerListener, ordinal: int) -> Object:
    """Render the external Service of one broker."""
    name = cluster.metadata.name
    made = names.owned(cluster, "v1", "Service", listener.service(name, ordinal))
    made["metadata"]["labels"] |= {"app.kubernetes.io/component": "external", names.ORDINAL_LABEL: str(ordinal)}
    if listener.annotations:
        made["metadata"]["annotations"] = dict(listener.annotations)
    made["spec"] = {
        "type": listener.service_type,
        "selector": pod_selector(name, ordinal),
        "ports": [port(listener.port_name, listener.port)],
        "publishNotReadyAddresses": True,
    }
    return made


def port(name: str, number: int) -> Object:
    """Return a Service port."""
    return {"name": name, "port": number, "targetPort": name, "protocol": "TCP"}


def budget(cluster: Cluster, facts: RenderContext) -> Object:
    """Render the PodDisruptionBudget. `facts.may_evict` blocks evictions until replicas are in sync: readiness, on
    which Kubernetes bases evictions, only requires the broker's lease."""
    name = cluster.metadata.name
    return names.owned(cluster, "policy/v1", "PodDisruptionBudget", names.budget(name)) | {
        "spec": {
            "maxUnavailable": 1 if facts.may_evict else 0,
            "unhealthyPodEvictionPolicy": "AlwaysAllow" if facts.may_evict_unready else "IfHealthyBudget",
            "selector": {"matchLabels": names.selector(name)},
        }
    }


def config_map(cluster: Cluster, facts: RenderContext) -> Object:
    """Render the ConfigMap: settings, external addresses, and the operator's annotations."""
    made = names.owned(cluster, "v1", "ConfigMap", names.config_map(cluster.metadata.name))
    made["metadata"]["annotations"] = cluster_annotations.written(facts.annotations)
    made["data"] = {
        "penstock.toml": settings.toml(settings.start_settings(cluster, facts.transition)),
        **{key: f"{address}\n" for key, address in facts.external.items()},
        **({names.CLIENT_PROPERTIES: security.client_properties()} if is_secured(cluster) else {}),
        **etcd.config_data(cluster, facts.is_founded),
    }
    return made


def stateful_set(cluster: Cluster, facts: RenderContext) -> Object:
    """Render the StatefulSet. Its update strategy is OnDelete, because the operator restarts pods only if it is
    safe."""
    name, spec = cluster.metadata.name, cluster.spec
    claims = [claim_template(cluster, names.DATA_CLAIM, facts.data_size or spec.brokers.storage.size)]
    if spec.etcd.sidecar is not None:
        size = facts.etcd_size or spec.etcd.sidecar.storage.size
        claims.append(claim_template(cluster, names.ETCD_CLAIM, size))
    template = pod.template(cluster, spec.image or facts.image, facts.etcd_members, facts.transition)
    if facts.restarted_at:
        template["metadata"]["annotations"][names.RESTARTED_AT] = facts.restarted_at
    made = names.owned(cluster, "apps/v1", "StatefulSet", names.stateful_set(name))
    made["metadata"]["annotations"] = {names.REPLICAS: str(facts.replicas)}
    return made | {
        "spec": {
            "replicas": 0 if facts.is_stopped else facts.replicas,
            "serviceName": names.headless(name),
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "revisionHistoryLimit": 3,
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
            "selector": {"matchLabels": names.selector(name)},
            "template": template,
            "volumeClaimTemplates": claims,
        }
    }


def claim_template(cluster: Cluster, template: str, size: str) -> Object:
    """Render a volume claim template."""
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
