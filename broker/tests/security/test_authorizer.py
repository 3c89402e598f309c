"""Decisions by ACLs: against a model that reads all ACLs, and single rules with literal values."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.security.acl_authorizer import MAX_CACHED_DECISIONS, MAX_CACHED_NAME_CHARS, AclAuthorizer
from penstock.security.authorizer import AllowAll
from penstock.security.principal import Principal
from penstock.state import keys
from penstock.state.security_records import AclRecord
from penstock.state.view import ClusterView
from penstock.wire.acl import AclOperation, AclPermission, PatternType, ResourceType
from penstock.wire.acl_binding import AclBinding
from penstock.wire.acl_matching import AccessRequest, decide

ANA, BOB, ROOT = Principal("User", "ana"), Principal("User", "bob"), Principal("User", "root")
MEMBER = Principal("User", "eve", ("dev", "ops"))
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
IMPLIED = {"DESCRIBE": {"READ", "WRITE", "DELETE", "ALTER"}, "DESCRIBE_CONFIGS": {"ALTER_CONFIGS"}}

NAMES = st.text("ab*", min_size=1, max_size=3)
HOSTS = st.sampled_from(["10.0.0.1", "10.0.0.9", "::ffff:10.0.0.1", "fd00::1"])
ACLS = st.builds(
    AclRecord,
    resource_type=st.sampled_from(["TOPIC", "GROUP"]),
    pattern_type=st.sampled_from(["LITERAL", "PREFIXED"]),
    name=NAMES,
    principal=st.sampled_from(["User:ana", "User:bob", "User:*", "Group:dev", "Group:ana"]),
    host=st.sampled_from(["*", "10.0.0.1", "10.0.0.0/29", "fd00::/16", "::ffff:10.0.0.0/125"]),
    operation=st.sampled_from(["ALL", "READ", "WRITE", "DESCRIBE", "ALTER_CONFIGS", "DESCRIBE_CONFIGS"]),
    permission=st.sampled_from(["ALLOW", "ALLOW", "DENY"]),
)
OPERATIONS = st.sampled_from(
    [AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS]
)


class SecuredCluster:
    """A view with ACLs, and an authorizer that follows it."""

    def __init__(self, *acls: AclRecord, allows_unprotected: bool = False) -> None:
        self.view = ClusterView()
        self.view.security.acls = {keys.acl(acl): acl for acl in acls}
        self.authorizer = AclAuthorizer(self.view, {"User:root"}, allows_unprotected)

    def change(self, *acls: AclRecord) -> None:
        """Replace all ACLs, as the watcher does."""
        before, self.view.security.acls = self.view.security.acls, {keys.acl(acl): acl for acl in acls}
        for listener in self.view.security_listeners:
            listener({*before, *self.view.security.acls})

    def may(
        self,
        operation: AclOperation,
        name: str,
        principal: Principal = ANA,
        host: str = "10.0.0.1",
        resource: ResourceType = TOPIC,
    ) -> bool:
        return self.authorizer.is_allowed(principal, host, operation, resource, name)


def acl(operation: str, name: str, permission: str = "ALLOW", **more: str) -> AclRecord:
    fields = {"resource_type": "TOPIC", "pattern_type": "LITERAL", "principal": "User:ana", "host": "*", **more}
    return AclRecord(name=name, operation=operation, permission=permission, **fields)


def matches(acl: AclRecord, principal: Principal, host: str) -> bool:
    """Return whether an ACL is about a client: the model's rule."""
    address = ip_address("10.0.0.1" if host == "::ffff:10.0.0.1" else host)
    network = ip_network("10.0.0.0/29" if acl.host.startswith("::ffff") else acl.host) if acl.host != "*" else None
    is_host = network is None or address in network
    return is_host and acl.principal in ("User:*", str(principal), *(f"Group:{name}" for name in principal.groups))


def expected(acls: list[AclRecord], principal: Principal, host: str, operation: AclOperation, name: str) -> bool | None:
    """Return the model's decision; None if no ACL is about the resource."""
    of_resource = [
        acl
        for acl in acls
        if acl.resource_type == "TOPIC"
        and (name.startswith(acl.name) if acl.pattern_type == "PREFIXED" else acl.name in (name, "*"))
    ]
    if not of_resource:
        return None
    of_client = [acl for acl in of_resource if matches(acl, principal, host)]
    if any(acl.permission == "DENY" and acl.operation in ("ALL", operation.name) for acl in of_client):
        return False
    sufficient = {"ALL", operation.name} | IMPLIED.get(operation.name, set())
    return any(acl.permission == "ALLOW" and acl.operation in sufficient for acl in of_client)


