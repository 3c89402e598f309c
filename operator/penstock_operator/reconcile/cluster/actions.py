"""Actions on a cluster and the dependencies between them. `clusters.action_runner` executes them in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from penstock_operator.ports.brokers import ConfigPatch
from penstock_operator.ports.kube import CONFIG_MAPS, SERVICES, STATEFUL_SETS, KubeEvent, KubeResource, Object
from penstock_operator.specs import names


@dataclass(frozen=True, slots=True)
class ApplyObject:
    """Apply a rendered object."""

    resource: KubeResource
    body: Object
    why: str
    """What was missing or different, for the log."""
    is_new: bool = False
    """Whether the cache has no such object. Watches select by label, so another owner's object may exist."""
    seen: Object | None = None
    """The observed object if it must not have changed since. Set for a StatefulSet, whose replicas depend on its
    observed state."""
    event: KubeEvent | None = None
    """Event about the object and the Cluster if the apply reverts a change of another client."""


@dataclass(frozen=True, slots=True)
class DeleteObject:
    """Delete an object."""

    resource: KubeResource
    name: str
    uid: str
    orphan: bool = False
    """Whether its dependents are kept."""


@dataclass(frozen=True, slots=True)
class ExpandClaim:
    """Increase the size of a PersistentVolumeClaim."""

    name: str
    size: str

    @property
    def key(self) -> str:
        """Key of a rejection of this change."""
        return f"{self.name}={self.size}"


@dataclass(frozen=True, slots=True)
class AnnotateClaim:
    """Record the number of etcd members in an annotation of an etcd claim. Claims outlive the Cluster, and a later
    Cluster of the same name must start with as many members."""

    name: str
    members: int


@dataclass(frozen=True, slots=True)
class RestartPod:
    """Delete a pod, so that the StatefulSet recreates it. Planned again from fresh data before execution."""

    name: str
    uid: str
    ordinal: int
    why: str


@dataclass(frozen=True, slots=True)
class MovePod:
    """Delete a pod that shares its node, so that the scheduler places it on another one. Planned again from fresh data
    before execution."""

    name: str
    uid: str
    group: str
    """Key of the recorded move: see `cluster_annotations.SpreadMove`."""
    node: str


@dataclass(frozen=True, slots=True)
class RemoveStoreMember:
    """Remove the etcd membership of a member that lost its data, or that is not wanted. Planned again from fresh data
    before execution."""

    name: str
    endpoint: str
    """Endpoint of another member, which executes the request."""
    member_id: int
    why: str = "it has lost its data"


@dataclass(frozen=True, slots=True)
class AddStoreMember:
    """Add a member to etcd, as a learner. Planned again from fresh data before execution."""

    name: str
    endpoint: str
    """Endpoint of another member, which executes the request."""
    peer_url: str


@dataclass(frozen=True, slots=True)
class PromoteStoreMember:
    """Let a learner vote. Planned again from fresh data before execution."""

    name: str
    endpoint: str
    """Endpoint of another member, which executes the request."""
    member_id: int


@dataclass(frozen=True, slots=True)
class MoveStoreLeader:
    """Let the leader of etcd hand over to another member. Planned again from fresh data before execution."""

    name: str
    """Member that becomes the leader."""
    endpoint: str
    """Endpoint of the leader."""
    member_id: int


@dataclass(frozen=True, slots=True)
class RestartStorePod:
    """Delete the pod of an etcd member that does not run, so that it starts without delay."""

    name: str
    uid: str
    why: str


@dataclass(frozen=True, slots=True)
class ScaleStore:
    """Scale the StatefulSet of the companion etcd. Planned again from fresh data before execution."""

    name: str
    replicas: int


@dataclass(frozen=True, slots=True)
class CreatePod:
    """Create a pod that runs once; one that exists is no error."""

    body: Object
    event: KubeEvent | None = None


@dataclass(frozen=True, slots=True)
class CreateRestorePod:
    """Create a pod that restores etcd. Planned again from fresh data before execution."""

    body: Object


@dataclass(frozen=True, slots=True)
class ScaleDownStatefulSet:
    """Apply the StatefulSet with fewer replicas. Planned again from fresh data before execution."""

    body: Object
    removed: tuple[int, ...]
    version: str = ""
    """Observed resource version; the write fails if the object has another one."""
    event: KubeEvent | None = None
    """As in `ApplyObject`."""


