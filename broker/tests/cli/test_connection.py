"""The connection options of commands: TLS, users and properties files, and which of them takes precedence."""

from __future__ import annotations

import asyncio
import os
import pty
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from client_doubles.certificates import Authority
from client_doubles.guarded import GuardedBroker
from client_doubles.scripted import TOPIC, ScriptedBroker
from command_outcome import Outcome

pytestmark = pytest.mark.integration

Cli = Callable[..., Outcome]
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> ssl.SSLContext:
    """Return a broker's TLS context."""
    signed = authority.sign("broker")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(signed.certificate, signed.key)
    return context


async def topics_at(broker: ScriptedBroker, cli: Cli, *options: str, **settings: str) -> Outcome:
    """Run `penstock topic list` with these options."""
    return await asyncio.to_thread(cli, "topic", "list", *options, **settings)


def write(path: Path, *lines: str) -> str:
    path.write_text("\n".join(lines))
    return str(path)


def lists_topics(outcome: Outcome) -> bool:
    return outcome.code == 0 and TOPIC in outcome.out.split()


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_options_give_tls_and_a_user(
    alone: Cli, authority: Authority, server: ssl.SSLContext, tmp_path: Path, mechanism: str
) -> None:
    password = write(tmp_path / "password", "secret", "")
    async with GuardedBroker(tls=server, mechanisms=MECHANISMS) as broker:
        options = ["--tls-ca", str(authority.file), "--user", "alice", "--password-file", password]
        outcome = await topics_at(broker, alone, *options, "--mechanism", mechanism, "--bootstrap", broker.address)
    assert lists_topics(outcome), outcome
    assert broker.authentications > 0


async def test_options_give_a_client_certificate(alone: Cli, authority: Authority) -> None:
    signed, own = authority.sign("strict-broker"), authority.sign("client")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(signed.certificate, signed.key)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(authority.file)
    trust = ["--tls-ca", str(authority.file)]
    async with GuardedBroker(tls=context) as broker:
        files = ["--tls-cert", str(own.certificate), "--tls-key", str(own.key)]
        accepted = await topics_at(broker, alone, *trust, *files, "--bootstrap", broker.address)
        refused = await topics_at(broker, alone, *trust, "--bootstrap", broker.address)
    assert lists_topics(accepted), accepted
    assert refused.code != 0
    assert "certificate" in refused.err


async def test_a_properties_file_gives_everything_and_names_what_it_ignores(
    alone: Cli, authority: Authority, server: ssl.SSLContext, tmp_path: Path
) -> None:
    async with GuardedBroker(tls=server, mechanisms=MECHANISMS) as broker:
        path = write(
            tmp_path / "client.properties",
            f"bootstrap.servers={broker.address}",
            "security.protocol=SASL_SSL",
            "sasl.mechanism=SCRAM-SHA-256",
            "sasl.jaas.config=a.ScramLoginModule required username=alice password=secret;",
            f"ssl.truststore.location={authority.file}",
            "acks=all",
            "group.id=x",
        )
        for options in (["--config", path], ["--command-config", path]):
            outcome = await topics_at(broker, alone, *options)
            assert lists_topics(outcome), outcome
            assert outcome.err.count("\n") == 1
            assert '"acks", "group.id"' in outcome.err
        by_variable = {**os.environ, "PENSTOCK_CONFIG": path}
        by_variable.pop("PENSTOCK_BOOTSTRAP", None)
        command = [sys.executable, "-m", "penstock.cli", "topic", "list"]
        done = await asyncio.to_thread(subprocess.run, command, env=by_variable, capture_output=True, text=True)
        assert TOPIC in done.stdout, done.stderr


async def test_options_take_precedence_over_the_file(
    alone: Cli, authority: Authority, server: ssl.SSLContext, tmp_path: Path
) -> None:
    path = write(
        tmp_path / "client.properties",
        "bootstrap.servers=127.0.0.1:2",
        "security.protocol=SASL_PLAINTEXT",
        "sasl.mechanism=PLAIN",
        "sasl.jaas.config=a.PlainLoginModule required username=bob password=other;",
        "ssl.ca.pem=-----BEGIN nothing",
    )
    password = write(tmp_path / "password", "secret")
    async with GuardedBroker(tls=server, mechanisms=("SCRAM-SHA-512",)) as broker:
        options = ["--tls-ca", str(authority.file), "--user", "alice", "--password-file", password]
        options += ["--mechanism", "SCRAM-SHA-512", "--bootstrap", broker.address]
        outcome = await topics_at(broker, alone, "--config", path, *options)
    assert lists_topics(outcome), outcome


