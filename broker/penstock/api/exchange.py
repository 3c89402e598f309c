"""What a handler sees of a connection. `server` implements it; handlers are given it and import nothing above.

A request's place among its connection's answers is a `RequestExchange`: answers leave in the order in which the
exchanges were opened, whenever each is completed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.config.addresses import join_host_port
from penstock.log.types import LogSlice
from penstock.wire.primitives import Buffer
from penstock.wire.produce_template import ProduceTemplate

Part = Buffer | LogSlice


class RequestExchange(Protocol):
    """One request that awaits its answer."""

    def reply(self, parts: Sequence[Part]) -> None:
        """Completes it with a whole response frame, size field and response header included.

        Slices are sent by the kernel where it can, and released by the connection, also when it is gone. Buffers must
        not change afterwards. May be called after the connection was lost.
        """

    def drop(self) -> None:
        """Completes it without an answer (acks=0)."""

    def abort(self, reason: str) -> None:
        """Closes the connection, as for a request that cannot be answered."""

    @property
    def gone(self) -> bool:
        """Whether nobody waits for the answer any more."""

    def on_gone(self, callback: Callback) -> None:
        """Calls back once, when the connection is lost before the answer."""


class Callback(Protocol):
    def __call__(self) -> None: ...


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """Who is at the other end: the same object for all requests of a connection."""

    connection_id: int
    listener: str
    """The name of the listener that it came in by: decides which addresses are advertised to it."""
    host: str
    port: int

    @property
    def address(self) -> str:
        """`host:port`, an IPv6 address in brackets."""
        return join_host_port(self.host, self.port)


class PeerConnection(Protocol):
    """A connection, for the dispatcher."""

    peer: PeerInfo
    likeness: ProduceTemplate | None
    """What its Produce requests have in common, for `produce` to remember."""

    def open_exchange(self) -> RequestExchange:
        """A place for the answer to the request being dispatched."""

    def answer(self, frame: Buffer) -> None:
        """The same as to open an exchange and reply to it with one buffer, for answers that are there at once."""


class FrameHandler(Protocol):
    """The dispatcher, for the server."""

    def __call__(self, connection: PeerConnection, frame: memoryview) -> None:
        """Takes one request frame, without its size field. `frame` is valid, and may be written to, only meanwhile.

        Raises `ProtocolViolation` where the bytes are no request: the connection is then closed.
        """


class ProtocolViolation(Exception):
    """The peer does not speak the protocol, or something past our bounds; the message says what.

    `answer` is sent before the connection is closed: an error in the protocol that the peer speaks, or nothing.
    """

    def __init__(self, message: str, answer: bytes = b"") -> None:
        super().__init__(message)
        self.answer = answer
