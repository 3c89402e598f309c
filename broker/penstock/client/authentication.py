"""The messages of SASL on a connection: which mechanism, then its exchange (KIP-43, KIP-152, KIP-368).

`Connection.open` calls it once versions are negotiated and before anything else is sent.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from penstock.client.errors import AuthenticationFailed, BrokerError
from penstock.client.sasl import exchange
from penstock.client.security import Sasl
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from penstock.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from penstock.wire.schema import Payload

R = TypeVar("R", bound=Payload)

MAX_STEPS = 8
"""More messages than any mechanism here needs: where a broker goes on beyond, it never means to end."""


class SaslTransport(Protocol):
    """A connection, as far as it is needed here."""

    @property
    def address(self) -> str: ...

    def serves(self, request: type[Payload]) -> bool: ...

    async def call(self, request: Payload, response: type[R]) -> R: ...


async def authenticate(connection: SaslTransport, sasl: Sasl) -> int:
    """Returns for how long the broker takes it, in ms; 0 where that has no end.

    Raises `AuthenticationFailed` with the broker's reason, and what it offers where the mechanism is not among that.
    """
    address = connection.address
    if not (connection.serves(SaslHandshakeRequest) and connection.serves(SaslAuthenticateRequest)):
        raise AuthenticationFailed(f"{address}: the broker knows no SASL: leave the credentials out for it")
    await _choose(connection, sasl)
    steps = exchange(sasl)
    lifetime_ms = 0
    try:
        token: bytes | None = steps.begin()
        for _ in range(MAX_STEPS):
            if token is None:
                break
            answer = await connection.call(SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse)
            if answer.error_code:
                raise AuthenticationFailed(_reason(answer, sasl))
            lifetime_ms = answer.session_lifetime_ms
            token = steps.answer(answer.auth_bytes)
    except AuthenticationFailed as e:
        raise AuthenticationFailed(f"{address}: {e}") from None
    if not steps.finished:
        raise AuthenticationFailed(f"{address}: {sasl.mechanism} did not come to an end in {MAX_STEPS} messages")
    return max(lifetime_ms, 0)


async def _choose(connection: SaslTransport, sasl: Sasl) -> None:
    answer = await connection.call(SaslHandshakeRequest(mechanism=sasl.mechanism), SaslHandshakeResponse)
    if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        offers = ", ".join(answer.mechanisms) or "none"
        raise AuthenticationFailed(
            f"{connection.address}: the broker does not take {sasl.mechanism} here; it offers {offers}"
        )
    if answer.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        raise AuthenticationFailed(
            f"{connection.address}: this listener asks for no SASL: leave the credentials out, or use the port of one "
            "that does"
        )
    if answer.error_code:
        raise BrokerError(answer.error_code, f"{connection.address}: SASL handshake")


def _reason(answer: SaslAuthenticateResponse, sasl: Sasl) -> str:
    if answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED:
        said = answer.error_message or "authentication failed"
        cure = f"check name and password, and that the user has credentials for {sasl.mechanism}"
        return f"user {sasl.username!r} was refused by {sasl.mechanism}: {said[:300]} ({cure})"
    return str(BrokerError(answer.error_code, sasl.mechanism, answer.error_message))
