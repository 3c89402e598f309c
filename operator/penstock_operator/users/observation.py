"""Collects inputs of `reconcile.user` from cache and API server. Used by `controller`, `batch` and `orphans`."""

from __future__ import annotations

import base64
import binascii
from collections import defaultdict
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock_operator.engine.ports import Objects
from penstock_operator.model.common import DeletionPolicy, ObjectKey
from penstock_operator.model.parse import InvalidResource, parse
from penstock_operator.model.user import ROTATE_PASSWORD, User
from penstock_operator.ports.brokers import BrokersError
from penstock_operator.ports.kube import SECRETS, USERS, Kube, KubeEvent, Object
from penstock_operator.reconcile.user.types import ObservedSecret, Part, UserOwner, UserOwnerAbsence, UserPlan

ClusterKey = tuple[str, str]
"""Namespace and name of a Cluster."""
DEFAULT_PORT = 9092


@dataclass(slots=True)
class UserObservation:
    """One principal of a batch. `body` is the object, its last version if it was deleted, or the Cluster of an
    orphan."""

    key: ObjectKey
    principal: str
    desired: User | None
    body: Object
    is_orphan: bool = False
    plan: UserPlan | None = None
    events: list[KubeEvent] = field(default_factory=list)
    failures: dict[Part, BrokersError] = field(default_factory=dict)
    applied: str | None = None
    """Fingerprint of the password that this batch sent to the brokers."""
    error: str | None = None
    """Error because of which the key is retried with backoff."""
    requeue_after_s: float | None = None
    is_transient_problem: bool = False
    """Whether the brokers have been unreachable for a short time only; the status is kept."""

    @property
    def user_name(self) -> str:
        """Name without the type of the principal."""
        return self.principal.partition(":")[2]


@dataclass(frozen=True, slots=True)
class DesiredUsers:
    """User objects of a cluster by principal."""

    by_principal: Mapping[str, tuple[Object, ...]]

    def specifies(self, principal: str, uid: str) -> bool:
        """Whether the object with this UID specifies the principal."""
        return any(body["metadata"].get("uid") == uid for body in self.by_principal.get(principal, ()))

    def rivals(self, user: User) -> tuple[User, ...]:
        """Return other valid objects for the same principal."""
        found = []
        for other in self.by_principal.get(user.principal, ()):
            if other["metadata"].get("uid") != user.metadata.uid:
                try:
                    found.append(parse("User", other))
                except InvalidResource:
                    continue
        return tuple(found)


def desired_users(objects: Objects, cluster: ClusterKey) -> DesiredUsers:
    """Return the User objects of a cluster by principal."""
    found: defaultdict[str, list[Object]] = defaultdict(list)
    for body in objects.in_cluster(USERS, *cluster):
        found[principal_of(body)].append(body)
    return DesiredUsers({principal: tuple(bodies) for principal, bodies in found.items()})


def principal_of(body: Mapping[str, Any]) -> str:
    """Return the principal of a User object, which may be invalid."""
    spec = body.get("spec") or {}
    prefix = "CN=" if (spec.get("authentication") or {}).get("type") == "tls" else ""
    name = spec.get("userName") or f"{prefix}{body['metadata']['name']}"
    return f"{spec.get('principalType') or 'User'}:{name}"


def cluster_of(body: Mapping[str, Any]) -> ClusterKey:
    """Return namespace and name of the Cluster of a User object."""
    name = ((body.get("spec") or {}).get("clusterRef") or {}).get("name") or ""
    return str(body["metadata"].get("namespace") or ""), str(name)


def key_of(body: Mapping[str, Any]) -> ObjectKey:
    """Return the queue key of a User."""
    return ObjectKey("User", str(body["metadata"].get("namespace") or ""), str(body["metadata"]["name"]))


def final_policy(body: Mapping[str, Any]) -> DeletionPolicy:
    """Return the deletion policy of a deleted object; a paused object retains its user."""
    spec = body.get("spec") or {}
    return "Retain" if spec.get("deletionPolicy") == "Retain" or spec.get("paused") else "Delete"


class ClientEndpoint(NamedTuple):
    """Where the clients of a Cluster connect, and whether they use TLS if the Cluster has a CA."""

    bootstrap: str
    may_have_tls: bool = True


def client_endpoint(cluster: Object, authentication: str = "scram") -> ClientEndpoint:
    """Return the endpoint for clients in the Kubernetes cluster that authenticate with passwords (`scram`) or with
    certificates (`tls`).

    It is the first internal listener with that authentication. Without one, it is for passwords that of `port`, and for
    certificates the first external listener; its bootstrap is "" if there is none.
    """
    metadata, spec = cluster["metadata"], cluster.get("spec") or {}
    host = f"{metadata['name']}.{metadata['namespace']}.svc"
    fitting = [x for x in spec.get("listeners") or () if x.get("authentication", "scram") == authentication]
    for listener in fitting:
        if listener.get("type", "internal") == "internal":
            return ClientEndpoint(f"{host}:{listener.get('port')}", listener.get("tls", True))
    if authentication == "scram":
        return ClientEndpoint(f"{host}:{spec.get('port') or DEFAULT_PORT}")
    addresses = {x.get("name"): x.get("bootstrap") for x in (cluster.get("status") or {}).get("listeners") or ()}
    return ClientEndpoint(next((str(a) for x in fitting if (a := addresses.get(x.get("name")))), ""))


async def read_secret(kube: Kube, namespace: str, name: str) -> ObservedSecret | None:
    """Return a Secret, or None if it does not exist. Raises `KubeError`."""
    body = await kube.get(SECRETS, namespace, name)
    if body is None:
        return None
    metadata = body["metadata"]
    owners = metadata.get("ownerReferences") or ()
    owner = next((str(entry.get("uid")) for entry in owners if entry.get("controller")), "")
    rotation = str((metadata.get("annotations") or {}).get(ROTATE_PASSWORD, ""))
    data = {str(key): decoded(value) for key, value in (body.get("data") or {}).items()}
    return ObservedSecret(owner, str(metadata.get("resourceVersion") or ""), rotation, data)


def decoded(value: Any) -> bytes:
    """Return the bytes of a Secret's value; none if it is not base64."""
    try:
        return base64.b64decode(str(value), validate=True)
    except (binascii.Error, ValueError):
        return b""


def owner_absence(
    record: UserOwner | None,
    known: DesiredUsers,
    objects: Objects,
    absences: Mapping[str, int],
    kept_owners: Container[str],
) -> UserOwnerAbsence | None:
    """Return what is known about the missing owner of a principal; None if the owner exists or none is recorded.
    `kept_owners`: UIDs of deleted objects whose users are retained by a decision made when they were deleted. A DELETED
    event older than the present Cluster may come from a deleted namespace, so it proves no more than a list."""
    if record is None or known.specifies(record.principal, record.uid):
        return None
    lists_without = absences.get(record.uid, 0)
    if record.uid in kept_owners:
        return UserOwnerAbsence(True, "Retain", lists_without)
    last = objects.deleted_by_uid(USERS, record.uid)
    if last is None or (final_policy(last) == "Delete" and not objects.has_same_cluster(USERS, record.uid)):
        return UserOwnerAbsence(lists_without=lists_without)
    return UserOwnerAbsence(True, final_policy(last), lists_without)