@dataclass(frozen=True, slots=True)
class ChangeBrokers:
    """Change dynamic broker settings."""

    changes: tuple[ConfigPatch, ...]


@dataclass(frozen=True, slots=True)
class ReassignPartitions:
    """Start reassignments; None cancels the ongoing one of a partition."""

    targets: Mapping[tuple[str, int], tuple[int, ...] | None]


@dataclass(frozen=True, slots=True)
class CreateAuthority:
    """Create a CA: the first one, or with `trusted` the one that replaces it."""

    trusted: str = ""
    """The present CA (PEM), whose certificates stay valid."""
    rotation: str = ""
    """Text of the annotation that requested it."""


@dataclass(frozen=True, slots=True)
class PromoteAuthority:
    """Issue certificates from the new CA from now on, and delete the key of the old one."""


@dataclass(frozen=True, slots=True)
class DropAuthority:
    """Remove the old CA."""


@dataclass(frozen=True, slots=True)
class IssueCertificate:
    """Issue a certificate of the operator's CA with a new key, and write its Secret."""

    secret: str
    common_name: str
    hosts: tuple[str, ...]
    days: int
    trusted: str
    """CAs (PEM) that are written beside it."""
    why: str


@dataclass(frozen=True, slots=True)
class CreateEtcdCertificate:
    """Create the Secret with etcd's certificate, which must not exist."""

    secret: str
    hosts: tuple[str, ...]


AuthorityAction = CreateAuthority | PromoteAuthority | DropAuthority | IssueCertificate | CreateEtcdCertificate
CertificateAction = AuthorityAction | ApplyObject
StoreAction = RemoveStoreMember | AddStoreMember | PromoteStoreMember | MoveStoreLeader | RestartStorePod | ScaleStore

ClusterAction = (
    ApplyObject
    | AuthorityAction
    | DeleteObject
    | ExpandClaim
    | AnnotateClaim
    | RestartPod
    | MovePod
    | StoreAction
    | CreatePod
    | CreateRestorePod
    | ScaleDownStatefulSet
    | ChangeBrokers
    | ReassignPartitions
)

Step = Literal["annotations", "certificates", "names", "pods", "settings", "moves", "other"]


def is_broker_service(body: Object) -> bool:
    """Whether an object is the Service whose name a broker advertises."""
    return names.BROKER_SERVICE_LABEL in (body["metadata"].get("labels") or {})


def step_of(action: ClusterAction) -> Step:
    """Return the step of an action, on which other actions may depend."""
    match action:
        case ApplyObject(resource=resource) if resource == CONFIG_MAPS:
            return "annotations"
        case ApplyObject(resource=resource, body=body) if resource == SERVICES and is_broker_service(body):
            return "names"
        case CreateAuthority() | PromoteAuthority() | DropAuthority() | IssueCertificate():
            return "certificates"
        case ApplyObject(resource=resource) | DeleteObject(resource=resource) if resource == STATEFUL_SETS:
            return "pods"
        case ScaleDownStatefulSet():
            return "pods"
        case ChangeBrokers():
            return "settings"
        case ReassignPartitions():
            return "moves"
        case _:
            return "other"


def needs(action: ClusterAction) -> frozenset[Step]:
    """Return the steps that must not have failed earlier in the same plan. The ConfigMap holds the annotations, which
    are written before the operation that they announce, and the settings with which pods start. Throttle and failure
    domains are set before replicas move. Pods start when the names that they advertise exist. External Services, the
    disruption budget and claims are independent."""
    match action:
        case ReassignPartitions():
            return frozenset({"annotations", "settings", "moves"})
        case ChangeBrokers():
            return frozenset({"annotations"})
        case RestartPod() | MovePod():
            return frozenset({"annotations", "certificates", "names", "pods"})
        case CreateRestorePod() | RemoveStoreMember() | AddStoreMember() | PromoteStoreMember() | MoveStoreLeader():
            return frozenset({"annotations"})
        case RestartStorePod() | ScaleStore():
            return frozenset({"annotations"})
        case _ if step_of(action) == "pods":
            return frozenset({"annotations", "certificates", "names", "pods"})
        case _:
            return frozenset()
