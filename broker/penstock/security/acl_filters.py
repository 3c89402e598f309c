"""ACLs and filters of ACLs in requests (KIP-140, KIP-290): validation, and which ACLs a filter matches."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

from penstock.security.acl_hosts import check_host
from penstock.security.principal import parse_principal
from penstock.state.security_records import AclRecord
from penstock.wire.acl import CLUSTER_NAME, WILDCARD, AclOperation, AclPermission, PatternType, ResourceType

MAX_NAME_CHARS = 1_024
"""Length of a resource's name and of a principal: that of the longest group id."""

E = TypeVar("E", bound=IntEnum)


class InvalidAcl(ValueError):
    """An ACL or filter that is rejected; the message says why."""


@dataclass(frozen=True, slots=True)
class StoredAclFilter:
    """A filter with the protocol's numbers. None and ANY match everything.

    The pattern type MATCH finds the ACLs that apply to a resource named `name`, whatever their pattern.
    """

    resource_type: int
    name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    def check(self) -> None:
        """Raise `InvalidAcl` for a number that is unknown."""
        known_number(ResourceType, self.resource_type, "resource type")
        known_number(PatternType, self.pattern_type, "pattern type")
        known_number(AclOperation, self.operation, "operation")
        known_number(AclPermission, self.permission, "permission")

    def exact(self) -> AclRecord | None:
        """Return the only ACL that the filter can match; None if it can match several, or none."""
        if self.name is None or self.principal is None or self.host is None:
            return None
        try:
            return new_acl(
                self.resource_type,
                self.name,
                self.pattern_type,
                self.principal,
                self.host,
                self.operation,
                self.permission,
            )
        except InvalidAcl:
            return None

    def matches(self, acl: AclRecord) -> bool:
        """Return whether the filter, which was checked, matches an ACL."""
        return (
            (self.resource_type == ResourceType.ANY or ResourceType(self.resource_type).name == acl.resource_type)
            and self.matches_name(acl)
            and (self.principal is None or self.principal == acl.principal)
            and (self.host is None or self.host == acl.host)
            and (self.operation == AclOperation.ANY or AclOperation(self.operation).name == acl.operation)
            and (self.permission == AclPermission.ANY or AclPermission(self.permission).name == acl.permission)
        )

    def matches_name(self, acl: AclRecord) -> bool:
        """Return whether the filter matches the ACL's pattern."""
        pattern = PatternType(self.pattern_type)
        if pattern in (PatternType.LITERAL, PatternType.PREFIXED) and pattern.name != acl.pattern_type:
            return False
        if self.name is None or self.name == acl.name:
            return True
        if pattern is not PatternType.MATCH:
            return False
        if acl.pattern_type == PatternType.LITERAL.name:
            return acl.name == WILDCARD
        return self.name.startswith(acl.name)


def new_acl(
    resource_type: int, name: str, pattern_type: int, principal: str, host: str, operation: int, permission: int
) -> AclRecord:
    """Return the record of an ACL to create. Raises `InvalidAcl`."""
    resource = concrete_number(ResourceType, resource_type, "resource type")
    pattern = concrete_number(PatternType, pattern_type, "pattern type")
    if pattern is PatternType.MATCH:
        raise InvalidAcl("pattern type MATCH is valid in filters only; use LITERAL or PREFIXED")
    check_name(resource, name)
    if len(principal) > MAX_NAME_CHARS:
        raise InvalidAcl(f"the principal has more than {MAX_NAME_CHARS} characters")
    try:
        parse_principal(principal)
        check_host(host)
    except ValueError as e:
        raise InvalidAcl(str(e)) from None
    return AclRecord(
        resource_type=resource.name,
        pattern_type=pattern.name,
        name=name,
        principal=principal,
        host=host,
        operation=concrete_number(AclOperation, operation, "operation").name,
        permission=concrete_number(AclPermission, permission, "permission").name,
    )


def check_name(resource: ResourceType, name: str) -> None:
    """Raise `InvalidAcl` if a resource of this type cannot have a name."""
    if not name:
        raise InvalidAcl("the resource name is empty; set one, or * for all resources of the type")
    if len(name) > MAX_NAME_CHARS:
        raise InvalidAcl(f"the resource name has more than {MAX_NAME_CHARS} characters")
    if resource is ResourceType.CLUSTER and name != CLUSTER_NAME:
        raise InvalidAcl(f'resource name "{name}" is invalid for the cluster; use "{CLUSTER_NAME}"')


def known_number(kind: type[E], number: int, what: str) -> E:
    """Return the member of an enumeration. Raises `InvalidAcl` for an unknown number."""
    try:
        member = kind(number)
    except ValueError:
        member = kind(0)
    if not member:
        raise InvalidAcl(f'{what} "{number}" is unknown; use one of {", ".join(m.name for m in kind if m)}')
    return member


def concrete_number(kind: type[E], number: int, what: str) -> E:
    """Return the member of an enumeration for a new ACL. Raises `InvalidAcl` for an unknown number and ANY."""
    member = known_number(kind, number, what)
    if member.name == "ANY":
        raise InvalidAcl(f"{what} ANY is valid in filters only")
    return member
