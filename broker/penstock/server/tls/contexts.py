"""Builds the SSL contexts of a listener from its settings and what its stores contain. Used by `listener_tls`."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography import x509

from penstock.config.definition import InvalidSetting
from penstock.config.listener_security import TlsSettings
from penstock.runtime.linux import private_file
from penstock.server.tls.cipher_suites import CipherSuites, parse_cipher_suites
from penstock.server.tls.stores import (
    KeyStore,
    StoreSources,
    certificates_pem,
    parse_key_store,
    parse_trust_store,
)

VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
VERIFY_MODES = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


@dataclass(frozen=True, slots=True)
class CertificateIdentity:
    """What clients know a certificate by: its distinguished name and its subject alternative names."""

    distinguished_name: str
    alternative_names: frozenset[str]
    expires_at: float
    """When the first certificate of the chain expires, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class TlsContexts:
    """The contexts of one state of the stores; `client` is for connections to other brokers."""

    server: ssl.SSLContext
    client: ssl.SSLContext
    identity: CertificateIdentity
    suites: CipherSuites | None


def build_contexts(settings: TlsSettings, sources: StoreSources) -> TlsContexts:
    """Build the contexts. Raises `InvalidSetting`, naming the setting and the fix. May take milliseconds."""
    store = parse_key_store(settings, sources.key_store)
    authorities = None
    if sources.trust is not None:
        authorities = certificates_pem(parse_trust_store(settings, sources.trust)).decode()
    suites = parse_cipher_suites(settings.cipher_suites)
    contexts = [ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)]
    for context in contexts:
        limit_versions(context, settings, suites)
        load_stores(context, store, authorities)
    server, client = contexts
    server.options |= ssl.OP_CIPHER_SERVER_PREFERENCE | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    server.verify_mode = VERIFY_MODES[settings.client_auth]
    client.check_hostname = settings.checks_host_names
    if authorities is None:
        client.load_default_certs()
    return TlsContexts(server, client, identity_of(store), suites)


def limit_versions(context: ssl.SSLContext, settings: TlsSettings, suites: CipherSuites | None) -> None:
    """Set versions and suites. Without a suite of TLS 1.3, or with no other, the other version has none to offer."""
    versions = {VERSIONS[name] for name in settings.enabled_protocols}
    if suites is not None:
        versions -= {ssl.TLSVersion.TLSv1_3} if not suites.tls13 else set()
        versions -= {ssl.TLSVersion.TLSv1_2} if not suites.tls12 else set()
    if not versions:
        raise InvalidSetting(
            f"ssl.cipher.suites has no suite for ssl.enabled.protocols {','.join(settings.enabled_protocols)}; add one"
        )
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    if suites is not None and suites.tls12:
        context.set_ciphers(":".join(suites.tls12))


def load_stores(context: ssl.SSLContext, store: KeyStore, authorities: str | None) -> None:
    """Load key, chain and CA certificates. Raises `InvalidSetting` if OpenSSL refuses them, such as a weak key."""
    try:
        with private_file(store.pem()) as path:
            context.load_cert_chain(path)
        if authorities is not None:
            context.load_verify_locations(cadata=authorities)
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as in Java: any trusted certificate is an anchor
    except ssl.SSLError as e:
        raise InvalidSetting(
            f"cannot use the certificates of ssl.keystore and ssl.truststore: {e.reason or e}; replace those that"
            " OpenSSL refuses"
        ) from None


def identity_of(store: KeyStore) -> CertificateIdentity:
    """Return the identity of a key store's certificate."""
    leaf = store.chain[0]
    return CertificateIdentity(
        leaf.subject.rfc4514_string(),
        frozenset(alternative_names(leaf)),
        min(each.not_valid_after_utc for each in store.chain).timestamp(),
    )


def alternative_names(certificate: x509.Certificate) -> list[str]:
    """Return the subject alternative names as text."""
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType, ValueError):
        return []
    return [repr(name) for name in extension.value]


def check_identity(settings: TlsSettings, old: CertificateIdentity, new: CertificateIdentity) -> None:
    """Raise `InvalidSetting` if a reload changes the identity in a way that the settings do not allow."""
    if old.distinguished_name.lower() != new.distinguished_name.lower() and not settings.allow_dn_changes:
        raise InvalidSetting(
            f'the new certificate is that of "{new.distinguished_name}" instead of "{old.distinguished_name}"; set'
            " ssl.allow.dn.changes to true to allow it"
        )
    missing = old.alternative_names - new.alternative_names
    if missing and not settings.allow_san_changes:
        raise InvalidSetting(
            f"the new certificate lacks the subject alternative names {', '.join(sorted(missing))}; set"
            " ssl.allow.san.changes to true to allow it"
        )


def date_text(seconds: float) -> str:
    """Return a time since 1970 as a UTC date for messages."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
