"""Connections with TLS and SASL, and the reasons that their errors name."""

from __future__ import annotations

import asyncio
import ssl
import threading
from pathlib import Path

import pytest
from client_doubles.certificates import Authority, Signed
from client_doubles.guarded import GuardedBroker

from penstock.client import (
    Admin,
    AuthenticationFailed,
    ClientError,
    ConnectionFailed,
    Producer,
    Record,
    RequestTimedOut,
    Sasl,
    Security,
    Tls,
    TlsFailed,
)
from penstock.client.cluster import ClusterConnections
from penstock.client.connection import ClientConnection
from penstock.client.sasl import Scram
from penstock.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from penstock.wire.records import build_batch

pytestmark = pytest.mark.integration

ALICE = Sasl("SCRAM-SHA-512", "alice", "secret")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def signed(authority: Authority) -> Signed:
    return authority.sign("broker")


def serving(signed: Signed, clients_of: Authority | None = None) -> ssl.SSLContext:
    """Return a broker's TLS context; with an authority, it requires client certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(signed.certificate, signed.key)
    if clients_of is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients_of.file)
    return context


async def round_trip(address: str, security: Security | None) -> None:
    """Produce one record."""
    async with Producer(address, security=security) as producer:
        await (await producer.send("t", b"v"))


async def reason(address: str, security: Security | None, kind: type[ClientError], timeout_ms: float = 10_000) -> str:
    cluster = ClusterConnections(address, security=security, connect_timeout_ms=timeout_ms)
    try:
        with pytest.raises(kind) as caught:
            await cluster.start()
        return str(caught.value)
    finally:
        await cluster.close()


async def test_records_go_through_tls(authority: Authority, signed: Signed) -> None:
    async with GuardedBroker(tls=serving(signed)) as broker:
        await round_trip(broker.address, Security(tls=Tls(ca_file=str(authority.file))))
        await round_trip(broker.address, Security(tls=Tls(ca_data=authority.file.read_text())))


async def test_a_client_certificate_may_be_given_as_text(authority: Authority, signed: Signed) -> None:
    own = authority.sign("text-client", password="hidden")
    given = Tls(
        ca_data=authority.file.read_text(),
        certificate_data=own.certificate.read_text(),
        key_data=own.key.read_text(),
        key_password="hidden",
    )
    async with GuardedBroker(tls=serving(signed, clients_of=authority)) as broker:
        await round_trip(broker.address, Security(tls=given))


async def test_a_text_that_is_no_certificate_is_refused_by_its_name() -> None:
    with pytest.raises(TlsFailed, match="cannot use certificate_data"):
        Tls(certificate_data="x", key_data="y").context()


async def test_a_certificate_of_another_authority_is_not_accepted(tmp_path: Path, signed: Signed) -> None:
    other = Authority(tmp_path, "another")
    async with GuardedBroker(tls=serving(signed)) as broker:
        said = await reason(broker.address, Security(tls=Tls(ca_file=str(other.file))), TlsFailed)
        assert "certificate is not trusted" in said
        assert broker.address in said
        assert not broker.requests


async def test_a_certificate_of_another_host_is_accepted_only_where_that_is_wanted(authority: Authority) -> None:
    elsewhere = authority.sign("elsewhere", "DNS:broker.example")
    async with GuardedBroker(tls=serving(elsewhere)) as broker:
        file = str(authority.file)
        said = await reason(broker.address, Security(tls=Tls(ca_file=file)), TlsFailed)
        assert "127.0.0.1" in said
        await round_trip(broker.address, Security(tls=Tls(ca_file=file, check_hostname=False)))


async def test_a_broker_may_want_a_clients_certificate(authority: Authority, signed: Signed) -> None:
    mine = authority.sign("client", password="geheim")
    async with GuardedBroker(tls=serving(signed, authority)) as broker:
        tls = Tls(str(authority.file), None, str(mine.certificate), str(mine.key), "geheim")
        await round_trip(broker.address, Security(tls=tls))
        assert "geheim" not in repr(tls)
        said = await reason(broker.address, Security(tls=Tls(ca_file=str(authority.file))), ClientError)
        assert "may require a client certificate (certificate_file" in said


async def test_tls_spoken_to_a_port_without_it_says_so(authority: Authority) -> None:
    async with GuardedBroker() as broker:
        said = await reason(broker.address, Security(tls=Tls(ca_file=str(authority.file))), ClientError, 500)
        assert "without TLS" in said


async def test_plain_words_to_a_tls_port_are_told_so(signed: Signed) -> None:
    async with GuardedBroker(tls=serving(signed)) as broker:
        said = await reason(broker.address, None, ClientError)
        assert "TLS port" in said


@pytest.mark.parametrize(
    ("tls", "complaint"),
    [
        (Tls(ca_file="/nowhere.pem"), 'ca_file "/nowhere.pem" cannot be read: No such file'),
        (Tls(ca_data="no certificate"), "ca_data contains no PEM certificate"),
        (Tls(certificate_file="/nowhere.pem"), 'cannot read certificate_file "/nowhere.pem"'),
        (Tls(key_file="/nowhere.pem"), "without certificate_file"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tls: Tls, complaint: str) -> None:
    with pytest.raises(TlsFailed, match=complaint):
        tls.context()


def test_a_wrong_key_password_is_an_error_and_no_question_to_the_terminal(authority: Authority) -> None:
    mine = authority.sign("locked", password="geheim")
    for password in ("falsch", None):
        tls = Tls(str(authority.file), None, str(mine.certificate), str(mine.key), password)
        with pytest.raises(TlsFailed, match="key_password") as caught:
            tls.context()
        assert "falsch" not in str(caught.value)


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_who_knows_the_password_gets_in(mechanism: str) -> None:
    async with GuardedBroker(mechanisms=MECHANISMS) as broker:
        await round_trip(broker.address, Security(sasl=Sasl(mechanism, "alice", "secret")))
        assert broker.authentications >= 1


async def test_the_event_loop_does_not_wait_for_the_password_to_be_salted(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    respond = Scram.respond

    def respond_and_record(scram: Scram, challenge: bytes) -> bytes | None:
        threads.append(threading.get_ident())
        return respond(scram, challenge)

    monkeypatch.setattr(Scram, "respond", respond_and_record)
    async with GuardedBroker(mechanisms=MECHANISMS) as broker:
        host, _, port = broker.address.partition(":")
        await (await ClientConnection.open(host, int(port), sasl=ALICE)).close()
    salting, verifying = threads
    assert salting != threading.get_ident() == verifying


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_wrong_password_is_told_and_not_printed(mechanism: str) -> None:
    async with GuardedBroker(mechanisms=MECHANISMS) as broker:
        said = await reason(broker.address, Security(sasl=Sasl(mechanism, "alice", "falsch")), AuthenticationFailed)
        assert 'rejected user "alice"' in said
        assert "Invalid username or password" in said
        assert "falsch" not in said
        assert broker.authentications == 0


async def test_a_mechanism_that_the_broker_lacks_is_told_with_those_it_offers() -> None:
    async with GuardedBroker(mechanisms=("SCRAM-SHA-512",)) as broker:
        said = await reason(broker.address, Security(sasl=Sasl("PLAIN", "alice", "secret")), AuthenticationFailed)
        assert "does not accept PLAIN; use one of: SCRAM-SHA-512" in said


async def test_a_broker_without_sasl_is_told_so() -> None:
    async with GuardedBroker() as broker:
        with pytest.raises(AuthenticationFailed, match="does not support SASL"):
            await ClientConnection.open("127.0.0.1", broker.port, sasl=Sasl("PLAIN", "alice", "secret"))


async def test_a_broker_that_does_not_know_the_password_is_not_trusted() -> None:
    async with GuardedBroker(mechanisms=MECHANISMS, tampers=True) as broker:
        said = await reason(
            broker.address, Security(sasl=Sasl("SCRAM-SHA-256", "alice", "secret")), AuthenticationFailed
        )
        assert "does not know the password" in said


async def test_a_refused_user_is_not_tried_again() -> None:
    """Brokers or their authentication backends lock out users after failed attempts."""
    async with GuardedBroker(mechanisms=MECHANISMS) as broker:
        admin = Admin(broker.address, security=Security(sasl=Sasl("PLAIN", "alice", "falsch")))
        with pytest.raises(AuthenticationFailed):
            await admin.start()
        await admin.close()


async def test_a_session_that_ends_soon_is_replaced_and_loses_nothing() -> None:
    """A producer continues over several sessions of 300 ms: each record arrives once, in order (KIP-368)."""
    security = Security(sasl=Sasl("SCRAM-SHA-256", "alice", "secret"))
    async with GuardedBroker(mechanisms=MECHANISMS, lifetime_ms=300) as broker:
        async with Producer(broker.address, security=security, linger_ms=0) as producer:
            sent = 0
            while broker.authentications < 5:
                await (await producer.send("t", str(sent).encode(), partition=0))
                sent += 1
                await asyncio.sleep(0.01)
        assert broker.log[0] == [str(n).encode() for n in range(sent)]


async def test_nothing_overtakes_what_was_sent_in_a_session_that_ends() -> None:
    async with GuardedBroker(mechanisms=MECHANISMS, lifetime_ms=50) as broker:
        broker.faults.append("silent")
        cluster = ClusterConnections(broker.address, security=Security(sasl=Sasl("PLAIN", "alice", "secret")))
        await cluster.start()
        before = await cluster.connection(0)
        batch = PartitionProduceData(index=0, records=build_batch([Record(value=b"v")]))
        request = ProduceRequest(acks=-1, topic_data=[TopicProduceData(name="t", partition_data=[batch])])
        answer = before.send(request, ProduceResponse, timeout_ms=500)
        while not before.expiring:
            await asyncio.sleep(0.01)
        after = await cluster.connection(0)
        assert after is not before
        assert isinstance(answer.exception(), RequestTimedOut)
        await cluster.close()


async def test_a_session_without_end_keeps_its_connection() -> None:
    async with GuardedBroker(mechanisms=MECHANISMS) as broker:
        connection = await ClientConnection.open("127.0.0.1", broker.port, sasl=Sasl("PLAIN", "alice", "secret"))
        assert not connection.expiring
        await connection.close()


async def test_a_listener_that_closes_at_the_first_request_may_want_sasl() -> None:
    """A SASL listener of Kafka closes the connection of a client that does not authenticate."""

    class Mute(GuardedBroker):
        def _answer(self, frame: bytes) -> bytes | None:
            return None if frame[1] == 3 else super()._answer(frame)  # Metadata

    async with Mute(mechanisms=MECHANISMS) as broker:
        said = await reason(broker.address, None, ConnectionFailed)
        assert "listener requires SASL" in said
