"""The Python client and Spark's connection on Apache Kafka's secured listeners: they connect, or report the reason."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

import pytest
from penstock_java.secure_kafka import PASSWORD, SESSION_MS, USER, Authority, SecureKafka

from penstock.client import (
    Admin,
    AuthenticationFailed,
    ClientError,
    Consumer,
    NewTopic,
    Producer,
    Sasl,
    Security,
    Tls,
    TlsFailed,
    TopicPartition,
)
from penstock.client.cluster import ClusterConnections
from penstock.wire.messages.metadata import MetadataRequest, MetadataResponse
from penstock_spark.link import Link
from penstock_spark.model.connection import ConnectionOptions
from penstock_spark.model.errors import Refused
from penstock_spark.model.ranges import LATEST, READ_COMMITTED, OffsetRange

pytestmark = pytest.mark.xdist_group("secure-kafka")

WAYS = {
    "tls": ("TLS", True, False, None),
    "mutual-tls": ("MUTUAL", True, True, None),
    "scram-256": ("SASL", False, False, "SCRAM-SHA-256"),
    "scram-512": ("SASL", False, False, "SCRAM-SHA-512"),
    "tls-and-plain": ("BOTH", True, False, "PLAIN"),
    "tls-and-scram-512": ("BOTH", True, False, "SCRAM-SHA-512"),
}
"""Listener, whether it uses TLS, whether the client has a certificate, and the SASL mechanism."""


def security(kafka: SecureKafka, way: str, password: str = PASSWORD) -> Security:
    _, by_tls, certified, mechanism = WAYS[way]
    tls = None
    if certified:
        mine = kafka.authority.sign("client", password="geheim")
        tls = Tls(str(kafka.authority.file), None, str(mine.certificate), str(mine.key), "geheim")
    elif by_tls:
        tls = Tls(str(kafka.authority.file))
    return Security(tls, Sasl(mechanism, USER, password) if mechanism else None)


def for_spark(given: Security, bootstrap: str) -> ConnectionOptions:
    return ConnectionOptions(bootstrap, given.tls, given.sasl, give_up_ms=60_000)


async def reason(address: str, given: Security | None, kind: type[ClientError], timeout_ms: float = 10_000) -> str:
    admin = Admin(address, security=given, connect_timeout_ms=timeout_ms)
    with pytest.raises(kind) as caught:
        await admin.start()
    await admin.close()
    return str(caught.value)


@pytest.mark.parametrize("way", WAYS)
async def test_records_go_in_and_come_out_by_each_way(kafka: SecureKafka, way: str) -> None:
    address, given, name = kafka.address(WAYS[way][0]), security(kafka, way), f"{way}-{uuid.uuid4().hex[:8]}"
    values = [f"{n}".encode() * 100 for n in range(2_000)]
    async with Admin(address, security=given) as admin:
        await admin.create_topics([NewTopic(name, 1)])
    async with Producer(address, security=given, partitioner="round_robin") as producer:
        for value in values:
            await producer.send(name, value)
        await producer.flush()
    async with Consumer(address, security=given, group_id=name, offset_reset="earliest") as consumer:
        consumer.subscribe([name])
        found: list[bytes | None] = []
        while len(found) < len(values):
            found += [record.value for part in (await consumer.getmany(timeout_ms=500)).values() for record in part]
        await consumer.commit()
    assert found == values


@pytest.mark.parametrize("way", WAYS)
def test_spark_reads_by_each_way(kafka: SecureKafka, way: str) -> None:
    address, given, name = kafka.address(WAYS[way][0]), security(kafka, way), f"{way}-{uuid.uuid4().hex[:8]}"

    async def write() -> None:
        async with Admin(address, security=given) as admin:
            await admin.create_topics([NewTopic(name, 1)])
        async with Producer(address, security=given) as producer:
            for _ in range(1_000):
                await producer.send(name, b"v" * 100)

    asyncio.run(write())
    link, place = Link.to(for_spark(given, address)), TopicPartition(name, 0)
    assert link.offsets({place: LATEST}, READ_COMMITTED) == {place: 1_000}
    answers = list(link.fetch(OffsetRange(name, 0, 0, 1_000), READ_COMMITTED))
    assert sum(bytes(answer.records).count(b"v" * 100) for answer in answers) == 1_000
    link.commit(name, {place: 7})
    assert link.committed(name, [place]) == {place: (7, "")}
    link.close()


@pytest.mark.parametrize("way", ["scram-256", "scram-512", "tls-and-plain", "tls-and-scram-512"])
async def test_a_wrong_password_is_told_and_not_printed(kafka: SecureKafka, way: str) -> None:
    said = await reason(kafka.address(WAYS[way][0]), security(kafka, way, "falsch"), AuthenticationFailed)
    assert f'{WAYS[way][3]} rejected user "{USER}"' in said
    assert "falsch" not in said


def test_spark_gives_up_a_wrong_password_at_once(kafka: SecureKafka) -> None:
    link = Link.to(for_spark(security(kafka, "scram-256", "falsch"), kafka.address("SASL")))
    with pytest.raises(Refused, match="SCRAM-SHA-256 rejected user") as caught:
        link.topics(None)
    assert "falsch" not in str(caught.value)
    link.close()


async def test_a_mechanism_that_is_not_offered_is_told_with_those_that_are(kafka: SecureKafka) -> None:
    said = await reason(kafka.address("SASL"), Security(None, Sasl("PLAIN", USER, PASSWORD)), AuthenticationFailed)
    assert "does not accept PLAIN" in said
    assert {"SCRAM-SHA-256", "SCRAM-SHA-512"} <= set(said.partition("use one of: ")[2].split(", "))


async def test_credentials_for_a_listener_that_wants_none_are_told_so(kafka: SecureKafka) -> None:
    given = Security(None, Sasl("PLAIN", USER, PASSWORD))
    assert "does not use SASL" in await reason(kafka.address("PLAIN"), given, AuthenticationFailed)


async def test_an_untrusted_certificate_is_told(kafka: SecureKafka, tmp_path: Path) -> None:
    other = Security(Tls(str(Authority(tmp_path, "another").file)))
    assert "certificate is not trusted" in await reason(kafka.address("TLS"), other, TlsFailed)


async def test_a_certificate_of_another_host_is_told(kafka: SecureKafka) -> None:
    said = await reason(kafka.address("TLS", "localhost"), security(kafka, "tls"), TlsFailed)
    assert "localhost" in said


async def test_a_certificate_that_is_wanted_and_not_given_is_told(kafka: SecureKafka) -> None:
    said = await reason(kafka.address("MUTUAL"), security(kafka, "tls"), ClientError)
    assert "certificate" in said
    assert "certificate_file" in said


@pytest.mark.parametrize("listener", ["TLS", "BOTH"])
async def test_plain_words_to_a_tls_port_are_told_so(kafka: SecureKafka, listener: str) -> None:
    assert "TLS port" in await reason(kafka.address(listener), None, ClientError)


@pytest.mark.parametrize("listener", ["PLAIN", "SASL"])
async def test_tls_spoken_to_a_plain_port_is_told_so(kafka: SecureKafka, listener: str) -> None:
    assert "without TLS" in await reason(kafka.address(listener), security(kafka, "tls"), ClientError, 3_000)


async def test_silence_about_who_one_is_is_told_so(kafka: SecureKafka) -> None:
    assert "listener requires SASL" in await reason(kafka.address("SASL"), None, ClientError)


async def test_a_connection_is_replaced_before_its_session_ends(kafka: SecureKafka) -> None:
    """No request is sent in an expired session: the broker would close the connection."""
    cluster = ClusterConnections(kafka.address("SASL"), security=security(kafka, "scram-256"))
    await cluster.start()
    loop = asyncio.get_running_loop()
    until = loop.time() + 1.5 * SESSION_MS / 1000
    connections = set()
    while loop.time() < until:
        connection = await cluster.connection(1)
        connections.add(id(connection))
        await connection.call(MetadataRequest(topics=[]), MetadataResponse)
        await asyncio.sleep(0.05)
    await cluster.close()
    assert len(connections) > 1


async def test_sessions_that_end_lose_and_double_nothing(kafka: SecureKafka) -> None:
    """The listener requires reauthentication every six seconds (KIP-368)."""
    given, address, name = security(kafka, "scram-256"), kafka.address("SASL"), f"sessions-{uuid.uuid4().hex[:8]}"
    async with Admin(address, security=given) as admin:
        await admin.create_topics([NewTopic(name, 1)])
    loop = asyncio.get_running_loop()
    until = loop.time() + 2.2 * SESSION_MS / 1000
    sent: list[bytes] = []
    found: list[bytes | None] = []
    async with (
        Producer(address, security=given, linger_ms=0) as producer,
        Consumer(address, security=given, offset_reset="earliest") as consumer,
    ):
        consumer.assign([TopicPartition(name, 0)])
        await consumer.seek_to_beginning(TopicPartition(name, 0))
        while loop.time() < until or len(found) < len(sent):
            if loop.time() < until:
                sent.append(str(len(sent)).encode())
                await (await producer.send(name, sent[-1]))
            for part in (await consumer.getmany(timeout_ms=100)).values():
                found += [record.value for record in part]
    assert found == sent
    assert len(sent) > 10
