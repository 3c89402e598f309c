"""Consumer groups and share groups of which a client may see or change only a part."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from authorized_broker import ROOT, AuthorizedBroker, opened_broker

from penstock.wire.acl import AclOperation, ResourceType
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import alter_share_group_offsets as altering
from penstock.wire.messages import delete_share_group_offsets as deleting
from penstock.wire.messages import describe_share_group_offsets as describing
from penstock.wire.messages import share_acknowledge as acknowledging
from penstock.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from penstock.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from penstock.wire.messages.share_group_describe import ShareGroupDescribeRequest, ShareGroupDescribeResponse
from penstock.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse

pytestmark = pytest.mark.integration

GROUP, TOPIC, NO_OPERATIONS = ResourceType.GROUP, "secret", -(1 << 31)
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[AuthorizedBroker]:
    """A broker with the share group "s" and the consumer group "k"; each has a member with the topic's partition."""
    async with opened_broker(tmp_path) as opened:
        await opened.create_topics(TOPIC)
        more: dict[str, Any] = {"member_id": "m", "member_epoch": 0, "subscribed_topic_names": [TOPIC]}
        share = ShareGroupHeartbeatRequest(group_id="s", **more)
        assert not (await opened.client(ROOT).ask(share, ShareGroupHeartbeatResponse, 1)).error_code
        more |= {"rebalance_timeout_ms": 10_000, "topic_partitions": []}
        consumer = ConsumerGroupHeartbeatRequest(group_id="k", **more)
        assert not (await opened.client(ROOT).ask(consumer, ConsumerGroupHeartbeatResponse, 1)).error_code
        yield opened


@pytest.mark.parametrize(
    ("group_id", "request_type", "response_type"),
    [
        ("s", ShareGroupDescribeRequest, ShareGroupDescribeResponse),
        ("k", ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse),
    ],
)
async def test_a_group_with_a_denied_topic_is_an_error_and_nothing_else(
    broker: AuthorizedBroker, group_id: str, request_type: Any, response_type: Any
) -> None:
    await broker.allow(AclOperation.DESCRIBE, GROUP, group_id)
    request = request_type(group_ids=[group_id], include_authorized_operations=True)
    (found,) = (await broker.client().ask(request, response_type, 1)).groups
    assert (found.group_id, found.error_code, found.members) == (group_id, DENIED, [])
    assert found.error_message
    assert (found.group_state, found.group_epoch, found.assignment_epoch, found.assignor_name) == ("", 0, 0, "")
    assert found.authorized_operations == NO_OPERATIONS


async def test_the_error_of_a_group_is_named_if_all_topics_of_a_change_are_denied(broker: AuthorizedBroker) -> None:
    await broker.allow(AclOperation.READ, GROUP, "s")
    await broker.allow(AclOperation.DELETE, GROUP, "s")
    part = altering.AlterShareGroupOffsetsRequestPartition(partition_index=0)
    topics = [altering.AlterShareGroupOffsetsRequestTopic(topic_name=TOPIC, partitions=[part])]
    alter = altering.AlterShareGroupOffsetsRequest(group_id="s", topics=topics)
    altered = await broker.client().ask(alter, altering.AlterShareGroupOffsetsResponse, 0)
    assert (altered.error_code, altered.responses) == (ErrorCode.NON_EMPTY_GROUP, [])
    delete = deleting.DeleteShareGroupOffsetsRequest(
        group_id="s", topics=[deleting.DeleteShareGroupOffsetsRequestTopic(topic_name=TOPIC)]
    )
    deleted = await broker.client().ask(delete, deleting.DeleteShareGroupOffsetsResponse, 0)
    assert (deleted.error_code, deleted.responses) == (ErrorCode.NON_EMPTY_GROUP, [])


async def test_a_denied_topic_in_described_offsets_has_a_message(broker: AuthorizedBroker) -> None:
    await broker.allow(AclOperation.DESCRIBE, GROUP, "s")
    topic = describing.DescribeShareGroupOffsetsRequestTopic(topic_name=TOPIC, partitions=[0])
    group = describing.DescribeShareGroupOffsetsRequestGroup(group_id="s", topics=[topic])
    request = describing.DescribeShareGroupOffsetsRequest(groups=[group])
    answer = await broker.client().ask(request, describing.DescribeShareGroupOffsetsResponse, 1)
    (partition,) = answer.groups[0].topics[0].partitions
    assert (partition.error_code, partition.error_message) == (DENIED, "Topic authorization failed.")


async def test_acknowledgements_for_a_denied_group_have_one_error(broker: AuthorizedBroker) -> None:
    part = acknowledging.AcknowledgePartition(partition_index=0)
    topic = acknowledging.AcknowledgeTopic(topic_id=broker.topic_id(TOPIC), partitions=[part])
    request = acknowledging.ShareAcknowledgeRequest(group_id="s", member_id="m", share_session_epoch=1, topics=[topic])
    answer = await broker.client().ask(request, acknowledging.ShareAcknowledgeResponse, 2)
    assert (answer.error_code, answer.responses) == (ErrorCode.GROUP_AUTHORIZATION_FAILED, [])
