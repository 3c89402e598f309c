"""Checks that a broker with the same trust store would accept this broker's certificate. Used by `node` at start."""

from __future__ import annotations

import ssl
from dataclasses import replace

from penstock.config.addresses import quoted
from penstock.config.definition import InvalidSetting
from penstock.config.listener_security import TlsSettings
from penstock.server.tls.contexts import TlsContexts, build_contexts
from penstock.server.tls.stores import StoreSources

NO_CHECK_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME: an expired certificate is replaced while the broker runs."""
MAX_FLIGHTS = 10


def check_own_trust(settings: TlsSettings, sources: StoreSources) -> None:
    """Raise `InvalidSetting` if a handshake of this broker with itself fails, by the certificate on either side."""
    contexts = build_contexts(replace(settings, checks_host_names=False), sources)
    try:
        shake_hands(contexts)
    except ssl.SSLCertVerificationError as e:
        raise InvalidSetting(
            f"{trust_name(settings)} does not trust the certificate of {key_name(settings)} ({e.verify_message}), so"
            " brokers with the same trust store refuse this one; add the CA of the certificate to the trust store"
        ) from None


def trust_name(settings: TlsSettings) -> str:
    """Return the trust store for a message."""
    location = settings.truststore_location
    return "ssl.truststore.certificates" if location is None else f"ssl.truststore.location {quoted(location)}"


def key_name(settings: TlsSettings) -> str:
    """Return the key store for a message."""
    location = settings.keystore_location
    return "ssl.keystore.certificate.chain" if location is None else f"ssl.keystore.location {quoted(location)}"


def shake_hands(contexts: TlsContexts) -> None:
    """Complete a handshake in memory. Raises `ssl.SSLError`."""
    for context in (contexts.server, contexts.client):
        context.verify_flags |= NO_CHECK_TIME
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        contexts.client.wrap_bio(to_client, to_server),
        contexts.server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(MAX_FLIGHTS):
        waiting = []
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                waiting.append(side)
        if not waiting:
            return
    raise AssertionError("a handshake takes a few flights")
