"""TLS handshakes in memory, with OpenSSL and full verification at the present virtual time."""

from __future__ import annotations

import ssl
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from penstock_operator.specs.certificates import CA, CERTIFICATE, KEY, text_of

HOST = "c-broker-1.c-brokers.ns.svc"
NO_CHECK_TIME = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME: certificates are of virtual months; tests compare their times themselves."""


@dataclass(frozen=True)
class Party:
    """One end: the CAs that it trusts, and its certificate and key."""

    trusted: str
    certificate: str = ""
    key: str = ""

    @staticmethod
    def of(secret: dict[str, Any]) -> Party:
        return Party(text_of(secret, CA), text_of(secret, CERTIFICATE), text_of(secret, KEY))

    def context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.load_verify_locations(cadata=self.trusted)
        context.verify_flags |= ssl.VerifyFlags(NO_CHECK_TIME)
        if self.certificate:
            with tempfile.TemporaryDirectory() as directory:
                path = Path(directory) / "pem"
                path.write_text(self.certificate + self.key)
                context.load_cert_chain(path)
        return context


@lru_cache(maxsize=64)
def handshake(client: Party, server: Party, *, host: str = HOST, is_mutual: bool = True) -> None:
    """Complete a handshake in both directions, or raise `ssl.SSLError`. Two parties that can connect do so once: the
    outcome depends on the arguments alone."""
    accepting = server.context(ssl.PROTOCOL_TLS_SERVER)
    if is_mutual:
        accepting.verify_mode = ssl.CERT_REQUIRED
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.context(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(to_client, to_server, server_hostname=host),
        accepting.wrap_bio(to_server, to_client, server_side=True),
    ]
    left = list(ends)
    for _ in range(10):
        for end in list(left):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            left.remove(end)
        if not left:
            return
    raise AssertionError("the handshake does not end")
