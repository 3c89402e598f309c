"""SASL mechanisms, without I/O: PLAIN (RFC 4616), SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), OAUTHBEARER
(RFC 7628).

`authentication` exchanges the messages. User names and passwords are UTF-8 and, as on Kafka brokers, not normalised
with SASLprep.
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

MIN_ITERATIONS, MAX_ITERATIONS = 4096, 1 << 18
"""Accepted iteration counts: the minimum of RFC 7677, and a limit on the client's CPU time."""
MAX_MESSAGE_BYTES = 16 * 1024
NONCE_BYTES = 24
GS2_HEADER = "n,,"
"""No channel binding, no authorization identity."""


class SaslExchange(Protocol):
    """The client side of one authentication. Raises `AuthenticationFailed` if the server's message is invalid."""

    @property
    def finished(self) -> bool:
        """Return whether the exchange is complete and verified."""

    @property
    def is_slow(self) -> bool:
        """Return whether the next `respond` takes milliseconds of CPU time, and should not run on an event loop."""

    def first_message(self) -> bytes:
        """Return the first message."""

    def respond(self, challenge: bytes) -> bytes | None:
        """Return the response to a challenge; None if there is none."""


def start_exchange(sasl: Sasl, token: str = "") -> SaslExchange:
    """Return a new exchange for the configured mechanism; `token` is that of OAUTHBEARER."""
    if sasl.mechanism == "OAUTHBEARER":
        return OauthBearer(token)
    if sasl.mechanism == "PLAIN":
        return Plain(sasl)
    return Scram(sasl, sasl.mechanism.removeprefix("SCRAM-").replace("-", "").lower())


class Plain:
    """The PLAIN mechanism (RFC 4616). The server's response has no content."""

    is_slow = False

    def __init__(self, sasl: Sasl) -> None:
        self._sasl = sasl
        self.finished = False

    def first_message(self) -> bytes:
        """Return user name and password. Raises `AuthenticationFailed` if they are not valid for PLAIN."""
        name, password = self._sasl.username, self._sasl.password
        if not name or "\0" in name or "\0" in password:
            raise AuthenticationFailed("PLAIN requires a non-empty user name, and no NUL in user name or password")
        return f"\0{name}\0{password}".encode()

    def respond(self, challenge: bytes) -> bytes | None:
        """Mark the exchange as finished."""
        self.finished = True
        return None


class OauthBearer:
    """The OAUTHBEARER mechanism (RFC 7628). A response with content is an error."""

    is_slow = False

    def __init__(self, token: str) -> None:
        self._token = token
        self.finished = False

    def first_message(self) -> bytes:
        """Return the token."""
        return f"n,,\x01auth=Bearer {self._token}\x01\x01".encode()

    def respond(self, challenge: bytes) -> bytes | None:
        """Mark the exchange as finished, or acknowledge an error, which the server then repeats as its failure."""
        if challenge:
            return b"\x01"
        self.finished = True
        return None


class Scram:
    """The SCRAM mechanisms (RFC 5802). `digest` is a hashlib name. Both sides prove that they know the password."""

    def __init__(self, sasl: Sasl, digest: str, make_nonce: Callable[[], str] | None = None) -> None:
        self._sasl, self._digest = sasl, digest
        self._nonce = (make_nonce or new_nonce)()
        self._first = f"n={escape_name(sasl.username)},r={self._nonce}"
        self._server_signature: bytes | None = None
        self.finished = False

    @property
    def is_slow(self) -> bool:
        """Return whether the password is not salted yet."""
        return self._server_signature is None

    def first_message(self) -> bytes:
        """Return the client-first message."""
        return (GS2_HEADER + self._first).encode()

    def respond(self, challenge: bytes) -> bytes | None:
        """Return the client-final message, or verify the server-final message and return None."""
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
        """Return the client-final message. Raises for an invalid nonce or iteration count."""
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
        self._raise_server_error(text)
        # Attributes are in this order; extensions may only follow (RFC 5802, section 7).
        parts = text.split(",")
        if len(parts) < 3 or [part[:2] for part in parts[:3]] != ["r=", "s=", "i="]:
            raise self._failed("a first message without nonce, salt and iteration count")
        nonce, salt, count = (part[2:] for part in parts[:3])
        ours = nonce[: len(self._nonce)].encode()
        if len(nonce) <= len(self._nonce) or not hmac.compare_digest(ours, self._nonce.encode()):
            raise self._failed("a nonce that does not continue this client's")
        if not (count.isascii() and count.isdecimal() and len(count) < 10):
            raise self._failed("an iteration count that is not a number")
        iterations = int(count)
        if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise self._failed(f"{iterations} iterations; {MIN_ITERATIONS} to {MAX_ITERATIONS} are allowed")
        return nonce, self._base64(salt, "salt"), iterations

    def _verify(self, server_final: str) -> None:
        self._raise_server_error(server_final)
        given = server_final.split(",")[0]
        if not given.startswith("v="):
            raise self._failed("a final message without signature")
        assert self._server_signature is not None, "server-final message before server-first"
        if not hmac.compare_digest(self._base64(given[2:], "signature"), self._server_signature):
            raise self._failed("an invalid signature: it does not know the password")
        self.finished = True

    def _raise_server_error(self, text: str) -> None:
        if text.startswith("e="):
            raise AuthenticationFailed(f'{self._sasl.mechanism}: the broker returned the error "{text[2:202]}"')
        if text.startswith("m="):
            raise self._failed("a mandatory extension that this client does not support")

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
    """Return a random nonce."""
    return secrets.token_urlsafe(NONCE_BYTES)


def escape_name(name: str) -> str:
    """Escape a user name for a SCRAM message, where commas and equals signs are separators."""
    return name.replace("=", "=3D").replace(",", "=2C")
