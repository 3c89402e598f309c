"""The server side of SCRAM, without I/O."""

from __future__ import annotations

import base64

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from security_kit import Incomparable, Users, credential

from penstock.client.errors import AuthenticationFailed
from penstock.client.sasl import Scram
from penstock.client.security import Sasl
from penstock.security.principal import Principal
from penstock.security.sasl.exchange import AuthenticationRejected, FailureReason
from penstock.security.sasl.scram import ScramExchange, ScramMechanism

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
FIRST = "n,,n=ana,r=clientnonce"


def start(users: Users, mechanism: str = "SCRAM-SHA-256", nonce: str = "servernonce") -> ScramExchange:
    return ScramMechanism(mechanism, users.credentials, lambda: nonce).start()


def client(user: str, password: str, mechanism: str = "SCRAM-SHA-256") -> Scram:
    digest = mechanism.removeprefix("SCRAM-").replace("-", "").lower()
    return Scram(Sasl(mechanism, user, password), digest, lambda: "clientnonce")


def log_in(exchange: ScramExchange, one: Scram) -> Principal | None:
    """Exchange the messages of both sides; the client verifies the server's signature."""
    final = one.respond(exchange.respond(one.first_message()).response)
    assert final is not None
    step = exchange.respond(final)
    one.respond(step.response)
    return step.identity.principal if step.identity else None


def rejected(exchange: ScramExchange, *messages: str | bytes) -> FailureReason:
    """Return why the last message is rejected."""
    *before, last = (each.encode() if isinstance(each, str) else each for each in messages)
    for each in before:
        exchange.respond(each)
    with pytest.raises(AuthenticationRejected) as caught:
        exchange.respond(last)
    return caught.value.reason


def final_for(exchange: ScramExchange, user: str, password: str) -> str:
    """Return the client's valid final message."""
    one = client(user, password)
    final = one.respond(exchange.respond(one.first_message()).response)
    assert final is not None
    return final.decode()


