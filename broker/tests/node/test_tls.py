"""Brokers with TLS: third-party clients, client certificates, rotation under load, and a cluster with mutual TLS."""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import kafka
import pytest
from cluster_processes import Cluster, in_sync, read_all, running, write
from confluent_kafka import Consumer as LibrdkafkaConsumer
from confluent_kafka import KafkaError
from confluent_kafka import Producer as LibrdkafkaProducer
from node_kit import MakeProcess, Process, port_of, refusal, reserved_port

from penstock.client import Admin, AlterConfig, Consumer, NewTopic, Producer, Security, Tls, TlsFailed, TopicPartition

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("server", "server/tls")]

from tls_kit import AUTHORITY, BROKER, CLIENT, STRANGER, Certified, certify, client_context, name  # noqa: E402

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

LISTEN = ("--listener", "SSL://127.0.0.1:0", "--http-port", "-1")


class Files:
    """The PEM files of a test."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.authority = self.write("ca", AUTHORITY.chain_pem)
        self.client = CLIENT.write(home / "client.pem")

    def write(self, file: str, text: str) -> str:
        path = self.home / f"{file}.pem"
        path.write_text(text)
        return str(path)

    def settings(self, certified: Certified = BROKER, client_auth: str = "none", file: str = "broker") -> list[str]:
        texts = {
            "ssl.keystore.location": self.write(file, certified.pem),
            "ssl.truststore.location": self.authority,
            "ssl.client.auth": client_auth,
        }
        return [f"{setting}={text}" for setting, text in texts.items()]

    def security(self, has_certificate: bool = True) -> Security:
        return Security(tls=Tls(ca_file=self.authority, certificate_file=self.client if has_certificate else None))

    def librdkafka(self, port: int, has_certificate: bool) -> dict[str, object]:
        own = {"ssl.certificate.location": self.client, "ssl.key.location": self.client} if has_certificate else {}
        common = {"security.protocol": "ssl", "ssl.ca.location": self.authority, **own}
        return {"bootstrap.servers": f"localhost:{port}", **common}

    def kafka_python(self, port: int, has_certificate: bool) -> dict[str, object]:
        own = {"ssl_certfile": self.client, "ssl_keyfile": self.client} if has_certificate else {}
        common = {"security_protocol": "SSL", "ssl_cafile": self.authority, **own}
        return {"bootstrap_servers": f"localhost:{port}", **common}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    home = tmp_path / "certificates"
    home.mkdir()
    return Files(home)


def sets(settings: list[str]) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


@pytest.mark.parametrize("client_auth", ["none", "required"])
async def test_third_party_clients_produce_and_consume(up: MakeProcess, files: Files, client_auth: str) -> None:
    process = up(*sets(files.settings(client_auth=client_auth)), listen=LISTEN)
    has_certificate = client_auth == "required"
    large = b"x" * 300_000
    async with Producer(f"localhost:{process.port}", security=files.security(has_certificate)) as producer:
        await (await producer.send("t", b"penstock"))
    await asyncio.to_thread(produce_with_others, files, process.port, has_certificate, large)
    expected = [b"penstock", b"librdkafka", large, b"kafka-python"]
    assert await asyncio.to_thread(consume_with_others, files, process.port, has_certificate) == [expected, expected]
    async with Consumer(f"localhost:{process.port}", security=files.security(has_certificate)) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        await consumer.seek_to_beginning(TopicPartition("t", 0))
        found: list[bytes | None] = []
        while len(found) < len(expected):
            for records in (await consumer.getmany(timeout_ms=500)).values():
                found += [record.value for record in records]
    assert found == expected


def produce_with_others(files: Files, port: int, has_certificate: bool, large: bytes) -> None:
    producer = LibrdkafkaProducer(files.librdkafka(port, has_certificate))
    for value in b"librdkafka", large:
        producer.produce("t", value)
    assert producer.flush(30) == 0
    other = kafka.KafkaProducer(**files.kafka_python(port, has_certificate))
    other.send("t", b"kafka-python").get(30)
    other.close()


def consume_with_others(files: Files, port: int, has_certificate: bool) -> list[list[bytes]]:
    own = {"group.id": "librdkafka", "auto.offset.reset": "earliest"}
    consumer = LibrdkafkaConsumer({**files.librdkafka(port, has_certificate), **own})
    consumer.subscribe(["t"])
    found = [message.value() for _ in range(4) if (message := consumer.poll(30)) is not None]
    consumer.close()
    other = kafka.KafkaConsumer("t", auto_offset_reset="earliest", **files.kafka_python(port, has_certificate))
    others = [next(other).value for _ in range(4)]
    other.close()
    return [found, others]


async def test_clients_without_a_certificate_that_is_required_are_refused(up: MakeProcess, files: Files) -> None:
    process = up(*sets(files.settings(client_auth="required")), listen=LISTEN)
    with pytest.raises(TlsFailed, match="certificate"):
        async with Admin(f"localhost:{process.port}", security=files.security(has_certificate=False)) as admin:
            await admin.describe_cluster()
    errors: list[KafkaError] = []
    producer = LibrdkafkaProducer({**files.librdkafka(process.port, False), "error_cb": errors.append})
    while not errors:
        await asyncio.to_thread(producer.poll, 0.1)
    assert "certificate required" in errors[0].str()


async def test_no_message_is_lost_while_certificates_rotate(up: MakeProcess, files: Files) -> None:
    process = up(*sets(files.settings()), listen=LISTEN)
    bootstrap, security = f"localhost:{process.port}", files.security(has_certificate=False)
    async with Producer(bootstrap, security=security) as producer, Admin(bootstrap, security=security) as admin:
        sent = await write(producer, "t", 0, 100)
        for number in range(3):
            changed = certify(name("broker"), AUTHORITY)
            location = files.write(f"renewed{number}", changed.pem)
            await admin.alter_broker_configs(0, [AlterConfig("ssl.keystore.location", location)])
            sent += await write(producer, "t", len(sent), 300)
            while await certificate_of(process.port) != ssl.PEM_cert_to_DER_cert(changed.chain_pem):
                sent += await write(producer, "t", len(sent), 10)
    assert await read_all(bootstrap, "t", len(sent), security=security) == sent


async def certificate_of(port: int) -> bytes:
    """Return the certificate that a new connection gets."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client_context(), server_hostname="localhost")
    session: ssl.SSLObject = writer.get_extra_info("ssl_object")
    writer.transport.abort()
    return session.getpeercert(binary_form=True) or b""


