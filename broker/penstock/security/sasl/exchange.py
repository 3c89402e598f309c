"""The interface of SASL mechanisms: one `SaslMechanism` per listener, one `ServerExchange` per authentication.

`api.authentication` passes the client's messages to an exchange until a step names the identity.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from penstock.security.principal import USER, Principal

MAX_MESSAGE_BYTES = 16 * 1024
"""Maximum size of a message of PLAIN and SCRAM, above what names and passwords need."""
MAX_NAME_CHARS = 255
"""Maximum length of an authenticated name, in characters."""


class FailureReason(StrEnum):
    """Why an authentication failed, for metrics and logs. Clients do not learn it."""

    CREDENTIALS = "credentials"
    """Unknown user or wrong password."""
    TOKEN = "token"  # noqa: S105
    """A token that is invalid, expired, or for another audience."""
    MALFORMED = "malformed"
    """A message that does not conform to the mechanism."""
    UNAVAILABLE = "unavailable"
    """The keys to verify a token could not be fetched."""
    MECHANISM = "mechanism"
    """A mechanism that the listener does not offer."""
    STATE = "state"
    """A request in the wrong order."""
    CHANGED = "changed"
    """A re-authentication with another principal or mechanism."""
    RESERVED = "reserved"
    """A name that only a client certificate can have."""


class AuthenticationRejected(Exception):
    """The client is not authenticated. The message is for the log and contains no part of the client's message."""

    def __init__(self, reason: FailureReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Identity:
    """An authenticated client. `expires_at_ms` is the end of its credentials, in ms since 1970; None for no end."""

    principal: Principal
    expires_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """The response to a message of the client; `identity` is set by the last one.

    `rejection` is set by a response that describes why the client is not authenticated: the exchange raises it at the
    next message.
    """

    response: bytes = b""
    identity: Identity | None = None
    rejection: AuthenticationRejected | None = None


class ServerExchange(Protocol):
    """One authentication."""

    def respond(self, message: bytes) -> Step | Awaitable[Step]:
        """Return the response to a message; an awaitable if it takes a thread or I/O.

        Both raise `AuthenticationRejected`, after which the exchange is over.
        """


class SaslMechanism(Protocol):
    """A mechanism as a listener offers it."""

    @property
    def name(self) -> str:
        """The registered name, for example `SCRAM-SHA-512`."""

    def start(self) -> ServerExchange:
        """Return a new exchange."""


def malformed(message: str) -> AuthenticationRejected:
    """Return the error for a message that does not conform to the mechanism."""
    return AuthenticationRejected(FailureReason.MALFORMED, message)


def text_of(message: bytes, limit: int = MAX_MESSAGE_BYTES) -> str:
    """Decode a message. Raises `AuthenticationRejected` if it is longer than `limit` bytes or not UTF-8."""
    if len(message) > limit:
        raise malformed(f"message of {len(message)} bytes; at most {limit} are allowed")
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise malformed("message is not UTF-8") from None


def user_principal(name: str) -> Principal:
    """Return the principal of an authenticated name. Raises `AuthenticationRejected` if it is empty or too long."""
    if not name or len(name) > MAX_NAME_CHARS:
        raise malformed(f"name of {len(name)} characters; 1 to {MAX_NAME_CHARS} are allowed")
    return Principal(USER, name)
