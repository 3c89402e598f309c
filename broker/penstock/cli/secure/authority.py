"""A certificate authority of one data directory, and the certificates that it issues. Keys are EC P-256, files PEM."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_LIFE = timedelta(days=3650)
CERTIFICATE_LIFE = timedelta(days=397)
"""The longest life of a server certificate that all TLS clients accept."""
CLOCK_SKEW = timedelta(hours=1)
"""Certificates are valid from this long before they are issued."""
RENEWAL_SHARE = 3
"""A certificate is renewed when less than one third of its life is left."""

Name = x509.DNSName | x509.IPAddress


@dataclass(frozen=True, slots=True)
class SignedKey:
    """A private key and its certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def key_pem(self) -> str:
        """Return the key as PEM (PKCS#8, not encrypted)."""
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return self.key.private_bytes(*form).decode()

    @property
    def certificate_pem(self) -> str:
        """Return the certificate as PEM."""
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()


def parse_signed_key(pem: bytes) -> SignedKey:
    """Parse a key and its certificate. Raises ValueError if they are invalid or do not belong together."""
    try:
        key = serialization.load_pem_private_key(pem, None)
        certificate = x509.load_pem_x509_certificate(pem)
    except (TypeError, UnsupportedAlgorithm) as e:
        raise ValueError(str(e)) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise ValueError("the private key does not belong to the certificate")
    return SignedKey(key, certificate)


def is_due(certificate: x509.Certificate, now: datetime) -> bool:
    """Return whether a certificate has to be renewed."""
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    return (certificate.not_valid_after_utc - now) * RENEWAL_SHARE < life


def create_authority(name: str, now: datetime) -> SignedKey:
    """Return a new, self-signed authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        start_certificate(subject, subject, key, now, AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(key_usage(is_authority=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return SignedKey(key, builder.sign(key, hashes.SHA256()))


def issue(authority: SignedKey, name: str, hosts: Iterable[str], now: datetime) -> SignedKey:
    """Return a server certificate for host names and addresses. Raises ValueError for a name that cannot be in one."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        start_certificate(subject, authority.certificate.subject, key, now, CERTIFICATE_LIFE)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(key_usage(is_authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(map(alternative_name, hosts)), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
    )
    return SignedKey(key, builder.sign(authority.key, hashes.SHA256()))


def start_certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    """Return a certificate without extensions, to be signed."""
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + life)
    )


def key_usage(*, is_authority: bool) -> x509.KeyUsage:
    """Return what a key is for: to sign certificates, or TLS handshakes."""
    return x509.KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )


def alternative_name(host: str) -> Name:
    """Return a host as it is in certificates: without an IPv6 zone, international names encoded. Raises ValueError."""
    try:
        return x509.IPAddress(ip_address(host.partition("%")[0]))
    except ValueError:
        return x509.DNSName(host.encode("idna").decode())


def has_names(certificate: x509.Certificate, hosts: Iterable[str]) -> bool:
    """Return whether a certificate is valid for all hosts. Raises ValueError for an invalid host."""
    try:
        names = list(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        names = []
    return all(alternative_name(host) in names for host in hosts)
