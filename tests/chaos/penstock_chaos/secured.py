"""The certificates, users and keys of a secured cluster, each of which can be replaced while it runs.

Brokers authenticate to each other with certificates, clients with SCRAM or tokens. Files are replaced as Kubernetes
replaces those of a mounted Secret: a symbolic link is swapped.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import itertools
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from joserfc.jwk import ECKey

from penstock_chaos.history import SOURCE, TARGET, WORKERS
from penstock_chaos.loads.login import AUDIENCE, CA, ISSUER, TOKEN_KEY

ADMIN, BROKERS, VISITOR = "admin", "broker", "visitor"
SCRAM_USERS = ("confluent", "billing", "shipping", WORKERS, "follower", VISITOR)
TOKEN_USERS = ("kafka-python", "penstock")
"""The names of the workloads, which are those of their users, and another user."""
CLIENTS, INTERNAL = "CLIENTS", "INTERNAL"
SESSION_MS = 10_000
CALL_S = 20.0
ITERATIONS = 4096
ALLOW, ALL, LITERAL, PREFIXED = (
    AclPermissionType.ALLOW,
    AclOperation.ALL,
    ResourcePatternType.LITERAL,
    ResourcePatternType.PREFIXED,
)


@dataclass(frozen=True)
class Certified:
    """A key and its certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def chain_pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    @property
    def key_pem(self) -> str:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def certify(common_name: str, by: Certified | None = None) -> Certified:
    """Issue a certificate for 127.0.0.1, or create a CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    issuer, signer = (subject, key) if by is None else (by.certificate.subject, by.key)
    now = dt.datetime.now(dt.UTC)
    serial = x509.random_serial_number()
    builder = (
        x509.CertificateBuilder(issuer, subject, key.public_key(), serial)
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(by is None, None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if by is None:
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        builder = builder.add_extension(usage, critical=True)
    else:
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
    return Certified(key, builder.sign(signer, hashes.SHA256()))


class Secured:
    """The credentials of one cluster. `tls` is the folder of the brokers' key store and trust store, `clients` that of
    the workloads."""

    def __init__(self, home: Path) -> None:
        self.tls, self.clients = home / "tls", home / "clients"
        for folder in (self.tls, self.clients):
            folder.mkdir()
        self._versions = itertools.count(1)
        self._authorities = itertools.count(1)
        self._keys = itertools.count(1)
        self.authority = self.new_authority()
        self.trusted = [self.authority]
        self.certificate = certify(BROKERS, self.authority)
        self.publish_tls()
        for name in ("tls.crt", "tls.key", CA):
            (self.tls / name).symlink_to(f"..data/{name}")
        self.publish_trust()
        self.token_key = self.new_token_key()
        self.key_set = home / "keys.json"
        self.publish_keys(self.token_key)
        self.use_token_key(self.token_key)
        self.write_password(ADMIN, secrets.token_hex(12))

    # Files

    def new_authority(self) -> Certified:
        """Create a CA."""
        return certify(f"authority {next(self._authorities)}")

    def publish_tls(self) -> None:
        """Replace the brokers' certificate, key and CA certificates at once, by the swap of a symbolic link."""
        folder = self.tls / f"..{next(self._versions)}"
        folder.mkdir()
        (folder / "tls.crt").write_text(self.certificate.chain_pem)
        (folder / "tls.key").write_text(self.certificate.key_pem)
        (folder / CA).write_text(self.trust_pem)
        link = self.tls / "..data_tmp"
        link.symlink_to(folder.name)
        link.replace(self.tls / "..data")

    @property
    def trust_pem(self) -> str:
        """The trusted CA certificates."""
        return "".join(each.chain_pem for each in self.trusted)

    def publish_trust(self) -> None:
        """Replace the CA certificates of the clients."""
        write(self.clients / CA, self.trust_pem)

    def new_token_key(self) -> ECKey:
        """Create a key of the identity provider."""
        return ECKey.generate_key("P-256", {"kid": f"key-{next(self._keys)}"})

    def publish_keys(self, *keys: ECKey) -> None:
        """Replace the key set with which brokers verify tokens."""
        write(self.key_set, json.dumps({"keys": [key.as_dict(private=False) for key in keys]}))

    def use_token_key(self, key: ECKey) -> None:
        """Sign tokens with a key from now on."""
        write(self.clients / TOKEN_KEY, json.dumps(key.as_dict(private=True)))

    def password(self, user: str) -> str:
        """Return the present password of a user."""
        return (self.clients / f"{user}.password").read_text()

    def write_password(self, user: str, password: str) -> None:
        """Hand a password to the clients of a user."""
        write(self.clients / f"{user}.password", password)

    # Brokers and clients

    def settings(self) -> dict[str, str]:
        """Return the settings of the brokers."""
        return {
            "listener.security.protocol.map": f"{CLIENTS}:SASL_SSL,{INTERNAL}:SSL",
            "inter.broker.listener.name": INTERNAL,
            "ssl.keystore.location": str(self.tls),
            "ssl.truststore.location": str(self.tls),
            "listener.name.internal.ssl.client.auth": "required",
            "listener.name.clients.sasl.enabled.mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
            "connections.max.reauth.ms": str(SESSION_MS),
            "sasl.oauthbearer.jwks.endpoint.url": self.key_set.as_uri(),
            "sasl.oauthbearer.jwks.endpoint.refresh.ms": "2000",
            "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": "500",
            "sasl.oauthbearer.allowed.urls": self.key_set.as_uri(),
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "authorizer.class.name": "StandardAuthorizer",
            "super.users": f"User:{ADMIN};User:CN={BROKERS}",
        }

    def bootstrap_user(self) -> list[str]:
        """Return the options that create the administrator."""
        return [f"--bootstrap-user={ADMIN}", f"--bootstrap-password-file={self.clients / f'{ADMIN}.password'}"]

    def librdkafka(self, user: str, password: str | None = None) -> dict[str, Any]:
        """Return the settings of a client that logs in with SCRAM."""
        return {
            "security.protocol": "SASL_SSL",
            "ssl.ca.pem": self.trust_pem,
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": self.password(user) if password is None else password,
            "log_level": 0,
        }

    def login(self, user: str) -> dict[str, str]:
        """Return the login options of a workload."""
        mechanism = "OAUTHBEARER" if user in TOKEN_USERS else "SCRAM-SHA-512"
        return {"folder": str(self.clients), "user": user, "mechanism": mechanism}


