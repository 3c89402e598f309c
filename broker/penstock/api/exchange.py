"""The connection interface that request handlers use; `server` implements it.

A `RequestExchange` stands for one request of a connection. A connection sends its responses in the order in which the
exchanges were opened, whatever the order in which they complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.config.addresses import join_host_port
from penstock.log.types import LogSlice
from penstock.security.principal import ANONYMOUS, Principal
from penstock.security.quotas.request_meter import RequestMeter
from penstock.wire.primitives import Buffer
from penstock.wire.produce_template import ProduceTemplate

ResponsePart = Buffer | LogSlice
"""A part of a response frame: bytes in memory, or a slice of a log file."""


class RequestExchange(Protocol):
    """A request that awaits its response."""

    throttle_ms: int
    """Throttle time for the response: the client exceeds a quota, and its connection pauses (KIP-219)."""

    def throttle(self, throttle_ms: int) -> None:
        """Do not read the connection for a time; it may have been lost."""

    def reply(self, parts: Sequence[ResponsePart]) -> None:
        """Complete the request with a whole response frame, including the size field and the response header.

        The connection releases slices once they are sent or the connection is lost. The caller must not modify the
        buffers afterwards. Valid after the connection was lost.
        """

    def complete_without_response(self) -> None:
        """Complete the request without a response (acks=0)."""

    def abort(self, reason: str) -> None:
        """Close the connection, for a request that must not get a response. `reason` is logged."""

    @property
    def is_disconnected(self) -> bool:
        """Whether the connection was lost."""

    @property
    def is_followed(self) -> bool:
        """Whether a later request of the connection has arrived, whose response waits for this one."""

    def on_disconnect(self, callback: Callback) -> None:
        """Call `callback` once if the connection is lost before the response; at once if it is lost already."""

    def on_connection_lost(self, callback: Callback) -> None:
        """Call `callback` once when the connection is lost, even after the response; at once if it is lost already."""


class Callback(Protocol):
    """A function to call when a connection is lost."""

    def __call__(self) -> None:
        """Run on the event loop."""


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """The remote end of a connection; one object for all requests of the connection."""

    connection_id: int
    listener: str
    """Name of the listener that accepted the connection; decides which addresses metadata advertises to it."""
    host: str
    port: int
    principal: Principal = ANONYMOUS
    """Set by authentication, which replaces the whole object."""

    @property
    def address(self) -> str:
        """`host:port`, with an IPv6 address in brackets."""
        return join_host_port(self.host, self.port)


class PeerConnection(Protocol):
    """A connection, as the dispatcher sees it."""

    peer: PeerInfo
    produce_template: ProduceTemplate | None
    """The layout that this connection's Produce requests share; kept here for `produce`."""
    meter: RequestMeter | None
    """Measures the request being dispatched; None if its client has no quota."""

    def open_exchange(self) -> RequestExchange:
        """Open the exchange for the request being dispatched."""

    def reply(self, frame: Buffer) -> None:
        """Reply with one buffer to the request being dispatched; equals `open_exchange().reply([frame])`."""

    def throttle(self, throttle_ms: int) -> None:
        """Do not read the connection for a time. Its responses are still sent."""


class FrameHandler(Protocol):
    """The dispatcher, as the server calls it."""

    def __call__(self, connection: PeerConnection, frame: memoryview) -> None:
        """Handle one request frame without its size field. `frame` is valid and writable only during the call.

        Raises ProtocolViolation if the bytes are not a valid request; the server then closes the connection.
        """


class ProtocolViolation(Exception):
    """The peer does not speak the Kafka protocol, or exceeds a limit; the message says which.

    The server sends `response`, an error in the protocol that the peer speaks, before it closes the connection.
    """

    def __init__(self, message: str, response: bytes = b"") -> None:
        super().__init__(message)
        self.response = response
