"""The matrix of rights: every served API is asked, and every single right occurs; without a broker."""

from __future__ import annotations

from penstock_differential import codec
from penstock_differential.authorization.grants import OPERATIONS, Grant, Names, matrix, short_matrix
from penstock_differential.authorization.requests import questions
from penstock_differential.authorization.secured import USERS
from penstock_differential.coverage import SERVED
from penstock_differential.values import Ref, Tree, resolve

from penstock.wire.acl import CLUSTER_NAME, AclOperation, PatternType, ResourceType

NAMES = Names("d0x1")
AUTHENTICATION = {"SaslHandshake", "SaslAuthenticate"}
"""APIs that each connection of the matrix uses."""


class Assigned(dict[str, object]):
    """Any value for any name that a side assigns."""

    def __missing__(self, name: str) -> int:
        return 1


def test_every_served_api_is_asked() -> None:
    assert set(SERVED) - {api for api, _, _ in questions(NAMES)} == AUTHENTICATION


def test_every_request_can_be_encoded_in_its_versions() -> None:
    for api, tree, versions in questions(NAMES):
        for version in versions:
            assert codec.request_frame(api, version, resolve(tree, Assigned()))


def test_requests_name_topics_with_and_without_rights_and_by_unknown_ids() -> None:
    named = {name for _, tree, _ in questions(NAMES) for name in texts(tree)}
    assert {"d0x1-a-t", "d0x1-b-t", "d0x1-a-n", "d0x1-b-n", "id:d0x1-a-t", "id:d0x1-b-t"} <= named


def texts(tree: Tree) -> set[str]:
    """Return all texts in a tree, and the names of assigned values."""
    if isinstance(tree, dict):
        return {text for part in tree.values() for text in texts(part)}
    if isinstance(tree, list):
        return {text for part in tree for text in texts(part)}
    return {tree.name} if isinstance(tree, Ref) else {tree} if isinstance(tree, str) else set()


def test_every_single_right_occurs_with_every_pattern() -> None:
    single = {rights[0] for rights in matrix() if len(rights) == 1}
    for resource, operations in OPERATIONS.items():
        patterns = ("literal",) if resource is ResourceType.CLUSTER else ("literal", "prefixed", "wildcard")
        for operation in operations:
            assert {Grant(resource, operation, pattern) for pattern in patterns} <= single


def test_each_user_has_a_case_of_its_own_and_one_has_no_right() -> None:
    assert len(matrix()) < USERS
    assert () in matrix()
    assert () in short_matrix()


def test_acls_are_for_names_with_rights_only() -> None:
    def patterns(grant: Grant) -> set[tuple[int, str]]:
        return {(acl["resource_pattern_type"], acl["resource_name"]) for acl in grant.acls(NAMES, "u1")}

    topic = ResourceType.TOPIC
    assert patterns(Grant(topic, AclOperation.READ, "prefixed")) == {(PatternType.PREFIXED, "d0x1-a")}
    assert patterns(Grant(topic, AclOperation.READ, "wildcard")) == {(PatternType.LITERAL, "*")}
    literal = patterns(Grant(topic, AclOperation.READ))
    assert {(PatternType.LITERAL, "d0x1-a-t"), (PatternType.LITERAL, "d0x1-a-n")} <= literal
    assert all(name.startswith("d0x1-a-") for _, name in literal)
    assert patterns(Grant(ResourceType.CLUSTER, AclOperation.ALTER)) == {(PatternType.LITERAL, CLUSTER_NAME)}
