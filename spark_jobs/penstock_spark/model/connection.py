"""How to reach the brokers. Hashable: processes keep one link for each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tls:
    """Files are PEM. Without `ca_file` the system's authorities count."""

    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    key_password: str | None = None
    check_hostname: bool = True

    def __repr__(self) -> str:
        return f"Tls(ca_file={self.ca_file!r}, certificate_file={self.certificate_file!r})"


@dataclass(frozen=True, slots=True)
class Sasl:
    """`mechanism`: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512."""

    mechanism: str
    username: str
    password: str

    def __repr__(self) -> str:
        return f"Sasl(mechanism={self.mechanism!r}, username={self.username!r})"


@dataclass(frozen=True, slots=True)
class Connection:
    """Times in milliseconds. Without `tls` the connection is plain, without `sasl` nobody is authenticated."""

    bootstrap: str
    """host:port, several with commas between them."""
    tls: Tls | None = None
    sasl: Sasl | None = None
    client_id: str = "penstock-spark"
    connect_timeout_ms: int = 10_000
    request_timeout_ms: int = 30_000
    give_up_ms: int = 120_000
    """For how long an operation is repeated while brokers are away, restart, or change leaders."""
