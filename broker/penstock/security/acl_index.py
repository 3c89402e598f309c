"""The ACLs by what they apply to, so that a decision reads only those of one resource and one principal.

A name is compared with prefixes by looking up each of its beginnings that is as long as some prefix. Used by
`acl_authorizer`, which keeps an index equal to the cluster view.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.security.acl_hosts import HostPattern
from penstock.state.security_records import AclRecord
from penstock.wire.acl import WILDCARD, AclOperation, AclPermission, PatternType, ResourceType

IMPLIED_BY = {
    AclOperation.DESCRIBE: frozenset(
        {AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER, AclOperation.DESCRIBE}
    ),
    AclOperation.DESCRIBE_CONFIGS: frozenset({AclOperation.ALTER_CONFIGS, AclOperation.DESCRIBE_CONFIGS}),
}
"""The operations that imply another one, in ACLs that allow."""


class IndexedAcl:
    """An ACL, parsed."""

    __slots__ = ("host", "is_allow", "name", "operation", "pattern", "principal", "record", "resource")

    def __init__(self, record: AclRecord) -> None:
        self.record = record
        self.resource, self.pattern = ResourceType[record.resource_type], PatternType[record.pattern_type]
        self.name, self.principal = record.name, record.principal
        self.host = HostPattern(record.host)
        self.operation = AclOperation[record.operation]
        self.is_allow = AclPermission[record.permission] is AclPermission.ALLOW

    def covers(self, operation: AclOperation) -> bool:
        """Return whether the ACL applies to an operation. Only ACLs that allow imply other operations."""
        if self.operation is AclOperation.ALL or self.operation is operation:
            return True
        return self.is_allow and self.operation in IMPLIED_BY.get(operation, ())


AclsByKey = dict[str, IndexedAcl]
AclsByPrincipal = dict[str, AclsByKey]


@dataclass(slots=True)
class ResourceAcls:
    """The ACLs of one resource type."""

    literal: dict[str, AclsByPrincipal] = field(default_factory=dict)
    prefixed: dict[str, AclsByPrincipal] = field(default_factory=dict)
    prefix_lengths: Counter[int] = field(default_factory=Counter)
    """Number of prefixes by their length in characters."""
    by_principal: AclsByPrincipal = field(default_factory=dict)
    """All ACLs of a principal."""

    def patterns(self, name: str) -> Iterator[AclsByPrincipal]:
        """Yield the ACLs of each pattern that applies to a name."""
        if (found := self.literal.get(name)) is not None:
            yield found
        if name != WILDCARD and (found := self.literal.get(WILDCARD)) is not None:
            yield found
        size = len(name)
        for length in self.prefix_lengths:
            if length <= size and (found := self.prefixed.get(name[:length])) is not None:
                yield found

    def add(self, key: str, acl: IndexedAcl) -> None:
        """Add an ACL under the key of its record."""
        table = self.literal if acl.pattern is PatternType.LITERAL else self.prefixed
        of_pattern = table.get(acl.name)
        if of_pattern is None:
            of_pattern = table[acl.name] = {}
            if table is self.prefixed:
                self.prefix_lengths[len(acl.name)] += 1
        of_pattern.setdefault(acl.principal, {})[key] = acl
        self.by_principal.setdefault(acl.principal, {})[key] = acl

    def remove(self, key: str, acl: IndexedAcl) -> None:
        """Remove an ACL that was added."""
        table = self.literal if acl.pattern is PatternType.LITERAL else self.prefixed
        of_pattern = table[acl.name]
        remove_entry(of_pattern, acl.principal, key)
        remove_entry(self.by_principal, acl.principal, key)
        if of_pattern:
            return
        del table[acl.name]
        if table is self.prefixed:
            length = len(acl.name)
            self.prefix_lengths[length] -= 1
            if not self.prefix_lengths[length]:
                del self.prefix_lengths[length]


def remove_entry(table: AclsByPrincipal, principal: str, key: str) -> None:
    """Remove a key from a table, and the principal with its last key."""
    of_principal = table[principal]
    del of_principal[key]
    if not of_principal:
        del table[principal]


class AclIndex:
    """All ACLs by resource type; `entries` by the keys of their records."""

    def __init__(self) -> None:
        self.entries: AclsByKey = {}
        self.by_resource = {resource: ResourceAcls() for resource in ResourceType}

    def put(self, key: str, record: AclRecord | None) -> bool:
        """Add an ACL, or remove it with None. Returns whether that changes anything."""
        before = self.entries.get(key)
        if (before.record if before is not None else None) == record:
            return False
        if before is not None:
            self.by_resource[before.resource].remove(key, before)
            del self.entries[key]
        if record is not None:
            acl = self.entries[key] = IndexedAcl(record)
            self.by_resource[acl.resource].add(key, acl)
        return True
