"""`penstock quota` against a broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytestmark = pytest.mark.integration

Cli = Callable[..., Any]


@pytest.fixture
def user(cli: Cli, name: str) -> Iterator[str]:
    """Yield the name of a user whose quotas are removed afterwards."""
    yield name
    cli("quota", "remove", "--user", name, "--yes")


def test_quotas_are_set_listed_and_removed(cli: Cli, user: str) -> None:
    done = cli("quota", "set", "--user", user, "--producer-byte-rate", "1048576", "--request-percentage", "12.5")
    assert done.lines == [
        f"set producer_byte_rate of user {user} to 1,048,576",
        f"set request_percentage of user {user} to 12.5",
    ]
    listed = cli("quota", "list", "--user", user)
    assert [line.split() for line in listed.lines] == [
        ["USER", "CLIENT-ID", "IP", "QUOTA", "LIMIT"],
        [user, "-", "-", "producer_byte_rate", "1,048,576"],
        [user, "-", "-", "request_percentage", "12.5"],
    ]
    assert cli("quota", "remove", "producer-byte-rate", "--user", user, "--yes").code == 0
    assert cli("quota", "list", "--user", user, "-o", "json").json == [
        {"entity": {"user": user}, "quotas": {"request_percentage": 12.5}}
    ]


def test_a_user_s_client_id_has_quotas_of_its_own(cli: Cli, user: str) -> None:
    both = ["--user", user, "--client-id", "import"]
    cli("quota", "set", "--user", user, "--consumer-byte-rate", "1")
    cli("quota", "set", *both, "--consumer-byte-rate", "2")
    assert (
        cli("quota", "remove", *both, "--yes").out == f"removed consumer_byte_rate of user {user}, client-id import\n"
    )
    assert len(cli("quota", "list", "--user", user, "-o", "json").json) == 1


def test_defaults_are_named_so(cli: Cli) -> None:
    cli("quota", "set", "--default-ip", "--connection-creation-rate", "1e6")
    assert ["-", "-", "<default>", "connection_creation_rate", "1,000,000"] in [
        line.split() for line in cli("quota", "list").lines
    ]
    assert cli("quota", "remove", "--default-ip", "--yes").out == "removed connection_creation_rate of default ip\n"


def test_what_is_not_set_is_not_found_and_removal_asks(cli: Cli, user: str) -> None:
    missing = cli("quota", "remove", "--user", user, "--yes")
    assert (missing.code, "has no such quota" in missing.err) == (3, True)
    cli("quota", "set", "--user", user, "--controller-mutation-rate", "5")
    assert cli("quota", "remove", "--user", user).code == 4


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["set", "--producer-byte-rate", "1"], "no client is given; set --user"),
        (["set", "--user", "a"], "no limit is given; set one, for example"),
        (["set", "--user", "", "--producer-byte-rate", "1"], "--user is empty; set a name, or use --default-user"),
        (["set", "--user", "a", "--default-user", "--producer-byte-rate", "1"], "exclude each other"),
        (
            ["set", "--user", "a", "--ip", "::1", "--producer-byte-rate", "1"],
            "--ip and --default-ip cannot be combined",
        ),
        (["set", "--user", "a", "--connection-creation-rate", "1"], "is not a limit of user a; use --ip"),
        (["set", "--ip", "::1", "--producer-byte-rate", "1"], "is not a limit of ip ::1; use --connection-creation"),
        (["set", "--user", "a", "--producer-byte-rate", "-1"], "-1"),
        (["set", "--user", "a", "--producer-byte-rate", "nan"], "finite"),
        (["remove", "speed", "--user", "a"], '"speed" is not a quota; use one of producer_byte_rate'),
        (["remove", "--yes"], "no client is given"),
    ],
)
def test_arguments_that_do_not_fit_are_wrong_usage(alone: Cli, arguments: list[str], why: str) -> None:
    outcome = alone("quota", *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert why in " ".join(outcome.err.split())
