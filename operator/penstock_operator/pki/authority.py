"""The operator's CA: EC P-256 keys, SHA-256 signatures. Called by `clusters.certificate_issuer` and
`users.action_runner`.

Times are handed in. `specs.certificates` reads what this module creates.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_key_and_certificates
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from penstock_operator.specs.certificates import BACKDATED, MAX_PEM_CHARS
from penstock_operator.specs.hosts import is_ip_address

KEY_USAGES = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
    "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
)  # fmt: skip


class InvalidAuthority(ValueError):
    """The CA's key or certificate cannot be used."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key, as PEM."""

    certificate: str
    key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class CertificateRequest:
    """What a certificate is issued for. Without `hosts`, it is for clients only."""

    common_name: str
    organization: str | None
    days: int
    hosts: Sequence[str] = ()
    """DNS names, with a wildcard as first label, and IP addresses."""


def create_authority(common_name: str, organization: str, now: datetime, days: int) -> KeyPair:
    """Create a CA. The date in its name tells it from its predecessor."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = distinguished_name(f"{common_name} {now:%Y-%m-%dT%H:%M:%SZ}", organization)
    builder = base_of(name, key.public_key(), now, now + timedelta(days=days)).issuer_name(name)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(usages("key_cert_sign", "crl_sign"), critical=True)
    return pair_of(builder.sign(key, hashes.SHA256()), key)


def issue(authority: KeyPair, request: CertificateRequest, now: datetime) -> KeyPair:
    """Issue a certificate with a new key. It does not outlive the CA. Raises `InvalidAuthority`."""
    issuer, signing_key = load(authority)
    key = ec.generate_private_key(ec.SECP256R1())
    until = min(now + timedelta(days=request.days), issuer.not_valid_after_utc)
    name = distinguished_name(request.common_name, request.organization)
    builder = base_of(name, key.public_key(), now, until).issuer_name(issuer.subject)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(usages("digital_signature"), critical=True)
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if request.hosts:
        purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
        builder = builder.add_extension(alternative_names(request.hosts), critical=False)
    builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key())
    builder = builder.add_extension(identifier, critical=False)
    return pair_of(builder.sign(signing_key, hashes.SHA256()), key)


def pkcs12(pair: KeyPair, authority: KeyPair, name: str, password: str) -> bytes:
    """Return certificate, key and the CA's certificate as a PKCS#12 store with a password."""
    certificate = x509.load_pem_x509_certificate(pair.certificate.encode())
    key = load_pem_private_key(pair.key.encode(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey), "this module creates EC keys"
    issuer, _ = load(authority)
    encryption = BestAvailableEncryption(password.encode())
    return serialize_key_and_certificates(name.encode(), key, certificate, [issuer], encryption)


def load(authority: KeyPair) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Parse a CA. Raises `InvalidAuthority` if it is not one that this module created."""
    try:
        certificate = x509.load_pem_x509_certificate(authority.certificate[:MAX_PEM_CHARS].encode())
        key = load_pem_private_key(authority.key[:MAX_PEM_CHARS].encode(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as e:
        raise InvalidAuthority(f"the CA cannot be read: {e}; delete its Secret to create another CA") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise InvalidAuthority("the CA's key is not that of its certificate; delete its Secret to create another CA")
    return certificate, key


def base_of(name: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, until: datetime) -> x509.CertificateBuilder:
    """Return a builder without issuer. Certificates are valid from `BACKDATED` ago, for clocks that are behind."""
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def distinguished_name(common_name: str, organization: str | None) -> x509.Name:
    """Return a name, which as text (RFC 2253) is `CN=...,O=...`."""
    found = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if organization is not None:
        found.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(found)


def alternative_names(hosts: Sequence[str]) -> x509.SubjectAlternativeName:
    """Return DNS names and IP addresses as an extension."""
    return x509.SubjectAlternativeName(
        [x509.IPAddress(ipaddress.ip_address(h)) if is_ip_address(h) else x509.DNSName(h) for h in hosts]
    )


def usages(*names: str) -> x509.KeyUsage:
    """Return a key usage extension."""
    return x509.KeyUsage(**{name: name in names for name in KEY_USAGES})


def pair_of(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> KeyPair:
    """Return a certificate and its key as PEM; the key in PKCS#8."""
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return KeyPair(certificate.public_bytes(Encoding.PEM).decode(), pem.decode())
