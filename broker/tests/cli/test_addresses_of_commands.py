"""The command line accepts the addresses that a broker prints, and its errors name a wrong port."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_outcome import Outcome

pytestmark = pytest.mark.integration

Cli = Callable[..., Outcome]
READY = re.compile(r"ready kafka=(\S+) http=(\S+)\n")


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Yield the Kafka and HTTP addresses that a broker on IPv6 prints."""
    command = [sys.executable, "-m", "penstock.cli", "up", "--data", str(tmp_path_factory.mktemp("broker"))]
    command += ["--host", "::1", "--port", "0", "--http-host", "[::1]", "--http-port", "0", "--log-level", "warning"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as broker:
        try:
            assert broker.stdout is not None, "its output is a pipe"
            matched = READY.fullmatch(broker.stdout.readline())
            assert matched is not None, "the broker prints a ready line"
            yield matched[1], matched[2]
        finally:
            broker.terminate()


def test_the_ready_line_of_an_ipv6_listener_has_an_address_that_commands_take(
    alone: Cli, ready: tuple[str, str]
) -> None:
    assert ready[0].startswith("[::1]:")
    assert ready[1].startswith("[::1]:")
    for address in (ready[0], f"PLAINTEXT://{ready[0]}", f" {ready[0]} , "):
        assert alone("topic", "list", "--bootstrap", address).code == 0


def test_addresses_in_tables_and_documents_have_brackets(alone: Cli, ready: tuple[str, str]) -> None:
    assert ready[0] in alone("status", "--bootstrap", ready[0]).out
    assert alone("broker", "list", "--output", "json", "--bootstrap", ready[0]).json[0]["address"] == ready[0]


def test_the_http_port_given_as_bootstrap_is_called_so(alone: Cli, ready: tuple[str, str]) -> None:
    said = alone("topic", "list", "--bootstrap", ready[1])
    assert said.code == 5
    assert f"{ready[1]}: the port speaks HTTP; use the port of a Kafka listener" in said.err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--advertise", "host:9092"], "the listener's name is missing"),
        (["--advertise", "PLAINTEXT://host"], "the port is missing"),
        (["--advertise", "PLAINTEXT://::1:9092"], "an IPv6 address needs brackets"),
        (["--advertise", "PLAINTEXT://0.0.0.0:9092"], "clients cannot connect to"),
        (["--advertise", "OTHER://host:9092"], 'listener "OTHER" does not exist; use one of PLAINTEXT'),
        (["--set", "advertised.listeners=OTHER://host:9092"], 'listener "OTHER" does not exist; use one of PLAINTEXT'),
        (["--listener", "host:9092"], "the listener's name is missing"),
        (["--host", "localhost:9092"], "a host has no port"),
        (["--http-host", "http://localhost"], "a host has no port"),
    ],
)
def test_a_malformed_address_of_a_broker_is_wrong_usage(
    alone: Cli, tmp_path: Path, arguments: list[str], why: str
) -> None:
    said = alone("up", "--data", str(tmp_path / "data"), *arguments)
    assert (said.code, said.out) == (2, "")
    assert why in " ".join(said.err.split())
    assert not (tmp_path / "data").exists()
