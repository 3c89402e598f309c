"""The quota on partitions that clients create and delete (KIP-599), by the versions of the requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.security.quotas.client_quotas import ClientQuotas, QuotaWindows
from penstock.security.quotas.request_meter import RequestMeter
from penstock.state import keys
from penstock.state.security_records import ClientQuotaRecord
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from penstock.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from penstock.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from penstock.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

EXCEEDED = ErrorCode.THROTTLING_QUOTA_EXCEEDED
BURST = 11


@pytest.fixture
def measure(broker: Any) -> Callable[[], None]:
    """Limit the client to one partition per second, and stop the clock."""

    def start() -> None:
        entity: dict[str, str | None] = {"user": "ana"}
        record = ClientQuotaRecord(entity=entity, quotas={"controller_mutation_rate": 1.0})
        broker.view.security.quotas[keys.client_quota(entity)] = record
        quotas = ClientQuotas(broker.view, QuotaWindows(), lambda: 1000.0)
        client = quotas.client("ana", b"")
        assert client is not None
        broker.ask.meter = RequestMeter(quotas, client, lambda: 0.0)

    return start


def topics(*sizes: int) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=[
            CreatableTopic(name=f"t{number}", num_partitions=size, replication_factor=-1)
            for number, size in enumerate(sizes)
        ]
    )


@pytest.mark.parametrize("version", [2, 5, 6, 7])
async def test_creation_beyond_the_quota_is_refused_by_topic_or_throttled_later(
    broker: Any, measure: Callable[[], None], version: int
) -> None:
    measure()
    response = await broker.ask(topics(BURST + 4, 5), version)
    is_strict = version >= 6
    assert [t.error_code for t in response.topics] == [0, EXCEEDED if is_strict else 0]
    assert response.throttle_time_ms == (4000 if is_strict else 9000)
    assert set(broker.view.topics) == ({"t0"} if is_strict else {"t0", "t1"})
    if is_strict:
        assert "retry in 4.0 s or raise the quota" in response.topics[1].error_message


async def test_a_refused_or_invalid_change_costs_nothing(broker: Any, measure: Callable[[], None]) -> None:
    measure()
    response = await broker.ask(topics(BURST), 7)
    assert (response.topics[0].error_code, response.throttle_time_ms) == (0, 0)
    response = await broker.ask(topics(5), 7)
    assert response.topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    request = topics(0, 1)
    request.topics = request.topics[1:]
    response = await broker.ask(request, 7)
    assert response.topics[0].error_code == 0, "the bucket is empty, but has no debt"


@pytest.mark.parametrize("version", [0, 2, 3])
async def test_new_partitions_count(broker: Any, measure: Callable[[], None], version: int) -> None:
    await broker.ask(topics(2, 2), 7)
    measure()
    grow = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic("t0", BURST + 5, None), CreatePartitionsTopic("t1", 3, None)]
    )
    response = await broker.ask(grow, version)
    assert [result.error_code for result in response.results] == [0, EXCEEDED if version >= 3 else 0]
    assert response.throttle_time_ms == (3000 if version >= 3 else 4000)


@pytest.mark.parametrize("version", [1, 4, 5, 6])
async def test_partitions_of_deleted_topics_count(broker: Any, measure: Callable[[], None], version: int) -> None:
    await broker.ask(topics(BURST + 2, 1), 7)
    measure()
    request = DeleteTopicsRequest(topic_names=["t0", "t1"])
    if version >= 6:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t0"), DeleteTopicState(name="t1")])
    response = await broker.ask(request, version)
    assert [result.error_code for result in response.responses] == [0, EXCEEDED if version >= 5 else 0]
    assert response.throttle_time_ms == (2000 if version >= 5 else 3000)
    assert ("t1" in broker.view.topics) == (version >= 5)


async def test_topics_that_metadata_requests_create_count(broker: Any, measure: Callable[[], None]) -> None:
    measure()
    names = [MetadataRequestTopic(name=f"m{number}") for number in range(BURST + 3)]
    response = await broker.ask(MetadataRequest(topics=names, allow_auto_topic_creation=True), 9)
    assert {t.error_code for t in response.topics} == {0}
    assert response.throttle_time_ms == 3000
