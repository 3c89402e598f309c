"""Certificates made with `cryptography`, and a server with a TLS listener."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID
from server_kit import Client, Desk, Service

from penstock.config.listener_security import ListenerSecurity, SecurityProtocol, TlsSettings
from penstock.config.listeners import ListenerAddress
from penstock.server.limits import ServerLimits
from penstock.server.listener import Server
from penstock.server.tls.listener_tls import ListenerTls

HOSTS = ("localhost", "127.0.0.1")


@dataclass(frozen=True)
class Certified:
    """A key and its certificate, signed by an authority or by itself."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    issuers: tuple[x509.Certificate, ...] = ()

    @property
    def chain_pem(self) -> str:
        return "".join(c.public_bytes(Encoding.PEM).decode() for c in (self.certificate, *self.issuers))

    def key_pem(self, password: str | None = None) -> str:
        encryption = NoEncryption() if password is None else BestAvailableEncryption(password.encode())
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption).decode()

    @property
    def pem(self) -> str:
        return self.key_pem() + self.chain_pem

    def pkcs12(self, password: str) -> bytes:
        encryption = BestAvailableEncryption(password.encode())
        return pkcs12.serialize_key_and_certificates(b"broker", self.key, self.certificate, self.issuers, encryption)

    def write(self, path: Path) -> str:
        path.write_text(self.pem)
        return str(path)


def name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def certify(
    subject: x509.Name,
    by: Certified | None = None,
    *,
    is_authority: bool = False,
    hosts: tuple[str, ...] = HOSTS,
    days: float = 2,
) -> Certified:
    key = ec.generate_private_key(ec.SECP256R1())
    issuer, signer = (subject, key) if by is None else (by.certificate.subject, by.key)
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=10))
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
    )
    if not is_authority:
        names: list[x509.GeneralName] = [
            x509.IPAddress(ipaddress.ip_address(host)) if host[0].isdigit() else x509.DNSName(host) for host in hosts
        ]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    issuers = () if by is None or not by.issuers else (by.certificate, *by.issuers[:-1])
    return Certified(key, builder.sign(signer, hashes.SHA256()), issuers)


AUTHORITY = certify(name("authority"), is_authority=True)
BROKER = certify(name("broker"), AUTHORITY)
CLIENT = certify(
    x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Ana, Inc"), x509.NameAttribute(NameOID.COMMON_NAME, "ana")]
    ),
    AUTHORITY,
)
STRANGER = certify(name("ana"), certify(name("authority"), is_authority=True))


def settings(**more: object) -> TlsSettings:
    texts = {} if "keystore_location" in more else {
        "keystore_key": BROKER.key_pem(), "keystore_certificate_chain": BROKER.chain_pem
    }  # fmt: skip
    trust = {} if "truststore_location" in more else {"truststore_certificates": AUTHORITY.chain_pem}
    return TlsSettings(**{**texts, **trust, **more})  # type: ignore[arg-type]


def loaded(protocol: SecurityProtocol = SecurityProtocol.SSL, **more: object) -> ListenerTls:
    return ListenerTls.load(ListenerSecurity("SSL", protocol, settings(**more)))


def client_context(certified: Certified | None = None, tmp_path: Path | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=AUTHORITY.chain_pem)
    if certified is not None and tmp_path is not None:
        context.load_cert_chain(certified.write(tmp_path / "client.pem"))
    return context


class TlsService(Service):
    """A server and its TLS listener."""

    def __init__(self, server: Server, port: int, tls: ListenerTls) -> None:
        super().__init__(server, port)
        self.tls = tls

    async def connect_tls(self, context: ssl.SSLContext | None = None) -> Client:
        context = context or client_context()
        opened = await asyncio.open_connection("127.0.0.1", self.port, ssl=context, server_hostname="localhost")
        self.clients.append(Client(*opened))
        return self.clients[-1]


@asynccontextmanager
async def serving_tls(
    handler: Desk, tls: ListenerTls, limits: ServerLimits | None = None, grace_s: float = 0.0
) -> AsyncIterator[TlsService]:
    server = Server(handler, limits or ServerLimits(), tls={"SSL": tls})
    (address,) = await server.listen([ListenerAddress("SSL", "127.0.0.1", 0)])
    service = TlsService(server, address.port, tls)
    try:
        yield service
    finally:
        await server.close(grace_s)
        for client in service.clients:
            client.hang_up()
        assert server.hub.pool.held_bytes == 0, "memory of connections that are gone"
        assert server.stats.connections == server.stats.paused == 0, "connections that are gone"
