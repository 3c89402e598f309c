"""The values of the store that concern security: credentials, ACLs and quotas. They are part of the cluster's metadata.

Names of operations, resource and pattern types are those of `wire.acl` in upper case.
"""

from __future__ import annotations

import math
from typing import Annotated

import msgspec

from penstock.state.records import StoredRecord

RESOURCE_TYPES = frozenset({"TOPIC", "GROUP", "CLUSTER", "TRANSACTIONAL_ID", "DELEGATION_TOKEN", "USER"})
PATTERN_TYPES = frozenset({"LITERAL", "PREFIXED"})
PERMISSIONS = frozenset({"ALLOW", "DENY"})
OPERATIONS = frozenset(
    {
        "ALL", "READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "CLUSTER_ACTION", "DESCRIBE_CONFIGS",
        "ALTER_CONFIGS", "IDEMPOTENT_WRITE", "CREATE_TOKENS", "DESCRIBE_TOKENS", "TWO_PHASE_COMMIT",
    }
)  # fmt: skip
MECHANISMS = frozenset({"SCRAM-SHA-256", "SCRAM-SHA-512"})
ENTITY_TYPES = ({"user"}, {"client-id"}, {"user", "client-id"}, {"ip"})
"""The valid combinations of entity types of a quota."""


class ScramCredentialRecord(StoredRecord, frozen=True, kw_only=True):
    """A user's SCRAM credential (RFC 5802): not the password, but what verifies it. Bytes are base64 in JSON."""

    user: str
    mechanism: str
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: Annotated[int, msgspec.Meta(ge=4096, le=1 << 20)]

    def __repr__(self) -> str:
        return f"ScramCredentialRecord(user={self.user!r}, mechanism={self.mechanism!r})"  # without secrets

    def contradiction(self) -> str | None:
        """Return what makes the fields inconsistent with each other; None if they are consistent."""
        if self.mechanism not in MECHANISMS:
            return f"unknown mechanism {self.mechanism!r}"
        if not self.user or not self.salt:
            return "user or salt is empty"
        size = 32 if self.mechanism == "SCRAM-SHA-256" else 64
        if len(self.stored_key) != size or len(self.server_key) != size:
            return f"keys of {self.mechanism} have {size} bytes"
        return None


class SecurityRecord(StoredRecord, frozen=True, kw_only=True):
    """What all brokers need for authentication.

    `secret` makes up the same credentials of unknown users on each broker. `bootstrap_user` is the first administrator,
    who is created once; empty while there was none.
    """

    secret: bytes
    bootstrap_user: str = ""

    def __repr__(self) -> str:
        return f"SecurityRecord(bootstrap_user={self.bootstrap_user!r})"  # without the secret

    def contradiction(self) -> str | None:
        """Return what makes the fields inconsistent with each other; None if they are consistent."""
        return None if len(self.secret) >= 16 else "the secret is shorter than 16 bytes"


class AclRecord(StoredRecord, frozen=True, kw_only=True):
    """An access control list entry (KIP-11, KIP-290)."""

    resource_type: str
    pattern_type: str
    name: str
    principal: str
    """`User:name`, or `User:*` for everyone."""
    host: str
    """An address, a network such as 10.0.0.0/8 (KIP-1276), or `*`."""
    operation: str
    permission: str

    def contradiction(self) -> str | None:
        """Return what makes the fields inconsistent with each other; None if they are consistent."""
        for value, known in (
            (self.resource_type, RESOURCE_TYPES),
            (self.pattern_type, PATTERN_TYPES),
            (self.operation, OPERATIONS),
            (self.permission, PERMISSIONS),
        ):
            if value not in known:
                return f"{value!r} is not one of {', '.join(sorted(known))}"
        kind, colon, name = self.principal.partition(":")
        return None if kind and colon and name and self.name and self.host else "name, principal or host is empty"


class ClientQuotaRecord(StoredRecord, frozen=True, kw_only=True):
    """The quotas of an entity (KIP-546): `entity` has names by type, None for the default entity."""

    entity: dict[str, str | None]
    quotas: dict[str, float]

    def contradiction(self) -> str | None:
        """Return what makes the fields inconsistent with each other; None if they are consistent."""
        if set(self.entity) not in ENTITY_TYPES:
            return f"no quota has an entity of {sorted(self.entity)}"
        if any(not math.isfinite(value) or value < 0 for value in self.quotas.values()):
            return "a quota is negative or not finite"
        return None
