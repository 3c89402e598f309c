"""Who may read the HTTP pages other than health: a client with the bearer token or with a certificate.

Health pages stay open, because Kubernetes probes them without credentials. Used by `app`.
"""

from __future__ import annotations

import asyncio
import hmac
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiohttp import web
from aiohttp.typedefs import Middleware

from penstock.runtime.logging import get_logger

if TYPE_CHECKING:
    from penstock.server.tls.listener_tls import ListenerTls

log = get_logger(__name__)

OPEN_PATHS = "/health/"
MAX_TOKEN_BYTES = 4096
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class HttpAccess:
    """The protection of the HTTP port, by default none. `token_file` contains the bearer token."""

    tls: ListenerTls | None = None
    token_file: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether clients need no credentials."""
        return self.token_file is None and not self.has_client_certificates

    @property
    def has_client_certificates(self) -> bool:
        """Whether a client certificate gives access."""
        return self.tls is not None and self.tls.settings.client_auth != "none"

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context of the port; each handshake uses the certificate that is loaded then."""
        tls = self.tls
        if tls is None:
            return None

        def use_present(session: ssl.SSLObject, name: str | None, first: ssl.SSLContext) -> None:
            session.context = tls.contexts.server

        context = tls.contexts.server
        context.sni_callback = use_present
        return context

    def middleware(self) -> Middleware:
        """Return the middleware that checks each request."""

        @web.middleware
        async def authorize(request: web.Request, handler: Handler) -> web.StreamResponse:
            if self.is_open or request.path.startswith(OPEN_PATHS) or await self.is_allowed(request):
                return await handler(request)
            return web.Response(
                status=401, text="credentials are missing or wrong\n", headers={"WWW-Authenticate": "Bearer"}
            )

        return authorize

    async def is_allowed(self, request: web.Request) -> bool:
        """Return whether the client has a trusted certificate or the token."""
        transport = request.transport
        if self.has_client_certificates and transport is not None and transport.get_extra_info("peercert"):
            return True
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if self.token_file is None or scheme.lower() != "bearer":
            return False
        try:
            token = await asyncio.to_thread(read_token, self.token_file)
        except OSError as e:
            log.error("cannot read the bearer token", file=self.token_file, error=str(e))
            return False
        return hmac.compare_digest(given.strip().encode(errors="replace"), token)


def read_token(path: str) -> bytes:
    """Return the token in a file, which may be replaced at any time. Raises OSError, also if the file is empty."""
    with open(path, "rb") as file:
        token = file.read(MAX_TOKEN_BYTES + 1).strip()
    if not token or len(token) > MAX_TOKEN_BYTES:
        raise OSError(f"the file must contain a token of 1 to {MAX_TOKEN_BYTES} bytes")
    return token
