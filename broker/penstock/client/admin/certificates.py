"""Parses the certificates that a broker reports. Used by `configs`."""

from __future__ import annotations

import json

from penstock.client.admin.types import BrokerCertificate
from penstock.client.errors import ConnectionFailed


def parse_certificates(text: str) -> list[BrokerCertificate]:
    """Return the certificates in a broker's JSON. Raises `ConnectionFailed` if it is malformed."""
    try:
        return [parse_certificate(entry) for entry in json.loads(text)]
    except (ValueError, TypeError, RecursionError) as e:
        raise ConnectionFailed("the broker reports its certificates in a form that this client cannot read") from e


def parse_certificate(entry: object) -> BrokerCertificate:
    """Return one certificate. Raises ValueError."""
    match entry:
        case {"listener": str(listener), "expires_ms": int(expires_ms), "reload_error": str() | None as error}:
            return BrokerCertificate(listener, expires_ms, error)
    raise ValueError(f"not a certificate: {entry!r:.100}")
