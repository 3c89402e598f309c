"""Credentials, ACLs and quotas of users at the brokers of one cluster: part of `ports.brokers.BrokerGateway`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

SECURITY_DISABLED = "SECURITY_DISABLED"
"""Error code of ACL requests to brokers without an authorizer."""


@dataclass(frozen=True, order=True, slots=True)
class AclEntry:
    """An ACL of a principal. Values are the names in `penstock.wire.acl`."""

    resource_type: str
    pattern_type: str
    name: str
    operation: str
    permission: str = "ALLOW"
    host: str = "*"

    def __str__(self) -> str:
        pattern = f"{self.name}*" if self.pattern_type == "PREFIXED" else self.name
        host = "" if self.host == "*" else f" from {self.host}"
        return f"{self.permission} {self.operation} on {self.resource_type} {pattern}{host}"


class AccessGateway(Protocol):
    """Operations on credentials, ACLs and quotas. All have a timeout and raise `BrokersError`."""

    async def credentials(self, users: Collection[str]) -> dict[str, dict[str, int]]:
        """Return the iterations by SASL mechanism of each user with SCRAM credentials."""

    async def set_credential(self, user: str, mechanism: str, password: str, iterations: int) -> None:
        """Create or replace a SCRAM credential."""

    async def delete_credential(self, user: str, mechanism: str) -> None:
        """Delete a SCRAM credential, if it exists."""

    async def acls(self, principals: Collection[str]) -> dict[str, frozenset[AclEntry]]:
        """Return the ACLs of each principal that has any. Raises with the code `SECURITY_DISABLED` without an
        authorizer."""

    async def create_acls(self, principal: str, acls: Collection[AclEntry]) -> None:
        """Create ACLs; existing ones are left unchanged."""

    async def delete_acls(self, principal: str, acls: Collection[AclEntry]) -> None:
        """Delete ACLs, if they exist."""

    async def quotas(self, users: Collection[str]) -> dict[str, dict[str, float]]:
        """Return the quotas by name of each user that has any, without those for a client id."""

    async def change_quotas(self, user: str, changes: Mapping[str, float | None]) -> None:
        """Set quotas of a user; None removes one."""
