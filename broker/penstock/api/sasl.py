"""SaslHandshake and SaslAuthenticate where they are not expected: on a listener without SASL, or after authentication.

`authentication` serves them where they are.
"""

from __future__ import annotations

from penstock.api.routes import RequestContext, Route
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from penstock.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


class UnexpectedSaslApi:
    """Answers with ILLEGAL_SASL_STATE."""

    def routes(self) -> list[Route]:
        """Return the routes of this API."""
        return [
            Route(SaslHandshakeRequest, self.handshake, failed_handshake),
            Route(SaslAuthenticateRequest, self.authenticate, failed_authenticate),
        ]

    def handshake(self, request: SaslHandshakeRequest, context: RequestContext) -> SaslHandshakeResponse:
        """Refuse: the listener does not use SASL."""
        return failed_handshake(request, ErrorCode.ILLEGAL_SASL_STATE)

    def authenticate(self, request: SaslAuthenticateRequest, context: RequestContext) -> SaslAuthenticateResponse:
        """Refuse: no SaslHandshake came before."""
        return failed_authenticate(request, ErrorCode.ILLEGAL_SASL_STATE)


def failed_handshake(request: SaslHandshakeRequest, error: int) -> SaslHandshakeResponse:
    """Return a response with an error."""
    return SaslHandshakeResponse(error_code=error)


def failed_authenticate(request: SaslAuthenticateRequest, error: int) -> SaslAuthenticateResponse:
    """Return a response with an error."""
    message = "SaslAuthenticate is not expected here: the listener does not use SASL, or SaslHandshake is missing"
    return SaslAuthenticateResponse(error_code=error, error_message=message)
