"""The identity of a connection, set by authentication (KIP-11)."""

from __future__ import annotations

from typing import NamedTuple

USER = "User"
GROUP = "Group"


class Principal(NamedTuple):
    """A type, which is `User` for all built-in mechanisms, and a name. As text: `User:ana`.

    A tuple, because authorization decisions are looked up by it.
    """

    kind: str
    name: str
    groups: tuple[str, ...] = ()
    """Names of the groups of an OAuth bearer token: ACLs of `Group:NAME` apply too."""

    @property
    def identities(self) -> tuple[str, ...]:
        """The principals of ACLs that apply: the principal as text, and its groups."""
        return str(self), *(f"{GROUP}:{name}" for name in self.groups)

    def is_same_as(self, other: Principal) -> bool:
        """Return whether both are the same client; its groups may have changed."""
        return self[:2] == other[:2]

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Principal(USER, "ANONYMOUS")
"""The principal of connections to listeners without authentication."""


def parse_principal(text: str) -> Principal:
    """Parse `User:ana`. Raises ValueError."""
    kind, colon, name = text.partition(":")
    if not colon or not kind or not name:
        raise ValueError(f'invalid principal "{text}": use TYPE:NAME, for example User:ana')
    return Principal(kind, name)
