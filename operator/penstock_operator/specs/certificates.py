"""Reads certificates and the Secrets that contain them. Secrets are written by users and other programs, too."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from penstock_operator.model.cluster import Cluster
from penstock_operator.ports.kube import Object
from penstock_operator.specs import names

CERTIFICATE, KEY, CA = "tls.crt", "tls.key", "ca.crt"
"""Keys of a Secret of type kubernetes.io/tls, as cert-manager writes it."""
AUTHORITY_KEY = "ca.key"
NEXT_CA, NEXT_KEY, PREVIOUS_CA = "next.crt", "next.key", "previous.crt"
MAX_PEM_CHARS = 1 << 20
"""Maximum size of a value in a Secret: that of a Secret."""
BACKDATED = timedelta(minutes=5)
"""Time before the creation of a certificate from which it is valid."""


class InvalidCertificate(ValueError):
    """A certificate or key cannot be read. The message contains no part of it."""


@dataclass(frozen=True, slots=True)
class ReadCertificate:
    """A certificate."""

    pem: str
    parsed: x509.Certificate

    @property
    def created(self) -> datetime:
        """Time at which the operator issued it."""
        return self.parsed.not_valid_before_utc + BACKDATED

    @property
    def expires(self) -> datetime:
        """Time until which it is valid."""
        return self.parsed.not_valid_after_utc

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the certificate, in hex."""
        return self.parsed.fingerprint(hashes.SHA256()).hex()

    @property
    def subject(self) -> str:
        """Distinguished name (RFC 2253)."""
        return self.parsed.subject.rfc4514_string()

    @property
    def hosts(self) -> frozenset[str]:
        """DNS names and IP addresses, as in the certificate."""
        try:
            found = self.parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (x509.ExtensionNotFound, ValueError):
            return frozenset()
        addresses = (str(address) for address in found.get_values_for_type(x509.IPAddress))
        return frozenset([*found.get_values_for_type(x509.DNSName), *addresses])

    def is_issued_by(self, authority: ReadCertificate) -> bool:
        """Whether the CA signed it."""
        try:
            self.parsed.verify_directly_issued_by(authority.parsed)
        except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
            return False
        return True

    def has_key(self, key: str) -> bool:
        """Whether `key` (PEM) is its private key."""
        try:
            private = load_pem_private_key(key[:MAX_PEM_CHARS].encode(), None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            return False
        form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
        return private.public_key().public_bytes(*form) == self.parsed.public_key().public_bytes(*form)


def read_certificate(pem: str) -> ReadCertificate:
    """Parse the first certificate. Raises `InvalidCertificate`."""
    return read_certificates(pem)[0]


def read_certificates(pem: str) -> list[ReadCertificate]:
    """Parse all certificates of a PEM text, at least one. Raises `InvalidCertificate`."""
    if len(pem) > MAX_PEM_CHARS:
        raise InvalidCertificate(f"it has {len(pem):,} characters, more than {MAX_PEM_CHARS:,}")
    try:
        found = x509.load_pem_x509_certificates(pem.encode())
    except (ValueError, UnsupportedAlgorithm):
        raise InvalidCertificate("it is not a PEM certificate") from None
    return [ReadCertificate(each.public_bytes(Encoding.PEM).decode(), each) for each in found]


def text_of(secret: Object | None, key: str) -> str:
    """Return a text of a Secret; "" if the Secret or the key does not exist or is not UTF-8."""
    data = (secret or {}).get("data") or {}
    try:
        return base64.b64decode(str(data.get(key) or ""), validate=True).decode()
    except (binascii.Error, ValueError):
        return ""


def secret(
    cluster: Cluster, name: str, texts: Mapping[str, str], annotations: Mapping[str, str] | None = None
) -> Object:
    """Render a Secret of a Cluster."""
    made = names.owned(cluster, "v1", "Secret", name)
    if annotations:
        made["metadata"]["annotations"] = dict(annotations)
    made["type"] = "kubernetes.io/tls" if CERTIFICATE in texts else "Opaque"
    made["data"] = {key: base64.b64encode(text.encode()).decode() for key, text in sorted(texts.items()) if text}
    return made


def bundle(authorities: Sequence[ReadCertificate]) -> str:
    """Return CA certificates as one PEM text."""
    return "".join(each.pem for each in authorities)
