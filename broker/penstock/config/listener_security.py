"""The security of one listener: protocol, TLS and SASL, as the server and the connections to other brokers use it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class SecurityProtocol(Enum):
    """The values of `listener.security.protocol.map`."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        """Whether clients authenticate with SASL."""
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The `ssl.*` settings of a listener, by Kafka's names with underscores; texts are PEM, locations are files."""

    keystore_type: str = "PEM"
    keystore_location: str | None = None
    keystore_password: str | None = field(default=None, repr=False)
    keystore_certificate_chain: str | None = None
    keystore_key: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    truststore_type: str = "PEM"
    truststore_location: str | None = None
    truststore_password: str | None = field(default=None, repr=False)
    truststore_certificates: str | None = None
    client_auth: str = "none"
    """`none`, `requested` or `required`."""
    enabled_protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    cipher_suites: tuple[str, ...] = ()
    principal_mapping_rules: str = "DEFAULT"


@dataclass(frozen=True, slots=True)
class ListenerSecurity:
    """What a listener asks of its clients. `tls` is set if the protocol has TLS, `mechanisms` if it has SASL."""

    listener: str
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    tls: TlsSettings | None = None
    mechanisms: tuple[str, ...] = ()
