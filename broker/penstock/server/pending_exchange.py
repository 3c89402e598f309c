"""One request of a connection and its response. Created by `core`, completed by request handlers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.api.exchange import Callback, ResponsePart
from penstock.log.types import LogSlice


class ExchangeConnection(Protocol):
    """The connection of an exchange; `core.ConnectionCore` implements it."""

    def on_completed(self, exchange: PendingExchange) -> None:
        """Schedule the response."""

    def throttle(self, throttle_ms: int) -> None:
        """Do not read the connection for a time."""

    def abort(self, reason: str) -> None:
        """Close the connection behind the completed responses."""

    def add_lost_callback(self, callback: Callback) -> None:
        """Call `callback` when the connection is lost."""


class PendingExchange:
    """Implements `api.exchange.RequestExchange`. A connection's exchanges form a linked list in request order."""

    __slots__ = (
        "callbacks",
        "connection",
        "is_complete",
        "next_exchange",
        "parts",
        "request_bytes",
        "throttle_ms",
    )

    def __init__(self, connection: ExchangeConnection, request_bytes: int) -> None:
        self.connection: ExchangeConnection | None = connection
        self.request_bytes = request_bytes
        self.next_exchange: PendingExchange | None = None
        self.parts: Sequence[ResponsePart] = ()
        self.is_complete = False
        self.callbacks: list[Callback] | None = None
        self.throttle_ms = 0

    def throttle(self, throttle_ms: int) -> None:
        """Do not read the connection for a time; without effect if it is lost."""
        if self.connection is not None:
            self.connection.throttle(throttle_ms)

    def reply(self, parts: Sequence[ResponsePart]) -> None:
        """Complete the request with `parts`; release their slices at once if the connection is lost."""
        assert not self.is_complete, "an exchange is completed once"
        self.is_complete = True
        self.callbacks = None
        if self.connection is None:
            release_slices(parts)
            return
        self.parts = parts
        self.connection.on_completed(self)

    def complete_without_response(self) -> None:
        """Complete the request without a response."""
        self.reply(())

    def abort(self, reason: str) -> None:
        """Complete the request and close the connection."""
        connection = self.connection
        self.complete_without_response()
        if connection is not None:
            connection.abort(reason)

    @property
    def is_disconnected(self) -> bool:
        """Whether the connection was lost."""
        return self.connection is None

    @property
    def is_followed(self) -> bool:
        """Whether a later request of the connection has arrived."""
        return self.next_exchange is not None

    def on_disconnect(self, callback: Callback) -> None:
        """Register a callback for the loss of the connection; call it at once if the connection is lost already."""
        if self.connection is None:
            if not self.is_complete:
                callback()
        elif self.callbacks is None:
            self.callbacks = [callback]
        else:
            self.callbacks.append(callback)

    def on_connection_lost(self, callback: Callback) -> None:
        """Register a callback for the loss of the connection, even after the response."""
        if self.connection is None:
            callback()
        else:
            self.connection.add_lost_callback(callback)

    def disconnect(self) -> list[Callback]:
        """Release an unsent response of a lost connection, and return the callbacks to run."""
        self.connection = None
        self.next_exchange = None
        parts, self.parts = self.parts, ()
        release_slices(parts)
        callbacks, self.callbacks = self.callbacks, None
        return callbacks or []


def release_slices(parts: Sequence[ResponsePart]) -> None:
    """Release the log slices among `parts`."""
    for part in parts:
        if isinstance(part, LogSlice):
            part.release()
