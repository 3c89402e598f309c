"""The TLS state of one listener: present contexts, client principals, counters. Shared by its connections.

`reloading` replaces the contexts. A connection uses those of its handshake until it ends.
"""

from __future__ import annotations

import ssl
from dataclasses import replace

from cryptography import x509

from penstock.config.definition import InvalidSetting
from penstock.config.listener_security import ListenerSecurity, SecurityProtocol, TlsSettings
from penstock.security.principal import ANONYMOUS, Principal
from penstock.server.tls.contexts import TlsContexts, build_contexts, check_identity
from penstock.server.tls.distinguished_names import rfc2253_text
from penstock.server.tls.principal_mapping import PrincipalMapping, parse_mapping_rules
from penstock.server.tls.stores import StoreSources, read_sources, readable

RECEIVE_BUFFER_BYTES = 128 << 10
"""Encrypted bytes that a connection receives at once, and holds at most while it is paused."""


class ListenerTls:
    """Created by `node` at startup, by `load`."""

    def __init__(
        self, security: ListenerSecurity, sources: StoreSources, contexts: TlsContexts, mapping: PrincipalMapping
    ) -> None:
        assert security.tls is not None, "the listener has TLS"
        self.listener, self.settings = security.listener, security.tls
        self.sources, self.contexts, self.mapping = sources, contexts, mapping
        self.has_client_principals = security.protocol is SecurityProtocol.SSL
        """Whether the client certificate is the identity; on SASL_SSL listeners SASL has it."""
        self.receive_buffer = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
        self.handshakes = self.failed_handshakes = 0
        self.reloads = self.failed_reloads = 0
        self.reload_error: str | None = None
        """Why the present files or settings are not in use; None if they are."""

    @classmethod
    def load(cls, security: ListenerSecurity) -> ListenerTls:
        """Read the stores and build the contexts. Raises `InvalidSetting`, naming listener, setting and fix."""
        assert security.tls is not None, "the listener has TLS"
        try:
            sources = read_sources(security.tls)
            contexts = build_contexts(security.tls, sources)
            return cls(security, sources, contexts, parse_mapping_rules(security.tls.principal_mapping_rules))
        except InvalidSetting as e:
            raise InvalidSetting(f'listener "{security.listener}": {e}') from None

    def rebuilt(self, settings: TlsSettings, sources: StoreSources) -> TlsContexts:
        """Return new contexts, which may replace the present ones. Raises `InvalidSetting`. Called in a thread."""
        contexts = build_contexts(settings, sources)
        check_identity(settings, self.contexts.identity, contexts.identity)
        return contexts

    def replace_contexts(self, settings: TlsSettings, sources: StoreSources, contexts: TlsContexts) -> None:
        """Use other contexts from the next handshake on."""
        mapping_rules = self.settings.principal_mapping_rules  # is no dynamic setting
        self.settings = replace(settings, principal_mapping_rules=mapping_rules)
        self.sources, self.contexts = sources, contexts
        self.reloads += 1
        self.reload_error = None

    @property
    def expires_at(self) -> float:
        """When the certificate expires, in seconds since 1970."""
        return self.contexts.identity.expires_at

    def wrap(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> ssl.SSLObject:
        """Return the server side of a new TLS session."""
        return self.contexts.server.wrap_bio(incoming, outgoing, server_side=True)

    def check_suite(self, session: ssl.SSLObject) -> None:
        """Raise ValueError if the negotiated suite of TLS 1.3 is not configured."""
        suites, negotiated = self.contexts.suites, session.cipher()
        if suites is None or negotiated is None or session.version() != "TLSv1.3":
            return
        if negotiated[0] not in suites.tls13:
            raise ValueError(f"the client negotiated {negotiated[0]}, which ssl.cipher.suites does not have")

    def principal(self, session: ssl.SSLObject) -> Principal:
        """Return the principal of the client's certificate, ANONYMOUS without one. Raises ValueError."""
        certificate = session.getpeercert(binary_form=True) if self.has_client_principals else None
        if not certificate:
            return ANONYMOUS
        (client,) = readable([x509.load_der_x509_certificate(certificate)])
        subject = client.subject.public_bytes()
        return self.mapping.principal(rfc2253_text(subject))
