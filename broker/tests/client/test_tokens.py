"""Where the tokens of a client come from."""

from __future__ import annotations

import base64
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from penstock.client import AuthenticationFailed, ClientCredentials, ProvidedTokens, Sasl, TokenFile
from penstock.client.sasl import OauthBearer

sys.path.insert(0, str(Path(__file__).parents[1] / "security"))

from cryptography_kit import server_context


class Endpoint:
    """The token endpoint of an identity provider."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.response = web.json_response({"access_token": "token.1", "expires_in": 300})
        self.url = self.ca_file = ""

    async def respond(self, request: web.Request) -> web.StreamResponse:
        login = base64.b64decode(request.headers["Authorization"].removeprefix("Basic ")).decode()
        self.requests.append((login, {name: str(value) for name, value in (await request.post()).items()}))
        number = len(self.requests)
        if self.response.status == 200 and self.response.text is not None:
            return web.Response(text=self.response.text.replace("token.1", f"token.{number}"))
        return web.Response(status=self.response.status)

    def tokens(self) -> ClientCredentials:
        return ClientCredentials(self.url, "id:x", "s-secret", "read", self.ca_file)


@pytest.fixture
async def endpoint(tmp_path: Path) -> AsyncIterator[Endpoint]:
    made = Endpoint()
    app = web.Application()
    app.router.add_post("/token", made.respond)
    runner = web.AppRunner(app)
    await runner.setup()
    context, _ = server_context(tmp_path)
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    made.url, made.ca_file = f"https://localhost:{runner.addresses[0][1]}/token", str(tmp_path / "server.pem")
    yield made
    await runner.cleanup()


@pytest.mark.integration
async def test_a_token_of_client_credentials_is_used_until_most_of_its_life_is_over(endpoint: Endpoint) -> None:
    tokens = endpoint.tokens()
    assert [await tokens.token() for _ in range(3)] == ["token.1", "token.1", "token.1"]
    assert endpoint.requests == [("id%3Ax:s-secret", {"grant_type": "client_credentials", "scope": "read"})]
    endpoint.response = web.json_response({"access_token": "token.1"})
    tokens = endpoint.tokens()
    assert [await tokens.token() for _ in range(2)] == ["token.2", "token.3"]
    assert "s-secret" not in repr(tokens)
    assert "token.3" not in repr(tokens)


@pytest.mark.integration
@pytest.mark.parametrize(
    "response", [web.Response(status=401), web.Response(text="no token"), web.Response(text='{"access_token":"a b"}')]
)
async def test_a_response_without_a_token_fails_without_showing_the_secret(
    endpoint: Endpoint, response: web.Response
) -> None:
    endpoint.response = response
    with pytest.raises(AuthenticationFailed) as caught:
        await endpoint.tokens().token()
    assert "s-secret" not in str(caught.value)


@pytest.mark.integration
async def test_an_endpoint_that_is_not_trusted_gets_no_secret(endpoint: Endpoint) -> None:
    with pytest.raises(AuthenticationFailed, match="certificate"):
        await ClientCredentials(endpoint.url, "id", "s-secret").token()
    assert endpoint.requests == []
    for url in ("http://localhost/token", "https://", "localhost"):
        with pytest.raises(ValueError, match="https://HOST/PATH"):
            ClientCredentials(url, "id", "s-secret")


async def test_a_token_file_is_read_at_each_login(tmp_path: Path) -> None:
    path = tmp_path / "token"
    tokens = TokenFile(str(path))
    with pytest.raises(AuthenticationFailed, match="No such file"):
        await tokens.token()
    for text in ("one", "two"):
        path.write_text(text + "\n")
        assert await tokens.token() == text
    path.write_text("x" * 100_000)
    with pytest.raises(AuthenticationFailed, match="too long"):
        await tokens.token()


async def test_a_function_or_a_coroutine_function_provides_tokens() -> None:
    async def later() -> str:
        return "later"

    assert await ProvidedTokens(lambda: "now").token() == "now"
    assert await ProvidedTokens(later).token() == "later"
    with pytest.raises(AuthenticationFailed):
        await ProvidedTokens(lambda: "").token()


def test_the_messages_of_oauthbearer() -> None:
    exchange = OauthBearer("abc")
    assert exchange.first_message() == b"n,,\x01auth=Bearer abc\x01\x01"
    assert exchange.respond(b'{"status":"invalid_token"}') == b"\x01"
    assert not exchange.finished
    assert exchange.respond(b"") is None
    assert exchange.finished


def test_tokens_belong_to_oauthbearer() -> None:
    with pytest.raises(ValueError, match="tokens"):
        Sasl("OAUTHBEARER", "user", "password")
    with pytest.raises(ValueError, match="tokens"):
        Sasl("PLAIN", "user", "password", TokenFile("x"))
