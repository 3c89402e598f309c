"""Every served API with no right, with all rights but one, with all that it requires, and as a super user."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from authorized_broker import ANA, ROOT, AuthorizedBroker, acl, opened_broker
from filled_messages import TOPIC, TRANSACTION, filled

from penstock.api.authorization.audited import error_codes
from penstock.api.authorization.reference import rows
from penstock.api.authorization.rules import ERRORS, AuthorizationState, ElementRule, NestedRule, RequestRule, Right
from penstock.api.authorization.table import TABLE
from penstock.api.routes import Route
from penstock.security.acl_index import IMPLIED_BY
from penstock.wire import codec
from penstock.wire.acl import CLUSTER_NAME, AclOperation, ResourceType
from penstock.wire.apis import ApiKey, api_name
from penstock.wire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
)
from penstock.wire.messages.fetch import FetchRequest, FetchResponse, ReplicaState
from penstock.wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from penstock.wire.messages.produce import ProduceRequest, ProduceResponse
from penstock.wire.schema import Payload

pytestmark = pytest.mark.integration

DENIALS = {int(error) for error in ERRORS.values()}
SHARE_GROUP = "share"
VARIANTS: dict[int, list[dict[str, Any]]] = {
    ApiKey.PRODUCE: [{"transactional_id": None}, {"transactional_id": TRANSACTION}],
    ApiKey.INIT_PRODUCER_ID: [{"transactional_id": None}, {"transactional_id": TRANSACTION}],
    ApiKey.FIND_COORDINATOR: [{"key_type": 0}, {"key_type": 1}],
    ApiKey.METADATA: [{"allow_auto_topic_creation": False}],
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: [{"group_id": SHARE_GROUP}],
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: [{"group_id": SHARE_GROUP}],
}
Required = list[tuple[Right, str]]


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[AuthorizedBroker]:
    async with opened_broker(tmp_path) as opened:
        await opened.create_topics(TOPIC)
        yield opened


def served(broker: AuthorizedBroker) -> list[tuple[type[Payload], type[Payload], int, int]]:
    """Return (request, response, first version, last version) of all APIs with requirements."""
    routes: list[Route] = list(broker.dispatcher.routes.values())
    apis = [(r.request, r.response, r.first, r.last) for r in routes]
    return [*apis, (ProduceRequest, ProduceResponse, 3, 13), (FetchRequest, FetchResponse, 4, 18)]


def requests(broker: AuthorizedBroker, api: tuple[type[Payload], type[Payload], int, int]) -> Iterator[tuple[Any, int]]:
    """Yield requests of an API, in its newest version and at each version where a requirement starts or ends."""
    request, _, first, last = api
    bounds = {version for rule in TABLE[request.KEY].rules for version in (rule.first, rule.last)}
    for version in sorted({last} | {v for v in bounds if first <= v <= last}):
        sample = filled(request, version, broker.topic_id(TOPIC))
        for variant in VARIANTS.get(request.KEY, [{}]):
            encoded = codec.encode(msgspec.structs.replace(sample, **variant), version)
            yield codec.decode(request, version, encoded), version


def required(broker: AuthorizedBroker, request: Any, version: int) -> Required:
    """Return what the table requires of a request."""
    facts, found = AuthorizationState(broker.view, broker.services.config), []
    for rule in TABLE[request.KEY].rules:
        if not rule.applies(request, version):
            continue
        if isinstance(rule, RequestRule):
            right = rule.rights[0]
            is_cluster = right.resource is ResourceType.CLUSTER
            name = CLUSTER_NAME if is_cluster else getattr(request, rule.name) if rule.name else "anything"
            found.append((right, name))
        elif isinstance(rule, ElementRule):
            found += [rule.subject.find(e, request, facts) for e in getattr(request, rule.requested) or ()]
        elif isinstance(rule, NestedRule):
            nested = [e for outer in getattr(request, rule.outer) for e in getattr(outer, rule.requested) or ()]
            found += [rule.subject.find(e, request, facts) for e in nested]
    wanted = [one for one in found if one is not None]
    return wanted if request.KEY != ApiKey.FETCH else [one for one in wanted if one[0].operation.name == "READ"]


def error_of(right: Right) -> int:
    """Return the error of a request without a right. WRITE on any topic stands for IDEMPOTENT_WRITE on the cluster."""
    return int(ERRORS[ResourceType.CLUSTER if right.is_for_any else right.resource])


def is_implied(required_right: tuple[Right, str], rights: Required) -> bool:
    """Whether another one of the rights implies this one, so that it cannot be missing alone."""
    right, name = required_right
    implying = IMPLIED_BY.get(right.operation, frozenset()) - {right.operation}
    return any(r.operation in implying and r.resource is right.resource and n == name for r, n in rights)


async def denials(
    broker: AuthorizedBroker, request: Any, response: type[Payload], version: int, principal: Any
) -> set[int]:
    answer = await broker.client(principal).ask(request, response, version)
    return set(error_codes(answer)) & DENIALS


async def create_groups(broker: AuthorizedBroker) -> None:
    """Make the groups of the requests exist: without them, OffsetDelete and DeleteShareGroupOffsets end before the
    rights on topics, as in Kafka."""
    sample = filled(OffsetCommitRequest, 9, broker.topic_id(TOPIC))
    request = msgspec.structs.replace(sample, generation_id_or_member_epoch=-1, member_id="", group_instance_id=None)
    await broker.client(ROOT).ask(request, OffsetCommitResponse, 9)
    alter = filled(AlterShareGroupOffsetsRequest, 0, broker.topic_id(TOPIC))
    of_share_group = msgspec.structs.replace(alter, group_id=SHARE_GROUP)
    await broker.client(ROOT).ask(of_share_group, AlterShareGroupOffsetsResponse, 0)


async def test_each_served_api_requires_what_the_table_says_and_nothing_else(broker: AuthorizedBroker) -> None:
    checked = 0
    for api in served(broker):
        for request, version in list(requests(broker, api)):
            what, rights = f"{api_name(request.KEY)} {version}", required(broker, request, version)
            for missing in rights:
                if is_implied(missing, rights):
                    continue
                others = [acl(r.operation, r.resource, name) for r, name in rights if (r, name) != missing]
                await broker.acls.create(others)
                await create_groups(broker)
                found = await denials(broker, request, api[1], version, ANA)
                assert found == {error_of(missing[0])}, f"{what} without {missing}"
                await broker.revoke_all()
            await broker.acls.create([acl(r.operation, r.resource, name) for r, name in rights])
            assert not await denials(broker, request, api[1], version, ANA), f"{what} with {rights}"
            await broker.revoke_all()
            await broker.create_topics(TOPIC)
            assert not await denials(broker, request, api[1], version, ROOT), f"{what} as a super user"
            await broker.create_topics(TOPIC)
            checked += 1
    assert checked > 50


def test_cve_2026_41115_descriptions_of_groups_require_and_are_documented_with_describe() -> None:
    described = {api: {right for name, right, _ in rows() if name == api and right} for api, _, _ in rows()}
    for api in ("DescribeGroups", "ConsumerGroupDescribe", "ShareGroupDescribe"):
        assert "`DESCRIBE` on `GROUP`" in described[api]
        assert "`READ` on `GROUP`" not in described[api]


def test_an_api_without_an_entry_is_noticed() -> None:
    assert set(ApiKey) - set(TABLE) == set()


async def test_every_route_that_can_be_refused_has_a_response_for_it(broker: AuthorizedBroker) -> None:
    for route in broker.dispatcher.routes.values():
        rules = TABLE[route.request.KEY].rules
        if any(isinstance(rule, RequestRule | ElementRule) for rule in rules):
            assert route.failure is not None, route.request.__name__


@pytest.mark.parametrize("version", [12, 18])
async def test_cve_2018_1288_only_brokers_may_fetch_as_followers(broker: AuthorizedBroker, version: int) -> None:
    await broker.allow(AclOperation.ALL, ResourceType.TOPIC, "*")
    request = filled(FetchRequest, version, broker.topic_id(TOPIC))
    request.replica_id, request.replica_state = 0, ReplicaState(replica_id=0, replica_epoch=1)
    assert await denials(broker, request, FetchResponse, version, ANA) == {29}
    await broker.allow(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
    assert not await denials(broker, request, FetchResponse, version, ANA)
