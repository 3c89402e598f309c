"""PLAIN: users of the listener's configuration, and users with SCRAM credentials."""

from __future__ import annotations

import inspect

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from security_kit import Incomparable, Users, credential, run_here

from penstock.security.passwords import PasswordVerifier
from penstock.security.sasl.exchange import AuthenticationRejected, FailureReason
from penstock.security.sasl.plain import PlainMechanism, parse_plain


async def log_in(mechanism: PlainMechanism, message: str) -> str:
    """Return the authenticated principal, or the reason of the rejection."""
    try:
        step = mechanism.start().respond(message.encode())
        step = await step if inspect.isawaitable(step) else step
    except AuthenticationRejected as e:
        return e.reason.value
    assert step.response == b""
    assert step.identity is not None
    return str(step.identity.principal)


@pytest.fixture
def mechanism() -> PlainMechanism:
    users = Users(credential("ana", "right"), credential("bob", "stored"))
    return PlainMechanism(PasswordVerifier(users.credentials, run_here), {"bob": "configured", "svc": "pw"})


async def test_the_right_password_authenticates(mechanism: PlainMechanism) -> None:
    assert await log_in(mechanism, "\0ana\0right") == "User:ana"
    assert await log_in(mechanism, "ana\0ana\0right") == "User:ana"
    assert await log_in(mechanism, "\0svc\0pw") == "User:svc"


async def test_a_wrong_password_and_an_unknown_user_are_rejected(mechanism: PlainMechanism) -> None:
    for message in ("\0ana\0wrong", "\0eve\0right", "\0svc\0wrong"):
        assert await log_in(mechanism, message) == FailureReason.CREDENTIALS


async def test_a_user_of_the_configuration_takes_precedence_over_a_stored_one(mechanism: PlainMechanism) -> None:
    assert await log_in(mechanism, "\0bob\0configured") == "User:bob"
    assert await log_in(mechanism, "\0bob\0stored") == FailureReason.CREDENTIALS


async def test_cve_2017_12610_another_authorization_identity_is_rejected(mechanism: PlainMechanism) -> None:
    assert await log_in(mechanism, "admin\0ana\0right") == FailureReason.CREDENTIALS


@pytest.mark.parametrize(
    "message",
    [
        "",
        "\0",
        "\0\0",
        "\0ana\0",
        "\0\0pw",
        "ana\0pw",
        "\0ana\0right\0",
        "\0" + "a" * 256 + "\0p",
        "\0ana\0" + "x" * 20_000,
    ],
)
async def test_a_malformed_message_is_rejected(mechanism: PlainMechanism, message: str) -> None:
    assert await log_in(mechanism, message) == FailureReason.MALFORMED


async def test_no_second_message_is_accepted(mechanism: PlainMechanism) -> None:
    exchange = mechanism.start()
    exchange.respond(b"\0svc\0pw")
    with pytest.raises(AuthenticationRejected):
        exchange.respond(b"\0svc\0pw")


@given(st.text(alphabet="\0ab", max_size=8))
def test_random_messages_are_rejected_or_have_name_and_password(text: str) -> None:
    try:
        name, password = parse_plain(text)
    except AuthenticationRejected:
        return
    assert text in (f"\0{name}\0{password}", f"{name}\0{name}\0{password}")
    assert name
    assert password


async def test_cve_2021_38153_passwords_are_compared_in_constant_time() -> None:
    stored = credential("ana", "right")
    users = Users(msgspec.structs.replace(stored, stored_key=Incomparable(stored.stored_key)))
    mechanism = PlainMechanism(PasswordVerifier(users.credentials, run_here), {"svc": "right"})
    mechanism.users["svc"] = Incomparable(mechanism.users["svc"])
    for user in ("ana", "svc"):
        assert await log_in(mechanism, f"\0{user}\0wrong") == FailureReason.CREDENTIALS
