"""The interface that decides whether a principal may do something, and its implementation without authorization."""

from __future__ import annotations

from typing import Protocol

from penstock.security.principal import Principal
from penstock.wire.acl import AclOperation, ResourceType


class Authorizer(Protocol):
    """Decides synchronously, on the event loop; a decision that was made before costs a dictionary look-up."""

    @property
    def is_enabled(self) -> bool:
        """Whether there is authorization at all. If not, ACL requests are answered with SECURITY_DISABLED."""

    @property
    def generation(self) -> int:
        """Changes with each change of the ACLs: a decision that a caller keeps is valid for one generation."""

    def may_decide(self, principal: Principal) -> bool:
        """Return whether decisions about a principal are up to date. If not, the client must turn to another broker."""

    def is_allowed(
        self, principal: Principal, host: str, operation: AclOperation, resource: ResourceType, name: str
    ) -> bool:
        """Return whether `principal`, connected from the address `host`, may do `operation` on a resource."""

    def is_allowed_for_any(
        self, principal: Principal, host: str, operation: AclOperation, resource: ResourceType
    ) -> bool:
        """Return whether there may be a resource of this type on which the operation is allowed."""


class AllowAll:
    """The authorizer of a cluster without authorization."""

    is_enabled = False
    generation = 0

    def may_decide(self, principal: Principal) -> bool:
        """Return True."""
        return True

    def is_allowed(
        self, principal: Principal, host: str, operation: AclOperation, resource: ResourceType, name: str
    ) -> bool:
        """Return True."""
        return True

    def is_allowed_for_any(
        self, principal: Principal, host: str, operation: AclOperation, resource: ResourceType
    ) -> bool:
        """Return True."""
        return True
