"""Reads key stores and trust stores: PEM text, PEM files and directories, PKCS#12. Used by `contexts`.

`read_sources` reads all files of a listener, so that a change of their content is found by comparing; the parsing of
what was read touches no file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)

from penstock.config.addresses import quoted
from penstock.config.definition import InvalidSetting
from penstock.config.listener_security import TlsSettings

MAX_STORE_BYTES = 1 << 20
MAX_CERTIFICATES = 1000
CERTIFICATES = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
KEY = re.compile(rb"-----BEGIN ([A-Z ]*)PRIVATE KEY-----.+?-----END \1PRIVATE KEY-----", re.DOTALL)
SECRET_KEY_FILE, SECRET_CHAIN_FILE, SECRET_CA_FILE = "tls.key", "tls.crt", "ca.crt"
"""Files of a Kubernetes Secret of type kubernetes.io/tls, as cert-manager writes them."""


@dataclass(frozen=True, slots=True)
class StoreSources:
    """The content of a listener's stores, as read; `trust` is None without CA certificates."""

    key_store: bytes
    trust: bytes | None


@dataclass(frozen=True, slots=True)
class KeyStore:
    """A private key and its certificate chain, the certificate of the key first."""

    key: PrivateKeyTypes
    chain: tuple[x509.Certificate, ...]

    def pem(self) -> bytes:
        """Return key and chain as PEM, the key not encrypted."""
        key = self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return key + certificates_pem(self.chain)


def certificates_pem(certificates: Iterable[x509.Certificate]) -> bytes:
    """Return certificates as PEM."""
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in certificates)


def read_sources(settings: TlsSettings) -> StoreSources:
    """Read the stores. Raises `InvalidSetting`, naming the setting and the file."""
    texts = (settings.keystore_key or "", settings.keystore_certificate_chain or "")
    key_store = (
        "\n".join(texts).encode()
        if settings.keystore_location is None
        else read_store("ssl.keystore.location", settings.keystore_location, (SECRET_KEY_FILE, SECRET_CHAIN_FILE))
    )
    trust = None if settings.truststore_certificates is None else settings.truststore_certificates.encode()
    if settings.truststore_location is not None:
        trust = read_store("ssl.truststore.location", settings.truststore_location, (SECRET_CA_FILE,))
    return StoreSources(key_store, trust)


def read_store(setting: str, location: str, names: Iterable[str]) -> bytes:
    """Read a file, or the files of these names in a directory. Raises `InvalidSetting`."""
    paths = [os.path.join(location, name) for name in names] if os.path.isdir(location) else [location]
    return b"\n".join(read_file(setting, path) for path in paths)


def read_file(setting: str, path: str) -> bytes:
    """Read a file of bounded size. Raises `InvalidSetting`."""
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_STORE_BYTES + 1)
    except OSError as e:
        raise InvalidSetting(
            f"cannot read {setting} {quoted(path)}: {e.strerror}; set it to a file that the broker can read"
        ) from None
    if len(content) > MAX_STORE_BYTES:
        raise InvalidSetting(f"{setting} {quoted(path)} is larger than {MAX_STORE_BYTES} bytes; remove other content")
    return content


def parse_key_store(settings: TlsSettings, content: bytes) -> KeyStore:
    """Return the key and chain in a key store, which must belong together. Raises `InvalidSetting`."""
    what = store_name("ssl.keystore.location", settings.keystore_location, "ssl.keystore.key")
    if settings.keystore_type == "PKCS12":
        store = parse_pkcs12_key(settings, content, what)
    else:
        store = KeyStore(parse_key(settings, content, what), parse_certificates(content, what))
    if public_key(store.chain[0], what) != store.key.public_key():
        raise InvalidSetting(
            f"{what}: the private key does not belong to the first certificate; put the certificate of the key first,"
            " and its issuers behind it"
        )
    return store


def public_key(certificate: x509.Certificate, what: str) -> PublicKeyTypes:
    """Return a certificate's public key. Raises `InvalidSetting`."""
    try:
        return certificate.public_key()
    except (ValueError, UnsupportedAlgorithm) as e:
        raise InvalidSetting(f"{what}: the public key of the certificate cannot be read ({e}); replace it") from None


def store_name(setting: str, location: str | None, text_setting: str) -> str:
    """Return the start of an error message about a store."""
    return f"cannot use {text_setting}" if location is None else f"cannot use {setting} {quoted(location)}"


