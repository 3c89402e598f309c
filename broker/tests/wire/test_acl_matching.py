"""Decisions by ACLs: precedence, patterns, implied operations, principals and hosts."""

from __future__ import annotations

import pytest

from penstock.wire.acl import AclOperation, AclPermission, PatternType, ResourceType
from penstock.wire.acl_binding import AclBinding
from penstock.wire.acl_matching import AccessRequest, decide, matches_host

READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
DENY, ALLOW = AclPermission.DENY, AclPermission.ALLOW


def acl(
    name: str = "orders",
    operation: AclOperation = READ,
    permission: AclPermission = ALLOW,
    *,
    principal: str = "User:ana",
    host: str = "*",
    is_prefix: bool = False,
    kind: ResourceType = ResourceType.TOPIC,
) -> AclBinding:
    pattern = PatternType.PREFIXED if is_prefix else PatternType.LITERAL
    return AclBinding(kind, pattern, name, principal, host, operation, permission)


def may(
    *acls: AclBinding,
    operation: AclOperation = READ,
    name: str = "orders",
    host: str = "10.0.0.7",
    principal: str = "User:ana",
) -> bool:
    return decide(AccessRequest(principal, host, operation, ResourceType.TOPIC, name), acls).is_allowed


def test_nothing_is_allowed_without_an_acl() -> None:
    assert not may()
    assert not may(acl("other"), acl(principal="User:bob"), acl(kind=ResourceType.GROUP), acl(operation=WRITE))


def test_literal_prefixed_and_wildcard_patterns_apply() -> None:
    assert may(acl("orders"))
    assert may(acl("ord", is_prefix=True))
    assert may(acl("*"))
    assert not may(acl("ord"))
    assert not may(acl("*", is_prefix=True))
    assert not may(acl("orders-eu", is_prefix=True))


def test_a_deny_takes_precedence_whatever_its_place() -> None:
    denied = acl("*", AclOperation.ALL, DENY, principal="User:*")
    assert not may(acl(), denied)
    assert not may(denied, acl())
    assert may(acl(), acl("*", WRITE, DENY))


@pytest.mark.parametrize("granted", [READ, WRITE, AclOperation.DELETE, AclOperation.ALTER, AclOperation.ALL, DESCRIBE])
def test_operations_imply_describe(granted: AclOperation) -> None:
    assert may(acl(operation=granted), operation=DESCRIBE)


def test_operations_imply_nothing_else() -> None:
    assert may(acl(operation=AclOperation.ALTER_CONFIGS), operation=AclOperation.DESCRIBE_CONFIGS)
    assert not may(acl(operation=AclOperation.CREATE), operation=DESCRIBE)
    assert not may(acl(operation=AclOperation.ALTER), operation=AclOperation.DESCRIBE_CONFIGS)
    assert not may(acl(operation=DESCRIBE), operation=READ)


def test_a_deny_of_read_does_not_deny_describe() -> None:
    assert may(acl(operation=READ, permission=DENY), acl(operation=DESCRIBE), operation=DESCRIBE)


def test_an_acl_for_everyone_applies_to_each_principal() -> None:
    assert may(acl(principal="User:*"), principal="User:ANONYMOUS")
    assert may(acl(principal="User:*"), principal="Group:staff")
    assert not may(acl(principal="Group:*"), principal="Group:staff")


@pytest.mark.parametrize(
    ("pattern", "host", "expected"),
    [
        ("*", "10.0.0.7", True),
        ("10.0.0.7", "10.0.0.7", True),
        ("10.0.0.7", "10.0.0.8", False),
        ("10.0.0.0/8", "10.200.0.1", True),
        ("10.0.0.0/8", "11.0.0.1", False),
        ("10.0.0.9/8", "10.200.0.1", True),
        ("10.0.0.0/8", "::ffff:10.0.0.1", True),
        ("::ffff:10.0.0.0/104", "10.3.0.1", True),
        ("2001:db8::/32", "2001:db8::7", True),
        ("2001:db8::/32", "10.0.0.1", False),
        ("2001:DB8:0::7", "2001:db8::7", True),
        ("no address", "10.0.0.1", False),
        ("10.0.0.1", "", False),
        ("*", "", True),
    ],
)
def test_hosts_are_addresses_and_networks(pattern: str, host: str, expected: bool) -> None:
    assert matches_host(pattern, host) is expected


def test_a_resource_without_acls_is_open_if_the_cluster_says_so() -> None:
    request = AccessRequest("User:ana", "10.0.0.7", READ, ResourceType.TOPIC, "orders")
    assert decide(request, [], allow_without_acls=True).is_allowed
    of_another = decide(request, [acl(principal="User:bob")], allow_without_acls=True)
    assert (of_another.is_allowed, of_another.acl, of_another.has_acls) == (False, None, True)


def test_the_decision_names_the_acl() -> None:
    allowing, denying = acl("ord", is_prefix=True), acl(permission=DENY, host="10.0.0.0/8")
    request = AccessRequest("User:ana", "10.0.0.7", READ, ResourceType.TOPIC, "orders")
    assert decide(request, [acl("x"), allowing]).acl == allowing
    assert decide(request, [allowing, denying]).acl == denying
