"""Apache's Java clients on a secured broker: mechanisms, refusals, re-authentication, security administration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from penstock_e2e.connections import CERTIFICATE, MECHANISMS, SASL, Connection, properties_file
from penstock_e2e.secured import ADMIN, USER, SecuredBroker, secured_broker
from penstock_java.build import compile_scenarios
from penstock_java.kafka_tools import KafkaTools
from penstock_java.runner import Runner
from penstock_java.scenarios import CLIENTS

pytestmark = [pytest.mark.xdist_group("secured-java"), pytest.mark.timeout(180)]

ALLOWED_URLS = "-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls="
"""The client's list of token endpoints; kafka-clients 4 refuses others."""
Run = Callable[[str, Connection], None]
each_mechanism = pytest.mark.parametrize("mechanism", MECHANISMS)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with secured_broker(tmp_path_factory.mktemp("secured")) as running:
        yield running


@pytest.fixture(scope="module", params=CLIENTS)
def runner(
    broker: SecuredBroker, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runner]:
    home = tmp_path_factory.mktemp(f"secured-java-{request.param}")
    flags = [f"{ALLOWED_URLS}{broker.provider.url},{broker.provider.foreign_url}"]
    made = Runner(compile_scenarios(request.param, home / "classes"), "", home / "errors.log", flags)
    yield made
    made.close()


@pytest.fixture
def run(runner: Runner, tmp_path: Path) -> Run:
    """Run a scenario with a connection."""

    def run(scenario: str, connection: Connection) -> None:
        outcome = runner.run(scenario, properties_file(tmp_path / "client.properties", connection.java()))
        assert outcome["passed"], "\n".join([outcome["failure"], "warnings:", *outcome["warnings"]])

    return run


@each_mechanism
def test_a_group_copies_in_a_transaction(broker: SecuredBroker, run: Run, mechanism: str) -> None:
    run("secured-copy", broker.connection(mechanism))


@each_mechanism
def test_requests_without_rights_are_refused(broker: SecuredBroker, run: Run, mechanism: str) -> None:
    run("refused-rights", broker.connection(mechanism))


@pytest.mark.parametrize("mechanism", SASL)
def test_wrong_credentials_are_refused_with_the_reason(broker: SecuredBroker, run: Run, mechanism: str) -> None:
    run("refused-login", broker.refused(mechanism))


def test_a_certificate_of_an_unknown_ca_is_refused(broker: SecuredBroker, run: Run) -> None:
    run("refused-tls", broker.refused(CERTIFICATE))


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", CERTIFICATE])
def test_a_broker_of_an_unknown_ca_is_refused(broker: SecuredBroker, run: Run, mechanism: str) -> None:
    run("refused-tls", broker.distrusting(mechanism))


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "OAUTHBEARER"])
def test_clients_re_authenticate_while_they_produce(broker: SecuredBroker, run: Run, mechanism: str) -> None:
    run("reauthentication", broker.connection(mechanism, listener="SHORT"))


def test_an_administrator_manages_acls_credentials_and_quotas(broker: SecuredBroker, run: Run) -> None:
    run("admin-security", broker.connection("SCRAM-SHA-256", ADMIN))


@pytest.fixture
def tools(broker: SecuredBroker, tmp_path: Path) -> Callable[[str], KafkaTools]:
    """Kafka's command-line tools, as a user."""

    def make(user: str) -> KafkaTools:
        connection = broker.connection("SCRAM-SHA-512", user)
        return KafkaTools(connection.bootstrap, properties_file(tmp_path / f"{user}.properties", connection.java()))

    return make


@pytest.mark.timeout(400)
def test_kafkas_tools_manage_users_their_rights_and_quotas(tools: Callable[[str], KafkaTools]) -> None:
    admin = tools(ADMIN)
    eve = ("--entity-type", "users", "--entity-name", "eve")
    for change in ("SCRAM-SHA-512=[password=eve-pw]", "consumer_byte_rate=1048576"):  # the tool refuses both at once
        admin.run("configs", "--alter", *eve, "--add-config", change)
    described = admin.run("configs", "--describe", *eve)
    assert "consumer_byte_rate=1048576" in described
    assert "SCRAM-SHA-512=iterations=4096" in described
    rights = ("--allow-principal", "User:eve", "--consumer", "--topic", "ana-tools", "--group", "eve")
    admin.run("acls", "--add", *rights)
    listed = admin.run("acls", "--list", "--principal", "User:eve")
    assert "resourceType=TOPIC, name=ana-tools" in listed
    assert "resourceType=GROUP, name=eve" in listed
    refused = tools(USER).attempt("acls", "--list")
    assert refused.returncode
    assert "ClusterAuthorizationException" in refused.stdout + refused.stderr
    admin.run("acls", "--remove", "--force", *rights)
    assert "eve" not in admin.run("acls", "--list").replace("Current ACLs", "")


@pytest.mark.timeout(400)
def test_kafkas_console_tools_produce_and_consume(tools: Callable[[str], KafkaTools]) -> None:
    ana = tools(USER)
    ana.run("console-producer", "--topic", "ana-console", stdin="one\ntwo\n")
    group = ("--group", "ana-console", "--from-beginning", "--max-messages", "2", "--timeout-ms", "60000")
    assert ana.run("console-consumer", "--topic", "ana-console", *group).split() == ["one", "two"]
    assert "ana-console" in ana.run("consumer-groups", "--list").split()
