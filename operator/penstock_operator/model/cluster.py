"""The `Cluster` resource: brokers, their volumes, listeners and etcd."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from penstock_operator.model import pods
from penstock_operator.model.certificates import Certificates
from penstock_operator.model.common import (
    AGE,
    DNS_LABEL,
    MAX_CLUSTER_NAME,
    Condition,
    KindInfo,
    Model,
    ObjectMeta,
    condition_column,
    keyed_by,
    message_column,
)
from penstock_operator.model.etcd import Etcd, EtcdSidecar
from penstock_operator.model.fields import PrinterColumn, Rule, doc
from penstock_operator.model.listeners import MAX_LISTENERS, ClusterListener, ExternalListener, port_rule
from penstock_operator.model.settings import CONFIG_VALUE, MAX_SETTINGS, broker_rules
from penstock_operator.model.snapshots import RestoreStatus, SnapshotsStatus
from penstock_operator.model.storage import SidecarStorageSpec, StorageSpec

__all__ = [
    "BrokerStatus", "BrokersSpec", "Certificates", "Cluster", "ClusterListener", "ClusterSpec", "ClusterStatus",
    "Etcd", "EtcdSidecar", "ExternalListener", "ListenerStatus", "Moving", "MovingStatus", "ProposedMove",
    "RebalanceStatus", "SidecarStorageSpec", "StorageSpec",
]  # fmt: skip

MAX_BROKERS = 1000


class BrokersSpec(Model, frozen=True, kw_only=True):
    """Brokers of a `Cluster`. Pod fields (resources, affinity, ...) are copied into the pod template unchanged."""

    replicas: Annotated[
        int,
        doc(
            "Number of brokers. When it increases, the operator moves replicas to the new brokers. When it decreases,"
            " the operator drains the brokers with the highest ids before it removes them.",
            Rule(
                f"self >= 1 && self <= {MAX_BROKERS}",
                f"brokers.replicas must be 1 to {MAX_BROKERS}: a Cluster cannot be scaled to 0; delete it instead",
            ),
            ge=1,
            le=MAX_BROKERS,
        ),
    ] = 3
    storage: Annotated[
        StorageSpec, doc("Data volume of each broker. Volumes are retained when the Cluster is deleted.")
    ] = StorageSpec()
    resources: Annotated[
        dict[str, Any], doc("Resource requests and limits of each broker container.", schema=pods.RESOURCES)
    ] = {}
    node_selector: Annotated[
        dict[str, str],
        doc("Node labels that a node must have to run a broker.", schema=pods.LABEL_VALUE, max_length=64),
    ] = {}
    tolerations: Annotated[
        tuple[dict[str, Any], ...],
        doc("Tolerations of the broker pods, as in a pod spec.", schema=pods.TOLERATIONS, max_length=64),
    ] = ()
    affinity: (
        Annotated[
            dict[str, Any],
            doc(
                "Affinity of the broker pods, as in a pod spec. Default: a preferred anti-affinity between the brokers"
                " of the Cluster, by node.",
                schema=pods.ANYTHING,
            ),
        ]
        | None
    ) = None
    topology_spread_constraints: (
        Annotated[
            tuple[dict[str, Any], ...],
            doc(
                "Topology spread constraints, as in a pod spec. Default: brokers are spread over zones and nodes.",
                schema=pods.SPREAD,
                max_length=16,
            ),
        ]
        | None
    ) = None
    priority_class_name: (
        Annotated[str, doc("PriorityClass of the broker pods.", min_length=1, max_length=253)] | None
    ) = None
    service_account_name: (
        Annotated[str, doc("ServiceAccount of the broker pods.", min_length=1, max_length=253)] | None
    ) = None
    image_pull_secrets: Annotated[
        tuple[dict[str, str], ...],
        doc("Secrets for pulling images, as in a pod spec: `- name: SECRET`.", schema=pods.PULL_SECRETS, max_length=16),
    ] = ()
    pod_labels: Annotated[
        dict[str, str],
        doc(
            "Additional labels of the broker pods.",
            Rule(
                "self.all(k, !k.startsWith('penstock.io/') && !k.startsWith('app.kubernetes.io/'))",
                "podLabels cannot use the prefixes penstock.io/ and app.kubernetes.io/: the operator selects pods by"
                " these labels",
            ),
            schema=pods.LABEL_VALUE,
            max_length=64,
        ),
    ] = {}
    pod_annotations: Annotated[
        dict[str, str],
        doc(
            "Additional annotations of the broker pods.",
            Rule(
                "self.all(k, !k.startsWith('penstock.io/'))",
                "podAnnotations cannot use the prefix penstock.io/: it is reserved for the operator",
            ),
            schema={"maxLength": 8192},
            max_length=64,
        ),
    ] = {}
    termination_grace_period_seconds: Annotated[
        int,
        doc(
            "Time that a broker has to hand over its leaderships and to flush when its pod is deleted, in seconds.",
            Rule(
                "self >= 10 && self <= 3600",
                "terminationGracePeriodSeconds must be 10 to 3600: a broker needs time to hand over leaderships and to"
                " flush",
            ),
            ge=10,
            le=3600,
        ),
    ] = 120


class Moving(Model, frozen=True, kw_only=True):
    """Limits of replica moves."""

    throttle_bytes_per_second: Annotated[
        int,
        doc(
            "Replication throttle for replica moves, in bytes per second per broker.",
            Rule(
                "self >= 1024",
                "throttleBytesPerSecond must be at least 1024; to stop moves, set moving.automatic: false",
            ),
            ge=1024,
        ),
    ] = 50_000_000
    automatic: Annotated[
        bool,
        doc(
            "Whether the operator moves replicas to brokers that hold none. If false, the plan is in status.rebalance"
            " and waits until annotation penstock.io/rebalance has its id."
        ),
    ] = True


class ClusterSpec(Model, frozen=True, kw_only=True):
    """Desired state of a `Cluster`."""

    rules = (
        Rule(
            "!has(self.etcd.sidecar) || self.brokers.replicas == 1 || self.brokers.replicas >= 3",
            "with etcd.sidecar, brokers.replicas must be 1 or at least 3: two etcd members do not tolerate a failure",
        ),
        Rule(
            "!has(self.etcd.sidecar) || !has(oldSelf.etcd.sidecar) ||"
            " self.brokers.replicas >= 3 || oldSelf.brokers.replicas < 3",
            "with etcd.sidecar, brokers.replicas cannot be lowered below 3: the first three brokers run the etcd"
            " members; create a new Cluster instead",
        ),
        Rule(
            "!has(self.external) || self.external.port != self.port",
            "external.port must differ from port: both listeners are in the same pod",
        ),
        Rule(
            "!has(self.etcd.certificate) || (has(self.listeners) && size(self.listeners) > 0)",
            "etcd.certificate requires listeners: the operator issues certificates for secured Clusters only",
        ),
        Rule(
            "!has(self.external) || !has(self.listeners) || size(self.listeners) == 0",
            "external cannot be combined with listeners: add a listener of type nodeport, loadbalancer or tlsroute"
            " instead",
        ),
        Rule(
            "!has(self.listeners) || self.listeners.all(a, self.listeners.exists_one(b, b.port == a.port))",
            "listeners must have different ports: they are in the same pod",
        ),
    )

    etcd: Annotated[Etcd, doc("The etcd that stores the cluster's metadata. Set exactly one of endpoints and sidecar.")]
    image: (
        Annotated[
            str,
            doc(
                "Image of the brokers. Default: the image of the operator's release.",
                min_length=1,
                max_length=512,
            ),
        ]
        | None
    ) = None
    brokers: Annotated[BrokersSpec, doc("The brokers. All have the same configuration.")] = BrokersSpec()
    port: Annotated[
        int,
        doc(
            "Port of the plain-text listener for clients inside the Kubernetes cluster. Not used with listeners.",
            port_rule("port"),
            ge=1024,
            le=65535,
        ),
    ] = 9092
    external: (
        Annotated[
            ExternalListener,
            doc("Plain-text listener for clients outside the Kubernetes cluster. Not with listeners. Default: none."),
        ]
        | None
    ) = None
    listeners: Annotated[
        tuple[ClusterListener, ...],
        doc(
            "Listeners for clients. With listeners, brokers and operator authenticate to each other with certificates"
            " of the operator's CA. Without, one plain-text listener without authentication on port.",
            schema=keyed_by("name"),
            max_length=MAX_LISTENERS,
        ),
    ] = ()
    certificates: Annotated[Certificates, doc("Certificates of the brokers, with listeners.")] = Certificates()
    network_policy: Annotated[
        bool,
        doc(
            "Whether a NetworkPolicy restricts which pods can connect to which port of the brokers, with listeners."
            " Client listeners are open to all pods."
        ),
    ] = True
    config: Annotated[
        dict[str, str],
        doc(
            "Broker settings, by Kafka name. Quote booleans and fractions"
            ' ("true", "0.5"). A change of a setting that is not dynamic triggers a rolling restart.',
            *broker_rules(),
            schema=CONFIG_VALUE,
            max_length=MAX_SETTINGS,
        ),
    ] = {}
    moving: Annotated[Moving, doc("Replica moves between brokers.")] = Moving()
    zone_label: Annotated[
        str,
        doc(
            "Node label that contains the node's zone. Replicas of a partition are spread over zones.",
            min_length=1,
            max_length=317,
        ),
    ] = "topology.kubernetes.io/zone"
    paused: Annotated[bool, doc("If true, the operator updates the status but changes nothing else.")] = False


class BrokerStatus(Model, frozen=True, kw_only=True):
    """State of one broker."""

    id: Annotated[int, doc("Broker id: the ordinal of its pod.")]
    state: Annotated[str, doc("Ready, NotReady, Draining, Removable, Hibernated or Missing.")]
    node: Annotated[str, doc("Node that runs the broker's pod.")] | None = None
    zone: Annotated[str, doc("Zone of the node.")] | None = None
    replicas: Annotated[int, doc("Number of replicas on the broker, at the last reconciliation.")] | None = None
    leaders: Annotated[int, doc("Number of partitions that it leads, at the last reconciliation.")] | None = None
    version: Annotated[str, doc("Release that the broker runs.")] | None = None


class MovingStatus(Model, frozen=True, kw_only=True):
    """Progress of replica moves."""

    reason: Annotated[str, doc("Why replicas move.")]
    partitions_left: Annotated[int, doc("Number of partitions with replicas left to move.")]
    partitions_total: Annotated[int, doc("Total number of partitions of this move.")]


class ProposedMove(Model, frozen=True, kw_only=True):
    """The move of a partition in a plan."""

    topic: Annotated[str, doc("Name of the topic.")]
    partition: Annotated[int, doc("Number of the partition.")]
    from_brokers: Annotated[tuple[int, ...], doc("Brokers that give up a replica.")] = ()
    to_brokers: Annotated[
        tuple[int, ...], doc("Brokers that get a replica. Empty if only the preferred leader changes.")
    ] = ()
    bytes: Annotated[int, doc("Bytes to copy.")] | None = None


class RebalanceStatus(Model, frozen=True, kw_only=True):
    """A plan of replica moves that waits for an approval."""

    id: Annotated[
        str,
        doc(
            "Id of the plan. Annotation `penstock.io/rebalance` with this value approves it. `none`: a plan was"
            " requested, and no move is necessary."
        ),
    ]
    reason: Annotated[str, doc("Why the plan was made.")]
    partitions: Annotated[int, doc("Number of partitions that move.")]
    bytes: (
        Annotated[int, doc("Bytes to copy between brokers. Absent until the brokers have reported sizes.")] | None
    ) = None
    moves: Annotated[tuple[ProposedMove, ...], doc("The largest moves, at most 20.")] = ()


class ListenerStatus(Model, frozen=True, kw_only=True):
    """Address of a listener."""

    name: Annotated[str, doc("Name of the listener.")]
    bootstrap: Annotated[str, doc("Bootstrap servers, comma-separated. Empty while no address is known.")]


class ClusterStatus(Model, frozen=True, kw_only=True):
    """Observed state of a `Cluster`."""

    observed_generation: Annotated[int, doc("Generation of the object that the operator last reconciled.")] = 0
    conditions: Annotated[
        tuple[Condition, ...],
        doc(
            "Ready: the cluster serves clients. Healthy: all replicas are in sync, all partitions have a leader, and"
            " etcd is healthy. Progressing: the operator is changing the cluster. Scaled: the number of brokers is the"
            " desired one; otherwise the message states why. Rolled: all brokers run the desired configuration;"
            " otherwise the message states why. StateStore: all members of etcd are healthy. Snapshots, with"
            " etcd.snapshots: the last snapshot of etcd was stored and is not overdue. Restored, after"
            " a restore of etcd: whether it was completed; Unknown while it runs. Spread: no pods share a"
            " node although another one is free. Certificates, with listeners: the brokers' certificates are valid; the"
            " message states the step of a CA rollover. Hibernated, with annotation penstock.io/hibernate: no pod runs;"
            " if False, the message states what it waits for. Reconciling, only while True: an operation runs."
            " Stalled, only while True: an operation needs a user.",
            schema=keyed_by("type"),
        ),
    ] = ()
    replicas: Annotated[int, doc("Number of broker pods.")] | None = None
    ready_replicas: (
        Annotated[int, doc("Number of ready pods of the desired brokers, without those that a scale-down removes.")]
        | None
    ) = None
    selector: Annotated[str, doc("Label selector of the broker pods, as text, for autoscalers.")] | None = None
    cluster_id: Annotated[str, doc("Cluster id that the brokers report to clients.")] | None = None
    controller: Annotated[int, doc("Id of the controller broker.")] | None = None
    version: Annotated[str, doc("Release that all brokers run. During a rolling upgrade, the oldest one.")] | None = (
        None
    )
    brokers: Annotated[tuple[BrokerStatus, ...], doc("State of each broker.", schema=keyed_by("id"))] = ()
    offline: Annotated[int, doc("Number of partitions without a leader.")] | None = None
    under_replicated: Annotated[int, doc("Number of partitions with replicas that are not in sync.")] | None = None
    moving: Annotated[MovingStatus, doc("Progress of replica moves. Absent if no replicas move.")] | None = None
    rebalance: (
        Annotated[RebalanceStatus, doc("Plan of replica moves that waits for an approval. Absent if there is none.")]
        | None
    ) = None
    bootstrap: Annotated[str, doc("Bootstrap servers for clients inside the Kubernetes cluster.")] | None = None
    listeners: Annotated[
        tuple[ListenerStatus, ...], doc("Addresses of the listeners in spec.listeners.", schema=keyed_by("name"))
    ] = ()
    snapshots: (
        Annotated[SnapshotsStatus, doc("State of the snapshots of etcd. Absent without spec.etcd.snapshots.")] | None
    ) = None
    restore: Annotated[RestoreStatus, doc("State of the last restore of etcd. Absent if there was none.")] | None = None


class Cluster(Model, frozen=True, kw_only=True):
    """A Penstock cluster."""

    kind_info: ClassVar[KindInfo] = KindInfo(
        kind="Cluster",
        short="pcl",
        description="A Penstock cluster: brokers with their volumes, Services and etcd.",
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
            condition_column("StateStore", priority=1),
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
            f"the name of a Cluster must have at most {MAX_CLUSTER_NAME} lower case letters, digits and '-', and start"
            " with a letter: Services and pods are named after it",
        ),
    )

    metadata: ObjectMeta
    spec: Annotated[ClusterSpec, doc("Desired state of the cluster.")]
    status: Annotated[ClusterStatus, doc("Observed state of the cluster.")] = ClusterStatus()
