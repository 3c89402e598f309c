"""The state of the operator's CA, which is stored in its Secret only, so that a rollover survives restarts.

A rollover has three steps, and the next one begins when all brokers have completed the one before:

1. The new CA (`next`) is published beside the old one. The old one still issues certificates.
2. The new CA issues certificates. The old one (`previous`), whose key is deleted, is still trusted.
3. The old CA is removed.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock_operator.ports.kube import Object
from penstock_operator.specs.certificates import (
    AUTHORITY_KEY,
    CA,
    NEXT_CA,
    NEXT_KEY,
    PREVIOUS_CA,
    InvalidCertificate,
    ReadCertificate,
    read_certificate,
    text_of,
)

ROTATE = "penstock.io/rotate-ca"
"""Annotation of a Cluster: any text; changing it replaces the CA. The CA's Secret has the text that was applied."""


@dataclass(frozen=True, slots=True)
class AuthorityState:
    """The CAs of a cluster."""

    current: ReadCertificate
    """The CA that issues certificates."""
    has_key: bool = True
    """Whether its key is there. Without, a rollover replaces it."""
    upcoming: ReadCertificate | None = None
    previous: ReadCertificate | None = None
    rotation: str = ""
    """The text of annotation `ROTATE` when the last rollover began."""

    @property
    def trusted(self) -> list[ReadCertificate]:
        """CAs whose certificates brokers accept."""
        return [each for each in (self.current, self.upcoming, self.previous) if each is not None]


def read_authority(secret: Object) -> AuthorityState:
    """Read the Secret of the CA. Raises `InvalidCertificate`, which names the key."""
    current = read_optional(secret, CA)
    if current is None:
        raise InvalidCertificate(f"{CA} is missing")
    upcoming, previous = read_optional(secret, NEXT_CA), read_optional(secret, PREVIOUS_CA)
    if upcoming is not None and not upcoming.has_key(text_of(secret, NEXT_KEY)):
        raise InvalidCertificate(f"{NEXT_KEY} is not the key of {NEXT_CA}")
    has_key = current.has_key(text_of(secret, AUTHORITY_KEY))
    rotation = str((secret["metadata"].get("annotations") or {}).get(ROTATE) or "")
    return AuthorityState(current, has_key, upcoming, previous, rotation)


def read_optional(secret: Object, key: str) -> ReadCertificate | None:
    """Return the certificate of a key; None if there is none. Raises `InvalidCertificate`."""
    text = text_of(secret, key)
    if not text:
        return None
    try:
        return read_certificate(text)
    except InvalidCertificate as e:
        raise InvalidCertificate(f"{key}: {e}") from None
