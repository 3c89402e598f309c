"""Filters of ACLs and the validation of new ones."""

from __future__ import annotations

import pytest

from penstock.security.acl_filters import InvalidAcl, StoredAclFilter, new_acl
from penstock.state.security_records import AclRecord
from penstock.wire.acl import AclOperation, AclPermission, PatternType, ResourceType

TOPIC, LITERAL, PREFIXED = ResourceType.TOPIC, PatternType.LITERAL, PatternType.PREFIXED
READ, ALLOW = AclOperation.READ, AclPermission.ALLOW
ANY = (1, None, 1, None, None, 1, 1)
ORDERS = new_acl(TOPIC, "orders", LITERAL, "User:ana", "10.0.0.1", READ, ALLOW)
PREFIX = new_acl(TOPIC, "ord", PREFIXED, "User:ana", "*", READ, AclPermission.DENY)
WILDCARD = new_acl(TOPIC, "*", LITERAL, "User:*", "*", READ, ALLOW)
GROUP = new_acl(ResourceType.GROUP, "orders", LITERAL, "User:ana", "*", READ, ALLOW)
ALL = [ORDERS, PREFIX, WILDCARD, GROUP]


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        (ANY, ALL),
        ((TOPIC, *ANY[1:]), [ORDERS, PREFIX, WILDCARD]),
        ((1, "orders", 1, None, None, 1, 1), [ORDERS, GROUP]),
        ((TOPIC, "orders", PatternType.MATCH, None, None, 1, 1), [ORDERS, PREFIX, WILDCARD]),
        ((TOPIC, "other", PatternType.MATCH, None, None, 1, 1), [WILDCARD]),
        ((TOPIC, None, PREFIXED, None, None, 1, 1), [PREFIX]),
        ((TOPIC, "ord", LITERAL, None, None, 1, 1), []),
        ((1, None, 1, "User:*", None, 1, 1), [WILDCARD]),
        ((1, None, 1, None, "10.0.0.1", 1, 1), [ORDERS]),
        ((1, None, 1, None, None, AclOperation.WRITE, 1), []),
        ((1, None, 1, None, None, 1, AclPermission.DENY), [PREFIX]),
    ],
)
def test_a_filter_finds_what_all_of_its_fields_match(fields: tuple[object, ...], found: list[AclRecord]) -> None:
    wanted = StoredAclFilter(*fields)  # type: ignore[arg-type]
    wanted.check()
    assert [acl for acl in ALL if wanted.matches(acl)] == found


def test_a_filter_without_any_names_one_acl() -> None:
    assert StoredAclFilter(TOPIC, "orders", LITERAL, "User:ana", "10.0.0.1", READ, ALLOW).exact() == ORDERS
    assert StoredAclFilter(*ANY).exact() is None
    assert StoredAclFilter(TOPIC, "orders", PatternType.MATCH, "User:ana", "10.0.0.1", READ, ALLOW).exact() is None
    assert StoredAclFilter(TOPIC, "orders", LITERAL, "User:ana", "10.0.0.1", AclOperation.ANY, ALLOW).exact() is None


@pytest.mark.parametrize("position", [0, 2, 5, 6])
@pytest.mark.parametrize("number", [0, 99, -1])
def test_a_filter_with_an_unknown_number_is_invalid(position: int, number: int) -> None:
    fields: list[object] = list(ANY)
    fields[position] = number
    with pytest.raises(InvalidAcl, match=f'"{number}" is unknown'):
        StoredAclFilter(*fields).check()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"resource_type": 1}, "resource type ANY is valid in filters only"),
        ({"resource_type": 0}, 'resource type "0" is unknown'),
        ({"pattern_type": PatternType.MATCH}, "pattern type MATCH is valid in filters only"),
        ({"pattern_type": 1}, "pattern type ANY"),
        ({"operation": 1}, "operation ANY"),
        ({"permission": 9}, 'permission "9" is unknown'),
        ({"name": ""}, "the resource name is empty"),
        ({"name": "x" * 1025}, "more than 1024 characters"),
        ({"resource_type": ResourceType.CLUSTER}, 'use "kafka-cluster"'),
        ({"principal": "ana"}, 'invalid principal "ana"'),
        ({"principal": "User:" + "a" * 1024}, "more than 1024 characters"),
        ({"host": "example.org"}, 'invalid host "example.org"'),
        ({"host": "10.0.0.1/8"}, "has host bits set"),
        ({"host": ""}, 'invalid host ""'),
        ({"host": "1" * 100}, "more than 64 characters"),
    ],
)
def test_an_invalid_acl_is_rejected_with_the_reason(change: dict[str, object], reason: str) -> None:
    fields: dict[str, object] = {
        "resource_type": TOPIC, "name": "t", "pattern_type": LITERAL, "principal": "User:ana", "host": "*",
        "operation": READ, "permission": ALLOW,
    }  # fmt: skip
    with pytest.raises(InvalidAcl, match=reason):
        new_acl(**{**fields, **change})  # type: ignore[arg-type]


@pytest.mark.parametrize("host", ["*", "10.0.0.1", "10.0.0.0/8", "fd00::/8", "::1", "::ffff:10.0.0.0/104"])
def test_a_host_is_a_wildcard_an_address_or_a_network(host: str) -> None:
    assert new_acl(TOPIC, "t", LITERAL, "User:ana", host, READ, ALLOW).host == host
