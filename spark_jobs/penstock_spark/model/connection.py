"""Connection settings in the client's terms. Hashable, because a process keeps one link for each."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.client import Sasl, Tls

__all__ = ["ConnectionOptions", "Sasl", "Tls"]


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Connection settings; times are in milliseconds. Without `tls` it is plain, without `sasl` anonymous."""

    bootstrap: str
    """Bootstrap servers, comma-separated `host:port`."""
    tls: Tls | None = None
    sasl: Sasl | None = None
    client_id: str = "penstock-spark"
    connect_timeout_ms: int = 10_000
    request_timeout_ms: int = 30_000
    give_up_ms: int = 120_000
    """Retry timeout of an operation, while brokers are unavailable, restart, or change leaders."""
