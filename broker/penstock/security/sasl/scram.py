"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), without channel binding.

Names are UTF-8 and, as on Kafka brokers, not normalised with SASLprep. Both sides prove that they know the password;
the broker has only keys derived from it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from typing import NamedTuple

from penstock.security.credentials import ScramCredentials
from penstock.security.sasl.exchange import (
    AuthenticationRejected,
    FailureReason,
    Identity,
    Step,
    malformed,
    text_of,
    user_principal,
)
from penstock.security.scram_keys import DIGESTS
from penstock.state.security_records import ScramCredentialRecord

NONCE_BYTES = 24
CLIENT_NONCE = re.compile(r"[!-+\--~]{1,256}")
"""Printable ASCII without the comma."""
ESCAPE = re.compile(r"=(?!2C|3D)")
"""An equals sign that starts no escape sequence."""


class ClientFirst(NamedTuple):
    """The parts of a client-first message: `gs2_header` and `bare` as they were sent."""

    gs2_header: str
    bare: str
    name: str
    nonce: str


class ScramMechanism:
    """A SCRAM mechanism, with the credentials of the cluster."""

    def __init__(self, name: str, credentials: ScramCredentials, make_nonce: Callable[[], str] | None = None) -> None:
        assert name in DIGESTS, f"{name} is a SCRAM mechanism"
        self.name = name
        self.credentials = credentials
        self.make_nonce = make_nonce or new_nonce

    def start(self) -> ScramExchange:
        """Return a new exchange."""
        return ScramExchange(self)


class ScramExchange:
    """One authentication of two messages."""

    def __init__(self, mechanism: ScramMechanism) -> None:
        self._mechanism, self._digest = mechanism, DIGESTS[mechanism.name]
        self._first: ClientFirst | None = None
        self._credential: ScramCredentialRecord | None = None
        self._is_known = False
        self._nonce = self._server_first = ""
        self._is_over = False

    def respond(self, message: bytes) -> Step:
        """Return the server-first message, then the server-final one with the identity."""
        if self._is_over:
            raise malformed("message after the end of the exchange")
        text = text_of(message)
        if self._first is None:
            return Step(self._challenge(text))
        self._is_over = True
        return self._verify(self._first, text)

    def _challenge(self, text: str) -> bytes:
        first = parse_client_first(text)
        user_principal(first.name)
        credentials, mechanism = self._mechanism.credentials, self._mechanism.name
        decoy = credentials.decoy(first.name, mechanism)  # also for known users, so that both take the same time
        found = credentials.find(first.name, mechanism)
        self._is_known = found is not None
        self._credential = found or decoy
        self._first = first
        self._nonce = first.nonce + self._mechanism.make_nonce()
        salt = base64.b64encode(self._credential.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={self._credential.iterations}"
        return self._server_first.encode()

    def _verify(self, first: ClientFirst, text: str) -> Step:
        credential = self._credential
        assert credential is not None, "client-final message before client-first"
        unsigned, proof = parse_client_final(text, first, self._nonce)
        signed = f"{first.bare},{self._server_first},{unsigned}".encode()
        signature = hmac.digest(credential.stored_key, signed, self._digest)
        if len(proof) != len(signature):
            raise malformed("proof of an invalid size")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        is_proven = hmac.compare_digest(hashlib.new(self._digest, client_key).digest(), credential.stored_key)
        current = self._mechanism.credentials.find(first.name, self._mechanism.name)
        if not (is_proven and self._is_known and current == credential):
            raise AuthenticationRejected(FailureReason.CREDENTIALS, "unknown user or wrong password")
        verifier = base64.b64encode(hmac.digest(credential.server_key, signed, self._digest))
        return Step(b"v=" + verifier, Identity(user_principal(first.name)))


def parse_client_first(text: str) -> ClientFirst:
    """Parse a client-first message. Raises `AuthenticationRejected`.

    Channel binding is not offered, and an authorization identity must equal the name (CVE-2017-12610).
    """
    parts = text.split(",")
    if len(parts) < 4:
        raise malformed("client-first message without a header, name and nonce")
    flag, authzid, name, nonce = parts[:4]
    if flag not in ("n", "y"):
        raise malformed("channel binding is not supported")
    if not name.startswith("n=") or not nonce.startswith("r="):
        raise malformed("client-first message without name and nonce, or with a mandatory extension")
    if authzid and (not authzid.startswith("a=") or authzid[2:] != name[2:]):
        raise AuthenticationRejected(FailureReason.CREDENTIALS, "authorization identity differs from the name")
    if not CLIENT_NONCE.fullmatch(nonce[2:]):
        raise malformed("client nonce with invalid characters or length")
    if "tokenauth=true" in parts[4:]:
        raise AuthenticationRejected(FailureReason.CREDENTIALS, "delegation tokens are not supported")
    return ClientFirst(f"{flag},{authzid},", text.split(",", 2)[2], unescape_name(name[2:]), nonce[2:])


def parse_client_final(text: str, first: ClientFirst, nonce: str) -> tuple[str, bytes]:
    """Return (the message without proof, proof). Raises `AuthenticationRejected`.

    The nonce must be exactly the one of the server-first message (CVE-2024-56128), compared in constant time.
    """
    unsigned, comma, last = text.rpartition(",")
    parts = unsigned.split(",")
    if not comma or len(parts) < 2 or not last.startswith("p="):
        raise malformed("client-final message without channel binding, nonce and proof")
    binding, returned = parts[:2]
    if binding != "c=" + base64.b64encode(first.gs2_header.encode()).decode():
        raise malformed("channel binding differs from the first message")
    if not returned.startswith("r=") or not hmac.compare_digest(returned[2:].encode(), nonce.encode()):
        raise malformed(describe_wrong_nonce(returned, first.nonce + nonce))
    try:
        return unsigned, base64.b64decode(last[2:].encode(), validate=True)
    except (binascii.Error, ValueError):
        raise malformed("proof is not base64") from None


def describe_wrong_nonce(returned: str, repeated: str) -> str:
    """Return why the nonce of a client-final message is refused. `repeated` starts with the client's nonce twice."""
    if returned == "r=" + repeated:  # librdkafka before 2.6.1; Kafka 4 refuses it, too
        return "the client repeats its nonce; update librdkafka to 2.6.1 or newer, or use PLAIN with TLS"
    return "nonce differs from the server's"


def unescape_name(name: str) -> str:
    """Return the name of a `saslname`. Raises `AuthenticationRejected`."""
    if ESCAPE.search(name) or "\0" in name:
        raise malformed("name with an invalid escape sequence")
    return name.replace("=2C", ",").replace("=3D", "=")


def new_nonce() -> str:
    """Return a random nonce."""
    return secrets.token_urlsafe(NONCE_BYTES)
