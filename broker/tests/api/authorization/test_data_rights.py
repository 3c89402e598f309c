"""Rights on the data path: at each request, in fetch sessions, in requests that wait, and when ACLs change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from authorized_broker import HOST, ROOT, AuthorizedBroker, AuthorizedClient, acl, opened_broker
from replica_kit import batch_of, until

from penstock.api.authorization.access import OUTDATED_RIGHTS
from penstock.security.principal import Principal
from penstock.wire.acl import AclOperation, ResourceType
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from penstock.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from penstock.wire.messages.metadata import MetadataRequest
from penstock.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData

pytestmark = pytest.mark.integration

DENIED, TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ResourceType.TOPIC
READ, WRITE = AclOperation.READ, AclOperation.WRITE
BATCH_RECORDS = 3


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[AuthorizedBroker]:
    async with opened_broker(tmp_path) as opened:
        await opened.create_topics("t", "u")
        yield opened


def produce_request(broker: AuthorizedBroker, version: int, *names: str, **more: Any) -> ProduceRequest:
    data = [PartitionProduceData(index=0, records=batch_of())]
    topics = [TopicProduceData(name=name, topic_id=broker.topic_id(name), partition_data=data) for name in names]
    return ProduceRequest(acks=-1, timeout_ms=5000, topic_data=topics, **more)


async def produced(client: AuthorizedClient, version: int, *names: str, **more: Any) -> dict[str, int]:
    """Return the error by topic, in the order of the response."""
    request = produce_request(client.broker, version, *names, **more)
    answer = await client.ask(request, ProduceResponse, version)
    ids = {client.broker.topic_id(name): name for name in names}
    return {t.name or ids[t.topic_id]: t.partition_responses[0].error_code for t in answer.responses}


def fetch_request(
    broker: AuthorizedBroker, *names: str, version: int = 12, offset: int = 0, **more: Any
) -> FetchRequest:
    topics = [
        FetchTopic(
            topic=name,
            topic_id=broker.topic_id(name),
            partitions=[FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)],
        )
        for name in names
    ]
    fields = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, "session_epoch": -1, **more}
    return FetchRequest(topics=topics, **fields)


def fetched(answer: FetchResponse) -> dict[str, tuple[int, bool]]:
    """Return (error, whether there are records) by topic."""
    return {t.topic: (p.error_code, bool(p.records)) for t in answer.responses for p in t.partitions}


async def fetch(client: AuthorizedClient, request: FetchRequest) -> FetchResponse:
    return await client.ask(request, FetchResponse, 12)


@pytest.mark.parametrize("version", [3, 9, 13])
async def test_a_producer_writes_to_the_topics_that_it_may_write_to(broker: AuthorizedBroker, version: int) -> None:
    client = broker.client()
    await broker.allow(WRITE, TOPIC, "t")
    assert await produced(client, version, "t", "u") == {"t": 0, "u": DENIED}
    assert broker.services.replicas.find("u", 0).log.end_offset == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("version", [9, 13])
async def test_a_broker_writes_dead_letters_to_topics_for_them_only(broker: AuthorizedBroker, version: int) -> None:
    flag = CreatableTopicConfig(name="errors.deadletterqueue.group.enable", value="true")
    letters = CreatableTopic(name="letters", num_partitions=1, replication_factor=1, configs=[flag])
    created = await broker.client(ROOT).ask(CreateTopicsRequest(topics=[letters]), CreateTopicsResponse, 7)
    assert not created.topics[0].error_code
    client = broker.client()
    await broker.allow(AclOperation.ALTER, ResourceType.CLUSTER, "kafka-cluster")
    assert await produced(client, version, "letters") == {"letters": DENIED}
    await broker.allow(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, "kafka-cluster")
    assert await produced(client, version, "letters", "t") == {"letters": 0, "t": DENIED}


async def test_a_broker_relays_records_to_topics_that_get_fewer_partitions_only(broker: AuthorizedBroker) -> None:
    root, client = broker.client(ROOT), broker.client()
    topics = [CreatableTopic(name="shrinking", num_partitions=2, replication_factor=1)]
    assert not (await root.ask(CreateTopicsRequest(topics=topics), CreateTopicsResponse, 7)).topics[0].error_code
    await broker.allow(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, "kafka-cluster")
    assert await produced(client, 9, "shrinking") == {"shrinking": DENIED}
    fewer = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="shrinking", count=1, may_shrink=True)])
    assert not (await root.ask(fewer, CreatePartitionsResponse, 3)).results[0].error_code
    await until(lambda: broker.view.topics["shrinking"].seals)
    assert await produced(client, 9, "shrinking", "t") == {"shrinking": 0, "t": DENIED}
    await broker.revoke_all()
    assert await produced(client, 9, "shrinking") == {"shrinking": DENIED}


@pytest.mark.parametrize("version", [9, 13])
async def test_a_repeated_request_is_checked_again_when_the_acls_have_changed(
    broker: AuthorizedBroker, version: int
) -> None:
    client = broker.client()
    await broker.allow(WRITE, TOPIC, "t")
    for _ in range(3):
        assert await produced(client, version, "t") == {"t": 0}
    assert client.connection.produce_template is not None
    await broker.revoke_all()
    for _ in range(3):
        assert await produced(client, version, "t") == {"t": DENIED}
    await broker.allow(WRITE, TOPIC, "t", permission="DENY")
    assert await produced(client, version, "t") == {"t": DENIED}
    await broker.revoke_all()
    await broker.allow(WRITE, TOPIC, "*")
    assert await produced(client, version, "t") == {"t": 0}
    assert broker.services.replicas.find("t", 0).log.end_offset == 4 * BATCH_RECORDS  # type: ignore[union-attr]


async def test_with_acks_0_a_denied_batch_closes_the_connection(broker: AuthorizedBroker) -> None:
    client, request = broker.client(), produce_request(broker, 9, "t")
    request.acks = 0
    assert client.send(request, 9).aborted is not None


async def test_cve_2018_17196_a_transactional_id_is_checked_with_each_batch(broker: AuthorizedBroker) -> None:
    client = broker.client()
    await broker.allow(WRITE, TOPIC, "*")
    refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert await produced(client, 9, "t", transactional_id="x") == {"t": refused}
    await broker.allow(WRITE, ResourceType.TRANSACTIONAL_ID, "x")
    assert await produced(client, 9, "t", transactional_id="x") == {"t": 0}


async def test_a_consumer_reads_the_topics_that_it_may_read(broker: AuthorizedBroker) -> None:
    await produced(broker.client(ROOT), 9, "t", "u")
    await broker.allow(READ, TOPIC, "t")
    answer = await fetch(broker.client(), fetch_request(broker, "t", "u"))
    assert fetched(answer) == {"t": (0, True), "u": (DENIED, False)}


async def test_a_missing_topic_looks_like_a_denied_one(broker: AuthorizedBroker) -> None:
    request = fetch_request(broker, "t")
    request.topics[0].topic = "missing"
    assert fetched(await fetch(broker.client(), request)) == {"missing": (DENIED, False)}


async def test_cve_2024_27309_a_fetch_session_does_not_outlive_its_right(broker: AuthorizedBroker) -> None:
    client = broker.client()
    await produced(broker.client(ROOT), 9, "t", "u")
    await broker.acls.create([acl(READ, TOPIC, "t"), acl(READ, TOPIC, "u")])
    first = await fetch(client, fetch_request(broker, "t", "u", offset=BATCH_RECORDS, session_epoch=0))
    assert fetched(first) == {"t": (0, False), "u": (0, False)}
    again = await fetch(client, fetch_request(broker, session_id=first.session_id, session_epoch=1))
    assert not again.responses, "both partitions are idle"
    await broker.revoke_all()
    await broker.allow(READ, TOPIC, "u")
    told = await fetch(client, fetch_request(broker, session_id=first.session_id, session_epoch=2))
    assert fetched(told) == {"t": (DENIED, False)}, "also without new records"
    await produced(broker.client(ROOT), 9, "t", "u")
    last = await fetch(client, fetch_request(broker, session_id=first.session_id, session_epoch=3))
    assert fetched(last) == {"t": (DENIED, False), "u": (0, True)}


async def test_a_session_serves_only_the_principal_that_created_it(broker: AuthorizedBroker) -> None:
    bob = Principal("User", "bob")
    await broker.acls.create([acl(READ, TOPIC, "*"), acl(READ, TOPIC, "*", principal=str(bob))])
    first = await fetch(broker.client(), fetch_request(broker, "t", session_epoch=0))
    stolen = fetch_request(broker, session_id=first.session_id, session_epoch=1)
    assert (await fetch(broker.client(bob, HOST), stolen)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (await fetch(broker.client(), stolen)).error_code == 0


@pytest.mark.parametrize("session_epoch", [-1, 0])
async def test_cve_2024_27309_a_fetch_that_waits_is_answered_when_its_right_is_removed(
    broker: AuthorizedBroker, session_epoch: int
) -> None:
    client, others = broker.client(), broker.client(ROOT)
    await broker.allow(READ, TOPIC, "t")
    request = fetch_request(broker, "t", max_wait_ms=100_000, session_epoch=session_epoch)
    waiting, unaffected = client.send(request, 12), others.send(request, 12)
    await broker.allow(READ, TOPIC, "u")
    assert not waiting.completed, "another ACL has nothing to do with it"
    await broker.revoke_all()
    await until(lambda: waiting.completed)
    assert fetched(client.decoded(waiting, FetchResponse, 12)) == {"t": (DENIED, False)}
    assert not unaffected.completed
    unaffected.lose()


async def test_a_right_that_is_removed_while_records_arrive_hides_them(broker: AuthorizedBroker) -> None:
    client = broker.client()
    await broker.allow(READ, TOPIC, "t")
    waiting = client.send(fetch_request(broker, "t", max_wait_ms=100_000), 12)
    removal = asyncio.ensure_future(broker.revoke_all())
    await until(lambda: not broker.view.security.acls)
    await produced(broker.client(ROOT), 9, "t")
    await until(lambda: waiting.completed)
    await removal
    assert fetched(client.decoded(waiting, FetchResponse, 12)) == {"t": (DENIED, False)}


async def test_an_unknown_topic_id_is_no_permission_for_later(broker: AuthorizedBroker) -> None:
    """A broker may hear of a topic after its first fetch: the decision is made when the name is known."""
    client, request = broker.client(), fetch_request(broker, "t", max_wait_ms=0)
    hidden = broker.view.topics_by_id.pop(broker.topic_id("t"))
    session = await client.ask(fetch_request(broker, "t", session_epoch=0), FetchResponse, 13)
    assert session.responses[0].partitions[0].error_code not in (0, DENIED)
    broker.view.topics_by_id[hidden.topic_id] = hidden
    assert (await client.ask(request, FetchResponse, 13)).responses[0].partitions[0].error_code == DENIED
    again = fetch_request(broker, session_id=session.session_id, session_epoch=1)
    assert (await client.ask(again, FetchResponse, 13)).responses[0].partitions[0].error_code == DENIED


def refuse_decisions(broker: AuthorizedBroker) -> None:
    """Do as a broker whose ACLs were not confirmed for the time of its lease."""
    broker.services.authorizer.is_confirmed = lambda: False  # type: ignore[attr-defined]


async def test_a_broker_with_outdated_acls_closes_the_connections_of_users(broker: AuthorizedBroker) -> None:
    await broker.allow(AclOperation.ALL, TOPIC, "*")
    client, fetch_it = broker.client(), fetch_request(broker, "t")
    for _ in range(3):
        assert await produced(client, 9, "t") == {"t": 0}
    refuse_decisions(broker)
    assert client.send(produce_request(broker, 9, "t"), 9).aborted == OUTDATED_RIGHTS
    assert broker.client().send(fetch_it, 12).aborted == OUTDATED_RIGHTS
    assert broker.client().send(MetadataRequest(topics=None), 12).aborted == OUTDATED_RIGHTS
    assert broker.services.replicas.find("t", 0).log.end_offset == 3 * BATCH_RECORDS  # type: ignore[union-attr]


async def test_a_broker_with_outdated_acls_serves_super_users(broker: AuthorizedBroker) -> None:
    refuse_decisions(broker)
    assert await produced(broker.client(ROOT), 9, "t") == {"t": 0}


async def test_a_waiting_fetch_gets_nothing_once_the_acls_are_outdated(broker: AuthorizedBroker) -> None:
    await broker.allow(READ, TOPIC, "t")
    waiting = broker.client().send(fetch_request(broker, "t", max_wait_ms=60_000), 12)
    assert not waiting.completed
    refuse_decisions(broker)
    await produced(broker.client(ROOT), 9, "t")
    await until(lambda: waiting.completed)
    assert waiting.aborted == OUTDATED_RIGHTS
