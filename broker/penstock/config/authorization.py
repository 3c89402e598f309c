"""Values of the settings of authorization. Used by `broker`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from penstock.config.definition import InvalidSetting

STANDARD_AUTHORIZER = "StandardAuthorizer"
AUTHORIZERS = ("", STANDARD_AUTHORIZER, f"org.apache.kafka.metadata.authorizer.{STANDARD_AUTHORIZER}")
"""Valid values of `authorizer.class.name`; empty for no authorization."""
CERTIFICATE_PRINCIPAL = re.compile(r"User:\s*[A-Za-z][A-Za-z0-9.-]*\s*=|User:\d+(\.\d+)+\s*=")
"""The beginning of a principal whose name is a distinguished name (RFC 4514): an attribute type and its value."""


def certificate_principals(super_users: Iterable[str]) -> frozenset[str]:
    """Return the super users that are distinguished names, and so the principals of client certificates."""
    return frozenset(principal for principal in super_users if CERTIFICATE_PRINCIPAL.match(principal))


def super_users_of(text: str) -> frozenset[str]:
    """Return the principals in `super.users`, which are separated by semicolons: a principal may have commas.

    Raises `InvalidSetting`.
    """
    principals = [part.strip() for part in text.split(";")]
    for principal in filter(None, principals):
        kind, colon, name = principal.partition(":")
        if not (kind and colon and name):
            raise InvalidSetting(
                f'invalid principal "{principal}" in super.users: use TYPE:NAME, separated by semicolons, for example'
                " User:admin;User:broker"
            )
    return frozenset(filter(None, principals))