@given(st.lists(ACLS, max_size=8), st.lists(ACLS, max_size=8), NAMES, HOSTS, OPERATIONS, st.booleans())
def test_decisions_are_those_of_a_search_through_all_acls_also_after_changes(
    before: list[AclRecord], after: list[AclRecord], name: str, host: str, operation: AclOperation, unprotected: bool
) -> None:
    cluster = SecuredCluster(*before, allows_unprotected=unprotected)
    for acls in (before, after, []):
        cluster.change(*acls)
        for principal in (ANA, BOB, MEMBER):
            found = expected(acls, principal, host, operation, name)
            wanted = unprotected if found is None else found
            assert cluster.may(operation, name, principal, host) is wanted
            assert cluster.may(operation, name, principal, host) is wanted, "also from the cache"
        assert cluster.may(operation, name, ROOT, host)
    assert not cluster.authorizer.index.by_resource[TOPIC].prefix_lengths, "nothing is left of removed ACLs"


@given(st.lists(ACLS, max_size=8), NAMES, HOSTS, OPERATIONS, st.booleans())
def test_the_command_that_explains_a_decision_decides_the_same(
    acls: list[AclRecord], name: str, host: str, operation: AclOperation, unprotected: bool
) -> None:
    cluster = SecuredCluster(*acls, allows_unprotected=unprotected)
    for principal in (ANA, MEMBER):
        groups = tuple(f"Group:{group}" for group in principal.groups)
        request = AccessRequest(str(principal), host, operation, TOPIC, name, groups)
        explained = decide(request, [binding(acl) for acl in acls], allow_without_acls=unprotected)
        assert cluster.may(operation, name, principal, host) is explained.is_allowed


def test_the_rights_of_a_group_are_those_of_its_members() -> None:
    cluster = SecuredCluster(acl("WRITE", "t", principal="Group:dev"), acl("READ", "t", "DENY", principal="Group:ops"))
    assert cluster.may(AclOperation.WRITE, "t", MEMBER)
    assert not cluster.may(AclOperation.READ, "t", MEMBER)
    assert not cluster.may(AclOperation.WRITE, "t", MEMBER._replace(groups=("ops",))), "the group was left"
    assert not cluster.may(AclOperation.WRITE, "t", Principal("User", "dev")), "a user has the name of the group"
    assert cluster.authorizer.is_allowed_for_any(MEMBER, "10.0.0.1", AclOperation.WRITE, TOPIC)
    assert not cluster.authorizer.is_allowed_for_any(BOB, "10.0.0.1", AclOperation.WRITE, TOPIC)


def test_the_members_of_a_group_in_super_users_may_do_everything() -> None:
    authorizer = AclAuthorizer(ClusterView(), {"Group:ops"}, is_confirmed=lambda: False)
    assert authorizer.is_allowed(MEMBER, "10.0.0.1", AclOperation.ALTER, ResourceType.CLUSTER, "kafka-cluster")
    assert authorizer.may_decide(MEMBER)
    assert not authorizer.may_decide(Principal("User", "ops"))


def binding(acl: AclRecord) -> AclBinding:
    """Return an ACL in the form of the admin client."""
    return AclBinding(
        ResourceType[acl.resource_type], PatternType[acl.pattern_type], acl.name, acl.principal, acl.host,
        AclOperation[acl.operation], AclPermission[acl.permission],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("acls", "is_allowed"),
    [
        ([], False),
        ([acl("WRITE", "t")], True),
        ([acl("ALL", "t", pattern_type="PREFIXED")], True),
        ([acl("WRITE", "t", principal="User:*")], True),
        ([acl("WRITE", "t", principal="User:bob")], False),
        ([acl("READ", "t")], False),
        ([acl("WRITE", "t", host="10.9.0.0/16")], False),
        ([acl("WRITE", "t", resource_type="GROUP")], False),
        ([acl("WRITE", "t"), acl("WRITE", "t", "DENY")], False),
        ([acl("WRITE", "t"), acl("ALL", "*", "DENY")], False),
        ([acl("WRITE", "topic"), acl("WRITE", "to", "DENY", pattern_type="PREFIXED")], False),
        ([acl("WRITE", "to", pattern_type="PREFIXED"), acl("WRITE", "topic", "DENY", pattern_type="PREFIXED")], True),
        ([acl("WRITE", "*"), acl("WRITE", "t", "DENY", pattern_type="PREFIXED")], True),
    ],
)
def test_a_right_on_any_topic_needs_an_acl_that_no_denial_hides(acls: list[AclRecord], is_allowed: bool) -> None:
    cluster = SecuredCluster(*acls)
    for _ in range(2):
        assert cluster.authorizer.is_allowed_for_any(ANA, "10.0.0.1", AclOperation.WRITE, TOPIC) is is_allowed
    assert cluster.authorizer.is_allowed_for_any(ROOT, "10.0.0.1", AclOperation.WRITE, TOPIC)


