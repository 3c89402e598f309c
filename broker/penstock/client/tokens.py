"""Tokens for OAUTHBEARER: a fixed one, a file, a function, or an identity provider's token endpoint (RFC 6749).

`authentication` asks for a token at each login, so that a re-authentication has a new one.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import quote_plus, urlsplit

import msgspec

from penstock.client.errors import AuthenticationFailed

MAX_TOKEN_BYTES = 64 * 1024
MAX_RESPONSE_BYTES = 256 * 1024
TIMEOUT_S = 10.0
RENEWAL_SHARE = 0.8
"""Share of a token's lifetime after which another is requested."""

TokenProvider = Callable[[], str | Awaitable[str]]
"""Returns a token."""


class TokenSource(Protocol):
    """Where the tokens of a client come from."""

    async def token(self) -> str:
        """Return a valid token. Raises `AuthenticationFailed`."""


class TokenResponse(msgspec.Struct):
    """The response of a token endpoint."""

    access_token: str
    expires_in: float | None = None

    def __repr__(self) -> str:
        return f"TokenResponse(expires_in={self.expires_in})"  # without the token


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A file with a token, read at each login: others may replace it, as Kubernetes does."""

    path: str

    async def token(self) -> str:
        """Return the content of the file."""
        return await asyncio.to_thread(self._read)

    def _read(self) -> str:
        try:
            with open(self.path, "rb") as file:
                return checked_token(file.read(MAX_TOKEN_BYTES + 1).decode().strip())
        except (OSError, UnicodeDecodeError) as e:
            why = e.strerror if isinstance(e, OSError) else "it is not UTF-8"
            raise AuthenticationFailed(f'cannot read the token file "{self.path}": {why}') from None


@dataclass(frozen=True, slots=True)
class ProvidedTokens:
    """Tokens that a function of the application returns, or a coroutine function."""

    provide: TokenProvider

    async def token(self) -> str:
        """Call the function."""
        found = self.provide()
        return checked_token(await found if inspect.isawaitable(found) else found)


@dataclass(slots=True)
class ClientCredentials:
    """Tokens of an identity provider for a client id and its secret. A token is used until most of its life is over.

    `url` is the token endpoint, https only; `ca_file` has CA certificates, None for the system's.
    """

    url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str | None = None
    ca_file: str | None = None
    _token: str | None = field(default=None, repr=False, init=False)
    _renew_at_s: float = field(default=0.0, repr=False, init=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme != "https" or not parts.hostname or parts.username:
            raise ValueError(f'invalid token endpoint "{self.url}"; use https://HOST/PATH')

    async def token(self) -> str:
        """Return the present token, or request another."""
        now_s = time.monotonic()
        if self._token is not None and now_s < self._renew_at_s:
            return self._token
        response = await self._request()
        self._token = checked_token(response.access_token)
        self._renew_at_s = now_s + RENEWAL_SHARE * (response.expires_in or 0.0)
        return self._token

    async def _request(self) -> TokenResponse:
        import aiohttp  # a client without tokens does not need it

        form = {"grant_type": "client_credentials"} | ({} if self.scope is None else {"scope": self.scope})
        login = f"{quote_plus(self.client_id)}:{quote_plus(self.client_secret)}".encode()
        headers = {"Authorization": f"Basic {base64.b64encode(login).decode()}"}
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
                session.post(self.url, data=form, allow_redirects=False, ssl=self._context()) as response,
            ):
                body = await response.content.read(MAX_RESPONSE_BYTES)
                if response.status != 200:
                    raise AuthenticationFailed(f'"{self.url}" responded with status {response.status}')
                return msgspec.json.decode(body, type=TokenResponse)
        except (msgspec.MsgspecError, RecursionError):
            raise AuthenticationFailed(f'the response of "{self.url}" contains no token') from None
        except (aiohttp.ClientError, OSError, TimeoutError) as e:
            raise AuthenticationFailed(f'cannot request a token from "{self.url}": {str(e) or "timeout"}') from None

    def _context(self) -> ssl.SSLContext | bool:
        return True if self.ca_file is None else ssl.create_default_context(cafile=self.ca_file)


def checked_token(token: str) -> str:
    """Return a token. Raises `AuthenticationFailed` if it cannot be sent."""
    if not token or len(token) > MAX_TOKEN_BYTES or not token.isascii() or not token.isprintable() or " " in token:
        raise AuthenticationFailed("the token is empty, too long, or contains spaces or control characters")
    return token
