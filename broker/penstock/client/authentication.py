"""SASL authentication of a connection: handshake and token exchange (KIP-43, KIP-152, KIP-368).

`ClientConnection.open` calls it after version negotiation and before any other request.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, TypeVar

from penstock.client.errors import AuthenticationFailed, BrokerError
from penstock.client.sasl import SaslExchange, start_exchange
from penstock.client.security import Sasl
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from penstock.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from penstock.wire.schema import Payload

R = TypeVar("R", bound=Payload)

MAX_TOKENS = 8
"""Limit of token exchanges, above what any supported mechanism needs."""


class SaslTransport(Protocol):
    """The part of a connection that authentication uses."""

    @property
    def address(self) -> str:
        """Return the broker's address."""

    def serves(self, request: type[Payload]) -> bool:
        """Return whether the broker supports an API."""

    async def call(self, request: Payload, response: type[R]) -> R:
        """Send a request and return its response."""


async def authenticate(connection: SaslTransport, sasl: Sasl) -> int:
    """Authenticate and return the session lifetime in ms; 0 if unlimited.

    Raises `AuthenticationFailed` with the broker's reason; for an unsupported mechanism, with those it offers.
    """
    address = connection.address
    if not (connection.serves(SaslHandshakeRequest) and connection.serves(SaslAuthenticateRequest)):
        raise AuthenticationFailed(f"{address}: the broker does not support SASL; connect without credentials")
    exchange = start_exchange(sasl, "" if sasl.tokens is None else await sasl.tokens.token())
    await _select_mechanism(connection, sasl)
    lifetime_ms = 0
    try:
        token: bytes | None = exchange.first_message()
        for _ in range(MAX_TOKENS):
            if token is None:
                break
            response = await connection.call(SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse)
            if response.error_code:
                raise AuthenticationFailed(_reason(response, sasl))
            lifetime_ms = response.session_lifetime_ms
            token = await _respond(exchange, response.auth_bytes)
    except AuthenticationFailed as e:
        raise AuthenticationFailed(f"{address}: {e}") from None
    if not exchange.finished:
        raise AuthenticationFailed(f"{address}: {sasl.mechanism} did not finish within {MAX_TOKENS} messages")
    return max(lifetime_ms, 0)


async def _respond(exchange: SaslExchange, challenge: bytes) -> bytes | None:
    """Return the response to a challenge, computed in a thread if that takes long: brokers log in to each other, and
    the server chooses the number of iterations of SCRAM."""
    if exchange.is_slow:
        return await asyncio.to_thread(exchange.respond, challenge)
    return exchange.respond(challenge)


async def _select_mechanism(connection: SaslTransport, sasl: Sasl) -> None:
    response = await connection.call(SaslHandshakeRequest(mechanism=sasl.mechanism), SaslHandshakeResponse)
    if response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        offers = ", ".join(response.mechanisms) or "none"
        raise AuthenticationFailed(
            f"{connection.address}: the broker does not accept {sasl.mechanism}; use one of: {offers}"
        )
    if response.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        raise AuthenticationFailed(
            f"{connection.address}: this listener does not use SASL; connect without credentials, or use one with SASL"
        )
    if response.error_code:
        raise BrokerError(response.error_code, f"{connection.address}: SASL handshake")


def _reason(response: SaslAuthenticateResponse, sasl: Sasl) -> str:
    if response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED:
        reason = response.error_message or "authentication failed"
        if sasl.tokens is not None:
            return f"{sasl.mechanism} rejected the token: {reason[:300]}; check its issuer, audience and expiry"
        hint = f"check name and password, and that the user has credentials for {sasl.mechanism}"
        return f'{sasl.mechanism} rejected user "{sasl.username}": {reason[:300]}; {hint}'
    return str(BrokerError(response.error_code, sasl.mechanism, response.error_message))
