"""ACLs and the filters that select them, as clients and brokers exchange them (KIP-140, KIP-290).

The admin client and the command line build them; `acl_matching` evaluates them.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.wire.acl import AclOperation, AclPermission, PatternType, ResourceType

SUPPORTED_OPERATIONS: dict[ResourceType, frozenset[AclOperation]] = {
    ResourceType.TOPIC: frozenset(
        {
            AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE, AclOperation.DELETE, AclOperation.ALTER,
            AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS,
        }
    ),
    ResourceType.GROUP: frozenset(
        {
            AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DELETE, AclOperation.DESCRIBE_CONFIGS,
            AclOperation.ALTER_CONFIGS,
        }
    ),
    ResourceType.CLUSTER: frozenset(
        {
            AclOperation.CREATE, AclOperation.ALTER, AclOperation.DESCRIBE, AclOperation.CLUSTER_ACTION,
            AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS, AclOperation.IDEMPOTENT_WRITE,
        }
    ),
    ResourceType.TRANSACTIONAL_ID: frozenset(
        {AclOperation.DESCRIBE, AclOperation.WRITE, AclOperation.TWO_PHASE_COMMIT}
    ),
    ResourceType.DELEGATION_TOKEN: frozenset({AclOperation.DESCRIBE}),
    ResourceType.USER: frozenset({AclOperation.CREATE_TOKENS, AclOperation.DESCRIBE_TOKENS}),
}  # fmt: skip
"""The operations that mean something for a resource type; ALL is valid for each."""


@dataclass(frozen=True, slots=True, order=True)
class AclBinding:
    """One ACL: `principal`, such as `User:ana`, connected from `host`, may or may not do `operation` on a resource."""

    resource_type: ResourceType
    pattern_type: PatternType
    name: str
    principal: str
    host: str
    operation: AclOperation
    permission: AclPermission

    @property
    def pattern(self) -> str:
        """Return the resource as text: `topic orders`, `topic or*` for a prefix, `all topics` as `topic *`."""
        kind = self.resource_type.name.lower().replace("_", "-")
        return f"{kind} {self.name}{'*' if self.pattern_type == PatternType.PREFIXED else ''}"


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Selects ACLs; each field that is None or ANY selects all.

    With `pattern_type` MATCH, `name` is a resource's name, and the filter selects all ACLs that apply to it: literal,
    prefixed and wildcard.
    """

    resource_type: ResourceType = ResourceType.ANY
    pattern_type: PatternType = PatternType.ANY
    name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermission = AclPermission.ANY
