"""The shape of a handler, and the table that maps API keys to handlers.

A module of this room has a class that takes what it needs from the rooms below and offers `routes()`. `node` collects
them into the dispatcher.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from penstock.api.exchange import PeerInfo, RequestExchange
from penstock.wire.schema import Payload


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What a request's header and connection tell, beside its body."""

    version: int
    correlation_id: int
    client_id: str | None
    peer: PeerInfo
    exchange: RequestExchange
    """For handlers that wait: `exchange.is_disconnected` and `exchange.on_disconnect`. Only the dispatcher replies."""


Handler = Callable[[Any, RequestContext], Payload | Awaitable[Payload]]
"""(request, context) → response, or a coroutine of it. Errors belong in the response; an exception that escapes is
logged and answered with UNKNOWN_SERVER_ERROR where the response can carry it, else the connection is closed."""

Failure = Callable[[Any, int], Payload]
"""(request, error code) → the response that says so for everything that was asked."""


@dataclass(frozen=True, slots=True)
class Route:
    """One API: served in versions `first` to `last`, which may be narrower than what the codec knows."""

    request: type[Payload]
    response: type[Payload]
    handler: Handler
    first: int
    last: int
    failure: Failure | None = None