class Administrator:
    """Changes users and ACLs as an operator's tool does."""

    def __init__(self, bootstrap: str, secured: Secured) -> None:
        self._bootstrap, self._secured = bootstrap, secured
        self._admin: tuple[str, AdminClient] | None = None

    def _client(self) -> AdminClient:
        """Return the client; another one if the CA certificates have changed, which librdkafka reads only once."""
        trust = self._secured.trust_pem
        if self._admin is None or self._admin[0] != trust:
            settings = {"bootstrap.servers": self._bootstrap} | self._secured.librdkafka(ADMIN)
            self._admin = trust, AdminClient(settings)
        return self._admin[1]

    def create_users(self) -> None:
        """Create the users and their rights."""
        for user in SCRAM_USERS:
            self.set_password(user)
        for user in (*SCRAM_USERS, *TOKEN_USERS):
            self.allow(user, ResourceType.TOPIC, SOURCE)
        for user in (WORKERS, "follower"):
            self.allow(user, ResourceType.TOPIC, TARGET)
        for user in ("billing", "shipping", WORKERS):
            self.allow(user, ResourceType.GROUP, user)
        self.allow(WORKERS, ResourceType.TRANSACTIONAL_ID, WORKERS)

    def set_password(self, user: str) -> None:
        """Give a user another random password, in the cluster first and then to its clients."""
        password = secrets.token_hex(12)
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, ITERATIONS)
        upsertion = UserScramCredentialUpsertion(user, info, password.encode())
        self._client().alter_user_scram_credentials([upsertion])[user].result(CALL_S)
        self._secured.write_password(user, password)

    def allow(self, user: str, kind: ResourceType, name: str, pattern: ResourcePatternType = LITERAL) -> None:
        """Allow a user all operations."""
        binding = AclBinding(kind, name, pattern, f"User:{user}", "*", ALL, ALLOW)
        for future in self._client().create_acls([binding]).values():
            future.result(CALL_S)

    def revoke(self, user: str, kind: ResourceType, name: str, pattern: ResourcePatternType = LITERAL) -> int:
        """Remove that right; return the number of ACLs."""
        matching = AclBindingFilter(kind, name, pattern, f"User:{user}", "*", ALL, ALLOW)
        return sum(len(future.result(CALL_S)) for future in self._client().delete_acls([matching]).values())


def write(path: Path, text: str) -> None:
    """Replace a file's content at once; only the owner can read it."""
    temporary = path.with_suffix(".new")
    temporary.touch(0o600)
    temporary.write_text(text)
    os.replace(temporary, path)
