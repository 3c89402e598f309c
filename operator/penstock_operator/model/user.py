"""The `User` resource: authentication, rights and quotas of a client."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from penstock_operator.model.access import MAX_ACLS, UserAcl, UserQuotas
from penstock_operator.model.common import (
    AGE,
    ClusterRef,
    Condition,
    DeletionPolicy,
    KindInfo,
    Model,
    ObjectMeta,
    condition_column,
    keyed_by,
    message_column,
)
from penstock_operator.model.fields import PrinterColumn, Rule, doc

MAX_USER_NAME = 255
USER_NAME = "^[^\\x00-\\x20\\x7f]([^\\x00-\\x1f\\x7f]*[^\\x00-\\x20\\x7f])?$"
MAX_SECRET_NAME = 253
SECRET_KEY = "^[-._a-zA-Z0-9]+$"  # noqa: S105 - a pattern, not a secret
PLAIN_TEXT = "[\\x20-\\x5b\\x5d-\\x7e]+"
"""Printable ASCII without backslash: what all clients read alike from property files."""
MOUNT_PATH = "^/[^\\x00-\\x20\\x7f]*$"
MAX_KEPT = 100
"""Kept ACLs that the status shows."""

AuthenticationType = Literal["scram-sha-512", "scram-sha-256", "tls", "oauth", "external"]
PrincipalType = Literal["User", "Group"]
MECHANISMS: dict[str, str] = {"scram-sha-512": "SCRAM-SHA-512", "scram-sha-256": "SCRAM-SHA-256"}
"""SASL mechanism by type of authentication, if the operator manages the credential."""

ROTATE_PASSWORD = "penstock.io/rotate-password"  # noqa: S105 - the name of an annotation
"""Annotation of a User: any text; changing it replaces the generated password, or the certificate. The Secret has the
last text."""

_SCRAM = "self.type in ['scram-sha-512', 'scram-sha-256']"


class PasswordSecretRef(Model, frozen=True, kw_only=True):
    """Reference to a password in an existing Secret of the same namespace."""

    name: Annotated[str, doc("Name of the Secret, in the same namespace.", min_length=1, max_length=MAX_SECRET_NAME)]
    key: Annotated[
        str, doc("Key of the Secret with the password.", pattern=SECRET_KEY, min_length=1, max_length=MAX_SECRET_NAME)
    ] = "password"


class UserAuthentication(Model, frozen=True, kw_only=True):
    """How clients prove that they are the user."""

    rules = (
        Rule(
            f"{_SCRAM} || !has(self.passwordSecretRef)",
            "passwordSecretRef requires the type scram-sha-512 or scram-sha-256",
        ),
        Rule(
            f"{_SCRAM} || self.type == 'tls' || !has(self.secretName)",
            "secretName requires the type scram-sha-512, scram-sha-256 or tls",
        ),
        Rule(
            "!has(self.passwordSecretRef) || !has(self.secretName) || self.passwordSecretRef.name != self.secretName",
            "secretName is the Secret that the operator writes: choose another name than that of passwordSecretRef",
        ),
    )

    type: Annotated[
        AuthenticationType,
        doc(
            "`scram-sha-512`, `scram-sha-256`: user name and password; the operator manages the credential. `tls`:"
            " client certificate; the operator issues it, unless the Cluster has `certificates.clientCaSecret` or"
            " userName is more than a common name. `oauth`: OAuth bearer token, whose subject is the user name."
            " `external`: anything else. For the last two, the object only has rights and quotas."
        ),
    ] = "scram-sha-512"
    secret_name: (
        Annotated[
            str,
            doc(
                "Name of the Secret that the operator writes, with password or certificate, and files for clients."
                " Default: the name of the object.",
                min_length=1,
                max_length=MAX_SECRET_NAME,
            ),
        ]
        | None
    ) = None
    password_secret_ref: (
        Annotated[
            PasswordSecretRef,
            doc("Existing Secret with the password. Default: the operator generates a password."),
        ]
        | None
    ) = None
    mount_path: Annotated[
        str,
        doc(
            "Path at which pods mount the Secret. The files in the Secret refer to its `ca.crt` with it.",
            pattern=MOUNT_PATH,
            min_length=1,
            max_length=255,
        ),
    ] = "/etc/penstock/user"


class UserSpec(Model, frozen=True, kw_only=True):
    """Desired state of a `User`."""

    rules = (
        Rule(
            "!has(self.principalType) || self.principalType == 'User' || (has(self.authentication) &&"
            " self.authentication.type in ['oauth', 'external'])",
            "principalType Group requires authentication.type oauth or external",
        ),
        Rule(
            "!has(self.userName) || !has(self.authentication) ||"
            " !(self.authentication.type in ['scram-sha-512', 'scram-sha-256']) ||"
            " self.userName.matches('^" + PLAIN_TEXT.replace("\\", "\\\\") + "$')",
            "userName of a user with a password must be printable ASCII without backslash",
        ),
        Rule(
            "!has(self.principalType) || self.principalType == 'User' || !has(self.quotas)",
            "quotas apply to users only: remove quotas, or set principalType User",
        ),
    )

    cluster_ref: Annotated[ClusterRef, doc("Cluster of the user. Immutable.")]
    user_name: (
        Annotated[
            str,
            doc(
                "User name, as in the principal `User:NAME`. Default: the name of the object; for the type tls,"
                " `CN=` and the name of the object. Immutable.",
                Rule("self != '*'", "userName cannot be *, which is every user: set the name of one user"),
                pattern=USER_NAME,
                min_length=1,
                max_length=MAX_USER_NAME,
            ),
        ]
        | None
    ) = None
    principal_type: Annotated[
        PrincipalType,
        doc("Type of the principal. `Group`: a group of users, as tokens of an OAuth provider name it. Immutable."),
    ] = "User"
    authentication: Annotated[UserAuthentication, doc("How clients prove that they are the user.")] = (
        UserAuthentication()
    )
    acls: Annotated[
        tuple[UserAcl, ...],
        doc(
            "Rights of the user. ACLs that are not listed are removed, except those that an adopted user had before"
            " (status.keptAcls).",
            max_length=MAX_ACLS,
        ),
    ] = ()
    quotas: Annotated[UserQuotas, doc("Quotas of the user. Quotas that are not listed are removed.")] | None = None
    deletion_policy: Annotated[
        DeletionPolicy,
        doc("Whether to revoke credential, ACLs and quotas when this object is deleted. Retain keeps them."),
    ] = "Delete"
    paused: Annotated[
        bool,
        doc(
            "If true, the operator updates the status but changes nothing else. If the object is deleted while it is"
            " paused, the user is kept."
        ),
    ] = False

    @property
    def lasting_policy(self) -> DeletionPolicy:
        """The deletion policy in effect: a paused object retains its user."""
        return "Retain" if self.paused else self.deletion_policy


class UserStatus(Model, frozen=True, kw_only=True):
    """Observed state of a `User`."""

    observed_generation: Annotated[int, doc("Generation of the object that the operator last reconciled.")] = 0
    conditions: Annotated[
        tuple[Condition, ...],
        doc(
            "Ready: the user matches the spec. Authentication: the brokers have the credential of the Secret."
            " Authorization: the brokers have the ACLs. Quotas: the brokers have the quotas.",
            schema=keyed_by("type"),
        ),
    ] = ()
    principal: Annotated[str, doc("Principal, as in ACLs.")] | None = None
    secret: Annotated[str, doc("Name of the Secret that the operator writes.")] | None = None
    acls: Annotated[int, doc("Number of ACLs of the principal at the brokers.")] | None = None
    last_rotation: Annotated[str, doc("Time at which the password or the certificate last changed.")] | None = None
    credential: (
        Annotated[
            str,
            doc("Keyed hash of the password that the brokers have; the key is in the Secret."),
        ]
        | None
    ) = None
    kept_acls: Annotated[
        tuple[str, ...],
        doc(
            "ACLs that the user had when this object adopted it and that the spec does not list; the first 100. The"
            " operator does not change them.",
            max_length=MAX_KEPT,
        ),
    ] = ()


class User(Model, frozen=True, kw_only=True):
    """A user of a `Cluster`."""

    kind_info: ClassVar[KindInfo] = KindInfo(
        kind="User",
        short="puser",
        description="A user of a Cluster. The operator keeps its credential, ACLs and quotas as specified.",
        columns=(
            condition_column("Ready"),
            PrinterColumn("Authentication", ".spec.authentication.type"),
            PrinterColumn("ACLs", ".status.acls", "integer"),
            PrinterColumn("Rotated", ".status.lastRotation", "date"),
            AGE,
            PrinterColumn("Cluster", ".spec.clusterRef.name", priority=1),
            PrinterColumn("Principal", ".status.principal", priority=1),
            PrinterColumn("Secret", ".status.secret", priority=1),
            message_column(),
        ),
    )
    rules = (
        Rule(
            "(has(self.spec.userName) ? self.spec.userName : (self.spec.authentication.type == 'tls' ? 'CN=' : '') +"
            " self.metadata.name) == (has(oldSelf.spec.userName) ? oldSelf.spec.userName :"
            " (oldSelf.spec.authentication.type == 'tls' ? 'CN=' : '') + oldSelf.metadata.name)",
            "userName cannot be changed: create another User, and delete this one. The type tls changes the default:"
            " set userName to keep the name",
        ),
        Rule(
            "self.spec.principalType == oldSelf.spec.principalType",
            "principalType cannot be changed: create another User, and delete this one",
        ),
    )

    metadata: ObjectMeta
    spec: Annotated[UserSpec, doc("Desired state of the user.")]
    status: Annotated[UserStatus, doc("State of the user as the brokers report it.")] = UserStatus()

    @property
    def user_name(self) -> str:
        """User name: `spec.userName`, or the name of the object; as a distinguished name for the type tls."""
        prefix = "CN=" if self.spec.authentication.type == "tls" else ""
        return self.spec.user_name or prefix + self.metadata.name

    @property
    def principal(self) -> str:
        """The principal, such as `User:ana`."""
        return f"{self.spec.principal_type}:{self.user_name}"

    @property
    def mechanism(self) -> str | None:
        """The SASL mechanism of the credential that the operator manages, or None."""
        return MECHANISMS.get(self.spec.authentication.type)

    @property
    def secret_name(self) -> str:
        """Name of the Secret that the operator writes."""
        return self.spec.authentication.secret_name or self.metadata.name
