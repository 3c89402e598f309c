"""`penstock up --secure`: files, clients that read them, and a second start."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from command_outcome import Outcome
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from secrets_kit import search, secret

from penstock.client import Admin, AuthenticationFailed, ClientError, Security
from penstock.client.security import security_of
from penstock.client.security_properties import resolve
from penstock.config.properties import read_properties

pytestmark = pytest.mark.integration

Cli = Callable[..., Outcome]


@dataclass(frozen=True)
class SecuredBroker:
    """A running broker."""

    data: Path
    address: str
    log: Path

    @property
    def properties(self) -> Path:
        return self.data / "client.properties"


@contextlib.contextmanager
def secured_broker(data: Path, log: Path, *options: str) -> Iterator[SecuredBroker]:
    """Run `penstock up --secure` on free ports."""
    command = [sys.executable, "-m", "penstock.cli", "up", "--secure", "--data", str(data), "--port=0", "--http-port=0"]
    with log.open("ab") as errors:
        broker = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert broker.stdout is not None
        ready = broker.stdout.readline().split()
        assert ready[:1] == ["ready"], log.read_text()
        secret((data / "secure" / "admin.password").read_text().strip())
        yield SecuredBroker(data, ready[1].removeprefix("kafka="), log)
    finally:
        broker.terminate()
        assert broker.wait(30) == 0
        search("standard output of penstock up --secure", broker.stdout.read())
        search("log of penstock up --secure", log.read_bytes())
        broker.stdout.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    directory = tmp_path_factory.mktemp("secured")
    with secured_broker(directory / "data", directory / "log") as broker:
        yield broker


@pytest.fixture
def admin(broker: SecuredBroker, alone: Cli) -> Cli:
    """Return a function that runs commands as the administrator."""

    def call(*arguments: str, stdin: str = "") -> Outcome:
        return alone(*arguments, "--command-config", str(broker.properties), stdin=stdin)

    return call


def librdkafka_settings(path: Path) -> dict[str, str]:
    """Return a properties file as programs read it that know no format but NAME=VALUE."""
    return dict(line.split("=", 1) for line in path.read_text().splitlines())


def security_from(path: Path) -> tuple[str, Security]:
    resolved = resolve(read_properties(str(path)))
    assert resolved.bootstrap is not None
    assert resolved.ignored == ()
    return resolved.bootstrap, security_of(resolved)


def test_one_command_each_as_administrator(admin: Cli, name: str) -> None:
    for command in (["status"], ["topic", "list"], ["cluster", "status"], ["user", "list"], ["acl", "list"]):
        outcome = admin(*command)
        assert (outcome.code, outcome.err) == (0, ""), (command, outcome)
    assert admin("topic", "create", name).code == 0
    assert admin("produce", name, stdin="hello\n").code == 0
    assert admin("consume", name).lines == ["hello"]


def test_the_files_of_clients_are_private_and_their_paths_are_logged(broker: SecuredBroker) -> None:
    for file in ("client.properties", "client-java.properties"):
        path = broker.data / file
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert str(path) in broker.log.read_text()


def test_confluent_kafka_produces_and_consumes_with_the_file(broker: SecuredBroker, name: str) -> None:
    settings = librdkafka_settings(broker.properties)
    producer = Producer(settings)
    producer.produce(name, b"hello")
    assert producer.flush(30) == 0
    consumer = Consumer({**settings, "group.id": name, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([name])
        message = consumer.poll(60)
        assert message is not None
        assert (message.error(), message.value()) == (None, b"hello")
    finally:
        consumer.close()
    assert name in AdminClient(settings).list_topics(timeout=30).topics


async def test_both_files_let_the_python_client_in(broker: SecuredBroker) -> None:
    for file in ("client.properties", "client-java.properties"):
        bootstrap, security = security_from(broker.data / file)
        assert bootstrap == broker.address
        async with Admin(bootstrap, security=security) as admin:
            assert list(await admin.describe_scram_credentials(["admin"])) == ["admin"]


async def test_nobody_gets_in_without_the_password_or_without_tls(broker: SecuredBroker) -> None:
    _, security = security_from(broker.properties)
    plain = Admin(broker.address, connect_timeout_ms=2000, request_timeout_ms=2000)
    anonymous = Admin(broker.address, security=Security(tls=security.tls), request_timeout_ms=2000)
    for client in (plain, anonymous):
        with pytest.raises(ClientError):
            await asyncio.wait_for(client.start(), 60)
    assert security.sasl is not None
    wrong = Security(security.tls, type(security.sasl)(security.sasl.mechanism, "admin", secret("wrong-pw-c81e")))
    with pytest.raises(AuthenticationFailed):
        await Admin(broker.address, security=wrong).start()


def test_a_new_user_may_do_what_acls_allow(broker: SecuredBroker, admin: Cli, alone: Cli, name: str) -> None:
    password = secret(admin("user", "create", name, "--generate", "--output", "json").json["password"])
    path = broker.data.parent / f"{name}.password"
    path.write_text(password)
    own = ["-b", broker.address, "--tls-ca", str(broker.data / "secure" / "ca.pem"), "--user", name]
    own += ["--password-file", str(path)]
    admin("topic", "create", name)
    refused = alone("produce", name, *own, stdin="hello\n")
    assert refused.code != 0
    assert "TOPIC_AUTHORIZATION_FAILED" in refused.err
    admin("acl", "add", name, "--topic", name, "--group", "g", "--producer", "--operation", "read")
    assert alone("produce", name, *own, stdin="hello\n").code == 0
    assert alone("consume", name, *own).lines == ["hello"]
    assert admin("acl", "explain", name, "--topic", name, "--operation", "write").code == 0
    assert admin("acl", "remove", name, "--yes").code == 0
    assert alone("consume", name, *own).code != 0
    changed = admin("user", "set-password", name, "--password-file", "-", stdin=secret("another-pw-2b7d"))
    assert changed.code == 0, changed
    assert alone("topic", "list", *own).code == 4


def test_a_second_start_reuses_everything_and_knows_its_new_port(tmp_path: Path, alone: Cli) -> None:
    data, log = tmp_path / "data", tmp_path / "log"
    with secured_broker(data, log) as first:
        before = {path.name: path.read_bytes() for path in (data / "secure").iterdir()}
        alone("topic", "create", "kept", "--command-config", str(first.properties))
    with secured_broker(data, log) as second:
        assert {path.name: path.read_bytes() for path in (data / "secure").iterdir()} == before
        assert librdkafka_settings(second.properties)["bootstrap.servers"] == second.address
        assert alone("topic", "list", "--config", str(second.properties)).lines[1].split()[0] == "kept"


def test_status_shows_certificates_and_fails_when_a_changed_one_is_broken(tmp_path: Path, alone: Cli) -> None:
    with secured_broker(tmp_path / "data", tmp_path / "log") as broker:
        status = ["status", "--command-config", str(broker.properties), "--output", "json"]
        (sound,) = alone(*status).json["brokers"][0]["certificates"]
        assert (sound["listener"], sound["reload_error"]) == ("SASL_SSL", None)
        certificate = tmp_path / "data" / "secure" / "server.pem"
        certificate.write_text("broken")
        while (outcome := alone(*status)).code == 0:  # until the broker has noticed; the test's timeout ends it
            pass
        assert outcome.code == 1
        (kept,) = outcome.json["brokers"][0]["certificates"]
        assert kept["expires"] == sound["expires"]
        assert str(certificate) in kept["reload_error"]
        assert 'listener "SASL_SSL" of broker 0 still uses its earlier certificate' in outcome.err
        assert "failed" in alone(*status[:-2]).out


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--brokers", "3"], "--secure cannot be used with --brokers"),
        (["--etcd", "http://127.0.0.1:1", "--id", "1"], "--secure cannot be used with --etcd"),
        (["--bootstrap-user", "x", "--bootstrap-password-file", "y"], "--bootstrap-user cannot be used with --secure"),
        (["--listener", "PLAINTEXT://127.0.0.1:1"], "cannot be used with --secure, whose listeners have TLS and SASL"),
    ],
)
def test_what_does_not_fit_is_wrong_usage(alone: Cli, tmp_path: Path, options: list[str], why: str) -> None:
    outcome = alone("up", "--secure", "--data", str(tmp_path / "data"), *options)
    assert (outcome.code, outcome.out) == (2, "")
    assert why in " ".join(outcome.err.split())
    assert not (tmp_path / "data").exists()


def test_a_data_directory_that_cannot_be_used_is_one_sentence(alone: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    outcome = alone("up", "--secure", "--data", str(tmp_path / "file"))
    assert (outcome.code, outcome.err.count("\n")) == (1, 1)
    assert "cannot use the data directory" in outcome.err
    assert os.path.isfile(tmp_path / "file")
