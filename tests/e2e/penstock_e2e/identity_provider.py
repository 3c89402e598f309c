"""An identity provider on loopback: it issues tokens to clients that have a secret (OAuth 2.0 client credentials)."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from joserfc import jwt
from joserfc.jwk import ECKey
from secrets_kit import secret

ISSUER, AUDIENCE = "https://id.example/", "penstock"
GROUP = "readers"
"""The group of all clients, by the claim `groups`."""
LIFETIME_S = 3600


class IdentityProvider:
    """Serves `url` with TLS, to clients that trust `ca`. Tokens of `foreign_url` are for another audience."""

    def __init__(self, home: Path, certificate: Path, ca: Path, secrets: dict[str, str]) -> None:
        self.ca = ca
        self._key = ECKey.generate_key("P-256", {"kid": "one"})
        self.keys = home / "keys.json"
        self.keys.write_text(json.dumps({"keys": [self._key.as_dict(private=False)]}))
        self._basic = {self._encoded(name, secret): name for name, secret in secrets.items()}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        base = f"https://localhost:{self._server.server_address[1]}"
        self.url, self.foreign_url = f"{base}/token", f"{base}/foreign-token"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def token(self, subject: str, audience: str = AUDIENCE) -> str:
        """Return a signed token, valid for `LIFETIME_S`."""
        now = int(time.time())
        claims = {
            "iss": ISSUER, "aud": audience, "sub": subject, "groups": [GROUP], "iat": now, "exp": now + LIFETIME_S
        }  # fmt: skip
        made = jwt.encode({"alg": "ES256", "kid": "one"}, claims, self._key, algorithms=["ES256"])
        secret(made.rpartition(".")[2])
        return made

    @staticmethod
    def _encoded(name: str, secret: str) -> str:
        return "Basic " + base64.b64encode(f"{name}:{secret}".encode()).decode()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                name = provider._basic.get(self.headers.get("Authorization", ""))
                if name is None:
                    return self._answer(401, {"error": "invalid_client"})
                audience = "another" if self.path == "/foreign-token" else AUDIENCE
                token = provider.token(name, audience)
                return self._answer(200, {"access_token": token, "token_type": "Bearer", "expires_in": LIFETIME_S})

            def _answer(self, status: int, body: dict[str, Any]) -> None:
                payload = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, format: str, *args: object) -> None:
                """Requests are not logged."""

        return Handler
