"""The rights of the users of the matrix: no right, each single right, and combinations with DENY, hosts and others.

Each case has the names of `Names`: of every kind of resource some that its user has a right on ("a"), and others ("b").
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.wire.acl import CLUSTER_NAME, WILDCARD, AclOperation, AclPermission, PatternType, ResourceType
from penstock_differential.values import Tree

Op = AclOperation
TOPIC, GROUP, CLUSTER, TXN = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID
OPERATIONS: dict[ResourceType, tuple[AclOperation, ...]] = {
    TOPIC: (Op.ALL, Op.READ, Op.WRITE, Op.CREATE, Op.DELETE, Op.ALTER, Op.DESCRIBE, Op.DESCRIBE_CONFIGS,
            Op.ALTER_CONFIGS),
    GROUP: (Op.ALL, Op.READ, Op.DELETE, Op.DESCRIBE, Op.DESCRIBE_CONFIGS, Op.ALTER_CONFIGS),
    CLUSTER: (Op.ALL, Op.CREATE, Op.DELETE, Op.ALTER, Op.DESCRIBE, Op.CLUSTER_ACTION, Op.DESCRIBE_CONFIGS,
              Op.ALTER_CONFIGS, Op.IDEMPOTENT_WRITE),
    TXN: (Op.ALL, Op.WRITE, Op.DESCRIBE),
}  # fmt: skip
"""The operations that an ACL for a type of resource can name in Kafka 4.3.1."""
EVERYONE = f"User:{WILDCARD}"
OTHER_HOST = "10.9.8.7"
THIS_HOST = "127.0.0.1"


class Names:
    """The resources of a case. `a` and `b` of each kind exist; `missing_a` and `missing_b` do not."""

    def __init__(self, prefix: str) -> None:
        self.prefix_a, self.prefix_b = f"{prefix}-a", f"{prefix}-b"

    def topics(self) -> list[str]:
        """Return two topics that exist and two that do not, one of each with rights."""
        return [*self.existing("t"), *self.existing("n")]

    def groups(self) -> list[str]:
        """Return two groups that exist and two that do not."""
        return [*self.existing("g"), *self.existing("h")]

    def transactional_ids(self) -> list[str]:
        """Return two transactional ids that exist and two that do not."""
        return [*self.existing("x"), *self.existing("y")]

    def existing(self, kind: str) -> list[str]:
        """Return the names of a kind, first the one with rights."""
        return [f"{self.prefix_a}-{kind}", f"{self.prefix_b}-{kind}"]


LITERALS = {TOPIC: "tniwc", GROUP: "ghjklmoqs", TXN: "xy", CLUSTER: ""}
"""The kinds of names for which literal ACLs are made. See `world` and `requests`."""


@dataclass(frozen=True)
class Grant:
    """Rights of one user: ACLs on the names with rights, by literal names, by their prefix, or by the wildcard."""

    resource: ResourceType
    operation: AclOperation
    pattern: str = "literal"
    permission: AclPermission = AclPermission.ALLOW
    host: str = WILDCARD
    everyone: bool = False

    def __str__(self) -> str:
        extra = "" if self.host == WILDCARD else f" from {self.host}"
        who = " everyone" if self.everyone else ""
        return f"{self.permission.name}{who} {self.operation.name} {self.resource.name} {self.pattern}{extra}"

    def acls(self, names: Names, user: str) -> Iterator[Tree]:
        """Yield the creations of a CreateAcls request."""
        pattern = PatternType.PREFIXED if self.pattern == "prefixed" else PatternType.LITERAL
        for name in self.resource_names(names):
            yield {
                "resource_type": int(self.resource),
                "resource_name": name,
                "resource_pattern_type": int(pattern),
                "principal": EVERYONE if self.everyone else f"User:{user}",
                "host": self.host,
                "operation": int(self.operation),
                "permission_type": int(self.permission),
            }

    def resource_names(self, names: Names) -> list[str]:
        """Return the names of the patterns."""
        if self.resource is CLUSTER:
            return [CLUSTER_NAME]
        if self.pattern == "wildcard":
            return [WILDCARD]
        if self.pattern == "prefixed":
            return [names.prefix_a]
        return [f"{names.prefix_a}-{kind}" for kind in LITERALS[self.resource]]


def single_rights(patterns: tuple[str, ...]) -> Iterator[tuple[Grant, ...]]:
    """Yield each single right with each pattern."""
    for resource, operations in OPERATIONS.items():
        for operation in operations:
            for pattern in patterns if resource is not CLUSTER else ("literal",):
                yield (Grant(resource, operation, pattern),)


def client_rights() -> Iterator[tuple[Grant, ...]]:
    """Yield the rights that clients have together: consumers, producers, and all of some kinds."""
    all_topics, all_groups, all_ids = Grant(TOPIC, Op.ALL), Grant(GROUP, Op.ALL), Grant(TXN, Op.ALL)
    yield Grant(TOPIC, Op.READ), Grant(GROUP, Op.READ)
    yield Grant(TOPIC, Op.DESCRIBE), Grant(GROUP, Op.DESCRIBE, "wildcard")
    yield Grant(TOPIC, Op.WRITE), Grant(TXN, Op.WRITE)
    yield Grant(TOPIC, Op.WRITE, "prefixed"), Grant(TXN, Op.WRITE, "wildcard"), Grant(GROUP, Op.READ, "prefixed")
    yield Grant(TOPIC, Op.DESCRIBE), Grant(TXN, Op.DESCRIBE)
    yield Grant(TOPIC, Op.CREATE), Grant(TOPIC, Op.DESCRIBE_CONFIGS)
    yield Grant(TOPIC, Op.READ), Grant(GROUP, Op.DELETE)
    yield all_topics, all_groups, all_ids
    yield all_topics, all_groups, all_ids, Grant(CLUSTER, Op.ALL)


def denials() -> Iterator[tuple[Grant, ...]]:
    """Yield allowed operations of which one is denied, by several patterns, principals and hosts."""
    deny = AclPermission.DENY
    everything = tuple(Grant(resource, Op.ALL, "wildcard") for resource in (TOPIC, GROUP, TXN))
    for resource in (TOPIC, GROUP, TXN):
        for operation in OPERATIONS[resource]:
            yield *everything, Grant(resource, operation, "literal", deny)
    yield Grant(CLUSTER, Op.ALL), Grant(CLUSTER, Op.DESCRIBE, permission=deny)
    yield Grant(CLUSTER, Op.ALL), Grant(CLUSTER, Op.CREATE, permission=deny), Grant(TOPIC, Op.CREATE)
    yield Grant(TOPIC, Op.ALL), Grant(TOPIC, Op.READ, "prefixed", deny)
    yield Grant(TOPIC, Op.ALL, "prefixed"), Grant(TOPIC, Op.WRITE, "wildcard", deny)
    yield Grant(TOPIC, Op.READ), Grant(TOPIC, Op.DESCRIBE, "literal", deny)
    yield *everything, Grant(TOPIC, Op.READ, "literal", deny, everyone=True)
    yield *everything, Grant(TOPIC, Op.READ, "literal", deny, THIS_HOST)
    yield *everything, Grant(TOPIC, Op.READ, "literal", deny, OTHER_HOST)
    yield (Grant(TOPIC, Op.ALL, host=THIS_HOST),)
    yield (Grant(TOPIC, Op.ALL, host=OTHER_HOST),)
    yield (Grant(TOPIC, Op.ALL, everyone=True), Grant(GROUP, Op.ALL, "wildcard", everyone=True))


def matrix() -> list[tuple[Grant, ...]]:
    """Return the rights of all users of the matrix."""
    return [(), *single_rights(("literal", "prefixed", "wildcard")), *client_rights(), *denials()]


def short_matrix() -> list[tuple[Grant, ...]]:
    """Return the rights of some users, for a run of a minute."""
    literal = list(single_rights(("literal",)))
    return [(), *literal[::5], *list(client_rights())[-2:], *list(denials())[::12]]


def unprotected_matrix() -> list[tuple[Grant, ...]]:
    """Return the rights of users where resources without ACLs are open to everyone."""
    return [(), *list(single_rights(("literal", "wildcard")))[::4], *list(client_rights())[:4], *list(denials())[::6]]
