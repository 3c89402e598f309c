"""`penstock user` against a broker: passwords from files, standard input and a generator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from secrets_kit import secret

from penstock.client import Admin, BrokerError, ErrorCode, ScramCredentialInfo

pytestmark = pytest.mark.integration

Cli = Callable[..., Any]


@pytest.fixture
def user(cli: Cli, name: str) -> Iterator[str]:
    """Yield the name of a user with a password."""
    assert cli("user", "create", name, "--password-file", "-", stdin=secret("first-pw-4d02") + "\n").code == 0
    yield name
    cli("user", "delete", name, "--yes")


def test_a_user_has_a_credential_of_sha_512_and_no_password_is_shown(cli: Cli, user: str) -> None:
    outcome = cli("user", "describe", user, "--output", "json")
    assert outcome.json == {
        "user": user, "acls": None, "credentials": [{"mechanism": "SCRAM-SHA-512", "iterations": 8192}]
    }  # fmt: skip
    assert [user, "SCRAM-SHA-512", "8,192"] in [line.split() for line in cli("user", "list").lines]


def test_mechanisms_and_iterations_can_be_chosen(cli: Cli, name: str, tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text(secret("second-pw-77c1") + "\n")
    mechanisms = ["--mechanism", "SCRAM-SHA-256", "--mechanism", "SCRAM-SHA-512"]
    created = cli("user", "create", name, "--password-file", str(path), *mechanisms, "--iterations", "4096")
    assert (created.code, created.out) == (0, f"created user {name}\n")
    found = next(user for user in cli("user", "list", "-o", "json").json if user["user"] == name)
    assert found["credentials"] == [
        {"mechanism": "SCRAM-SHA-256", "iterations": 4096},
        {"mechanism": "SCRAM-SHA-512", "iterations": 4096},
    ]
    assert cli("user", "delete", name, "--yes").out == f"deleted user {name}\n"


def test_a_generated_password_is_printed_once(cli: Cli, name: str) -> None:
    created = cli("user", "create", name, "--generate", "--output", "json")
    assert created.json["user"] == name
    assert len(created.json["password"]) == 32
    changed = cli("user", "set-password", name, "--generate")
    password = changed.lines[1].removeprefix("password ")
    assert changed.lines[0] == f"changed the password of user {name}"
    assert len(password) == 32
    assert password != created.json["password"]
    cli("user", "delete", name, "--yes")


def test_a_user_that_exists_is_not_created_again(cli: Cli, user: str) -> None:
    outcome = cli("user", "create", user, "--generate")
    assert (outcome.code, outcome.out) == (4, "")
    assert "change the password with `penstock user set-password`" in outcome.err


@pytest.mark.parametrize("command", [["describe"], ["delete", "--yes"], ["set-password", "--generate"]])
def test_a_user_that_does_not_exist_is_not_found(cli: Cli, name: str, command: list[str]) -> None:
    outcome = cli("user", *command, name)
    assert (outcome.code, outcome.out) == (3, "")
    assert f'user "{name}" does not exist; run `penstock user list`' in outcome.err


def test_users_are_not_deleted_unless_it_is_confirmed(cli: Cli, user: str) -> None:
    assert cli("user", "delete", user).code == 4
    assert cli("user", "describe", user).code == 0


@pytest.mark.parametrize(
    ("stdin", "options", "why"),
    [
        ("", ["--password-file", "-"], "the password on standard input is empty"),
        ("a\nb\n", ["--password-file", "-"], "has control characters, such as a second line"),
        (b"\xff", ["--password-file", "-"], "is not UTF-8; encode it as UTF-8"),
        ("x" * 5000, ["--password-file", "-"], "is longer than 4,096 bytes"),
        ("", [], "standard input is not a terminal; set --password-file FILE"),
        ("", ["--password-file", "-", "--generate"], "--generate and --password-file exclude each other"),
        ("x", ["--password-file", "-", "--iterations", "1000"], "4096"),
        ("x", ["--password-file", "-", "--mechanism", "PLAIN"], "SCRAM-SHA-256"),
    ],
)
def test_a_password_that_cannot_be_used_is_wrong_usage(
    alone: Cli, stdin: str | bytes, options: list[str], why: str
) -> None:
    outcome = alone("user", "create", "ana", *options, stdin=stdin)
    assert outcome.code == 2, outcome
    assert why in outcome.err


async def test_the_admin_client_manages_credentials(bootstrap: str, name: str) -> None:
    async with Admin(bootstrap) as admin:
        await admin.upsert_scram_credential(name, "secret", "SCRAM-SHA-256", 4096)
        await admin.upsert_scram_credential(name, "other", "SCRAM-SHA-256", 5000)
        assert await admin.describe_scram_credentials([name, f"{name}-missing"]) == {
            name: [ScramCredentialInfo("SCRAM-SHA-256", 5000)]
        }
        await admin.delete_scram_credential(name, "SCRAM-SHA-256")
        with pytest.raises(BrokerError) as missing:
            await admin.delete_scram_credential(name, "SCRAM-SHA-256")
        with pytest.raises(BrokerError) as too_few:
            await admin.upsert_scram_credential(name, "secret", iterations=100)
        for mechanism, password in (("PLAIN", "x"), ("SCRAM-SHA-256", "")):
            with pytest.raises(ValueError, match=r"use one of SCRAM|is empty"):
                await admin.upsert_scram_credential(name, password, mechanism)
    assert missing.value.code == ErrorCode.RESOURCE_NOT_FOUND
    assert too_few.value.code == ErrorCode.UNACCEPTABLE_CREDENTIAL
