"""Values of the settings of authorization. Used by `broker`."""

from __future__ import annotations

from penstock.config.definition import InvalidSetting

STANDARD_AUTHORIZER = "StandardAuthorizer"
AUTHORIZERS = ("", STANDARD_AUTHORIZER, f"org.apache.kafka.metadata.authorizer.{STANDARD_AUTHORIZER}")
"""Valid values of `authorizer.class.name`; empty for no authorization."""


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
