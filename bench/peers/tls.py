"""The same two brokers with a second listener that speaks TLS 1.3, with one cipher suite and equal certificates.

The benchmark administers them through the plain listener. Loads use `TlsListener.address` and the
client settings of `Certificates`.
"""

from __future__ import annotations

import datetime
import shlex
import sys
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from bench.peers.broker import free_port
from bench.peers.kafka import NEWEST, Kafka
from bench.peers.penstock import Penstock

CIPHER_SUITE = "TLS_AES_256_GCM_SHA384"
"""What OpenSSL and Java both prefer."""
LIFE = datetime.timedelta(days=2)
TLS_COMMAND = f"{shlex.quote(str(Path(sys.executable).parent / 'penstock'))} up --data {{data}} --http-port 0"
PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@dataclass(frozen=True)
class Certificates:
    """PEM files: an authority, and certificates of a broker on 127.0.0.1 and of a client, each with its key."""

    authority: Path
    broker: Path
    client: Path

    def client_settings(self) -> dict[str, str | int]:
        """Return librdkafka's settings; the client presents its certificate where the broker asks for one."""
        return {
            "security.protocol": "ssl",
            "ssl.ca.location": str(self.authority),
            "ssl.certificate.location": str(self.client),
            "ssl.key.location": str(self.client),
        }


def create_certificates(directory: Path, *, is_rsa: bool = False) -> Certificates:
    """Write an authority and its two certificates; keys are EC P-256, or RSA with 2,048 bits."""
    directory.mkdir(parents=True, exist_ok=True)
    made = Certificates(directory / "ca.pem", directory / "broker.pem", directory / "client.pem")
    authority_key = _new_key(is_rsa=is_rsa)
    authority = _certificate("bench-ca", authority_key, "bench-ca", authority_key)
    made.authority.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    for path in (made.broker, made.client):
        key = _new_key(is_rsa=is_rsa)
        certificate = _certificate(path.stem, key, "bench-ca", authority_key)
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        path.write_bytes(key.private_bytes(*form) + certificate.public_bytes(serialization.Encoding.PEM))
    return made


def _new_key(*, is_rsa: bool) -> PrivateKey:
    return rsa.generate_private_key(65537, 2048) if is_rsa else ec.generate_private_key(ec.SECP256R1())


def _certificate(name: str, key: PrivateKey, issuer: str, issuer_key: PrivateKey) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    is_authority = name == issuer
    usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    hosts = x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))])
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - LIFE)
        .not_valid_after(now + LIFE)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
    )
    if not is_authority:
        builder = builder.add_extension(hosts, critical=False).add_extension(usages, critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


class TlsListener:
    """The TLS listener of a broker: its port, and its settings by Kafka's names."""

    def __init__(self, certificates: Certificates, client_auth: str = "none") -> None:
        self.certificates = certificates
        self.port = free_port()
        self.settings = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(certificates.broker),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(certificates.authority),
            "ssl.client.auth": client_auth,
            "ssl.enabled.protocols": "TLSv1.3",
            "ssl.cipher.suites": CIPHER_SUITE,
        }

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


class TlsPenstock(Penstock):
    """Penstock with a plain listener and one with TLS."""

    def __init__(self, listener: TlsListener, template: str = TLS_COMMAND) -> None:
        super().__init__(template)
        self.listener = listener

    def command(self, data_dir: Path, port: int) -> list[str]:
        listeners = [f"PLAINTEXT://127.0.0.1:{port}", f"SSL://{self.listener.address}"]
        settings = [f"{name}={value}" for name, value in self.listener.settings.items()]
        return [
            *super().command(data_dir, port),
            *(part for each in listeners for part in ("--listener", each)),
            *(part for each in settings for part in ("--set", each)),
        ]


class TlsKafka(Kafka):
    """Kafka with a plain listener and one with TLS."""

    def __init__(self, listener: TlsListener, label: str = "kafka") -> None:
        super().__init__(label, version=NEWEST)
        self.listener = listener

    def prepare(self, data_dir: Path, port: int) -> None:
        super().prepare(data_dir, port)
        path = data_dir / "server.properties"
        lines = []
        for line in path.read_text().splitlines():
            name, _, value = line.partition("=")
            extra = f",SSL://{self.listener.address}" if name in {"listeners", "advertised.listeners"} else ""
            lines.append(f"{name}={value}{extra}")
        lines.append("listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL")
        lines += [f"{name}={value}" for name, value in self.listener.settings.items()]
        path.write_text("\n".join(lines) + "\n")
