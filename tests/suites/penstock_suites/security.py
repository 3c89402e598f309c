"""Listeners with TLS and SASL, users, and an authorizer, for suites that test these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from client_doubles.certificates import Authority, Signed
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

MODULES = "org.apache.kafka.common.security"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
BROKER_USER = "broker"
"""User of the brokers among themselves; the password is the same."""
PLAIN, SCRAM_256, SCRAM_512 = "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"
SCRAM_MECHANISMS = {SCRAM_256: ScramMechanism.SCRAM_SHA_256, SCRAM_512: ScramMechanism.SCRAM_SHA_512}
ITERATIONS = 4096
LIMIT_S = 30


@dataclass(frozen=True)
class Security:
    """Listeners beside the one without security, and who may do what. Topics, groups and the cluster that have no ACL
    are open to everyone, as in the brokers that the suites' authors use.
    """

    listeners: Mapping[str, str] = field(default_factory=dict)
    """Security protocol by the listener's name."""
    ports: Mapping[str, int] = field(default_factory=dict)
    """Fixed ports by listener, for a single broker; a free one, if missing."""
    plain: Mapping[str, str] = field(default_factory=dict)
    """Passwords of PLAIN by user."""
    scram: Iterable[tuple[str, str, str]] = ()
    """Mechanism, user and password; created when the cluster has started."""
    super_users: Iterable[str] = ()
    client_certificates: str = "required"
    """`ssl.client.auth` of the listeners with TLS and without SASL."""
    open_to_everyone: bool = True
    """Whether the resources that no ACL names are open to everyone."""

    def settings(self, certificates: Path, names: Iterable[str]) -> dict[str, str]:
        """Return the brokers' settings, by Kafka's names, for a cluster whose listeners among brokers have `names`.

        `certificates` is the directory of `make_certificates`.
        """
        listeners = [*self.listeners, *names]
        protocols = {**self.listeners, **dict.fromkeys(names, "SASL_PLAINTEXT")}
        principals = (BROKER_USER, *self.super_users)
        settings = {
            "authorizer.class.name": AUTHORIZER,
            "super.users": ";".join(f"User:{user}" for user in principals),
            "allow.everyone.if.no.acl.found": str(self.open_to_everyone).lower(),
            "sasl.enabled.mechanisms": f"{PLAIN},{SCRAM_256},{SCRAM_512}",
        }
        if any(protocol.endswith("SSL") for protocol in protocols.values()):
            settings |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(certificates / "server.both.pem"),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(certificates / "ca.crt"),
                "ssl.client.auth": self.client_certificates,
            }
        users = "".join(
            f' user_{user}="{password}"' for user, password in {**self.plain, BROKER_USER: BROKER_USER}.items()
        )
        own = f'username="{BROKER_USER}" password="{BROKER_USER}"'
        for listener in listeners:
            if protocols[listener].startswith("SASL"):
                prefix = f"listener.name.{listener.lower()}"
                settings[f"{prefix}.plain.sasl.jaas.config"] = (
                    f"{MODULES}.plain.PlainLoginModule required {own}{users};"
                )
                for mechanism in SCRAM_MECHANISMS:
                    name = f"{prefix}.{mechanism.lower()}.sasl.jaas.config"
                    settings[name] = f"{MODULES}.scram.ScramLoginModule required;"
        return settings

    def create_users(self, bootstrap: str) -> None:
        """Create the users of SCRAM through the listener without security. Apache Kafka takes one change of a user in
        a request.
        """
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for mechanism, user, password in self.scram:
            credential = ScramCredentialInfo(SCRAM_MECHANISMS[mechanism], ITERATIONS)
            change = UserScramCredentialUpsertion(user, credential, password.encode())
            for future in admin.alter_user_scram_credentials([change]).values():
                future.result(LIMIT_S)


def make_certificates(home: Path) -> None:
    """Create `ca.crt` (also as `ca-cert`), and `server` and `client` as `.crt` and `.key`.

    `server.both.pem` has key and certificate.
    """
    authority = Authority(home / "authority")
    for file in ("ca.crt", "ca-cert"):
        _copy(authority.file, home / file)
    for name in ("server", "client"):
        signed: Signed = authority.sign(name)
        _copy(signed.certificate, home / f"{name}.crt")
        _copy(signed.key, home / f"{name}.key")
        _copy(signed.together, home / f"{name}.both.pem")


def _copy(source: Path, target: Path) -> None:
    target.write_bytes(source.read_bytes())
