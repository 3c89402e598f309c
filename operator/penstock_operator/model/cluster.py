"""`Cluster`: brokers, their storage, and the etcd that they share."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from penstock_operator.model import pods
from penstock_operator.model.common import (
    AGE,
    DNS_LABEL,
    MAX_CLUSTER_NAME,
    Condition,
    Model,
    NamedReference,
    ObjectMeta,
    condition_column,
    keyed_by,
    message_column,
)
from penstock_operator.model.etcd import Etcd, EtcdSidecar
from penstock_operator.model.fields import PrinterColumn, Rule, doc
from penstock_operator.model.settings import CONFIG_VALUE, MAX_SETTINGS, broker_rules
from penstock_operator.model.storage import SidecarStorageSpec, StorageSpec

__all__ = [
    "BrokerStatus", "BrokersSpec", "Cluster", "ClusterSpec", "ClusterStatus", "Etcd", "EtcdSidecar",
    "ExternalListener", "Moving", "MovingStatus", "SidecarStorageSpec", "StorageSpec",
]  # fmt: skip

HTTP_PORT = 8080
ETCD_PORTS = (2379, 2380)
MAX_BROKERS = 1000
_TAKEN = [HTTP_PORT, *ETCD_PORTS]


def port_rule(name: str) -> Rule:
    return Rule(
        f"self >= 1024 && self <= 65535 && !(self in {_TAKEN})",
        f"{name} must be 1024 to 65535, and none of {HTTP_PORT} (health and metrics), 2379 and 2380 (etcd)",
    )


class BrokersSpec(Model, frozen=True, kw_only=True):
    """Of the fields that are Kubernetes' own (resources, affinity, ...) the API server's words are passed on."""

    replicas: Annotated[
        int,
        doc(
            "How many brokers. More get replicas moved to them; fewer are drained first, from the highest on.",
            Rule(
                f"self >= 1 && self <= {MAX_BROKERS}",
                f"brokers.replicas must be 1 to {MAX_BROKERS}: a Cluster has at least one broker,"
                " and is deleted rather than scaled to none",
            ),
            ge=1,
            le=MAX_BROKERS,
        ),
    ] = 3
    storage: Annotated[StorageSpec, doc("The volume of each broker. It is kept when the Cluster is deleted.")] = (
        StorageSpec()
    )
    resources: Annotated[dict[str, Any], doc("Requests and limits of each broker.", schema=pods.RESOURCES)] = {}
    node_selector: Annotated[
        dict[str, str], doc("Labels of the nodes that brokers may run on.", schema=pods.LABEL_VALUE, max_length=64)
    ] = {}
    tolerations: Annotated[
        tuple[dict[str, Any], ...],
        doc("Taints that brokers tolerate, as in a pod.", schema=pods.TOLERATIONS, max_length=64),
    ] = ()
    affinity: (
        Annotated[
            dict[str, Any],
            doc("As in a pod; instead of brokers' preference for nodes without another broker.", schema=pods.ANYTHING),
        ]
        | None
    ) = None
    topology_spread_constraints: (
        Annotated[
            tuple[dict[str, Any], ...],
            doc("As in a pod; instead of the spread over zones and nodes.", schema=pods.SPREAD, max_length=16),
        ]
        | None
    ) = None
    priority_class_name: Annotated[str, doc("As in a pod.", min_length=1, max_length=253)] | None = None
    service_account_name: Annotated[str, doc("As in a pod.", min_length=1, max_length=253)] | None = None
    image_pull_secrets: Annotated[
        tuple[dict[str, str], ...], doc("As in a pod: `- name: SECRET`.", schema=pods.PULL_SECRETS, max_length=16)
    ] = ()
    pod_labels: Annotated[
        dict[str, str],
        doc(
            "More labels of the pods.",
            Rule(
                "self.all(k, !k.startsWith('penstock.io/') && !k.startsWith('app.kubernetes.io/'))",
                "podLabels cannot have labels of penstock.io/ and app.kubernetes.io/: the operator finds pods by them",
            ),
            schema=pods.LABEL_VALUE,
            max_length=64,
        ),
    ] = {}
    pod_annotations: Annotated[
        dict[str, str],
        doc(
            "More annotations of the pods.",
            Rule(
                "self.all(k, !k.startsWith('penstock.io/'))",
                "podAnnotations cannot have annotations of penstock.io/: they are the operator's",
            ),
            schema={"maxLength": 8192},
            max_length=64,
        ),
    ] = {}
    termination_grace_period_seconds: Annotated[
        int,
        doc(
            "How long a broker may take to hand over what it leads and to flush, in seconds.",
            Rule(
                "self >= 10 && self <= 3600",
                "terminationGracePeriodSeconds must be 10 to 3600: a broker needs time to hand over and to flush",
            ),
            ge=10,
            le=3600,
        ),
    ] = 120


class ExternalListener(Model, frozen=True, kw_only=True):
    """How clients outside of the Kubernetes cluster reach each broker."""

    rules = (
        Rule(
            "!has(self.host) || self.type == 'NodePort'",
            "host is for type NodePort: of a LoadBalancer its own address is advertised",
        ),
    )

    type: Annotated[Literal["NodePort", "LoadBalancer"], doc("The type of each broker's Service.")]
    name: Annotated[
        str,
        doc(
            "The listener's name.",
            Rule(
                "self.matches('^[A-Za-z][A-Za-z0-9_]*$') && !(self.lowerAscii() in ['plaintext', 'internal'])",
                "external.name may have letters, digits and '_', and cannot be plaintext or internal",
            ),
            min_length=1,
            max_length=63,
        ),
    ] = "external"
    port: Annotated[int, doc("The listener's port in the pods.", port_rule("external.port"), ge=1024, le=65535)] = 9094
    host: (
        Annotated[
            str,
            doc(
                "For NodePort: the address to advertise; that of the broker's node where none is given.",
                Rule("self.matches('^[A-Za-z0-9.:-]+$')", "host must be a name or an address, without a port"),
                min_length=1,
                max_length=253,
            ),
        ]
        | None
    ) = None
    annotations: Annotated[
        dict[str, str],
        doc(
            "Annotations of the Services, such as those that a cloud wants.", schema={"maxLength": 8192}, max_length=64
        ),
    ] = {}


class Moving(Model, frozen=True, kw_only=True):
    """How replicas are moved when brokers come, go or fill up."""

    throttle_bytes_per_second: Annotated[
        int,
        doc(
            "How fast replicas move, in bytes per second and broker.",
            Rule(
                "self >= 1024",
                "throttleBytesPerSecond must be at least 1024; to stop moves there is moving.automatic: false",
            ),
            ge=1024,
        ),
    ] = 50_000_000
    automatic: Annotated[bool, doc("Whether new brokers get replicas by themselves.")] = True


class ClusterSpec(Model, frozen=True, kw_only=True):
    rules = (
        Rule(
            "!has(self.etcd.sidecar) || self.brokers.replicas == 1 || self.brokers.replicas >= 3",
            "with etcd.sidecar there must be 1 or at least 3 brokers: two members of etcd survive no loss",
        ),
        Rule(
            "!has(self.etcd.sidecar) || !has(oldSelf.etcd.sidecar) ||"
            " self.brokers.replicas >= 3 || oldSelf.brokers.replicas < 3",
            "with etcd.sidecar three brokers stay at least, the first three have etcd's members: for fewer make a new"
            " Cluster",
        ),
        Rule(
            "!has(self.external) || self.external.port != self.port",
            "external.port must differ from port: both are listeners of the same pod",
        ),
    )

    etcd: Annotated[Etcd, doc("Where the cluster's state is kept: exactly one of endpoints and sidecar.")]
    image: (
        Annotated[
            str,
            doc(
                "The brokers' image; that of the operator's own release where none is given.",
                min_length=1,
                max_length=512,
            ),
        ]
        | None
    ) = None
    brokers: Annotated[BrokersSpec, doc("The brokers, all alike.")] = BrokersSpec()
    port: Annotated[int, doc("Where clients inside reach brokers.", port_rule("port"), ge=1024, le=65535)] = 9092
    external: (
        Annotated[ExternalListener, doc("How clients outside of the Kubernetes cluster reach each broker.")] | None
    ) = None
    config: Annotated[
        dict[str, str],
        doc(
            "Settings of the brokers by Kafka's names. Truths and fractions are written in quotes"
            ' ("true", "0.5"). A change of those that cannot be changed while a broker runs rolls the brokers.',
            *broker_rules(),
            schema=CONFIG_VALUE,
            max_length=MAX_SETTINGS,
        ),
    ] = {}
    moving: Annotated[Moving, doc("How replicas are moved when brokers come, go or fill up.")] = Moving()
    zone_label: Annotated[
        str,
        doc("The label of nodes that says their zone, over which replicas are spread.", min_length=1, max_length=317),
    ] = "topology.kubernetes.io/zone"
    paused: Annotated[bool, doc("While true nothing is changed; the status goes on being true.")] = False


class BrokerStatus(Model, frozen=True, kw_only=True):
    id: Annotated[int, doc("The broker's id: its pod's ordinal.")]
    state: Annotated[str, doc("Ready, NotReady, Draining, Removable or Missing.")]
    node: Annotated[str, doc("Where its pod runs.")] | None = None
    zone: Annotated[str, doc("The node's zone.")] | None = None
    version: Annotated[str, doc("The release that it runs.")] | None = None


class MovingStatus(Model, frozen=True, kw_only=True):
    reason: Annotated[str, doc("Why replicas move.")]
    partitions_left: Annotated[int, doc("Partitions whose replicas are still to be moved.")]
    partitions_total: Annotated[int, doc("Partitions of this move in all.")]


class ClusterStatus(Model, frozen=True, kw_only=True):
    """Conditions: Ready, Healthy, Progressing, Scaled (False with the reason where a wish is refused), Rolled."""

    observed_generation: Annotated[int, doc("The generation of the object that this status follows from.")] = 0
    conditions: Annotated[
        tuple[Condition, ...],
        doc(
            "Ready: clients are served. Healthy: all replicas are in sync and all partitions have a leader."
            " Progressing: something is being changed. Scaled: there are as many brokers as wanted, or why not."
            " Rolled: all brokers run as wanted, or why not.",
            schema=keyed_by("type"),
        ),
    ] = ()
    replicas: Annotated[int, doc("Brokers that there are.")] | None = None
    ready_replicas: Annotated[int, doc("Brokers that are ready.")] | None = None
    selector: Annotated[str, doc("The labels of the brokers' pods, as text: for autoscalers.")] | None = None
    cluster_id: Annotated[str, doc("The id that brokers tell to clients.")] | None = None
    controller: Annotated[int, doc("The broker that is the controller.")] | None = None
    version: Annotated[str, doc("The release that all brokers run; while they are rolled, the oldest.")] | None = None
    brokers: Annotated[tuple[BrokerStatus, ...], doc("Each broker.", schema=keyed_by("id"))] = ()
    offline: Annotated[int, doc("Partitions without a leader.")] | None = None
    under_replicated: Annotated[int, doc("Partitions some of whose replicas are not in sync.")] | None = None
    moving: Annotated[MovingStatus, doc("Replicas that are being moved.")] | None = None
    bootstrap: Annotated[str, doc("What clients take as bootstrap servers.")] | None = None


class Cluster(Model, frozen=True, kw_only=True):
    named: ClassVar[NamedReference] = NamedReference(
        kind="Cluster",
        short="pcl",
        description="A cluster of Penstock: brokers with their volumes, Services and etcd.",
        columns=(
            PrinterColumn("Brokers", ".spec.brokers.replicas", "integer"),
            PrinterColumn("Available", ".status.readyReplicas", "integer"),
            condition_column("Ready"),
            condition_column("Healthy"),
            PrinterColumn("Version", ".status.version"),
            PrinterColumn("Bootstrap", ".status.bootstrap"),
            AGE,
            PrinterColumn("Under-Replicated", ".status.underReplicated", "integer", priority=1),
            PrinterColumn("Offline", ".status.offline", "integer", priority=1),
            PrinterColumn("Controller", ".status.controller", "integer", priority=1),
            PrinterColumn("Moving", ".status.moving.partitionsLeft", "integer", priority=1),
            condition_column("Scaled", priority=1),
            condition_column("Rolled", priority=1),
            message_column(),
        ),
        scale={
            "specReplicasPath": ".spec.brokers.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
    )
    rules = (
        Rule(
            f"self.metadata.name.matches('{DNS_LABEL}') && size(self.metadata.name) <= {MAX_CLUSTER_NAME}",
            f"a Cluster's name must have at most {MAX_CLUSTER_NAME} lower case letters, digits and '-', and begin with"
            " a letter: Services and pods are named after it",
        ),
    )

    metadata: ObjectMeta
    spec: Annotated[ClusterSpec, doc("What is wanted.")]
    status: Annotated[ClusterStatus, doc("What there is.")] = ClusterStatus()
