"""The enumerations of ACLs, with the numbers of the protocol (KIP-140, KIP-290, KIP-373, KIP-939)."""

from __future__ import annotations

from enum import IntEnum

WILDCARD = "*"
"""The name of a literal pattern that matches all resources of a type, and the host that matches all hosts."""
CLUSTER_NAME = "kafka-cluster"
"""The only name of a resource of type CLUSTER."""


class ResourceType(IntEnum):
    """What an ACL protects. UNKNOWN and ANY only occur in filters."""

    __hash__ = int.__hash__  # decisions are looked up by it, and the hash of an enumeration is slow

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How an ACL's resource name is compared. MATCH, in filters only, finds all patterns that apply to a name."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """What an ACL allows or denies. ALL covers the others of a resource type."""

    __hash__ = int.__hash__  # as that of ResourceType

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclPermission(IntEnum):
    """Whether an ACL allows or denies. A matching DENY takes precedence."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3
