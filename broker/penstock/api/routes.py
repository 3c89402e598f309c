"""The handler interface, and the routes from API keys to handlers.

Each API module has a class with a `routes()` method; `node` collects the routes into the dispatcher.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from penstock.api.exchange import PeerInfo, RequestExchange
from penstock.wire.schema import Payload


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The request header and connection of a request."""

    version: int
    correlation_id: int
    client_id: str | None
    peer: PeerInfo
    exchange: RequestExchange
    """For handlers that wait: `is_disconnected` and `on_disconnect`. Only the dispatcher replies."""


Handler = Callable[[Any, RequestContext], Payload | Awaitable[Payload]]
"""(request, context) → response, or a coroutine of it. Errors belong in the response. An exception that escapes is
logged and becomes UNKNOWN_SERVER_ERROR if the response can carry it; otherwise the connection is closed.
"""

Failure = Callable[[Any, int], Payload]
"""(request, error code) → the response with this error for everything in the request."""


@dataclass(frozen=True, slots=True)
class Route:
    """One API, served in versions `first` to `last`, which may be narrower than the codec's."""

    request: type[Payload]
    response: type[Payload]
    handler: Handler
    first: int
    last: int
    failure: Failure | None = None
