"""`penstock acl` against a broker with an authorizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from authorizing_broker import authorizing_broker
from command_outcome import Outcome

from penstock.client import (
    AclBinding,
    AclFilter,
    AclOperation,
    AclPermission,
    Admin,
    BrokerError,
    ErrorCode,
    PatternType,
    ResourceType,
)

pytestmark = pytest.mark.integration

Cli = Callable[..., Outcome]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Yield the address of a broker with an authorizer."""
    with authorizing_broker() as address:
        yield address


@pytest.fixture
def acl(alone: Callable[..., Outcome], address: str) -> Cli:
    """Return a function that runs `penstock acl` against the broker with an authorizer."""

    def call(*arguments: str, **settings: Any) -> Outcome:
        return alone("acl", *arguments, "--bootstrap", address, **settings)

    return call


@pytest.fixture
def ana(acl: Cli, name: str) -> Iterator[str]:
    """Yield a principal whose ACLs are removed afterwards."""
    yield f"User:{name}"
    acl("remove", f"User:{name}", "--yes")


def rows(outcome: Outcome) -> list[list[str]]:
    assert outcome.code == 0, outcome
    return [line.split() for line in outcome.lines[1:]]


def test_an_acl_is_added_listed_and_removed(acl: Cli, ana: str) -> None:
    added = acl("add", ana, "--topic", "orders", "--operation", "read,Describe")
    assert added.lines == [
        f"added allow {ana} to read topic orders from *",
        f"added allow {ana} to describe topic orders from *",
    ]
    assert rows(acl("list", ana)) == [
        [ana, "allow", "read", "topic", "orders", "literal", "*"],
        [ana, "allow", "describe", "topic", "orders", "literal", "*"],
    ]
    removed = acl("remove", ana, "--operation", "read", "--yes")
    assert removed.lines[-1] == "removed 1 ACL"
    assert [row[2] for row in rows(acl("list", ana))] == ["describe"]


def test_a_name_alone_is_a_user(acl: Cli, ana: str) -> None:
    acl("add", ana.removeprefix("User:"), "--group", "g", "--operation", "read")
    assert [row[0] for row in rows(acl("list", ana))] == [ana]


def test_a_resource_s_list_has_prefixes_and_wildcards(acl: Cli, ana: str) -> None:
    acl("add", ana, "--topic", "ord", "--prefix", "--operation", "read")
    acl("add", ana, "--topic", "*", "--operation", "write", "--deny", "--host", "10.0.0.0/8")
    acl("add", ana, "--topic", "other", "--operation", "read")
    listed = acl("list", ana, "--topic", "orders", "-o", "json").json
    assert [(row["name"], row["pattern_type"], row["permission"], row["host"]) for row in listed] == [
        ("*", "LITERAL", "DENY", "10.0.0.0/8"),
        ("ord", "PREFIXED", "ALLOW", "*"),
    ]
    assert [row[4] for row in rows(acl("list", ana, "--topic", "ord", "--prefix"))] == ["ord"]


def test_presets_give_producers_and_consumers_what_they_need(acl: Cli, ana: str) -> None:
    acl("add", ana, "--topic", "out", "--transactional-id", "tx", "--producer")
    acl("add", ana, "--topic", "in", "--group", "g", "--consumer")
    assert {(row[3], row[4], row[2]) for row in rows(acl("list", ana))} == {
        ("topic", "out", "write"),
        ("topic", "out", "describe"),
        ("topic", "out", "create"),
        ("transactional-id", "tx", "write"),
        ("transactional-id", "tx", "describe"),
        ("topic", "in", "read"),
        ("topic", "in", "describe"),
        ("group", "g", "read"),
    }


def test_removal_selects_exact_names_and_asks(acl: Cli, ana: str) -> None:
    acl("add", ana, "--topic", "ord", "--prefix", "--operation", "read")
    acl("add", ana, "--topic", "orders", "--operation", "read")
    assert acl("remove", ana, "--topic", "orders").code == 4
    assert acl("remove", ana, "--topic", "orders", "--yes", "-o", "json").json[0]["name"] == "orders"
    assert [row[4] for row in rows(acl("list", ana))] == ["ord"]
    missing = acl("remove", ana, "--topic", "orders", "--yes")
    assert (missing.code, "no ACL matches" in missing.err) == (3, True)


