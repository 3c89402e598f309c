"""Proving who one is, without a socket: PLAIN (RFC 4616), SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677).

`authentication` carries the messages. Names and passwords are UTF-8 as they are given: brokers of this protocol do not
normalise them (SASLprep), so neither does this side.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import Protocol

from penstock.client.errors import AuthenticationFailed
from penstock.client.security import Sasl

LEAST_ITERATIONS, MOST_ITERATIONS = 4096, 1 << 18
"""What a server may ask for (RFC 7677 has the least): fewer protect too little, more would keep the client busy."""
MAX_MESSAGE_BYTES = 16 * 1024
NONCE_BYTES = 24
GS2_HEADER = "n,,"
"""No channel binding, no authorization identity."""


class SaslExchange(Protocol):
    """One side of one authentication. Raises `AuthenticationFailed` where the server's word does not hold."""

    @property
    def finished(self) -> bool:
        """Whether all that the mechanism wants was said and checked."""

    def begin(self) -> bytes:
        """What to send first."""

    def answer(self, challenge: bytes) -> bytes | None:
        """What to send next, None for nothing more."""


def exchange(sasl: Sasl) -> SaslExchange:
    """A new authentication by the mechanism that was chosen."""
    if sasl.mechanism == "PLAIN":
        return Plain(sasl)
    return Scram(sasl, sasl.mechanism.removeprefix("SCRAM-").replace("-", "").lower())


class Plain:
    """RFC 4616; the server's word is the error code beside it."""

    def __init__(self, sasl: Sasl) -> None:
        self._sasl = sasl
        self.finished = False

    def begin(self) -> bytes:
        name, password = self._sasl.username, self._sasl.password
        if not name or "\0" in name or "\0" in password:
            raise AuthenticationFailed("PLAIN takes a username that is not empty, and no NUL in name or password")
        return f"\0{name}\0{password}".encode()

    def answer(self, challenge: bytes) -> bytes | None:
        self.finished = True
        return None


class Scram:
    """RFC 5802 with `digest` (a name of hashlib's): both sides prove that they know the password, neither tells it."""

    def __init__(self, sasl: Sasl, digest: str, make_nonce: Callable[[], str] | None = None) -> None:
        self._sasl, self._digest = sasl, digest
        self._nonce = (make_nonce or new_nonce)()
        self._first = f"n={escaped(sasl.username)},r={self._nonce}"
        self._server_signature: bytes | None = None
        self.finished = False

    def begin(self) -> bytes:
        return (GS2_HEADER + self._first).encode()

    def answer(self, challenge: bytes) -> bytes | None:
        if len(challenge) > MAX_MESSAGE_BYTES:
            raise self._failed(f"a message of {len(challenge)} bytes")
        try:
            text = challenge.decode()
        except UnicodeDecodeError:
            raise self._failed("a message that is not UTF-8") from None
        if self._server_signature is None:
            return self._prove(text)
        self._verify(text)
        return None

    def _prove(self, server_first: str) -> bytes:
        """The client's final message. Raises for a nonce that does not begin with ours, or a count out of bounds."""
        nonce, salt, iterations = self._read_first(server_first)
        salted = hashlib.pbkdf2_hmac(self._digest, self._sasl.password.encode(), salt, iterations)
        client_key = self._hmac(salted, b"Client Key")
        stored_key = hashlib.new(self._digest, client_key).digest()
        without_proof = f"c={base64.b64encode(GS2_HEADER.encode()).decode()},r={nonce}"
        signed = f"{self._first},{server_first},{without_proof}".encode()
        signature = self._hmac(stored_key, signed)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._server_signature = self._hmac(self._hmac(salted, b"Server Key"), signed)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def _read_first(self, text: str) -> tuple[str, bytes, int]:
        self._refuse_error(text)
        # Attributes stand in this order; others may follow (RFC 5802, section 7), but none before them.
        parts = text.split(",")
        if len(parts) < 3 or [part[:2] for part in parts[:3]] != ["r=", "s=", "i="]:
            raise self._failed("a first message without nonce, salt and iteration count")
        nonce, salt, count = (part[2:] for part in parts[:3])
        ours = nonce[: len(self._nonce)].encode()
        if len(nonce) <= len(self._nonce) or not hmac.compare_digest(ours, self._nonce.encode()):
            raise self._failed("a nonce that does not continue this client's")
        if not (count.isascii() and count.isdecimal() and len(count) < 10):
            raise self._failed("an iteration count that is no number")
        iterations = int(count)
        if not LEAST_ITERATIONS <= iterations <= MOST_ITERATIONS:
            raise self._failed(f"{iterations} iterations: from {LEAST_ITERATIONS} to {MOST_ITERATIONS} are allowed")
        return nonce, self._base64(salt, "salt"), iterations

    def _verify(self, server_final: str) -> None:
        self._refuse_error(server_final)
        given = server_final.split(",")[0]
        if not given.startswith("v="):
            raise self._failed("a last message without signature")
        assert self._server_signature is not None, "the server's last message before its first"
        if not hmac.compare_digest(self._base64(given[2:], "signature"), self._server_signature):
            raise self._failed("a wrong signature: it does not know the password")
        self.finished = True

    def _refuse_error(self, text: str) -> None:
        if text.startswith("e="):
            raise AuthenticationFailed(f"{self._sasl.mechanism}: the broker says {text[2:202]!r}")
        if text.startswith("m="):
            raise self._failed("an extension that it insists on and this client does not know")

    def _base64(self, text: str, what: str) -> bytes:
        try:
            found = base64.b64decode(text.encode(), validate=True)
        except (binascii.Error, ValueError):
            found = b""
        if not found:
            raise self._failed(f"a {what} that is not base64")
        return found

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._digest)

    def _failed(self, what: str) -> AuthenticationFailed:
        return AuthenticationFailed(f"{self._sasl.mechanism}: the broker sent {what}")


def new_nonce() -> str:
    return secrets.token_urlsafe(NONCE_BYTES)


def escaped(name: str) -> str:
    """A name as it stands in a message, which commas and equals signs structure."""
    return name.replace("=", "=3D").replace(",", "=2C")
