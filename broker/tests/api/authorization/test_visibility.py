"""What a client without rights learns: no names, no difference between existing and missing, no operations."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from authorized_broker import ANA, ROOT, AuthorizedBroker, acl, opened_broker
from structlog.testing import capture_logs
from wire_in_memory import RecordedExchange

from penstock.api.authorization.enforcement import Admission
from penstock.api.routes import RequestContext
from penstock.security.acl_filters import StoredAclFilter
from penstock.wire.acl import CLUSTER_NAME, AclOperation, ResourceType
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import delete_topics as deletion
from penstock.wire.messages import describe_topic_partitions as partitions
from penstock.wire.messages import offset_fetch
from penstock.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from penstock.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from penstock.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from penstock.wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from penstock.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from penstock.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from penstock.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from penstock.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from penstock.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse

pytestmark = pytest.mark.integration

DENIED, TOPIC, GROUP = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ResourceType.TOPIC, ResourceType.GROUP
CLUSTER, DESCRIBE = ResourceType.CLUSTER, AclOperation.DESCRIBE
NO_OPERATIONS = -(1 << 31)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[AuthorizedBroker]:
    async with opened_broker(tmp_path) as opened:
        await opened.create_topics("open", "secret")
        await opened.allow(DESCRIBE, TOPIC, "open")
        yield opened


async def metadata(broker: AuthorizedBroker, *names: str, version: int = 12, **more: Any) -> dict[Any, int]:
    """Return the errors by name; all topics without names."""
    topics = [MetadataRequestTopic(name=name) for name in names] if names else None
    request = MetadataRequest(topics=topics if version else topics or [], **more)
    answer = await broker.client().ask(request, MetadataResponse, version)
    assert answer.brokers, "the brokers are in each response"
    return {t.name: t.error_code for t in answer.topics}


@pytest.mark.parametrize("version", [0, 1, 9, 12])
async def test_metadata_of_all_topics_leaves_out_what_the_client_may_not_describe(
    broker: AuthorizedBroker, version: int
) -> None:
    assert await metadata(broker, version=version) == {"open": 0}


@pytest.mark.parametrize("version", [0, 4, 12])
async def test_metadata_of_a_denied_topic_is_the_same_whether_or_not_it_exists(
    broker: AuthorizedBroker, version: int
) -> None:
    expected = {"open": 0, "secret": DENIED, "missing": DENIED}
    assert await metadata(broker, "open", "secret", "missing", version=version) == expected
    assert await metadata(broker, "secret", version=version) == {"secret": DENIED}
    assert "missing" not in broker.view.topics


async def test_the_id_of_a_denied_topic_is_answered_without_its_name(broker: AuthorizedBroker) -> None:
    topics = [MetadataRequestTopic(name=None, topic_id=broker.topic_id(name)) for name in ("open", "secret")]
    answer = await broker.client().ask(MetadataRequest(topics=topics), MetadataResponse, 12)
    assert [(t.name, t.error_code) for t in answer.topics] == [("open", 0), (None, DENIED)]


def admitted(broker: AuthorizedBroker, request: Any, version: int) -> Admission:
    """Admit a request of ANA, whose handler then waits."""
    enforcement, client = broker.dispatcher.enforcement, broker.client()
    assert enforcement is not None, "the broker has an authorizer"
    context = RequestContext(version, 1, "tester", client.connection.peer, RecordedExchange(client.connection))
    return enforcement.admit(broker.dispatcher.routes[request.KEY], request, context)


@pytest.mark.parametrize("is_named", [True, False])
async def test_topics_that_a_client_may_no_longer_see_after_a_wait_are_denied_if_it_named_them(
    broker: AuthorizedBroker, is_named: bool
) -> None:
    await broker.allow(DESCRIBE, TOPIC, "other")
    named = [MetadataRequestTopic(name="open"), MetadataRequestTopic(name=None, topic_id=broker.topic_id("open"))]
    admission = admitted(broker, MetadataRequest(topics=named if is_named else None), 12)
    await broker.acls.delete([StoredAclFilter(1, "open", 1, None, None, 1, 1)])
    shown = [MetadataResponseTopic(name=name) for name in ("open", "other")]
    response = admission.finish(MetadataResponse(topics=shown))
    denied = [("open", DENIED), (None, DENIED)] if is_named else []
    assert isinstance(response, MetadataResponse)
    assert [(t.name, t.error_code) for t in response.topics] == [("other", 0), *denied]


@pytest.mark.parametrize("version", [7, 9])
async def test_offsets_that_a_client_may_no_longer_see_after_a_wait_are_denied_if_it_named_their_topic(
    broker: AuthorizedBroker, version: int
) -> None:
    await broker.allow(DESCRIBE, GROUP, "g")
    if version == 7:
        request = OffsetFetchRequest(
            group_id="g", topics=[offset_fetch.OffsetFetchRequestTopic(name="open", partition_indexes=[0])]
        )
        results = {"topics": [offset_fetch.OffsetFetchResponseTopic(name="open")]}
    else:
        wanted = offset_fetch.OffsetFetchRequestTopics(name="open", partition_indexes=[0])
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=[wanted])])
        shown = offset_fetch.OffsetFetchResponseTopics(name="open")
        results = {"groups": [offset_fetch.OffsetFetchResponseGroup(group_id="g", topics=[shown])]}
    admission = admitted(broker, request, version)
    assert admission.response is None, "the handler runs"
    await broker.acls.delete([StoredAclFilter(1, "open", 1, None, None, 1, 1)])
    response = admission.finish(OffsetFetchResponse(**results))
    assert isinstance(response, OffsetFetchResponse)
    (topic,) = response.topics if version == 7 else response.groups[0].topics
    assert (topic.name, [p.error_code for p in topic.partitions]) == ("open", [DENIED])


async def test_metadata_creates_a_topic_only_for_clients_that_may_create_it(broker: AuthorizedBroker) -> None:
    await broker.allow(DESCRIBE, TOPIC, "new", pattern_type="PREFIXED")
    assert await metadata(broker, "new1", allow_auto_topic_creation=True) == {"new1": DENIED}
    assert "new1" not in broker.view.topics
    await broker.allow(AclOperation.CREATE, TOPIC, "new1")
    assert await metadata(broker, "new1", allow_auto_topic_creation=True) == {"new1": 0}
    await broker.allow(AclOperation.CREATE, CLUSTER, CLUSTER_NAME)
    assert await metadata(broker, "new2", allow_auto_topic_creation=True) == {"new2": 0}


async def described(broker: AuthorizedBroker, *names: str) -> dict[Any, tuple[int, bool]]:
    request = partitions.DescribeTopicPartitionsRequest(topics=[partitions.TopicRequest(name=name) for name in names])
    answer = await broker.client().ask(request, partitions.DescribeTopicPartitionsResponse, 0)
    assert answer.next_cursor is None
    return {t.name: (t.error_code, bool(t.partitions)) for t in answer.topics}


async def test_the_partitions_of_denied_topics_are_not_described(broker: AuthorizedBroker) -> None:
    assert await described(broker) == {"open": (0, True)}
    expected = {"open": (0, True), "secret": (DENIED, False), "missing": (DENIED, False)}
    assert await described(broker, "open", "secret", "missing") == expected
    await broker.revoke_all()
    assert await described(broker) == {}


async def commit_offsets(broker: AuthorizedBroker) -> None:
    topics = [
        OffsetCommitRequestTopic(name=name, partitions=[OffsetCommitRequestPartition(committed_offset=1)])
        for name in ("open", "secret")
    ]
    request = OffsetCommitRequest(group_id="g", topics=topics)
    answer = await broker.client(ROOT).ask(request, OffsetCommitResponse, 8)
    assert {p.error_code for t in answer.topics for p in t.partitions} == {0}


async def test_all_offsets_of_a_group_are_those_of_topics_that_the_client_may_describe(
    broker: AuthorizedBroker,
) -> None:
    await commit_offsets(broker)
    await broker.allow(DESCRIBE, GROUP, "g")
    old = await broker.client().ask(OffsetFetchRequest(group_id="g", topics=None), OffsetFetchResponse, 7)
    assert [t.name for t in old.topics] == ["open"]
    groups = [OffsetFetchRequestGroup(group_id=name, topics=None) for name in ("g", "other")]
    new = await broker.client().ask(OffsetFetchRequest(groups=groups), OffsetFetchResponse, 9)
    found = [(g.group_id, g.error_code, [t.name for t in g.topics]) for g in new.groups]
    assert found == [("g", 0, ["open"]), ("other", ErrorCode.GROUP_AUTHORIZATION_FAILED, [])]


async def test_groups_and_transactions_are_listed_to_clients_that_may_describe_them(broker: AuthorizedBroker) -> None:
    await commit_offsets(broker)
    started = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1000)
    assert not (await broker.client(ROOT).ask(started, InitProducerIdResponse, 4)).error_code

    async def listed() -> tuple[list[str], list[str]]:
        groups = await broker.client().ask(ListGroupsRequest(), ListGroupsResponse, 4)
        transactions = await broker.client().ask(ListTransactionsRequest(), ListTransactionsResponse, 1)
        return [g.group_id for g in groups.groups], [t.transactional_id for t in transactions.transaction_states]

    assert await listed() == ([], [])
    await broker.acls.create([acl(DESCRIBE, GROUP, "g"), acl(DESCRIBE, ResourceType.TRANSACTIONAL_ID, "x")])
    assert await listed() == (["g"], ["x"])
    await broker.revoke_all()
    await broker.allow(DESCRIBE, CLUSTER, CLUSTER_NAME)
    assert await listed() == (["g"], [])


def bits(*operations: AclOperation) -> int:
    return sum(1 << operation for operation in operations)


async def test_authorized_operations_are_those_of_the_client(broker: AuthorizedBroker) -> None:
    client = broker.client()
    await broker.acls.create([acl(AclOperation.WRITE, TOPIC, "open"), acl(AclOperation.DELETE, GROUP, "g")])
    await broker.allow(AclOperation.CREATE, CLUSTER, CLUSTER_NAME)
    topics = [MetadataRequestTopic(name=name) for name in ("open", "secret")]
    request = MetadataRequest(
        topics=topics, include_topic_authorized_operations=True, include_cluster_authorized_operations=True
    )
    answer = await client.ask(request, MetadataResponse, 9)
    expected = {"open": bits(AclOperation.WRITE, DESCRIBE), "secret": NO_OPERATIONS}
    assert {t.name: t.topic_authorized_operations for t in answer.topics} == expected
    assert answer.cluster_authorized_operations == 0, "they are shown to clients with DESCRIBE"
    groups = DescribeGroupsRequest(groups=["g"], include_authorized_operations=True)
    group = (await client.ask(groups, DescribeGroupsResponse, 5)).groups[0]
    assert group.authorized_operations == bits(AclOperation.DELETE, DESCRIBE)
    await broker.allow(DESCRIBE, CLUSTER, CLUSTER_NAME)
    cluster = DescribeClusterRequest(include_cluster_authorized_operations=True)
    described = await client.ask(cluster, DescribeClusterResponse, 0)
    assert described.cluster_authorized_operations == bits(DESCRIBE, AclOperation.CREATE)
    full = (await broker.client(ROOT).ask(request, MetadataResponse, 9)).topics[0].topic_authorized_operations
    assert full == bits(*(AclOperation(n) for n in (3, 4, 5, 6, 7, 8, 10, 11)))


async def test_the_settings_of_a_created_topic_are_hidden_from_clients_that_may_not_describe_them(
    broker: AuthorizedBroker,
) -> None:
    await broker.allow(AclOperation.CREATE, CLUSTER, CLUSTER_NAME)
    created = []
    for name in ("a", "b"):
        topics = [CreatableTopic(name=name, num_partitions=2, replication_factor=1)]
        created += (await broker.client().ask(CreateTopicsRequest(topics=topics), CreateTopicsResponse, 7)).topics
        await broker.allow(AclOperation.ALTER_CONFIGS, TOPIC, "b")
    assert [(t.error_code, t.topic_config_error_code, t.num_partitions) for t in created] == [(0, 29, -1), (0, 0, 2)]
    assert [t.configs == [] for t in created] == [True, False]


async def test_deletion_tells_missing_topics_only_to_clients_that_may_describe_them(broker: AuthorizedBroker) -> None:
    await broker.allow(DESCRIBE, TOPIC, "gone")
    topics = [deletion.DeleteTopicState(name=name) for name in ("open", "secret", "gone", "missing")]
    topics.append(deletion.DeleteTopicState(topic_id=broker.topic_id("secret")))
    answer = await broker.client().ask(deletion.DeleteTopicsRequest(topics=topics), deletion.DeleteTopicsResponse, 6)
    found = {t.name: t.error_code for t in answer.responses}
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert found == {"open": DENIED, "secret": DENIED, "gone": unknown, "missing": DENIED, None: DENIED}
    assert set(broker.view.topics) == {"open", "secret"}


async def test_denials_and_administrative_actions_are_audited_but_filtered_names_are_not(
    broker: AuthorizedBroker,
) -> None:
    with capture_logs() as events:
        await metadata(broker)
        await metadata(broker, "secret")
        await broker.create_topics("more")
        filters = [DeleteAclsFilter(resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1)]
        await broker.client(ROOT).ask(DeleteAclsRequest(filters=filters), DeleteAclsResponse, 3)
    audited = [event for event in events if event["source"] == "penstock.audit"]
    assert [(event["event"], event["principal"]) for event in audited] == [
        ("denied", str(ANA)),
        ("administrative action", str(ROOT)),
        ("administrative action", str(ROOT)),
    ]
    denied, action, deleted = audited
    assert (denied["resource"], denied["operation"], denied["request"]) == ("secret", "DESCRIBE", "Metadata")
    assert (action["operation"], action["resources"], action["outcome"]) == ("CreateTopics", ["more"], "NONE")
    assert (deleted["operation"], deleted["resources"]) == ("DeleteAcls", ["(any)"])