def test_the_example_of_rfc_7677_is_accepted_with_its_signature() -> None:
    users = Users(credential("user", "pencil", salt=base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")))
    exchange = start(users, nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    first = exchange.respond(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    nonce = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    assert first.response == nonce + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    assert first.identity is None
    last = exchange.respond(b"c=biws," + nonce + b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    assert last.response == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert last.identity is not None
    assert last.identity.principal == Principal("User", "user")


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("user", ["ana", "a,b=c", "=2C", "ünï", "x" * 255])
def test_a_client_with_the_password_is_authenticated_under_its_name(mechanism: str, user: str) -> None:
    users = Users(credential(user, "päss", mechanism))
    assert log_in(start(users, mechanism), client(user, "päss", mechanism)) == Principal("User", user)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_and_an_unknown_user_are_rejected_for_the_same_reason(mechanism: str) -> None:
    users = Users(credential("ana", "right", mechanism))
    for one in (client("ana", "wrong", mechanism), client("bob", "right", mechanism)):
        with pytest.raises(AuthenticationRejected) as caught:
            log_in(start(users, mechanism), one)
        assert caught.value.reason is FailureReason.CREDENTIALS
        assert str(caught.value) == "unknown user or wrong password"


def test_the_challenge_for_an_unknown_user_is_constant_and_looks_like_that_of_others() -> None:
    users = Users(*(credential(name, "p", salt=name[0].encode() * 20, iterations=5000) for name in ("ana", "bob")))
    known = start(users).respond(b"n,,n=ana,r=clientnonce").response.split(b",")
    unknown = start(users).respond(b"n,,n=eve,r=clientnonce").response.split(b",")
    again = start(users).respond(b"n,,n=eve,r=clientnonce").response.split(b",")
    assert (len(unknown), unknown[0], unknown[2]) == (len(known), known[0], known[2])
    assert len(unknown[1]) == len(known[1])
    assert unknown == again
    assert start(users).respond(b"n,,n=eva,r=clientnonce").response.split(b",")[1] != unknown[1]


def test_cve_2024_56128_a_final_message_with_another_nonce_is_rejected() -> None:
    exchange = start(Users(credential("ana", "right")))
    final = final_for(exchange, "ana", "right").replace("servernonce", "otherxnonce")
    assert rejected(exchange, final) is FailureReason.MALFORMED


def test_the_refusal_of_a_nonce_that_an_old_librdkafka_repeats_names_the_remedy() -> None:
    exchange = start(Users(credential("ana", "right")))
    final = final_for(exchange, "ana", "right").replace("r=clientnonce", "r=clientnonceclientnonce")
    with pytest.raises(AuthenticationRejected, match="update librdkafka to") as caught:
        exchange.respond(final.encode())
    assert caught.value.reason is FailureReason.MALFORMED


def test_each_exchange_has_a_fresh_nonce_so_a_recorded_final_message_is_useless() -> None:
    users = Users(credential("ana", "right"))
    mechanism = ScramMechanism("SCRAM-SHA-256", users.credentials)
    recorded = final_for(mechanism.start(), "ana", "right")
    assert rejected(mechanism.start(), FIRST, recorded) is FailureReason.MALFORMED


def test_cve_2017_12610_an_authorization_identity_must_equal_the_name() -> None:
    users = Users(credential("ana", "right"))
    assert rejected(start(users), "n,a=admin,n=ana,r=clientnonce") is FailureReason.CREDENTIALS
    assert start(users).respond(b"n,a=ana,n=ana,r=clientnonce").response.startswith(b"r=clientnonceservernonce,")


def test_a_changed_channel_binding_is_rejected() -> None:
    exchange = start(Users(credential("ana", "right")))
    final = final_for(exchange, "ana", "right").replace("c=biws", "c=eSws")
    assert rejected(exchange, final) is FailureReason.MALFORMED


@pytest.mark.parametrize(
    "first",
    [
        "",
        "n,,",
        "n,,n=ana",
        "p=tls-unique,,n=ana,r=x",
        "z,,n=ana,r=x",
        "n,,m=ext,n=ana,r=x",
        "n,,n=,r=x",
        "n,,n=ana,r=",
        "n,,n=ana,r=a b",
        "n,,n=ana,r=" + "x" * 257,
        "n,,n=a=b,r=x",
        "n,,n=a\0b,r=x",
        "n,,n=" + "a" * 256 + ",r=x",
        "n,,r=x,n=ana",
        "n,b=ana,n=ana,r=x",
        b"n,,n=\xff,r=x",
        "n,,n=" + "a" * 20_000 + ",r=x",
    ],
)
def test_an_invalid_first_message_is_rejected(first: str | bytes) -> None:
    users = Users(credential("ana", "right"))
    expected = (FailureReason.MALFORMED, FailureReason.CREDENTIALS)
    assert rejected(start(users), first) in expected


@pytest.mark.parametrize("proof", ["", "p=", "p=!!", "p=AAAA", "x=AAAA", "p=" + "A" * 44])
def test_a_final_message_without_a_valid_proof_is_rejected(proof: str) -> None:
    exchange = start(Users(credential("ana", "right")))
    rejected(exchange, FIRST, f"c=biws,r=clientnonceservernonce,{proof}")


def test_no_message_is_accepted_after_the_last_one() -> None:
    exchange = start(Users(credential("ana", "right")))
    log_in(exchange, client("ana", "right"))
    assert rejected(exchange, FIRST) is FailureReason.MALFORMED


def test_a_credential_that_changes_during_the_exchange_no_longer_authenticates() -> None:
    users = Users(credential("ana", "right"))
    exchange = start(users)
    final = final_for(exchange, "ana", "right")
    users.delete("ana")
    assert rejected(exchange, final) is FailureReason.CREDENTIALS


def test_delegation_tokens_are_rejected() -> None:
    users = Users(credential("ana", "right"))
    assert rejected(start(users), FIRST + ",tokenauth=true") is FailureReason.CREDENTIALS


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_random_messages_are_rejected_and_raise_nothing_else(first: bytes, final: bytes) -> None:
    exchange = start(Users())
    for message in (first, b"n,,n=ana,r=" + first, FIRST.encode(), b"c=biws,r=clientnonceservernonce,p=" + final):
        try:
            step = exchange.respond(message)
        except AuthenticationRejected:
            continue
        assert step.identity is None


@given(
    st.lists(st.sampled_from([*"nypa=,rcs", "n=ana", "r=x", "c=biws", "a=ana", "p=", "=2C", "\0", "é"]), max_size=20)
)
def test_random_grammar_is_rejected_and_raises_nothing_else(parts: list[str]) -> None:
    exchange = start(Users(credential("ana", "right")))
    for message in ("".join(parts), FIRST, "".join(parts)):
        try:
            assert exchange.respond(message.encode()).identity is None
        except AuthenticationRejected:
            continue


def test_the_client_detects_a_server_that_does_not_know_the_password() -> None:
    impostor = Users(credential("ana", "guess"))
    exchange = start(impostor)
    one = client("ana", "right")
    with pytest.raises((AuthenticationRejected, AuthenticationFailed)):
        log_in(exchange, one)


def test_cve_2021_38153_keys_are_compared_in_constant_time() -> None:
    right = credential("ana", "right")
    users = Users(msgspec.structs.replace(right, stored_key=Incomparable(right.stored_key)))
    with pytest.raises(AuthenticationRejected, match="wrong password"):
        log_in(start(users), client("ana", "wrong"))
