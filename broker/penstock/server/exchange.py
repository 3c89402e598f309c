"""A request's place among the answers of its connection. Handlers hold it, as `api.exchange.Exchange`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.api.exchange import Callback, Part
from penstock.log.types import LogSlice


class ExchangeOwner(Protocol):
    """The connection, for its exchanges."""

    def on_completed(self, exchange: PendingExchange) -> None: ...

    def abort(self, reason: str) -> None: ...


class PendingExchange:
    """Implements `api.exchange.Exchange`. Exchanges of a connection are linked in the order in which they came."""

    __slots__ = ("callbacks", "connection", "done", "following", "parts", "request_bytes")

    def __init__(self, connection: ExchangeOwner, request_bytes: int = 0) -> None:
        self.connection: ExchangeOwner | None = connection
        self.request_bytes = request_bytes
        self.following: PendingExchange | None = None
        self.parts: Sequence[Part] = ()
        self.done = False
        self.callbacks: list[Callback] | None = None

    def reply(self, parts: Sequence[Part]) -> None:
        assert not self.done, "an exchange is completed once"
        self.done = True
        self.callbacks = None
        if self.connection is None:
            release(parts)
            return
        self.parts = parts
        self.connection.on_completed(self)

    def drop(self) -> None:
        self.reply(())

    def abort(self, reason: str) -> None:
        connection = self.connection
        self.drop()
        if connection is not None:
            connection.abort(reason)

    @property
    def gone(self) -> bool:
        return self.connection is None

    def on_gone(self, callback: Callback) -> None:
        if self.connection is None:
            if not self.done:
                callback()
        elif self.callbacks is None:
            self.callbacks = [callback]
        else:
            self.callbacks.append(callback)

    def lose(self) -> list[Callback]:
        """The connection is lost: releases an answer that was not sent, and says whom to tell."""
        self.connection = None
        self.following = None
        parts, self.parts = self.parts, ()
        release(parts)
        callbacks, self.callbacks = self.callbacks, None
        return callbacks or []


def release(parts: Sequence[Part]) -> None:
    for part in parts:
        if isinstance(part, LogSlice):
            part.release()
