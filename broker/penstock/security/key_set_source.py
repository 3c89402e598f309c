"""Fetches JSON Web Key Sets from a file or an HTTPS address, bounded in time and size.

The address must be on the allow-list: a setting must not make the broker read files or call internal services at the
choice of who may change it (CVE-2025-27817). Redirects are not followed.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Collection
from typing import Protocol
from urllib.parse import unquote, urlsplit

from penstock.config.definition import InvalidSetting
from penstock.security.sasl.jwks import FetchKeySet, KeySetUnavailable

MAX_DOCUMENT_BYTES = 1 << 20
TIMEOUT_S = 10.0


def key_set_source(url: str, allowed: Collection[str], context: ssl.SSLContext | None = None) -> FetchKeySet:
    """Return the function that fetches `url`. Raises `InvalidSetting` if it is not allowed or of another kind.

    `context` replaces the system's certificate authorities.
    """
    name = "sasl.oauthbearer.jwks.endpoint.url"
    if url not in allowed:
        raise InvalidSetting(f'{name} "{url}" is not allowed; add it to sasl.oauthbearer.allowed.urls')
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path:
        path = unquote(parts.path)
        return lambda: asyncio.to_thread(read_file, path)
    if parts.scheme == "https" and parts.hostname and not parts.username:
        return lambda: fetch_https(url, context)
    raise InvalidSetting(f'invalid {name} "{url}": use https://HOST/PATH or file:///PATH')


def read_file(path: str) -> bytes:
    """Return the content of a file. Raises `KeySetUnavailable`."""
    try:
        with open(path, "rb") as file:
            return bounded(file.read(MAX_DOCUMENT_BYTES + 1))
    except OSError as e:
        raise KeySetUnavailable(f'cannot read "{path}": {e.strerror}') from None


def bounded(document: bytes) -> bytes:
    """Return the document. Raises `KeySetUnavailable` if it is too large."""
    if len(document) > MAX_DOCUMENT_BYTES:
        raise KeySetUnavailable(f"the document has more than {MAX_DOCUMENT_BYTES} bytes")
    return document


class ByteStream(Protocol):
    """The body of a response."""

    async def read(self, n: int = -1) -> bytes:
        """Return up to `n` bytes; none at the end."""


async def read_bounded(stream: ByteStream) -> bytes:
    """Return the body, or its start if it is too large."""
    body = b""
    while len(body) <= MAX_DOCUMENT_BYTES and (chunk := await stream.read(64 * 1024)):
        body += chunk
    return body


async def fetch_https(url: str, context: ssl.SSLContext | None) -> bytes:
    """Return the document at an HTTPS address. Raises `KeySetUnavailable`."""
    import aiohttp  # a broker without tokens does not need the client

    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=False) as session,
            session.get(url, allow_redirects=False, ssl=context or True) as response,
        ):
            if response.status != 200:
                raise KeySetUnavailable(f'"{url}" responded with status {response.status}')
            return bounded(await read_bounded(response.content))
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as e:
        raise KeySetUnavailable(f'cannot fetch "{url}": {str(e) or type(e).__name__}') from None