@pytest.mark.parametrize("operation", ["READ", "WRITE", "DELETE", "ALTER"])
def test_operations_on_data_imply_describe_but_their_denial_does_not(operation: str) -> None:
    assert SecuredCluster(acl(operation, "t")).may(AclOperation.DESCRIBE, "t")
    allowed = acl("DESCRIBE", "t")
    assert SecuredCluster(allowed, acl(operation, "t", "DENY")).may(AclOperation.DESCRIBE, "t")


def test_a_denial_takes_precedence_over_any_permission() -> None:
    cluster = SecuredCluster(acl("ALL", "*"), acl("READ", "o", "DENY", pattern_type="PREFIXED", principal="User:*"))
    assert cluster.may(AclOperation.READ, "t")
    assert not cluster.may(AclOperation.READ, "orders")
    assert cluster.may(AclOperation.WRITE, "orders")


def test_an_acl_for_a_host_applies_to_clients_of_this_host_only() -> None:
    cluster = SecuredCluster(
        acl("READ", "t", host="10.0.0.0/29"), acl("WRITE", "t"), acl("WRITE", "t", "DENY", host="::1")
    )
    assert cluster.may(AclOperation.READ, "t", host="10.0.0.1")
    assert not cluster.may(AclOperation.READ, "t", host="10.0.0.9")
    assert cluster.may(AclOperation.WRITE, "t", host="10.0.0.9")
    assert not cluster.may(AclOperation.WRITE, "t", host="::1")


@pytest.mark.parametrize(
    "principal", [Principal("User", "root2"), Principal("User", "roo"), Principal("Group", "root")]
)
def test_only_the_whole_principal_is_that_of_a_super_user(principal: Principal) -> None:
    cluster = SecuredCluster()
    assert cluster.may(AclOperation.READ, "t", ROOT)
    assert not cluster.may(AclOperation.READ, "t", principal)


def test_acls_of_one_type_of_resource_do_not_apply_to_another() -> None:
    cluster = SecuredCluster(acl("READ", "t"))
    assert not cluster.may(AclOperation.READ, "t", resource=GROUP)


def test_a_change_of_acls_takes_effect_at_once_and_raises_the_generation() -> None:
    cluster = SecuredCluster()
    assert not cluster.may(AclOperation.READ, "t")
    generation = cluster.authorizer.generation
    cluster.change(acl("READ", "t"))
    assert cluster.may(AclOperation.READ, "t")
    assert cluster.authorizer.generation > generation > AllowAll.generation
    cluster.change()
    assert not cluster.may(AclOperation.READ, "t")


def test_a_change_that_changes_no_acl_keeps_the_decisions() -> None:
    cluster = SecuredCluster(acl("READ", "t"))
    assert cluster.may(AclOperation.READ, "t")
    generation = cluster.authorizer.generation
    cluster.change(acl("READ", "t"))
    assert cluster.authorizer.generation == generation
    assert cluster.authorizer.decisions


def test_the_cache_is_bounded_in_decisions_and_in_the_length_of_names() -> None:
    cluster = SecuredCluster(acl("READ", "*"))
    for number in range(MAX_CACHED_DECISIONS + 10):
        assert cluster.may(AclOperation.READ, f"t{number}")
    assert 0 < len(cluster.authorizer.decisions) <= MAX_CACHED_DECISIONS
    cluster.change()
    assert not cluster.may(AclOperation.READ, "t" * (MAX_CACHED_NAME_CHARS + 1))
    assert not cluster.authorizer.decisions


def test_a_decision_does_not_read_the_acls_of_other_resources_and_principals() -> None:
    others = [acl("READ", f"other-{n}", principal=f"User:u{n}") for n in range(500)]
    same = [acl("READ", "t", principal=f"User:u{n}") for n in range(500)]
    cluster = SecuredCluster(*others, *same, acl("READ", "t"))
    patterns = list(cluster.authorizer.index.by_resource[TOPIC].patterns("t"))
    assert [list(of_pattern["User:ana"]) for of_pattern in patterns] == [[keys.acl(acl("READ", "t"))]]
    assert not list(cluster.authorizer.index.by_resource[TOPIC].patterns("u"))


def test_without_authorization_everything_is_allowed() -> None:
    allow_all = AllowAll()
    assert not allow_all.is_enabled
    assert allow_all.is_allowed(ANA, "10.0.0.1", AclOperation.ALTER, ResourceType.CLUSTER, "kafka-cluster")
    assert allow_all.is_allowed_for_any(ANA, "10.0.0.1", AclOperation.WRITE, TOPIC)