@pytest.mark.parametrize(
    ("setting", "text", "message"),
    [
        ("ssl.keystore.location", "/none.pem", 'cannot read ssl.keystore.location "/none.pem": No such file'),
        ("ssl.keystore.location", "", "ssl.keystore.location is not set; set it to a PEM file"),
        ("ssl.principal.mapping.rules", "RULE:(/x/", "invalid pattern"),
        ("ssl.cipher.suites", "TLS_X", 'unknown cipher suite "TLS_X"'),
        ("inter.broker.listener.name", "IN", 'listener "IN" does not exist'),
        ("http.certificate.location", "/none.pem", 'cannot read http.certificate.location "/none.pem"'),
        ("http.client.ca.location", "/none.pem", "set without http.certificate.location; set both"),
    ],
)
def test_what_is_not_valid_ends_the_start_before_a_port_opens(
    tmp_path: Path, files: Files, setting: str, text: str, message: str
) -> None:
    code, error = refusal(tmp_path, *sets([*files.settings(), f"{setting}={text}"]), listen=LISTEN)
    assert code == 2
    assert message in error


async def test_http_is_served_with_tls_and_metrics_tell_when_certificates_expire(up: MakeProcess, files: Files) -> None:
    http = [
        f"http.certificate.location={files.write('http', BROKER.pem)}",
        f"http.token.file={files.write('token', 'x')}",
    ]
    listen = ("--listener", "SSL://127.0.0.1:0", "--http-port", "0")
    process = up(*sets([*files.settings(), *http]), listen=listen)
    url = f"https://localhost:{process.http_port}/metrics"
    async with aiohttp.ClientSession() as session:
        async with session.get(url, ssl=client_context()) as refused:
            assert refused.status == 401
        async with session.get(url, ssl=client_context(), headers={"Authorization": "Bearer x"}) as response:
            text = await response.text()
    for listener in "SSL", "http":
        assert f'penstock_tls_certificate_expires_seconds{{listener="{listener}"}} 1' in text
        assert f'penstock_tls_certificate_outdated{{listener="{listener}"}} 0.0' in text


class MutualCluster(Cluster):
    """Brokers with a plain listener for the tests and one with mutual TLS for each other."""

    def __init__(self, home: Path, files: Files) -> None:
        self.files, self.certified = files, BROKER
        super().__init__(home, ["listener.security.protocol.map=OUT:PLAINTEXT,IN:SSL", "inter.broker.listener.name=IN"])

    def begin(self, broker_id: int, *more: str, **options: object) -> Process:
        if broker_id not in self.ports:
            self.ports[broker_id] = reserved_port()
        out = f"OUT://127.0.0.1:{port_of(self.ports[broker_id])}"
        listeners = ("--listener", out, "--listener", "IN://127.0.0.1:0")
        own = sets(self.files.settings(self.certified, "required", f"broker{broker_id}"))
        return super().begin(broker_id, *listeners, *own, *more, **options)  # type: ignore[arg-type]


@pytest.fixture
def mutual(tmp_path: Path, files: Files) -> Iterator[MutualCluster]:
    with running(MutualCluster(tmp_path, files)) as made:
        yield made


def test_a_broker_that_would_not_trust_its_own_certificate_does_not_join(tmp_path: Path, files: Files) -> None:
    own = sets([*files.settings(STRANGER, "required"), "inter.broker.listener.name=SSL"])
    code, why = refusal(tmp_path, "--etcd", "http://127.0.0.1:1", "--id", "1", *own, listen=LISTEN)
    assert code == 2
    for part in ('listener "SSL"', "ca.pem", "broker.pem", "add the CA"):
        assert part in why


async def test_brokers_replicate_over_mutual_tls_and_a_stranger_is_kept_out(mutual: MutualCluster) -> None:
    async with Admin(mutual.bootstrap) as admin, Producer(mutual.bootstrap) as producer:
        await admin.create_topics([NewTopic("t", 1)])
        sent = await write(producer, "t", 0, 300)
        await in_sync(admin, "t", 1, 2, 3)
        mutual.brokers[3].kill()
        await in_sync(admin, "t", 1, 2)
        other = certify(name("other authority"), is_authority=True)
        mutual.certified = certify(name("broker"), other)
        mutual.files.authority = mutual.files.write("both", AUTHORITY.chain_pem + other.chain_pem)
        stranger = mutual.begin(3).ready()
        sent += await write(producer, "t", len(sent), 300)
        await in_sync(admin, "t", 1, 2)
        stranger.kill()
        mutual.certified = BROKER
        mutual.begin(3).ready()
        await in_sync(admin, "t", 1, 2, 3)
    assert await read_all(mutual.bootstrap, "t", len(sent)) == sent
