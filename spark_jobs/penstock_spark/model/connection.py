"""How to reach the brokers, in the client's terms. Hashable: processes keep one link for each."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.client.security import Sasl, Tls

__all__ = ["ConnectionOptions", "Sasl", "Tls"]


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
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
