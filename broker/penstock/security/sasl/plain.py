"""PLAIN (RFC 4616): name and password in plain text, so only for listeners with TLS.

Users are those of the listener's JAAS configuration, as on Kafka brokers, and the users of the cluster with SCRAM
credentials. A name in the JAAS configuration takes precedence.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Mapping

from penstock.security.passwords import PasswordVerifier
from penstock.security.sasl.exchange import (
    AuthenticationRejected,
    FailureReason,
    Identity,
    Step,
    malformed,
    text_of,
    user_principal,
)


class PlainMechanism:
    """The PLAIN mechanism of a listener. `users` are passwords by name."""

    name = "PLAIN"

    def __init__(self, verifier: PasswordVerifier, users: Mapping[str, str]) -> None:
        self.verifier = verifier
        self.set_users(users)

    def set_users(self, users: Mapping[str, str]) -> None:
        """Replace the users for the next authentications."""
        self.users = {name: fingerprint(password) for name, password in users.items()}

    def start(self) -> PlainExchange:
        """Return a new exchange."""
        return PlainExchange(self)


class PlainExchange:
    """One authentication of one message."""

    def __init__(self, mechanism: PlainMechanism) -> None:
        self._mechanism = mechanism
        self._is_over = False

    def respond(self, message: bytes) -> Step | Awaitable[Step]:
        """Return the identity."""
        if self._is_over:
            raise malformed("message after the end of the exchange")
        self._is_over = True
        name, password = parse_plain(text_of(message))
        expected = self._mechanism.users.get(name)
        if expected is None:
            if self._mechanism.verifier.is_remembered(name, password):
                return accepted(name, True)
        elif hmac.compare_digest(expected, fingerprint(password)):
            return accepted(name, True)
        return self._verify(name, password)

    async def _verify(self, name: str, password: str) -> Step:
        """Verify in a thread; a wrong password of the JAAS configuration takes the same time."""
        is_right = await self._mechanism.verifier.verify(name, password)
        return accepted(name, is_right and name not in self._mechanism.users)


def parse_plain(text: str) -> tuple[str, str]:
    """Return (name, password). Raises `AuthenticationRejected`; see CVE-2017-12610 for the authorization identity."""
    parts = text.split("\0")
    if len(parts) != 3:
        raise malformed("message does not have three parts")
    authzid, name, password = parts
    user_principal(name)
    if not password:
        raise malformed("empty password")
    if authzid and authzid != name:
        raise AuthenticationRejected(FailureReason.CREDENTIALS, "authorization identity differs from the name")
    return name, password


def accepted(name: str, is_right: bool) -> Step:
    """Return the last step. Raises `AuthenticationRejected` if the password is not right."""
    if not is_right:
        raise AuthenticationRejected(FailureReason.CREDENTIALS, "unknown user or wrong password")
    return Step(identity=Identity(user_principal(name)))


def fingerprint(password: str) -> bytes:
    """Return a value of constant size, for the comparison in constant time."""
    return hashlib.sha256(password.encode()).digest()
