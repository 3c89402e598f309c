"""The server's implementation of `api.exchange.RequestExchange`: a request's position in its connection's responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.api.exchange import Callback, ResponsePart
from penstock.log.types import LogSlice


class ExchangeOwner(Protocol):
    """The connection, as its exchanges see it."""

    def on_completed(self, exchange: PendingExchange) -> None:
        """Called when the exchange has its response."""

    def abort(self, reason: str) -> None:
        """Close the connection behind the responses that are complete."""


class PendingExchange:
    """Implements `api.exchange.RequestExchange`. A connection's exchanges form a linked list in request order."""

    __slots__ = ("callbacks", "connection", "is_complete", "next_exchange", "parts", "request_bytes")

    def __init__(self, connection: ExchangeOwner, request_bytes: int = 0) -> None:
        self.connection: ExchangeOwner | None = connection
        self.request_bytes = request_bytes
        self.next_exchange: PendingExchange | None = None
        self.parts: Sequence[ResponsePart] = ()
        self.is_complete = False
        self.callbacks: list[Callback] | None = None

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

    def on_disconnect(self, callback: Callback) -> None:
        """Register a callback for the loss of the connection; call it at once if the connection is lost already."""
        if self.connection is None:
            if not self.is_complete:
                callback()
        elif self.callbacks is None:
            self.callbacks = [callback]
        else:
            self.callbacks.append(callback)

    def on_connection_lost(self) -> list[Callback]:
        """Release an unsent response and return the callbacks to run."""
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
