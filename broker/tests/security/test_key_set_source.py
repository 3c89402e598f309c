"""Where keys of identity providers may come from."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from cryptography_kit import server_context

from penstock.config.definition import InvalidSetting
from penstock.security.key_set_source import MAX_DOCUMENT_BYTES, key_set_source
from penstock.security.sasl.jwks import KeySetUnavailable

pytestmark = pytest.mark.integration

DOCUMENT = b'{"keys":[]}'


class Provider:
    """An HTTPS server of an identity provider."""

    def __init__(self, home: Path) -> None:
        self.context, self.trust = server_context(home)
        self.requests: list[str] = []
        self.url = ""

    async def respond(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request.path)
        if request.path == "/moved":
            raise web.HTTPFound("/keys")
        if request.path == "/large":
            return web.Response(body=b"x" * (MAX_DOCUMENT_BYTES + 1))
        if request.path == "/missing":
            raise web.HTTPNotFound
        return web.Response(body=DOCUMENT)

    def fetched(self, path: str, context: ssl.SSLContext | None = None) -> object:
        url = self.url + path
        return key_set_source(url, [url], context or self.trust)()


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[Provider]:
    made = Provider(tmp_path)
    app = web.Application()
    app.router.add_get("/{path:.*}", made.respond)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=made.context)
    await site.start()
    made.url = f"https://localhost:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


async def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "key set.json"
    path.write_bytes(DOCUMENT)
    url = path.as_uri()
    fetch = key_set_source(url, [url])
    assert await fetch() == DOCUMENT
    path.write_bytes(b"x" * (MAX_DOCUMENT_BYTES + 1))
    with pytest.raises(KeySetUnavailable, match="more than"):
        await fetch()
    path.unlink()
    with pytest.raises(KeySetUnavailable, match="No such file"):
        await fetch()


async def test_an_https_address_is_fetched(provider: Provider) -> None:
    assert await provider.fetched("/keys") == DOCUMENT  # type: ignore[misc]


@pytest.mark.parametrize("path", ["/moved", "/large", "/missing"])
async def test_redirects_errors_and_large_documents_are_refused(provider: Provider, path: str) -> None:
    with pytest.raises(KeySetUnavailable):
        await provider.fetched(path)  # type: ignore[misc]
    assert provider.requests == [path]


async def test_a_certificate_that_is_not_trusted_is_refused(provider: Provider) -> None:
    with pytest.raises(KeySetUnavailable, match="certificate"):
        await provider.fetched("/keys", ssl.create_default_context())  # type: ignore[misc]


async def test_an_unreachable_address_is_reported() -> None:
    url = "https://127.0.0.1:1/keys"
    with pytest.raises(KeySetUnavailable, match="cannot fetch"):
        await key_set_source(url, [url])()


def test_cve_2025_27817_only_addresses_of_the_allow_list_are_used() -> None:
    for allowed in ([], ["https://id.example/"], ["https://id.example/keys/"]):
        with pytest.raises(InvalidSetting, match=r"sasl\.oauthbearer\.allowed\.urls"):
            key_set_source("https://id.example/keys", allowed)
    with pytest.raises(InvalidSetting, match="not allowed"):
        key_set_source("file:///etc/passwd", ["https://id.example/keys"])


@pytest.mark.parametrize(
    "url",
    ["http://id.example/keys", "ftp://x/y", "file://host/etc/passwd", "https:///x", "https://u:p@host/", "keys", ""],
)
def test_other_kinds_of_addresses_are_refused_even_if_allowed(url: str) -> None:
    with pytest.raises(InvalidSetting, match="invalid sasl"):
        key_set_source(url, [url])
