"""A broker that requires TLS or SASL: PLAIN, and the broker's side of SCRAM."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ssl
import struct

from client_doubles.scripted import SERVED, ScriptedBroker
from penstock.wire import codec
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from penstock.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from penstock.wire.schema import Payload

SASL: dict[int, type[Payload]] = {c.KEY: c for c in (SaslHandshakeRequest, SaslAuthenticateRequest)}


class GuardedBroker(ScriptedBroker):
    """Accepts one user. `tampers` corrupts the broker's SCRAM signature; `authentications` counts the successful ones.

    Sessions last `lifetime_ms`; 0 means no limit.
    """

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None = None,
        mechanisms: tuple[str, ...] = (),
        username: str = "alice",
        password: str = "secret",
        lifetime_ms: int = 0,
        tampers: bool = False,
    ) -> None:
        super().__init__(tls=tls)
        self.mechanisms, self.username, self.password = mechanisms, username, password
        self.lifetime_ms, self.tampers, self.authentications = lifetime_ms, tampers, 0
        self._mechanism = ""
        self._scram: ScramServer | None = None
        if mechanisms:
            self.versions |= {key: c.VERSIONS for key, c in SASL.items()}

    def _answer(self, frame: bytes) -> bytes | None:
        key, version, correlation_id, id_size = struct.unpack_from(">hhih", frame)
        if key not in SASL:
            assert key in SERVED
            return super()._answer(frame)
        flexible = version >= SASL[key].FLEXIBLE_FROM
        request = codec.decode(SASL[key], version, memoryview(frame), 10 + max(id_size, 0) + flexible)
        head = struct.pack(">i", correlation_id) + (b"\0" if flexible else b"")
        if isinstance(request, SaslHandshakeRequest):
            body = codec.encode(self._choose(request.mechanism), version)
        else:
            assert isinstance(request, SaslAuthenticateRequest)
            body = codec.encode(self._authenticate(request.auth_bytes), version)
        return struct.pack(">i", len(head) + len(body)) + head + body

    def _choose(self, mechanism: str) -> SaslHandshakeResponse:
        known = mechanism in self.mechanisms
        self._mechanism, self._scram = mechanism, None
        code = 0 if known else ErrorCode.UNSUPPORTED_SASL_MECHANISM
        return SaslHandshakeResponse(error_code=code, mechanisms=list(self.mechanisms))

    def _authenticate(self, token: bytes) -> SaslAuthenticateResponse:
        if self._mechanism == "PLAIN":
            held = token == f"\0{self.username}\0{self.password}".encode()
            return self._ended(held, b"")
        if self._scram is None:
            self._scram = ScramServer(self._mechanism, self.password, self.tampers)
            return SaslAuthenticateResponse(auth_bytes=self._scram.first(token))
        last = self._scram.last(token)
        return self._ended(last is not None, last or b"")

    def _ended(self, held: bool, token: bytes) -> SaslAuthenticateResponse:
        if not held:
            message = "Authentication failed: Invalid username or password"
            return SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=message)
        self.authentications += 1
        return SaslAuthenticateResponse(auth_bytes=token, session_lifetime_ms=self.lifetime_ms)


class ScramServer:
    """The broker's side of one SCRAM exchange (RFC 5802)."""

    def __init__(self, mechanism: str, password: str, tampers: bool) -> None:
        self.digest = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}[mechanism]
        self.salted = hashlib.pbkdf2_hmac(self.digest, password.encode(), b"salt", 4096)
        self.tampers = tampers

    def first(self, token: bytes) -> bytes:
        self.client_first = token.decode().removeprefix("n,,")
        nonce = self.client_first.partition(",r=")[2] + "server"
        self.server_first = f"r={nonce},s={base64.b64encode(b'salt').decode()},i=4096"
        return self.server_first.encode()

    def last(self, token: bytes) -> bytes | None:
        without_proof, _, proof = token.decode().rpartition(",p=")
        signed = f"{self.client_first},{self.server_first},{without_proof}".encode()
        key = hmac.digest(self.salted, b"Client Key", self.digest)
        signature = hmac.digest(hashlib.new(self.digest, key).digest(), signed, self.digest)
        if bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True)) != key:
            return None
        server_key = hmac.digest(self.salted, b"Server Key", self.digest)
        own = hmac.digest(server_key, b"spoilt" if self.tampers else signed, self.digest)
        return b"v=" + base64.b64encode(own)
