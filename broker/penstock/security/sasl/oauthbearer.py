"""OAUTHBEARER (RFC 7628): the client sends a signed token of an identity provider.

For an invalid token the server sends an error as JSON, and fails when the client has acknowledged it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable

from penstock.security.sasl.exchange import (
    AuthenticationRejected,
    FailureReason,
    Identity,
    Step,
    malformed,
    text_of,
)
from penstock.security.sasl.token import MAX_TOKEN_BYTES, TokenValidator

SEPARATOR = "\x01"
INVALID_TOKEN = b'{"status":"invalid_token"}'
AUTH_SCHEME = re.compile(r"bearer +([A-Za-z0-9._~+/=-]+)", re.IGNORECASE)
MAX_INITIAL_BYTES = MAX_TOKEN_BYTES + 16 * 1024
"""Maximum size of the client's first message: token, authorization identity and extensions (KIP-342)."""


class OauthBearerMechanism:
    """The OAUTHBEARER mechanism of a listener."""

    name = "OAUTHBEARER"

    def __init__(self, validator: TokenValidator) -> None:
        self.validator = validator

    def start(self) -> OauthBearerExchange:
        """Return a new exchange."""
        return OauthBearerExchange(self.validator)


class OauthBearerExchange:
    """One authentication: one message with the token, and the client's acknowledgement if it is invalid."""

    def __init__(self, validator: TokenValidator) -> None:
        self._validator = validator
        self._is_started = False
        self._rejected: AuthenticationRejected | None = None

    def respond(self, message: bytes) -> Step | Awaitable[Step]:
        """Return the identity, or the error as JSON."""
        if self._rejected is not None:
            raise self._rejected
        if self._is_started:
            raise malformed("message after the end of the exchange")
        self._is_started = True
        authzid, token = parse_initial(text_of(message, MAX_INITIAL_BYTES))
        return self._validate(authzid, token)

    async def _validate(self, authzid: str, token: str) -> Step:
        try:
            return Step(identity=check_authzid(authzid, await self._validator.validate(token)))
        except AuthenticationRejected as e:
            self._rejected = e
            return Step(INVALID_TOKEN, rejection=e)


def check_authzid(authzid: str, identity: Identity) -> Identity:
    """Return the identity. Raises `AuthenticationRejected` if the client asks for another (CVE-2017-12610)."""
    if authzid and authzid != identity.principal.name:
        raise AuthenticationRejected(FailureReason.TOKEN, "authorization identity differs from the token's")
    return identity


def parse_initial(text: str) -> tuple[str, str]:
    """Return (authorization identity or "", token) of the first message. Raises `AuthenticationRejected`."""
    header, separator, rest = text.partition(SEPARATOR)
    parts = header.split(",")
    if not separator or len(parts) != 3 or parts[0] not in ("n", "y") or parts[2]:
        raise malformed("first message without a header")
    authzid = parts[1]
    if authzid and not authzid.startswith("a="):
        raise malformed("first message with an invalid authorization identity")
    if not rest.endswith(SEPARATOR * 2):
        raise malformed("first message without its end")
    pairs = [pair.partition("=") for pair in rest[:-2].split(SEPARATOR)]
    values = [value for key, _, value in pairs if key == "auth"]
    if len(values) != 1 or not all(equals for _, equals, _ in pairs):
        raise malformed("first message without exactly one token")
    found = AUTH_SCHEME.fullmatch(values[0])
    if found is None:
        raise malformed("first message without a bearer token")
    return authzid[2:].replace("=2C", ",").replace("=3D", "="), found[1]
