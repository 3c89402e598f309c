"""The HTTP port with TLS, client certificates and a bearer token."""

from __future__ import annotations

import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from penstock.http.access import HttpAccess
from penstock.http.app import HttpServer

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("server", "server/tls")]

from tls_kit import AUTHORITY, CLIENT, STRANGER, certify, client_context, loaded, name  # noqa: E402

pytestmark = pytest.mark.integration


class Pages:
    """A client of the HTTP port."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def status(self, path: str, context: ssl.SSLContext | None = None, **headers: str) -> int:
        url = f"{'http' if context is None else 'https'}://localhost:{self.port}{path}"
        connector = aiohttp.TCPConnector(force_close=True)
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get(url, ssl=context or True, headers=headers) as response,
        ):
            return response.status


@asynccontextmanager
async def serving(access: HttpAccess) -> AsyncIterator[Pages]:
    server = HttpServer(lambda: None, access)
    try:
        yield Pages(await server.start("127.0.0.1", 0))
    finally:
        await server.close()


NO_METRICS = 503
"""What /metrics of a server without a broker answers to those who may read it."""


async def test_without_a_protection_all_pages_are_open() -> None:
    async with serving(HttpAccess()) as pages:
        assert [await pages.status(path) for path in ("/health/ready", "/metrics")] == [200, NO_METRICS]


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        ("Bearer hunter2", NO_METRICS),
        ("bearer hunter2 ", NO_METRICS),
        ("Bearer hunter", 401),
        ("Bearer", 401),
        ("Basic hunter2", 401),
        ("hunter2", 401),
        ("Bearer é", 401),
    ],
)
async def test_pages_other_than_health_need_the_token(tmp_path: Path, authorization: str, status: int) -> None:
    token = tmp_path / "token"
    token.write_text("hunter2\n")
    async with serving(HttpAccess(token_file=str(token))) as pages:
        assert await pages.status("/health/live") == 200
        assert await pages.status("/metrics") == 401
        assert await pages.status("/metrics", Authorization=authorization) == status


async def test_a_token_is_replaced_without_a_restart_and_an_unusable_file_lets_no_client_in(tmp_path: Path) -> None:
    token = tmp_path / "token"
    async with serving(HttpAccess(token_file=str(token))) as pages:
        for text, status in (None, 401), ("", 401), ("new", NO_METRICS), ("x" * 5000, 401):
            if text is not None:
                token.write_text(text)
            assert await pages.status("/metrics", Authorization=f"Bearer {(text or '')[:4000]}") == status


async def test_a_client_certificate_gives_access_and_the_health_pages_need_none(tmp_path: Path) -> None:
    async with serving(HttpAccess(loaded(client_auth="requested"))) as pages:
        assert await pages.status("/metrics", client_context(CLIENT, tmp_path)) == NO_METRICS
        assert await pages.status("/metrics", client_context()) == 401
        assert await pages.status("/health/ready", client_context()) == 200
        with pytest.raises(aiohttp.ClientError):
            await pages.status("/metrics", client_context(STRANGER, tmp_path))


async def test_new_connections_get_the_reloaded_certificate() -> None:
    tls = loaded()
    renewed = certify(name("broker"), AUTHORITY, hosts=("other",))
    async with serving(HttpAccess(tls)) as pages:
        assert await pages.status("/metrics", client_context()) == NO_METRICS
        tls.contexts = loaded(keystore_key=renewed.key_pem(), keystore_certificate_chain=renewed.chain_pem).contexts
        with pytest.raises(aiohttp.ClientConnectorCertificateError, match="Hostname mismatch"):
            await pages.status("/metrics", client_context())
