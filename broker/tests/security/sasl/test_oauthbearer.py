"""The messages of OAUTHBEARER."""

from __future__ import annotations

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_kit import Provider, token

from penstock.security.sasl.exchange import AuthenticationRejected, FailureReason, Step
from penstock.security.sasl.oauthbearer import INVALID_TOKEN, OauthBearerExchange, OauthBearerMechanism, parse_initial


async def respond(exchange: OauthBearerExchange, message: str | bytes) -> Step:
    step = exchange.respond(message.encode() if isinstance(message, str) else message)
    return await step if inspect.isawaitable(step) else step


def start() -> OauthBearerExchange:
    return OauthBearerMechanism(Provider().validator()).start()


async def test_a_valid_token_authenticates_with_an_empty_response() -> None:
    step = await respond(start(), f"n,,\x01auth=Bearer {token()}\x01\x01")
    assert step.response == b""
    assert step.identity is not None
    assert str(step.identity.principal) == "User:ana"


async def test_extensions_and_an_equal_authorization_identity_are_accepted() -> None:
    message = f"n,a=ana,\x01host=broker\x01port=9092\x01auth=bearer {token()}\x01logicalCluster=x\x01\x01"
    assert (await respond(start(), message)).identity is not None


async def test_an_invalid_token_gets_an_error_as_json_and_fails_once_the_client_acknowledges_it() -> None:
    exchange = start()
    step = await respond(exchange, "n,,\x01auth=Bearer abc.def.ghi\x01\x01")
    assert (step.response, step.identity) == (INVALID_TOKEN, None)
    with pytest.raises(AuthenticationRejected) as caught:
        await respond(exchange, "\x01")
    assert caught.value is step.rejection
    assert caught.value.reason is FailureReason.TOKEN


async def test_cve_2017_12610_another_authorization_identity_is_rejected() -> None:
    exchange = start()
    assert (await respond(exchange, f"n,a=admin,\x01auth=Bearer {token()}\x01\x01")).identity is None
    with pytest.raises(AuthenticationRejected, match="authorization identity"):
        await respond(exchange, "\x01")


async def test_no_message_is_accepted_after_the_last_one() -> None:
    exchange = start()
    message = f"n,,\x01auth=Bearer {token()}\x01\x01"
    await respond(exchange, message)
    with pytest.raises(AuthenticationRejected):
        await respond(exchange, message)


@pytest.mark.parametrize(
    "message",
    [
        "",
        "n,,",
        "n,,\x01\x01",
        "n,,\x01auth=Bearer abc\x01",
        "n,,auth=Bearer abc\x01\x01",
        "p=x,,\x01auth=Bearer abc\x01\x01",
        "n,x=ana,\x01auth=Bearer abc\x01\x01",
        "n,,x\x01auth=Bearer abc\x01\x01",
        "n,,\x01auth=Basic abc\x01\x01",
        "n,,\x01auth=Bearer \x01\x01",
        "n,,\x01auth=Bearer a b\x01\x01",
        "n,,\x01auth=Bearer abc\x01auth=Bearer abc\x01\x01",
        "n,,\x01auth=Bearer abc\x01novalue\x01\x01",
        b"n,,\x01auth=Bearer \xff\x01\x01",
        "n,,\x01auth=Bearer " + "a" * 200_000 + "\x01\x01",
    ],
)
async def test_a_malformed_first_message_is_rejected(message: str | bytes) -> None:
    with pytest.raises(AuthenticationRejected) as caught:
        await respond(start(), message)
    assert caught.value.reason is FailureReason.MALFORMED


@given(
    st.lists(st.sampled_from(["n,,", "n,a=x,", "\x01", "auth=", "Bearer ", "abc", "=", ",", "é", "\0"]), max_size=12)
)
def test_random_grammar_is_rejected_or_has_one_token(parts: list[str]) -> None:
    try:
        _, found = parse_initial("".join(parts))
    except AuthenticationRejected:
        return
    assert found
    assert set(found) <= set("abcBearer=")