def test_an_explanation_names_the_acl_that_decides(acl: Cli, ana: str) -> None:
    acl("add", ana, "--topic", "ord", "--prefix", "--operation", "read")
    acl("add", ana, "--topic", "orders", "--operation", "all", "--deny", "--host", "10.0.0.0/8")
    ask = partial(acl, "explain", ana, "--topic", "orders", "--operation")
    allowed = ask("describe", "--host", "192.168.0.1")
    assert (allowed.code, allowed.lines) == (
        0,
        [
            f"allowed: {ana} to describe topic orders from 192.168.0.1",
            f"because of the ACL: allow {ana} to read topic ord* from *",
        ],
    )
    denied = ask("read", "--host", "10.0.0.7", "--output", "json")
    assert denied.code == 4
    assert denied.json["allowed"] is False
    assert denied.json["acl"] == f"deny {ana} to all topic orders from 10.0.0.0/8"
    assert ask("write").lines[1] == "because no ACL of the resource allows it"


def test_an_explanation_considers_the_groups_of_a_token(acl: Cli, ana: str) -> None:
    acl("add", "Group:dev", "--topic", "plans", "--operation", "read")
    ask = partial(acl, "explain", ana, "--topic", "plans", "--operation", "read")
    assert ask().code == 4
    assert ask("--member-of", "ops", "--member-of", "dev").lines[1] == (
        "because of the ACL: allow Group:dev to read topic plans from *"
    )


def test_a_super_user_needs_no_acl(acl: Cli) -> None:
    outcome = acl("explain", "User:ANONYMOUS", "--cluster", "--operation", "alter")
    assert (outcome.code, outcome.lines[1]) == (0, "because it is in `super.users`")


def test_without_an_authorizer_the_setting_is_named(cli: Cli) -> None:
    outcome = cli("acl", "list")
    assert outcome.code == 1
    assert "SECURITY_DISABLED" in outcome.err
    assert outcome.err.count("set authorizer.class.name to StandardAuthorizer") == 1


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["add", "ana"], "no resource is given; set --topic"),
        (["add", "ana", "--topic", "t"], "no operation is given; set --operation, --producer or --consumer"),
        (["add", "ana", "--topic", "t", "--operation", "fly"], '"fly" is not an operation; use one of all, read'),
        (["add", "ana", "--group", "g", "--operation", "write"], '--group has no operation "write"; use one of all'),
        (["add", "ana", "--topic", "t", "--consumer"], "--consumer needs --topic and --group"),
        (["add", "ana", "--group", "g", "--producer"], "--producer needs --topic"),
        (["add", "ana", "--topic", "t", "--cluster", "--producer"], "--cluster is not part of --producer"),
        (["add", ":ana", "--topic", "t", "--producer"], 'invalid principal ":ana": use TYPE:NAME'),
        (["remove"], "nothing is selected; set PRINCIPAL, --topic"),
        (["explain", "ana", "--operation", "read"], "set one operation, and one of --topic"),
        (["explain", "ana", "--topic", "t", "--operation", "read", "--host", "here"], '"here" is not an IP address'),
        (["explain", "ana", "--cluster", "--operation", "read"], '--cluster has no operation "read"'),
    ],
)
def test_arguments_that_do_not_fit_are_wrong_usage(alone: Cli, arguments: list[str], why: str) -> None:
    outcome = alone("acl", *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert why in " ".join(outcome.err.split())


async def test_the_admin_client_manages_acls(address: str, name: str) -> None:
    principal = f"User:{name}"
    topic, allow = ResourceType.TOPIC, AclPermission.ALLOW
    created = [
        AclBinding(topic, PatternType.LITERAL, f"{name}-{n}", principal, "*", AclOperation.READ, allow)
        for n in range(3)
    ]
    async with Admin(address) as admin:
        await admin.create_acls(created)
        await admin.create_acls(created[:1])
        assert await admin.describe_acls(AclFilter(principal=principal)) == created
        wrong = AclBinding(ResourceType.CLUSTER, PatternType.LITERAL, "x", principal, "*", AclOperation.ALTER, allow)
        with pytest.raises(BrokerError) as caught:
            await admin.create_acls([wrong])
        assert await admin.delete_acls([AclFilter(name=f"{name}-1"), AclFilter(principal=principal)]) == created
        assert await admin.describe_acls(AclFilter(principal=principal)) == []
    assert caught.value.code == ErrorCode.INVALID_REQUEST
