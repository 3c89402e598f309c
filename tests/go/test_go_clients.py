"""franz-go, sarama and kafka-go on a secured broker, with each mechanism that they have."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from penstock_e2e.connections import CERTIFICATE, MECHANISMS, SASL, Connection
from penstock_e2e.secured import FORBIDDEN, SecuredBroker, secured_broker

pytestmark = pytest.mark.timeout(600)

HERE = Path(__file__).parent
BUILD_LIMIT_S, LIMIT_S = 500, 90
VALUES = [str(number) for number in range(20)]
CLIENTS = {"franz-go": MECHANISMS, "sarama": MECHANISMS, "kafka-go": (*MECHANISMS[:3], CERTIFICATE)}
"""The mechanisms of each client: kafka-go has no OAUTHBEARER."""
PAIRS = [(client, mechanism) for client, mechanisms in CLIENTS.items() for mechanism in mechanisms]
each_pair = pytest.mark.parametrize(("client", "mechanism"), PAIRS)
UNTRUSTED = "certificate signed by unknown authority"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with secured_broker(tmp_path_factory.mktemp("secured")) as running:
        yield running


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("program") / "clients"
    command = ["go", "build", "-o", str(made), "."]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    return made


class Clients:
    """The program. Its methods return (exit code, lines of output, standard error)."""

    def __init__(self, program: Path, home: Path) -> None:
        self._program, self._file = program, home / "connection.json"

    def produce(self, client: str, connection: Connection, topic: str) -> str:
        """Return the error, empty if there is none."""
        return self._run(client, "produce", connection, topic, VALUES)[1]

    def consume(self, client: str, connection: Connection, topic: str) -> tuple[list[str], str]:
        return self._run(client, "consume", connection, topic, [str(len(VALUES))])

    def _run(
        self, client: str, does: str, connection: Connection, topic: str, words: list[str]
    ) -> tuple[list[str], str]:
        self._file.write_text(json.dumps(settings(connection)))
        command = [str(self._program), client, does, str(self._file), topic, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert bool(done.returncode) == bool(done.stderr), done
        return done.stdout.split(), done.stderr


def settings(connection: Connection) -> dict[str, str]:
    return {
        "bootstrap": connection.bootstrap,
        "mechanism": connection.mechanism,
        "user": connection.user,
        "password": connection.password,
        "token": connection.token(),
        "ca": str(connection.ca),
        "certificate": str(connection.certificate.certificate),
        "key": str(connection.certificate.key),
    }


@pytest.fixture
def clients(program: Path, tmp_path: Path) -> Clients:
    return Clients(program, tmp_path)


@each_pair
def test_records_are_produced_and_consumed_in_a_group(
    broker: SecuredBroker, clients: Clients, client: str, mechanism: str
) -> None:
    topic, connection = f"ana-{client}-{mechanism}", broker.connection(mechanism)
    assert clients.produce(client, connection, topic) == ""
    assert clients.consume(client, connection, topic) == (VALUES, "")


@pytest.mark.parametrize(("client", "mechanism"), [pair for pair in PAIRS if pair[1] in SASL])
def test_wrong_credentials_are_refused_with_the_reason(
    broker: SecuredBroker, clients: Clients, client: str, mechanism: str
) -> None:
    error = clients.produce(client, broker.refused(mechanism), "ana-refused")
    assert "authentication" in error.lower()


@pytest.mark.parametrize("client", CLIENTS)
def test_untrusted_certificates_are_refused(broker: SecuredBroker, clients: Clients, client: str) -> None:
    assert UNTRUSTED in clients.produce(client, broker.distrusting("SCRAM-SHA-512"), "ana-refused")
    assert "unknown certificate authority" in clients.produce(client, broker.refused(CERTIFICATE), "ana-refused")


@pytest.mark.parametrize("client", CLIENTS)
def test_a_topic_without_rights_is_refused(broker: SecuredBroker, clients: Clients, client: str) -> None:
    connection = broker.connection("SCRAM-SHA-512")
    assert "authoriz" in clients.produce(client, connection, FORBIDDEN).lower()
    assert "authoriz" in clients.consume(client, connection, FORBIDDEN)[1].lower()
