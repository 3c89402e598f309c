"""Input and actions of `reconcile.user`. No value with a password or key has a representation that contains it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from penstock_operator.model.common import DeletionPolicy
from penstock_operator.model.user import User, UserStatus
from penstock_operator.ports.access import AclEntry
from penstock_operator.ports.brokers import BrokersError
from penstock_operator.ports.kube import KubeEvent, Object
from penstock_operator.reconcile.plan import ReconcilePlan
from penstock_operator.specs.certificates import ReadCertificate

Part = Literal["ownership", "authentication", "authorization", "quotas"]
"""Parts of a user that succeed and fail independently of each other, once the ownership is recorded."""


@dataclass(frozen=True, slots=True)
class UserOwner:
    """Who owns a principal. The operator records it before it changes the principal at the brokers."""

    principal: str
    uid: str
    policy: DeletionPolicy
    mechanism: str | None = None
    """Mechanism of the credential that the operator manages, or None."""
    kept_acls: tuple[AclEntry, ...] = ()
    """ACLs that the principal had when the owner adopted it and that its spec does not list."""
    kept_quotas: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UserOwnerAbsence:
    """What is known about the missing owner of a principal."""

    was_deleted: bool = False
    """Whether its DELETED event was received."""
    policy: DeletionPolicy | None = None
    """Final policy in the DELETED event; None: the recorded policy applies."""
    lists_without: int = 0
    """Number of consecutive complete lists without its UID."""
    may_delete: bool | None = None
    """Whether the user may be revoked. False: the namespace or the CRD is being deleted. None: not checked yet."""


@dataclass(frozen=True, slots=True)
class ObservedSecret:
    """A Secret. `owner`: UID of its controller, or ""."""

    owner: str
    resource_version: str
    rotation: str
    """Text of the annotation with the last rotation."""
    data: Mapping[str, bytes] = field(repr=False)


@dataclass(frozen=True, slots=True)
class ClientAuthority:
    """The CA that issues the certificates of users; its key is not part of the plan."""

    certificate: ReadCertificate
    validity_days: int
    renew_before_days: int
    now: datetime


@dataclass(frozen=True, slots=True)
class NewSecrets:
    """Random values that the plan may use: a password and a key of the fingerprint."""

    password: str = field(repr=False)
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ObservedUser:
    """Observed state of a principal, of its Secrets and of its cluster."""

    principal: str
    name: str
    new: NewSecrets
    now: str
    """Current time, RFC 3339."""
    bootstrap: str = ""
    ca: bytes | None = None
    """CA certificates of the cluster, PEM; None: its listeners have no TLS."""
    authority: ClientAuthority | None = None
    """CA of a certificate for the user; None: the operator issues none."""
    record: UserOwner | None = None
    credentials: Mapping[str, int] = field(default_factory=dict)
    """Iterations by mechanism."""
    acls: frozenset[AclEntry] | None = frozenset()
    """None: the brokers have no authorizer."""
    quotas: Mapping[str, float] = field(default_factory=dict)
    secret: ObservedSecret | None = None
    """The Secret that the operator writes."""
    referenced: ObservedSecret | None = None
    """The Secret of `passwordSecretRef`."""
    applied: str | None = None
    """Fingerprint of the password that the operator has just sent to the brokers."""
    rivals: tuple[User, ...] = ()
    """Other objects for the same principal of the same cluster."""
    has_owner: bool = False
    """Whether the recorded owner exists and specifies the principal."""
    absence: UserOwnerAbsence | None = None
    unreachable: str | None = None
    """Why the brokers could not be queried; the state is invalid then."""
    is_hibernated: bool = False
    """Whether they are `unreachable` because the cluster is hibernated."""
    has_cluster: bool = True
    failures: Mapping[Part, BrokersError] = field(default_factory=dict)
    """Errors of the last actions."""


@dataclass(frozen=True, slots=True)
class RecordOwner:
    """Record who owns the principal."""

    owner: UserOwner
    event: KubeEvent | None = None


@dataclass(frozen=True, slots=True)
class ForgetOwner:
    """Remove the record of the owner."""

    principal: str
    event: KubeEvent | None = None


@dataclass(frozen=True, slots=True)
class WriteSecret:
    """Create the Secret, or change the version that was observed."""

    body: Object = field(repr=False)
    before: ObservedSecret | None
    event: KubeEvent | None = None


@dataclass(frozen=True, slots=True)
class IssueUserCertificate:
    """Issue a client certificate with a new key, and write it to the Secret, with `files`."""

    common_name: str
    days: int
    files: Mapping[str, bytes]
    rotation: str
    before: ObservedSecret | None
    event: KubeEvent | None = None


@dataclass(frozen=True, slots=True)
class SetCredential:
    """Create or replace the SCRAM credential."""

    mechanism: str
    iterations: int
    fingerprint: str
    password: str = field(repr=False)
    event: KubeEvent | None = None


@dataclass(frozen=True, slots=True)
class DeleteCredential:
    """Delete a SCRAM credential."""

    mechanism: str
    event: KubeEvent | None = None


@dataclass(frozen=True, slots=True)
class ChangeAcls:
    """Create and delete ACLs. Those that deny are created first and deleted last."""

    add: tuple[AclEntry, ...]
    remove: tuple[AclEntry, ...]
    event: KubeEvent | None = None


@dataclass(frozen=True, slots=True)
class ChangeQuotas:
    """Change quotas; None removes one."""

    changes: Mapping[str, float | None]
    event: KubeEvent | None = None


UserAction = (
    RecordOwner
    | ForgetOwner
    | WriteSecret
    | IssueUserCertificate
    | SetCredential
    | DeleteCredential
    | ChangeAcls
    | ChangeQuotas
)
UserPlan = ReconcilePlan[UserAction, UserStatus]

PART_OF: Mapping[type, Part] = {
    RecordOwner: "ownership",
    ForgetOwner: "ownership",
    WriteSecret: "authentication",
    IssueUserCertificate: "authentication",
    SetCredential: "authentication",
    DeleteCredential: "authentication",
    ChangeAcls: "authorization",
    ChangeQuotas: "quotas",
}
