"""The certificates of brokers, as `penstock status` prints them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.cli.times import UNITS_MS, format_time
from penstock.client import BrokerCertificate, ClientError

Certificates = Mapping[int, list[BrokerCertificate] | ClientError]
"""By broker id; an error where they could not be queried, for example without the right to describe settings."""


def known_certificates(certificates: Certificates) -> Iterator[tuple[int, BrokerCertificate]]:
    """Yield (broker id, certificate)."""
    for broker_id, found in sorted(certificates.items()):
        if not isinstance(found, ClientError):
            for certificate in found:
                yield broker_id, certificate


def certificate_rows(certificates: Certificates, now_ms: int) -> list[tuple[str, ...]]:
    """Return a row for each listener with TLS: broker, listener, time of expiry, time left, changes."""
    return [
        (
            str(broker_id),
            each.listener,
            format_time(each.expires_ms),
            time_left(each.expires_ms, now_ms),
            "loaded" if each.reload_error is None else "failed",
        )
        for broker_id, each in known_certificates(certificates)
    ]


def time_left(expires_ms: int, now_ms: int) -> str:
    """Return the whole days until a certificate expires."""
    return "expired" if expires_ms <= now_ms else f"{(expires_ms - now_ms) // UNITS_MS['d']:,} d"


def certificate_failures(certificates: Certificates, now_ms: int) -> list[str]:
    """Return an error message for each certificate that has expired or whose replacement was not loaded."""
    failures = []
    for broker_id, each in known_certificates(certificates):
        where = f'listener "{each.listener}" of broker {broker_id}'
        if each.reload_error is not None:
            failures.append(f"{where} still uses its earlier certificate: {each.reload_error}")
        if each.expires_ms <= now_ms:
            failures.append(
                f"the certificate of {where} expired at {format_time(each.expires_ms)}; replace it in the broker's key"
                " store, which the broker reloads"
            )
    return failures


def certificates_json(found: list[BrokerCertificate] | ClientError) -> list[dict[str, object]] | None:
    """Return a broker's certificates for JSON; None if they could not be queried."""
    if isinstance(found, ClientError):
        return None
    return [
        {"listener": each.listener, "expires": format_time(each.expires_ms), "reload_error": each.reload_error}
        for each in found
    ]
