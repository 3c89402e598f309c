"""The handler interface, and the routes from API keys to handlers.

Each API module has a class with a `routes()` method; `node` collects the routes into the dispatcher.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from penstock.api.exchange import PeerInfo, RequestExchange
from penstock.security.quotas.mutations import MutationQuota
from penstock.security.quotas.request_meter import RequestMeter
from penstock.wire import codec
from penstock.wire.schema import Payload


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The request header and connection of a request."""

    version: int
    correlation_id: int
    client_id: str | None
    peer: PeerInfo
    exchange: RequestExchange
    """For handlers that wait: `is_disconnected` and `on_disconnect`. The dispatcher replies, unless the handler returns
    None."""
    meter: RequestMeter | None = None
    """Measures the request; None if its client has no quota."""

    def mutation_quota(self, is_strict: bool) -> MutationQuota | None:
        """Return the quota on partitions that the request creates or deletes; None without one."""
        return None if self.meter is None else self.meter.mutations(is_strict)


Handler = Callable[[Any, RequestContext], Payload | Awaitable[Payload] | None]
"""(request, context) → response, or a coroutine or future of it; None if the handler replies through the exchange, as
it must for a response with slices of log files. Errors belong in the response. An exception that escapes is logged and
becomes UNKNOWN_SERVER_ERROR if the response can carry it; otherwise the connection is closed.
"""

Decoder = Callable[[int, memoryview, int], Payload]
"""(version, frame, offset of the body) → request. Raises MalformedMessage."""

Failure = Callable[[Any, int], Payload]
"""(request, error code) → the response with this error for everything in the request."""


class Route:
    """One API, served in the codec's versions of its request, or in fewer with `first` and `last`.

    `decode` replaces the codec for an API whose requests need leniency.
    """

    __slots__ = ("decode", "failure", "first", "handler", "last", "request")

    def __init__(
        self,
        request: type[Payload],
        handler: Handler,
        failure: Failure | None = None,
        *,
        first: int | None = None,
        last: int | None = None,
        decode: Decoder | None = None,
    ) -> None:
        known_first, known_last = request.VERSIONS
        self.request, self.handler, self.failure = request, handler, failure
        self.decode: Decoder = decode or partial(codec.decode_request, request)
        self.first = known_first if first is None else first
        self.last = known_last if last is None else last
        assert known_first <= self.first <= self.last <= known_last, f"a route of {request.__name__} narrows versions"

    @property
    def response(self) -> type[Payload]:
        """The class of the response, which is defined beside the request's."""
        name = self.request.__name__.removesuffix("Request") + "Response"
        found: type[Payload] = getattr(sys.modules[self.request.__module__], name)
        return found
