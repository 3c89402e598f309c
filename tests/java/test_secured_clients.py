"""Apache's Java clients on a secured broker: SCRAM, PLAIN, certificates, refusals, administration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from penstock_e2e.connections import CERTIFICATE, PASSWORDS, Connection, properties_file
from penstock_e2e.secured import ADMIN, SecuredBroker, secured_broker
from penstock_java.build import compile_scenarios
from penstock_java.runner import Runner
from penstock_java.scenarios import CLIENTS

pytestmark = [pytest.mark.xdist_group("secured-java"), pytest.mark.timeout(180)]

Run = Callable[[str, Connection], None]
each_mechanism = pytest.mark.parametrize("mechanism", [*PASSWORDS, CERTIFICATE])


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with secured_broker(tmp_path_factory.mktemp("secured")) as running:
        yield running


@pytest.fixture(scope="module", params=CLIENTS)
def runner(
    broker: SecuredBroker, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runner]:
    home = tmp_path_factory.mktemp(f"secured-java-{request.param}")
    made = Runner(compile_scenarios(request.param, home / "classes"), "", home / "errors.log")
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


@pytest.mark.parametrize("mechanism", PASSWORDS)
def test_wrong_credentials_are_refused_with_the_reason(broker: SecuredBroker, run: Run, mechanism: str) -> None:
    run("refused-login", broker.refused(mechanism))


def test_a_certificate_of_an_unknown_ca_is_refused(broker: SecuredBroker, run: Run) -> None:
    run("refused-tls", broker.refused(CERTIFICATE))


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", CERTIFICATE])
def test_a_broker_of_an_unknown_ca_is_refused(broker: SecuredBroker, run: Run, mechanism: str) -> None:
    run("refused-tls", broker.distrusting(mechanism))


def test_clients_re_authenticate_while_they_produce(broker: SecuredBroker, run: Run) -> None:
    run("reauthentication", broker.connection("SCRAM-SHA-512", listener="SHORT"))


def test_an_administrator_manages_acls_credentials_and_quotas(broker: SecuredBroker, run: Run) -> None:
    run("admin-security", broker.connection("SCRAM-SHA-256", ADMIN))
