"""`Cluster`: brokers, their storage, and the etcd that they share."""

from __future__ import annotations

from typing import Any, Literal

from penstock_operator.model.common import Condition, Meta, Model


class Storage(Model, frozen=True, kw_only=True):
    size: str = "10Gi"
    class_name: str | None = None


class Brokers(Model, frozen=True, kw_only=True):
    """Of the fields that are Kubernetes' own (resources, affinity, ...) the API server's words are passed on."""

    replicas: int = 3
    storage: Storage = Storage()
    resources: dict[str, Any] = {}
    node_selector: dict[str, str] = {}
    tolerations: tuple[dict[str, Any], ...] = ()
    affinity: dict[str, Any] | None = None
    topology_spread_constraints: tuple[dict[str, Any], ...] | None = None
    priority_class_name: str | None = None
    service_account_name: str | None = None
    image_pull_secrets: tuple[dict[str, str], ...] = ()
    pod_labels: dict[str, str] = {}
    pod_annotations: dict[str, str] = {}
    termination_grace_period_seconds: int = 120


class EtcdSidecar(Model, frozen=True, kw_only=True):
    """An etcd beside each of the first three brokers (or the only one), and a gateway to them beside the others."""

    image: str
    storage: Storage = Storage(size="2Gi")
    resources: dict[str, Any] = {}


class Etcd(Model, frozen=True, kw_only=True):
    """Either endpoints or a sidecar; the schema holds that."""

    endpoints: tuple[str, ...] = ()
    managed: bool = False
    """Whether it is this cluster's alone, so that brokers may compact it."""
    tls_secret: str | None = None
    """A Secret with ca.crt and, for client authentication, tls.crt and tls.key."""
    sidecar: EtcdSidecar | None = None


class ExternalListener(Model, frozen=True, kw_only=True):
    """How clients outside of the Kubernetes cluster reach each broker."""

    type: Literal["NodePort", "LoadBalancer"]
    name: str = "external"
    port: int = 9094
    host: str | None = None
    """For NodePort: the address to advertise; the node's own where none is given."""
    annotations: dict[str, str] = {}


class Moving(Model, frozen=True, kw_only=True):
    """How replicas are moved when brokers come, go or fill up."""

    throttle_bytes_per_second: int = 50_000_000
    automatic: bool = True
    """Whether new brokers get replicas by themselves."""


class ClusterSpec(Model, frozen=True, kw_only=True):
    etcd: Etcd
    image: str | None = None
    """The operator's own release's, where none is given."""
    brokers: Brokers = Brokers()
    port: int = 9092
    external: ExternalListener | None = None
    config: dict[str, str] = {}
    """Broker settings by Kafka's names."""
    moving: Moving = Moving()
    zone_label: str = "topology.kubernetes.io/zone"
    paused: bool = False


class BrokerStatus(Model, frozen=True, kw_only=True):
    id: int
    state: str
    """Ready, NotReady, Draining, Removable, Missing."""
    node: str | None = None
    zone: str | None = None
    version: str | None = None


class MovingStatus(Model, frozen=True, kw_only=True):
    reason: str
    partitions_left: int
    partitions_total: int


class ClusterStatus(Model, frozen=True, kw_only=True):
    """Conditions: Ready, Healthy, Progressing, Scaled (False with the reason where a wish is refused), Rolled."""

    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    replicas: int | None = None
    ready_replicas: int | None = None
    selector: str | None = None
    cluster_id: str | None = None
    controller: int | None = None
    version: str | None = None
    brokers: tuple[BrokerStatus, ...] = ()
    offline: int | None = None
    under_replicated: int | None = None
    moving: MovingStatus | None = None
    bootstrap: str | None = None


class Cluster(Model, frozen=True, kw_only=True):
    metadata: Meta
    spec: ClusterSpec
    status: ClusterStatus = ClusterStatus()
