"""Behaviour of groups that Kafka documents, with releases of Apache's Java client, on Penstock and on Apache Kafka.

Without `--all-group-checks` the newest client runs on one broker of Penstock. With it, each client runs on one broker
and on three, and on Apache Kafka, where only the checks in `DIFFERENCES` may fail.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from penstock_java.build import compile_scenarios
from penstock_java.group_checks import CLIENTS, DIFFERENCES, FOLDERS, NEWEST_CLIENT, Outcome, names, run, service

PENSTOCK, KAFKA = "penstock", "kafka"
SERVICES = {PENSTOCK: 1, "penstock-cluster": 3, KAFKA: 1}
"""Number of brokers by service."""
LIMIT_S = 900
LEAST_CHECKS = 120


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Select the client releases and the services."""
    if "service_name" in metafunc.fixturenames:
        is_full = metafunc.config.getoption("--all-group-checks")
        cases = [(client, name) for client in CLIENTS for name in SERVICES] if is_full else [(NEWEST_CLIENT, PENSTOCK)]
        metafunc.parametrize(("client", "service_name"), cases)


def run_all(client: str, bootstrap: str, home: Path) -> Outcome:
    class_path = compile_scenarios(client, home / "classes", FOLDERS)
    outcome = run(class_path, bootstrap, home / "errors.log")
    wanted = names(class_path)
    assert outcome.ran == wanted, f"these did not run: {wanted - outcome.ran}"
    assert len(wanted) >= LEAST_CHECKS
    return outcome


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.xdist_group("java-group-checks")
def test_groups_behave_as_documented(client: str, service_name: str, tmp_path: Path) -> None:
    with service(tmp_path / "service", SERVICES[service_name], kafka=service_name == KAFKA) as bootstrap:
        outcome = run_all(client, bootstrap, tmp_path)
    if service_name == KAFKA:
        for name in DIFFERENCES:
            outcome.failures.pop(name, None)
    assert not outcome.failures, outcome.report()
