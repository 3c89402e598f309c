"""A broker with SASL listeners and the clients that people use: each mechanism that they have."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from joserfc import jwt
from joserfc.jwk import ECKey
from kafka import KafkaProducer
from kafka.errors import KafkaError
from kafka.net.sasl.oauth import AbstractTokenProvider
from node_kit import DEADLINE_S, Client, Process, port_of, reserved_port

from penstock.client import Admin, AlterConfig, AuthenticationFailed, ClientError, ProvidedTokens, Sasl, Security, Tls
from penstock.client.connection import ClientConnection
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from penstock.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from penstock.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from penstock.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

sys.path.insert(0, str(Path(__file__).parents[1] / "security"))

from cryptography_kit import server_context
from secrets_kit import assert_no_secret, secret

pytestmark = pytest.mark.integration

PASSWORD, PLAIN_PASSWORD, WRONG = map(secret, ("admin-pw-7f3a", "svc-pw-91be", "wrong-pw-55c2"))
CLIENT_PASSWORDS = [secret(f"client-pw-{number}") for number in range(4)]
ISSUER, AUDIENCE = "https://id.example/", "penstock"
LISTENERS = ("SASL_PLAINTEXT", "SASL_SSL", "SHORT", "PLAINTEXT")
SESSION_MS = 6000
"""Clients must renew a session in its last tenth, during which a busy machine may pause them."""
TOPIC, BROKER, LOGGER, GROUP = 2, 4, 8, 32
KEY = ECKey.generate_key("P-256", {"kid": "one"})
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
JAAS = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_svc="{PLAIN_PASSWORD}";'


def token(key: ECKey = KEY, **changes: Any) -> str:
    now = int(time.time())
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ana", "iat": now, "exp": now + 300, **changes}
    made = jwt.encode({"alg": "ES256", "kid": "one"}, claims, key, algorithms=["ES256"])
    secret(made.rpartition(".")[2])
    return made


class Secured:
    """A broker with listeners SASL_PLAINTEXT, SASL_SSL, SHORT (with short sessions) and PLAINTEXT."""

    def __init__(self, home: Path) -> None:
        keys = home / "keys.json"
        keys.write_text(json.dumps({"keys": [KEY.as_dict(private=False)]}))
        password = home / "password"
        password.write_text(PASSWORD + "\n")
        self.reserved = [reserved_port() for _ in LISTENERS]
        self.ports = {name: port_of(one) for name, one in zip(LISTENERS, self.reserved, strict=True)}
        server_context(home)
        self.certificate = str(home / "server.pem")
        settings = {
            "listener.security.protocol.map": "SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL,"
            "SHORT:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "ssl.keystore.location": self.certificate,
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
            "listener.name.short.connections.max.reauth.ms": str(SESSION_MS),
            "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
            "sasl.oauthbearer.allowed.urls": keys.as_uri(),
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "connection.failed.authentication.delay.ms": "10",
        }
        listeners = [part for name, port in self.ports.items() for part in ("--listener", f"{name}://127.0.0.1:{port}")]
        self.process = Process(
            home,
            *(part for name, value in settings.items() for part in ("--set", f"{name}={value}")),
            *("--bootstrap-user", "admin", "--bootstrap-password-file", str(password), "--log-level", "debug"),
            listen=(*listeners, "--http-port", "0"),
        ).ready()

    def servers(self, listener: str = "SASL_PLAINTEXT") -> str:
        return f"127.0.0.1:{self.ports[listener]}"

    def confluent(self, mechanism: str, user: str, password: str, **more: Any) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.servers(),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
            **more,
        }

    def admin(self) -> AdminClient:
        return AdminClient(self.confluent("SCRAM-SHA-512", "admin", PASSWORD))

    def upsert(self, user: str, password: str) -> None:
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        admin = self.admin()
        done = admin.alter_user_scram_credentials([UserScramCredentialUpsertion(user, info, password.encode())])
        done[user].result(DEADLINE_S)

    def delete(self, user: str) -> None:
        deletion = UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_256)
        admin = self.admin()
        admin.alter_user_scram_credentials([deletion])[user].result(DEADLINE_S)

    async def connect(
        self, mechanism: str, user: str, password: str, listener: str = "SASL_PLAINTEXT"
    ) -> ClientConnection:
        sasl = Sasl(mechanism, user, password)
        return await ClientConnection.open("127.0.0.1", self.ports[listener], sasl=sasl)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = Secured(tmp_path_factory.mktemp("secured"))
    yield made
    code = made.process.stop()
    output = made.process.log()
    made.process.kill()
    for reserved in made.reserved:
        reserved.close()
    assert code == 0
    assert "Traceback" not in output


async def groups(connection: ClientConnection) -> int:
    response = await connection.call(ListGroupsRequest(), ListGroupsResponse)
    return response.error_code


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_penstock_client(broker: Secured, mechanism: str) -> None:
    async with Admin(broker.servers(), security=Security(sasl=Sasl(mechanism, "admin", PASSWORD))) as admin:
        assert await admin.list_topics() is not None
    with pytest.raises(AuthenticationFailed, match="Authentication failed"):
        await broker.connect(mechanism, "admin", WRONG)
    with pytest.raises(AuthenticationFailed, match="Authentication failed"):
        await broker.connect(mechanism, "stranger", PASSWORD)


async def test_penstock_client_with_tokens(broker: Secured) -> None:
    async def connect(given: str) -> ClientConnection:
        sasl = Sasl("OAUTHBEARER", tokens=ProvidedTokens(lambda: given))
        return await ClientConnection.open("127.0.0.1", broker.ports["SASL_PLAINTEXT"], sasl=sasl)

    connection = await connect(token())
    assert await groups(connection) == ErrorCode.NONE
    await connection.close()
    for given in (token(aud="another"), "not.a.token"):
        with pytest.raises(AuthenticationFailed, match="rejected the token"):
            await connect(given)


def confluent_produces(configuration: dict[str, Any]) -> str:
    """Return the outcome of a message: empty, or the error of the authentication."""
    errors: list[str] = []
    delivered: list[object] = []
    producer = ConfluentProducer({**configuration, "error_cb": lambda error: errors.append(str(error))})
    producer.produce("flights", b"x", callback=lambda error, message: delivered.append(error))
    deadline = time.monotonic() + DEADLINE_S
    while not delivered and not any("AUTH" in each for each in errors) and time.monotonic() < deadline:
        producer.poll(0.1)
    producer.purge()
    return "" if delivered == [None] else "; ".join(errors)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_kafka(broker: Secured, mechanism: str) -> None:
    assert confluent_produces(broker.confluent(mechanism, "admin", PASSWORD)) == ""
    assert "Authentication failed" in confluent_produces(broker.confluent(mechanism, "admin", WRONG))


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_all_clients_with_tls(broker: Secured, mechanism: str) -> None:
    tls = {"bootstrap.servers": broker.servers("SASL_SSL"), "security.protocol": "SASL_SSL"}
    tls |= {"ssl.ca.location": broker.certificate, "ssl.endpoint.identification.algorithm": "none"}
    assert confluent_produces({**broker.confluent(mechanism, "admin", PASSWORD), **tls}) == ""
    assert "Authentication failed" in confluent_produces({**broker.confluent(mechanism, "admin", WRONG), **tls})
    security = Security(Tls(ca_file=broker.certificate, check_hostname=False), Sasl(mechanism, "admin", PASSWORD))
    async with Admin(broker.servers("SASL_SSL"), security=security) as admin:
        assert await admin.list_topics() is not None


def test_a_user_of_the_jaas_configuration(broker: Secured) -> None:
    assert confluent_produces(broker.confluent("PLAIN", "svc", PLAIN_PASSWORD)) == ""
    assert "Authentication failed" in confluent_produces(broker.confluent("PLAIN", "svc", WRONG))


@pytest.mark.parametrize(
    ("make", "is_accepted"),
    [
        (token, True),
        (lambda: token(ECKey.generate_key("P-256")), False),
        (lambda: token(aud="another"), False),
        (lambda: token(iss="another"), False),
        (lambda: token(exp=int(time.time()) - 60), False),
    ],
)
def test_confluent_kafka_with_tokens(broker: Secured, make: Callable[[], str], is_accepted: bool) -> None:
    given = make()
    configuration = {
        "bootstrap.servers": broker.servers(),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda _: (given, time.time() + 300, "ana", {}),
    }
    outcome = confluent_produces(configuration)
    assert ("invalid_token" in outcome or "Authentication failed" in outcome) is not is_accepted, outcome
    assert (outcome == "") is is_accepted


class Tokens(AbstractTokenProvider):
    def token(self) -> str:
        return token()


def kafka_python_produces(broker: Secured, **more: Any) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.servers(), security_protocol="SASL_PLAINTEXT", **more)
    try:
        producer.send("flights", b"x").get(DEADLINE_S)
    finally:
        producer.close(timeout=1)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python(broker: Secured, mechanism: str) -> None:
    user = {"sasl_mechanism": mechanism, "sasl_plain_username": "admin"}
    kafka_python_produces(broker, **user, sasl_plain_password=PASSWORD)
    with pytest.raises(KafkaError):
        kafka_python_produces(broker, **user, sasl_plain_password=WRONG, bootstrap_timeout_ms=2000, max_block_ms=2000)


def test_kafka_python_with_tokens(broker: Secured) -> None:
    kafka_python_produces(broker, sasl_mechanism="OAUTHBEARER", sasl_oauth_token_provider=Tokens())


async def test_a_new_user_logs_in_at_once_on_an_open_broker_and_a_deleted_one_does_not(broker: Secured) -> None:
    await asyncio.to_thread(broker.upsert, "new", CLIENT_PASSWORDS[1])
    connection = await broker.connect("SCRAM-SHA-256", "new", CLIENT_PASSWORDS[1])
    plain = await broker.connect("PLAIN", "new", CLIENT_PASSWORDS[1])
    await asyncio.to_thread(broker.upsert, "new", CLIENT_PASSWORDS[2])
    for mechanism in ("SCRAM-SHA-256", "PLAIN"):
        with pytest.raises(AuthenticationFailed):
            await broker.connect(mechanism, "new", CLIENT_PASSWORDS[1])
    await asyncio.to_thread(broker.delete, "new")
    with pytest.raises(AuthenticationFailed):
        await broker.connect("SCRAM-SHA-256", "new", CLIENT_PASSWORDS[2])
    assert await groups(connection) == await groups(plain) == ErrorCode.NONE  # until they re-authenticate
    await connection.close()
    await plain.close()


def test_credentials_are_described_without_secrets_and_with_kafkas_errors(broker: Secured) -> None:
    admin = broker.admin()
    found = admin.describe_user_scram_credentials(["admin", "stranger"])
    infos = found["admin"].result(DEADLINE_S).scram_credential_infos
    assert sorted((str(info.mechanism), info.iterations) for info in infos) == [
        ("ScramMechanism.SCRAM_SHA_256", 8192),
        ("ScramMechanism.SCRAM_SHA_512", 8192),
    ]
    with pytest.raises(KafkaException) as caught:
        found["stranger"].result(DEADLINE_S)
    assert caught.value.args[0].code() == ErrorCode.RESOURCE_NOT_FOUND
    deletion = UserScramCredentialDeletion("stranger", ScramMechanism.SCRAM_SHA_256)
    with pytest.raises(KafkaException) as caught:
        admin.alter_user_scram_credentials([deletion])["stranger"].result(DEADLINE_S)
    assert caught.value.args[0].code() == ErrorCode.RESOURCE_NOT_FOUND


async def test_a_session_ends_without_re_authentication_and_continues_with_it(broker: Secured) -> None:
    connection = await broker.connect("SCRAM-SHA-256", "admin", PASSWORD, "SHORT")
    async with Admin(
        broker.servers("SHORT"), security=Security(sasl=Sasl("SCRAM-SHA-256", "admin", PASSWORD))
    ) as admin:
        ends_at = time.monotonic() + SESSION_MS / 1000 * 1.2
        while time.monotonic() < ends_at:
            await admin.list_topics()
            await asyncio.sleep(0.05)
        await admin.list_topics()
    assert connection.expiring
    with pytest.raises(Exception, match="closed by the broker"):
        await groups(connection)
    await connection.close()


def test_librdkafka_re_authenticates_on_its_connection(broker: Secured) -> None:
    errors: list[object] = []
    configuration = broker.confluent("SCRAM-SHA-512", "admin", PASSWORD, error_cb=errors.append)
    producer = ConfluentProducer({**configuration, "bootstrap.servers": broker.servers("SHORT")})
    delivered: list[object] = []
    ends_at = time.monotonic() + SESSION_MS / 1000 * 2.2
    sent = 0
    while time.monotonic() < ends_at:
        producer.produce("flights", b"x", callback=lambda error, message: delivered.append(error))
        sent += 1
        producer.poll(0.05)
    assert producer.flush(DEADLINE_S) == 0
    assert delivered == [None] * sent
    assert not errors


def test_a_deleted_user_loses_its_open_connection_at_re_authentication(broker: Secured) -> None:
    broker.upsert("gone", CLIENT_PASSWORDS[3])
    errors: list[str] = []
    configuration = broker.confluent("SCRAM-SHA-256", "gone", CLIENT_PASSWORDS[3])
    configuration |= {"bootstrap.servers": broker.servers("SHORT"), "error_cb": lambda e: errors.append(str(e))}
    client = AdminClient(configuration)
    client.list_topics(timeout=DEADLINE_S)
    assert not errors
    broker.delete("gone")
    deadline = time.monotonic() + DEADLINE_S
    while not any("Authentication failed" in each for each in errors) and time.monotonic() < deadline:
        client.poll(0.1)
    assert errors


def test_a_listener_without_sasl_answers_with_illegal_sasl_state(broker: Secured) -> None:
    with Client(broker.ports["PLAINTEXT"]) as client:
        handshake = client.ask(SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse, 1)
        assert handshake.error_code == ErrorCode.ILLEGAL_SASL_STATE
        answer = client.ask(SaslAuthenticateRequest(auth_bytes=b"\0a\0b"), SaslAuthenticateResponse, 2)
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert client.ask(ListGroupsRequest(), ListGroupsResponse, 3).error_code == ErrorCode.NONE


def test_a_client_without_sasl_is_closed_at_its_first_request(broker: Secured) -> None:
    with Client(broker.ports["SASL_PLAINTEXT"]) as client:
        client.send(ListGroupsRequest(), 3)
        assert client.file.read() == b""


def test_cve_2022_34917_a_frame_larger_than_a_login_needs_is_refused_before_it_arrives(broker: Secured) -> None:
    with Client(broker.ports["SASL_PLAINTEXT"]) as client:
        client.socket.sendall((600_000).to_bytes(4, "big"))
        assert client.file.read() == b""


def page(broker: Secured, path: str) -> str:
    with socket.create_connection(("127.0.0.1", broker.process.http_port)) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\nConnection: close\r\n\r\n".encode())
        return connection.makefile("rb").read().decode()


async def described(broker: Secured) -> str:
    """Return what DescribeConfigs answers about each type of resource."""
    connection = await broker.connect("SCRAM-SHA-512", "admin", PASSWORD)
    names = [(BROKER, "0"), (BROKER, ""), (LOGGER, "0"), (TOPIC, "flights"), (GROUP, "g")]
    resources = [DescribeConfigsResource(kind, name, None) for kind, name in names]
    request = DescribeConfigsRequest(resources=resources, include_synonyms=True, include_documentation=True)
    response = await connection.call(request, DescribeConfigsResponse)
    await connection.close()
    return repr(response)


async def test_cve_2026_33558_no_secret_is_in_logs_metrics_and_descriptions_at_level_debug(broker: Secured) -> None:
    await asyncio.to_thread(broker.upsert, "new", CLIENT_PASSWORDS[0])
    dynamic = "listener.name.short.plain.sasl.jaas.config"
    async with Admin(broker.servers(), security=Security(sasl=Sasl("PLAIN", "admin", PASSWORD))) as admin:
        await admin.alter_broker_configs(0, [AlterConfig(dynamic, JAAS)])
        for name, value in ((dynamic, f"no module {WRONG}"), ("sasl.oauthbearer.expected.issuer", token())):
            with pytest.raises(ClientError) as refused:
                await admin.alter_broker_configs(0, [AlterConfig(name, value)])
            assert_no_secret("the error", repr(refused.value))
    for listener in ("SASL_PLAINTEXT", "SASL_SSL"):
        with pytest.raises(ClientError) as refused:
            await broker.connect("PLAIN", "admin", WRONG, listener)
        assert_no_secret("the error", repr(refused.value))
    shown = await described(broker)
    assert dynamic in shown
    assert_no_secret("DescribeConfigs", shown)
    for path in ("/metrics", "/health", "/ready"):
        assert_no_secret(path, page(broker, path))
    log = broker.process.log()
    assert "authentication failed" in log
    assert_no_secret("the log", log)


async def test_metrics_count_by_mechanism_and_reason(broker: Secured) -> None:
    await (await broker.connect("SCRAM-SHA-512", "admin", PASSWORD)).close()
    with pytest.raises(AuthenticationFailed):
        await broker.connect("PLAIN", "admin", WRONG)
    metrics = page(broker, "/metrics")
    assert 'penstock_authentications_total{mechanism="SCRAM-SHA-512"}' in metrics
    assert 'penstock_authentication_failures_total{mechanism="PLAIN",reason="credentials"}' in metrics


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--bootstrap-user", "admin"), "--bootstrap-password-file"),
        (("--bootstrap-user", "admin", "--bootstrap-password-file", "missing"), "No such file"),
        (("--bootstrap-user", "admin", "--bootstrap-password-file", "/dev/null"), "is empty"),
        (("--set", "sasl.enabled.mechanisms=OAUTHBEARER"), "sasl.oauthbearer.jwks.endpoint.url"),
        (
            ("--set", "sasl.enabled.mechanisms=OAUTHBEARER", "--set", "sasl.oauthbearer.jwks.endpoint.url=https://x/"),
            "sasl.oauthbearer.allowed.urls",
        ),
        (
            ("--set", "sasl.enabled.mechanisms=PLAIN", "--set",
             "listener.name.sasl_plaintext.plain.sasl.jaas.config=Other required;"),
            "PlainLoginModule",
        ),
    ],
)  # fmt: skip
def test_a_start_with_contradicting_settings_names_the_setting(
    tmp_path: Path, arguments: tuple[str, ...], why: str
) -> None:
    protocol = "PLAINTEXT" if "--bootstrap-user" in arguments else "SASL_PLAINTEXT"
    listen = ("--listener", f"{protocol}://127.0.0.1:0", "--http-port", "-1")
    code, _, errors = Process(tmp_path, *arguments, listen=listen).ended()
    assert code != 0
    assert why in errors
    assert "Traceback" not in errors