def parse_key(settings: TlsSettings, content: bytes, what: str) -> PrivateKeyTypes:
    """Return the private key in PEM. Raises `InvalidSetting`."""
    match = KEY.search(content)
    if match is None:
        raise InvalidSetting(f"{what}: it contains no private key; add the PEM block PRIVATE KEY")
    is_encrypted = b"ENCRYPTED" in match[0][:200]
    if is_encrypted and settings.key_password is None:
        raise InvalidSetting(f"{what}: the private key is encrypted and ssl.key.password is not set; set it")
    password = settings.key_password.encode() if is_encrypted and settings.key_password is not None else None
    try:
        return load_pem_private_key(match[0], password)
    except (ValueError, TypeError, UnsupportedAlgorithm) as e:
        hint = "check ssl.key.password, or convert the key" if is_encrypted else "convert the key"
        raise InvalidSetting(f"{what}: the private key cannot be read ({e}); {hint} to PKCS#8") from None


def parse_certificates(content: bytes, what: str) -> tuple[x509.Certificate, ...]:
    """Return the certificates in PEM, at least one. Raises `InvalidSetting`."""
    blocks = CERTIFICATES.findall(content)
    if not blocks:
        raise InvalidSetting(f"{what}: it contains no certificate; add the PEM block CERTIFICATE")
    if len(blocks) > MAX_CERTIFICATES:
        raise InvalidSetting(f"{what}: {len(blocks)} certificates are too many; use at most {MAX_CERTIFICATES}")
    try:
        return readable(map(x509.load_pem_x509_certificate, blocks))
    except ValueError as e:
        raise InvalidSetting(f"{what}: a certificate cannot be read ({e}); replace it") from None


def readable(certificates: Iterable[x509.Certificate]) -> tuple[x509.Certificate, ...]:
    """Return the certificates. Raises ValueError if the version, names or times of one are malformed: they are parsed
    late."""
    try:
        found = tuple(certificates)
        for each in found:
            _ = each.subject, each.issuer, each.not_valid_before_utc, each.not_valid_after_utc
    except (x509.InvalidVersion, TypeError) as e:  # TypeError: a name's value of a type that its attribute cannot have
        raise ValueError(str(e)) from None
    return found


def parse_pkcs12_key(settings: TlsSettings, content: bytes, what: str) -> KeyStore:
    """Return the key and chain in PKCS#12. Raises `InvalidSetting`."""
    store = load_pkcs12(content, settings.keystore_password, what, "ssl.keystore.password")
    if store.key is None or store.cert is None:
        raise InvalidSetting(f"{what}: it contains no private key with its certificate; export both into it")
    others = [additional.certificate for additional in store.additional_certs]
    return KeyStore(store.key, ordered_chain(store.cert.certificate, others))


def ordered_chain(leaf: x509.Certificate, others: Iterable[x509.Certificate]) -> tuple[x509.Certificate, ...]:
    """Return the certificate with its issuers in order; PKCS#12 has none."""
    chain, left = [leaf], list(others)
    while (issuer := next((each for each in left if each.subject == chain[-1].issuer), None)) is not None:
        left.remove(issuer)
        chain.append(issuer)
    return tuple(chain)


def load_pkcs12(content: bytes, password: str | None, what: str, setting: str) -> pkcs12.PKCS12KeyAndCertificates:
    """Parse PKCS#12. Raises `InvalidSetting`."""
    try:
        store = pkcs12.load_pkcs12(content, None if password is None else password.encode())
        readable(each.certificate for each in (store.cert, *store.additional_certs) if each is not None)
        return store
    except (ValueError, TypeError, UnsupportedAlgorithm) as e:
        hint = f"set {setting}" if password is None else f"check {setting}"
        raise InvalidSetting(f"{what}: it cannot be read ({e}); {hint} and that the file is PKCS#12") from None


def parse_trust_store(settings: TlsSettings, content: bytes) -> tuple[x509.Certificate, ...]:
    """Return the CA certificates in a trust store. Raises `InvalidSetting`."""
    what = store_name("ssl.truststore.location", settings.truststore_location, "ssl.truststore.certificates")
    if settings.truststore_type != "PKCS12":
        return parse_certificates(content, what)
    store = load_pkcs12(content, settings.truststore_password, what, "ssl.truststore.password")
    found = [each.certificate for each in (store.cert, *store.additional_certs) if each is not None]
    if not found:
        raise InvalidSetting(f"{what}: it contains no certificate; import the CA certificates into it")
    return tuple(found)
