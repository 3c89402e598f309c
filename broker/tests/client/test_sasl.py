"""SASL without a socket: the examples of the RFCs, and brokers that do not prove their identity."""

from __future__ import annotations

import base64

import pytest

from penstock.client import AuthenticationFailed, Sasl
from penstock.client.sasl import MAX_ITERATIONS, Plain, Scram, escape_name, new_nonce, start_exchange

NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def scram() -> Scram:
    """Return the exchange of RFC 7677's example after the client's first message."""
    made = Scram(Sasl("SCRAM-SHA-256", "user", "pencil"), "sha256", lambda: NONCE)
    assert made.first_message() == b"n,,n=user,r=" + NONCE.encode()
    return made


def test_the_example_of_rfc_7677_comes_out_to_the_byte() -> None:
    made = scram()
    assert made.respond(SERVER_FIRST) == CLIENT_FINAL
    assert not made.finished
    assert made.respond(SERVER_FINAL) is None
    assert made.finished


def test_the_example_of_rfc_5802_comes_out_with_its_digest() -> None:
    made = Scram(Sasl("SCRAM-SHA-256", "user", "pencil"), "sha1", lambda: "fyko+d2lbbFgONRv9qkxdawL")
    first = b"r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096"
    assert made.respond(first) == (
        b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts="
    )
    assert made.respond(b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ=") is None
    assert made.finished


def test_sha_512_is_longer() -> None:
    made = start_exchange(Sasl("SCRAM-SHA-512", "user", "pencil"))
    nonce = made.first_message().partition(b"r=")[2]
    final = made.respond(b"r=" + nonce + b"x,s=c2FsdA==,i=4096")
    assert final is not None
    assert len(base64.b64decode(final.partition(b"p=")[2])) == 64


@pytest.mark.parametrize(
    ("first", "complaint"),
    [
        (b"r=another-clients-nonce-of-length,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "does not continue"),
        (b"r=" + NONCE.encode() + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "does not continue"),
        (b"r=,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "does not continue"),
        (SERVER_FIRST.replace(b"4096", b"4095"), "4095 iterations; 4096 to"),
        (SERVER_FIRST.replace(b"4096", b"1"), "1 iterations"),
        (SERVER_FIRST.replace(b"4096", str(MAX_ITERATIONS + 1).encode()), "iterations"),
        (SERVER_FIRST.replace(b"4096", b"9" * 1000), "not a number"),
        (SERVER_FIRST.replace(b"4096", b"-4096"), "not a number"),
        (SERVER_FIRST.replace(b"4096", "٤٠٩٦".encode()), "not a number"),
        (SERVER_FIRST.replace(b"W22Z", b"!!!!"), "not base64"),
        (SERVER_FIRST.replace(b"s=W22ZaJ0SNY7soEsUEjb6gQ==", b"s="), "not base64"),
        (b"m=ext," + SERVER_FIRST, "mandatory extension"),
        (b"e=unknown-user", "unknown-user"),
        (b"", "without nonce"),
        (b"r=,", "without nonce"),
        (b"\xff\xfe", "not UTF-8"),
        (b"r" * 100_000, "a message of 100000 bytes"),
    ],
)
def test_a_first_message_that_breaks_the_rules_is_refused(first: bytes, complaint: str) -> None:
    with pytest.raises(AuthenticationFailed, match=complaint):
        scram().respond(first)


@pytest.mark.parametrize(
    ("final", "complaint"),
    [
        (b"v=" + base64.b64encode(b"x" * 32), "does not know the password"),
        (b"v=" + base64.b64encode(b"short"), "does not know the password"),
        (b"v=", "not base64"),
        (b"", "without signature"),
        (b"e=invalid-proof", "invalid-proof"),
    ],
)
def test_a_broker_that_cannot_prove_itself_is_refused(final: bytes, complaint: str) -> None:
    made = scram()
    made.respond(SERVER_FIRST)
    with pytest.raises(AuthenticationFailed, match=complaint):
        made.respond(final)
    assert not made.finished


def test_names_with_the_characters_that_structure_messages_are_escaped() -> None:
    assert escape_name("a=b,c") == "a=3Db=2Cc"
    made = Scram(Sasl("SCRAM-SHA-256", "a=b,c", "p"), "sha256", lambda: "n")
    assert made.first_message() == b"n,,n=a=3Db=2Cc,r=n"


def test_nonces_are_printable_and_never_the_same() -> None:
    nonces = {new_nonce() for _ in range(100)}
    assert len(nonces) == 100
    assert all(nonce.isascii() and "," not in nonce and len(nonce) >= 24 for nonce in nonces)


def test_plain_says_name_and_password_once() -> None:
    made = Plain(Sasl("PLAIN", "jürgen", "geheim"))
    assert made.first_message() == "\0jürgen\0geheim".encode()
    assert made.respond(b"") is None
    assert made.finished


@pytest.mark.parametrize(("name", "password"), [("", "p"), ("a\0b", "p"), ("a", "p\0q")])
def test_plain_refuses_what_would_be_read_as_something_else(name: str, password: str) -> None:
    with pytest.raises(AuthenticationFailed, match="NUL"):
        Plain(Sasl("PLAIN", name, password)).first_message()


def test_an_unknown_mechanism_names_those_that_there_are() -> None:
    with pytest.raises(ValueError, match="use one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"):
        Sasl("GSSAPI", "a", "b")


def test_no_secret_is_in_what_is_printed() -> None:
    sasl = Sasl("PLAIN", "alice", "geheim")
    for shown in (
        repr(sasl),
        str(sasl),
        repr(start_exchange(sasl)),
        repr(start_exchange(Sasl("SCRAM-SHA-256", "a", "geheim"))),
    ):
        assert "geheim" not in shown