async def test_a_user_replaces_the_tokens_of_the_file(alone: Cli, tmp_path: Path) -> None:
    path = write(
        tmp_path / "client.properties",
        "security.protocol=SASL_PLAINTEXT",
        "sasl.mechanism=OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url=file:///nowhere/token",
    )
    password = write(tmp_path / "password", "secret")
    async with GuardedBroker(mechanisms=("SCRAM-SHA-512",)) as broker:
        options = ["--user", "alice", "--password-file", password, "--bootstrap", broker.address]
        outcome = await topics_at(broker, alone, "--config", path, *options)
    assert lists_topics(outcome), outcome


async def test_a_prefix_of_the_address_asks_for_tls(alone: Cli, server: ssl.SSLContext) -> None:
    async with GuardedBroker(tls=server) as broker:
        outcome = await topics_at(broker, alone, "--bootstrap", f"SSL://{broker.address}")
    assert outcome.code == 1
    assert "certificate is not trusted" in outcome.err


async def test_a_wrong_password_is_refused_without_showing_it(alone: Cli, tmp_path: Path) -> None:
    password = write(tmp_path / "password", "topsecret")
    async with GuardedBroker(mechanisms=MECHANISMS) as broker:
        options = ["--user", "alice", "--password-file", password, "--bootstrap", broker.address]
        outcome = await topics_at(broker, alone, *options)
    assert outcome.code == 4
    assert 'SCRAM-SHA-512 rejected user "alice"' in outcome.err
    assert "topsecret" not in outcome.err


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--config", "/nowhere/x"], 'cannot read properties file "/nowhere/x": No such file'),
        (["--user", "ana"], 'no password of user "ana": standard input is not a terminal; set --password-file FILE'),
        (["--user", "ana", "--password-file", "/nowhere/p"], 'cannot read password file "/nowhere/p": No such file'),
        (["--user", "ana", "--password-file", "/dev/null"], 'password file "/dev/null" is empty'),
        (["--user", "ana", "--password-file", "/dev/zero"], "is longer than 4,096 bytes"),
        (["--password-file", "/dev/null"], '--password-file "/dev/null" needs --user; set --user NAME'),
        (["--tls-ca", "/dev/null"], '--tls-ca: invalid ssl.ca.location "/dev/null": the file is not PEM'),
        (["--tls-key", "/proc/self/exe"], "--tls-key: invalid ssl.key.location"),
        (["--bootstrap", "SASL_SSL://a:1"], "sasl.mechanism is missing; set it to one of"),
        (["--mechanism", "GSSAPI"], "SCRAM-SHA-512"),
        (["--tls-ca", ""], "--tls-ca is empty; set a value, or leave --tls-ca out"),
        (["--user", "", "--password-file", "/dev/null"], "is empty"),
    ],
)
def test_an_option_that_cannot_be_used_is_wrong_usage(alone: Cli, options: list[str], why: str) -> None:
    outcome = alone("topic", "list", *options)
    assert outcome.code == 2, outcome
    assert why in outcome.err
    assert "Traceback" not in outcome.err


def test_a_line_of_the_file_that_is_wrong_is_named(alone: Cli, tmp_path: Path) -> None:
    path = write(tmp_path / "c.properties", "# for tests", "security.protocol=TLS")
    outcome = alone("topic", "list", "--config", path)
    assert (outcome.code, outcome.err.startswith(f"error: {path}, line 2: invalid security.protocol")) == (2, True)


async def test_a_password_is_read_from_the_terminal_without_echo() -> None:
    async with GuardedBroker(mechanisms=MECHANISMS) as broker:
        command = [sys.executable, "-m", "penstock.cli", "topic", "list", "--user", "alice", "-b", broker.address]
        shown = await asyncio.to_thread(run_on_terminal, command, b"Password", b"secret\n")
    assert TOPIC in shown.split()
    assert "secret" not in shown


def run_on_terminal(command: list[str], prompt: bytes, answer: bytes) -> str:
    """Run a command on a terminal of its own; answer one prompt; return what it shows."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(command[0], command, {**os.environ, "TERM": "dumb"})
    shown = b""
    try:
        while chunk := os.read(terminal, 4096):
            shown += chunk
            if prompt in shown and answer:
                os.write(terminal, answer)
                answer = b""
    except OSError:
        pass  # the command has ended
    finally:
        os.waitpid(pid, 0)
        os.close(terminal)
    return shown.decode()


def test_every_command_that_connects_has_the_options(alone: Cli) -> None:
    for command in (["status"], ["topic", "create"], ["broker", "drain"], ["group", "reset-offsets"], ["consume"]):
        shown = alone(*command, "--help").out
        assert all(name in shown for name in ("--command-config", "--tls-ca", "--user", "PENSTOCK_CONFIG")), command
