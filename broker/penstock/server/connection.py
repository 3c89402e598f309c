"""One client's connection: cuts requests out of the stream, hands them over, sends the answers in their order.

A connection reads only while it is good for its debts: at most so many requests without an answer, so many bytes of
answers that the peer has not taken. Everything runs on the event loop; nothing is done for a connection that is idle.
"""

from __future__ import annotations

import asyncio
from typing import cast

from penstock.api.exchange import Part, PeerInfo, ProtocolViolation
from penstock.log.types import LogSlice
from penstock.runtime.logging import get_logger
from penstock.server.buffers import RequestReader
from penstock.server.exchange import PendingExchange
from penstock.server.hub import Hub
from penstock.server.limits import ServerLimits
from penstock.server.output import HAS_SENDFILE, NOMINAL_SLICE, Output, SocketOutput, TransportOutput
from penstock.server.pressure import OWES_MEMORY
from penstock.server.stats import CloseReason
from penstock.wire.primitives import Buffer
from penstock.wire.produce_template import ProduceTemplate

log = get_logger(__name__)

# Why a connection is not read, beside OWES_MEMORY; several may hold at once.
OWES_ANSWERS = 1
CLOSING = 4


class ServerConnection(asyncio.BufferedProtocol):
    """Implements `api.exchange.Connection` for handlers and `output.Sender` for its own output."""

    __slots__ = (
        "dispatching",
        "frame_bytes",
        "head",
        "hub",
        "likeness",
        "listener",
        "lost",
        "open_bytes",
        "open_exchanges",
        "output",
        "paused",
        "peer",
        "reader",
        "ready",
        "reason",
        "resuming",
        "stale_after_s",
        "tail",
        "touched",
        "transport",
        "unsent_bytes",
    )

    transport: asyncio.Transport
    output: Output
    peer: PeerInfo

    def __init__(self, hub: Hub, listener: str) -> None:
        self.hub, self.listener = hub, listener
        self.reader = RequestReader(hub.pool)
        self.head: PendingExchange | None = None
        self.tail: PendingExchange | None = None
        self.ready: list[Part] = []
        """Answers that nobody has to wait for, to requests before `head`."""
        self.open_exchanges = self.open_bytes = self.frame_bytes = 0
        self.unsent_bytes = 0
        self.paused = 0
        self.dispatching = self.resuming = self.lost = False
        self.reason: CloseReason | None = None
        self.likeness: ProduceTemplate | None = None
        self.touched = self.stale_after_s = 0.0

    # -- the transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport = cast(asyncio.Transport, transport)  # uvloop's has another base class
        sock = transport.get_extra_info("socket")
        host, port = (transport.get_extra_info("peername") or ("unknown", 0))[:2]
        self.peer = PeerInfo(self.hub.next_id(), self.listener, str(host), int(port))
        loop, executor = self.hub.loop, self.hub.executor
        if sock is not None and HAS_SENDFILE and transport.get_extra_info("ssl_object") is None:
            self.output = SocketOutput(self, loop, executor, sock.fileno(), transport.is_closing)
        else:
            self.output = TransportOutput(self, loop, executor, transport)
        self.touched = loop.time()
        refusal = self.hub.admit(self)
        if refusal is not None:
            self.close(refusal)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        hub = self.hub
        hub.stats.bytes_in += nbytes
        now = hub.loop.time()
        if now > self.stale_after_s:
            self.touch(now)
        self.reader.received(nbytes)
        self.process()

    def eof_received(self) -> None:
        """The transport then closes itself: a client that has finished sending wants no more answers."""

    def pause_writing(self) -> None:
        if isinstance(self.output, TransportOutput):
            self.output.pause()

    def resume_writing(self) -> None:
        if isinstance(self.output, TransportOutput):
            self.output.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.reader.clear()
        self.output.close()
        if self.paused:
            self.hub.stats.paused -= 1
            self.paused = 0
        self.ready.clear()
        exchange, self.head, self.tail = self.head, None, None
        while exchange is not None:
            following = exchange.following
            for callback in exchange.lose():
                try:
                    callback()
                except Exception as e:
                    log.error("a request did not take its connection's end", peer=str(self.peer), exc_info=e)
            exchange = following
        self.hub.forget(self, self.reason or CloseReason.PEER)

    # -- requests

    def process(self) -> None:
        """Hands over the whole requests that are here, as far as the peer may have more under way."""
        reader, hub = self.reader, self.hub
        limits = hub.limits
        self.dispatching = True
        try:
            while not self.reason:
                if (self.head is not None or self.unsent_bytes > limits.max_unsent_bytes) and self.owes_much(limits):
                    self.flush()
                    if self.owes_much(limits):
                        self.pause(OWES_ANSWERS)
                        break
                frame = reader.next_frame()
                if frame is None:
                    break
                hub.stats.requests += 1
                self.frame_bytes = len(frame)
                hub.handler(self, frame)
                frame.release()
                if reader.start == reader.end and self.head is None and self.unsent_bytes <= limits.max_unsent_bytes:
                    break  # nothing is left, and nothing is owed
        except ProtocolViolation as e:
            self.violation(str(e), e.answer)
        except Exception as e:
            log.error("a request failed", peer=self.peer.address, exc_info=e)
            self.close(CloseReason.FAILED)
        finally:
            self.dispatching = False
        if self.lost:
            return
        if self.reason:
            reader.clear()
        else:
            reader.settle()
            if hub.pool.held_bytes > limits.max_receive_bytes:
                hub.pressure.relieve()
        self.flush()

    def owes_much(self, limits: ServerLimits) -> bool:
        return (
            self.open_exchanges >= limits.max_in_flight
            or self.open_bytes > limits.max_in_flight_bytes
            or self.unsent_bytes > limits.max_unsent_bytes
        )

    def violation(self, message: str, answer: bytes = b"") -> None:
        """Closes the connection. `answer`, in the client's own protocol, is sent if nothing else is due before it."""
        self.hub.complain("a client broke the protocol", self.peer, message)
        if answer and self.head is None and not self.lost:
            self.ready.append(answer)
            self.unsent_bytes += len(answer)
        self.close(CloseReason.VIOLATION)

    def open_exchange(self) -> PendingExchange:
        """The place for the answer to the request at hand."""
        exchange = PendingExchange(self, self.frame_bytes)
        if self.lost:
            exchange.connection = None
            return exchange
        if self.tail is None:
            self.head = exchange
        else:
            self.tail.following = exchange
        self.tail = exchange
        self.open_exchanges += 1
        self.open_bytes += self.frame_bytes
        return exchange

    def answer(self, frame: Buffer) -> None:
        if self.tail is None and not self.lost:
            self.ready.append(frame)
            self.unsent_bytes += len(frame)
        else:
            self.open_exchange().reply([frame])

    def on_completed(self, exchange: PendingExchange) -> None:
        """An answer is there; it leaves with what else is completed in this turn of the loop."""
        for part in exchange.parts:
            self.unsent_bytes += NOMINAL_SLICE if isinstance(part, LogSlice) else len(part)
        if exchange is self.head and not self.dispatching:
            self.hub.flush_soon(self)

    # -- answers

    def flush(self) -> None:
        """Sends the answers that are completed, up to the first that is not."""
        exchange = self.head
        if self.ready or (exchange is not None and exchange.done and not self.lost):
            parts, self.ready = self.ready, []
            while exchange is not None and exchange.done:
                parts.extend(exchange.parts)
                exchange.parts = ()
                self.open_exchanges -= 1
                self.open_bytes -= exchange.request_bytes
                exchange = exchange.following
            self.head = exchange
            if exchange is None:
                self.tail = None
            if parts:
                self.output.send(parts)
        if self.paused & (OWES_ANSWERS | CLOSING):
            self.on_settled()

    def on_sent(self, size: int, released: int) -> None:
        hub = self.hub
        hub.stats.bytes_out += size
        self.unsent_bytes -= released
        now = hub.loop.time()
        if now > self.stale_after_s and size:
            self.touch(now)
        if self.paused & (OWES_ANSWERS | CLOSING):
            self.on_settled()

    def on_send_failed(self, error: OSError, reading: bool) -> None:
        if reading:
            log.error("records could not be sent", peer=self.peer.address, error=str(error))
        self.reason = self.reason or (CloseReason.FAILED if reading else CloseReason.PEER)
        self.transport.abort()

    def on_settled(self) -> None:
        """Debts have become less: reads on, or closes what waited only for its answers."""
        if self.paused & CLOSING:
            if self.head is None and self.output.idle:
                self.transport.close()
            return
        limits = self.hub.limits
        few = (
            self.open_exchanges <= limits.max_in_flight // 2
            and self.open_bytes <= limits.max_in_flight_bytes // 2
            and self.unsent_bytes <= limits.max_unsent_bytes // 2
        )
        if few and not self.resuming:
            self.resuming = True
            self.hub.loop.call_soon(self.go_on)

    def go_on(self) -> None:
        """Serves the requests that came before reading stopped; then reads again."""
        self.resuming = False
        if self.lost or self.reason or not self.paused & OWES_ANSWERS:
            return
        self.resume(OWES_ANSWERS)
        self.reader.recall()
        self.process()

    # -- reading or not

    def pause(self, why: int) -> None:
        if not self.paused and not self.lost:
            self.transport.pause_reading()
            self.hub.stats.paused += 1
            self.hub.stats.pauses += 1
        self.paused |= why

    def resume(self, why: int) -> None:
        if not self.paused & why:
            return
        self.paused &= ~why
        if not self.paused:
            self.hub.stats.paused -= 1
            if not self.transport.is_closing():
                self.transport.resume_reading()

    def touch(self, now: float) -> None:
        """Something has moved, which is not worth a note again before `stale_after_s`."""
        self.touched = now
        self.stale_after_s = now + self.hub.idle.exactness_s
        self.hub.idle.touch(self)

    # -- the end

    @property
    def waits_for_us(self) -> bool:
        """Whether its silence is our doing: it has asked and not been answered, or we do not read what it sends."""
        if not self.output.idle:
            return False
        return self.head is not None or bool(self.paused & OWES_MEMORY)

    def abort(self, reason: str) -> None:
        """For a request that cannot be answered: ends the connection behind the answers that are complete."""
        self.hub.complain("a connection is closed instead of an answer", self.peer, reason)
        self.close(CloseReason.ABORTED)

    def close(self, reason: CloseReason) -> None:
        """Ends the connection; what the peer does not take at once of the answers is given up."""
        if self.reason is not None:
            return
        self.reason = reason
        if not self.lost:
            self.hub.loop.call_soon(self.hang_up)

    def hang_up(self) -> None:
        if not self.lost:
            self.flush()
            self.transport.abort()

    def finish(self) -> None:
        """Closes once everything asked has been answered; nothing more is read."""
        self.pause(CLOSING)
        self.reason = self.reason or CloseReason.SHUTDOWN
        self.on_settled()
