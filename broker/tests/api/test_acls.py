"""DescribeAcls, CreateAcls and DeleteAcls on a broker with an authorizer, and on one without."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from authorized_broker import ANA, ROOT, AuthorizedBroker, acl, opened_broker

from penstock.api.acls import MAX_FILTERS
from penstock.control import acl_admin
from penstock.state import keys
from penstock.wire.acl import AclOperation, AclPermission, PatternType, ResourceType
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from penstock.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from penstock.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from penstock.wire.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse, ListOffsetsTopic

pytestmark = pytest.mark.integration

READ, TOPIC = AclOperation.READ, ResourceType.TOPIC


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[AuthorizedBroker]:
    async with opened_broker(tmp_path) as opened:
        yield opened


def creation(name: str = "t", **more: object) -> AclCreation:
    fields: dict[str, object] = {
        "resource_type": TOPIC, "resource_name": name, "resource_pattern_type": PatternType.LITERAL,
        "principal": str(ANA), "host": "*", "operation": READ, "permission_type": AclPermission.ALLOW,
    }  # fmt: skip
    return AclCreation(**{**fields, **more})  # type: ignore[arg-type]


def acl_filter(**more: object) -> DeleteAclsFilter:
    fields: dict[str, object] = {
        "resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1
    }  # fmt: skip
    return DeleteAclsFilter(**{**fields, **more})  # type: ignore[arg-type]


async def create(broker: AuthorizedBroker, *creations: AclCreation) -> list[tuple[int, str | None]]:
    request = CreateAclsRequest(creations=list(creations))
    answer = await broker.client(ROOT).ask(request, CreateAclsResponse, 3)
    return [(result.error_code, result.error_message) for result in answer.results]


async def described(broker: AuthorizedBroker, **fields: object) -> list[tuple[int, str, int, list[str]]]:
    wanted = acl_filter(**fields)
    request = DescribeAclsRequest(**{name: getattr(wanted, name) for name in wanted.__struct_fields__})
    answer = await broker.client(ROOT).ask(request, DescribeAclsResponse, 3)
    assert not answer.error_code
    return [
        (r.resource_type, r.resource_name, r.pattern_type, sorted(a.principal for a in r.acls))
        for r in answer.resources
    ]


async def test_created_acls_are_described_by_resource_and_take_effect(broker: AuthorizedBroker) -> None:
    prefixed = creation("t", resource_pattern_type=PatternType.PREFIXED, host="10.0.0.0/8")
    assert await create(broker, creation(), creation(principal="User:bob"), prefixed) == [(0, None)] * 3
    found = await described(broker, resource_name_filter="t")
    assert sorted(found) == [(2, "t", 3, ["User:ana", "User:bob"]), (2, "t", 4, ["User:ana"])]
    assert await described(broker, resource_name_filter="topic", pattern_type_filter=PatternType.MATCH) == [
        (2, "t", 4, ["User:ana"])
    ]
    authorizer = broker.services.authorizer
    assert authorizer.is_allowed(ANA, "192.168.0.1", READ, TOPIC, "t")
    assert authorizer.is_allowed(ANA, "10.0.0.1", READ, TOPIC, "topic")
    assert not authorizer.is_allowed(ANA, "192.168.0.1", READ, TOPIC, "topic")


async def test_creation_is_idempotent_and_each_acl_has_a_result_of_its_own(broker: AuthorizedBroker) -> None:
    results = await create(broker, creation(), creation(name=""), creation(), creation(operation=99))
    assert [code for code, _ in results] == [0, ErrorCode.INVALID_REQUEST, 0, ErrorCode.INVALID_REQUEST]
    assert "empty" in str(results[1][1])
    assert await create(broker, creation()) == [(0, None)]
    assert len(broker.view.security.acls) == 1


async def test_a_request_may_have_more_acls_than_a_transaction_holds(
    broker: AuthorizedBroker,
) -> None:
    assert await create(broker, *[creation(f"t{n}") for n in range(300)]) == [(0, None)] * 300
    assert len(broker.view.security.acls) == 300
    request = DeleteAclsRequest(filters=[acl_filter(principal_filter=str(ANA))])
    answer = await broker.client(ROOT).ask(request, DeleteAclsResponse, 3)
    assert len(answer.filter_results[0].matching_acls) == 300
    assert not broker.view.security.acls


async def test_the_number_of_acls_is_bounded(broker: AuthorizedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl_admin, "MAX_ACLS", 2)
    results = await create(broker, creation("a"), creation("b"), creation("c"), creation("a"))
    assert [code for code, _ in results] == [0, 0, ErrorCode.POLICY_VIOLATION, 0]
    assert await create(broker, creation("b")) == [(0, None)]


async def test_deletion_tells_per_filter_which_acls_it_deleted(broker: AuthorizedBroker) -> None:
    await create(broker, creation("a"), creation("b"), creation("c"))
    exact = acl_filter(
        resource_type_filter=TOPIC, resource_name_filter="a", pattern_type_filter=3, principal_filter=str(ANA),
        host_filter="*", operation=READ, permission_type=3,
    )  # fmt: skip
    missing, unknown = acl_filter(resource_name_filter="x"), acl_filter(operation=99)
    named = acl_filter(resource_name_filter="b")
    request = DeleteAclsRequest(filters=[exact, missing, unknown, named])
    results = (await broker.client(ROOT).ask(request, DeleteAclsResponse, 3)).filter_results
    assert [[m.resource_name for m in r.matching_acls] for r in results] == [["a"], [], [], ["b"]]
    assert [r.error_code for r in results] == [0, 0, ErrorCode.INVALID_REQUEST, 0]
    assert [record.name for record in broker.view.security.acls.values()] == ["c"]


async def test_deletion_finds_acls_that_this_broker_has_not_heard_of_yet(broker: AuthorizedBroker) -> None:
    await create(broker, creation("a"))
    hidden = acl(READ, TOPIC, "a")
    del broker.view.security.acls[keys.acl(hidden)]
    request = DeleteAclsRequest(filters=[acl_filter()])
    results = (await broker.client(ROOT).ask(request, DeleteAclsResponse, 3)).filter_results
    assert [m.resource_name for m in results[0].matching_acls] == ["a"]
    assert not (await broker.services.store.range(keys.ACLS)).entries


async def test_too_many_filters_and_invalid_filters_are_refused(broker: AuthorizedBroker) -> None:
    request = DeleteAclsRequest(filters=[acl_filter()] * (MAX_FILTERS + 1))
    answer = await broker.client(ROOT).ask(request, DeleteAclsResponse, 3)
    assert {result.error_code for result in answer.filter_results} == {ErrorCode.INVALID_REQUEST}
    invalid = DescribeAclsRequest(resource_type_filter=50, pattern_type_filter=1, operation=1, permission_type=1)
    assert (await broker.client(ROOT).ask(invalid, DescribeAclsResponse, 3)).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_without_an_authorizer_the_answer_is_security_disabled(tmp_path: Path, version: int) -> None:
    async with opened_broker(tmp_path, authorizer_class_name="") as broker:
        client = broker.client(ANA)
        described = await client.ask(DescribeAclsRequest(resource_type_filter=1), DescribeAclsResponse, version)
        created = await client.ask(CreateAclsRequest(creations=[creation()]), CreateAclsResponse, version)
        deleted = await client.ask(DeleteAclsRequest(filters=[acl_filter()]), DeleteAclsResponse, version)
        codes = [described.error_code, created.results[0].error_code, deleted.filter_results[0].error_code]
        assert codes == [ErrorCode.SECURITY_DISABLED] * 3
        assert "authorizer.class.name" in str(described.error_message)
        listing = ListOffsetsRequest(topics=[ListOffsetsTopic(name="missing")])
        assert not (await client.ask(listing, ListOffsetsResponse, 9)).topics[0].partitions
