"""A client connection: splits the stream into requests, dispatches them and sends the responses in request order.

A connection stops reading at a limit of requests in flight, of their size, and of unsent response bytes. Everything
runs on the event loop; an idle connection costs nothing.
"""

from __future__ import annotations

import asyncio
from typing import cast

from penstock.api.exchange import PeerInfo, ProtocolViolation, ResponsePart
from penstock.log.types import LogSlice
from penstock.runtime.logging import get_logger
from penstock.server.buffers import RequestReader
from penstock.server.exchange import PendingExchange
from penstock.server.hub import Hub
from penstock.server.limits import ServerLimits
from penstock.server.output import HAS_SENDFILE, NOMINAL_SLICE_BYTES, Output, SocketOutput, TransportOutput
from penstock.server.pressure import PAUSED_FOR_MEMORY
from penstock.server.stats import CloseReason
from penstock.wire.primitives import Buffer
from penstock.wire.produce_template import ProduceTemplate

log = get_logger(__name__)

# Pause reasons, a bit mask together with PAUSED_FOR_MEMORY.
PAUSED_FOR_BACKLOG = 1
PAUSED_FOR_CLOSE = 4


class ServerConnection(asyncio.BufferedProtocol):
    """Implements `api.exchange.PeerConnection` for handlers and `output.OutputSender` for its output."""

    __slots__ = (
        "activity_stale_at",
        "dispatching",
        "frame_bytes",
        "head",
        "hub",
        "last_active",
        "listener",
        "lost",
        "open_bytes",
        "open_exchanges",
        "output",
        "paused",
        "peer",
        "produce_template",
        "reader",
        "ready_parts",
        "reason",
        "resuming",
        "tail",
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
        self.ready_parts: list[ResponsePart] = []
        """Unsent responses to requests before `head`."""
        self.open_exchanges = self.open_bytes = self.frame_bytes = 0
        self.unsent_bytes = 0
        self.paused = 0
        self.dispatching = self.resuming = self.lost = False
        self.reason: CloseReason | None = None
        self.produce_template: ProduceTemplate | None = None
        self.last_active = self.activity_stale_at = 0.0

    # -- asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection; close it if a limit is exceeded."""
        self.transport = transport = cast(asyncio.Transport, transport)  # uvloop's transport has another base class
        sock = transport.get_extra_info("socket")
        host, port = (transport.get_extra_info("peername") or ("unknown", 0))[:2]
        self.peer = PeerInfo(self.hub.next_id(), self.listener, str(host), int(port))
        loop, executor = self.hub.loop, self.hub.executor
        if sock is not None and HAS_SENDFILE and transport.get_extra_info("ssl_object") is None:
            self.output = SocketOutput(self, loop, executor, sock.fileno(), transport.is_closing)
        else:
            self.output = TransportOutput(self, loop, executor, transport)
        self.last_active = loop.time()
        refusal = self.hub.admit(self)
        if refusal is not None:
            self.close(refusal)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer to receive into."""
        return self.reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Process the requests in the bytes received."""
        hub = self.hub
        hub.stats.bytes_in += nbytes
        now = hub.loop.time()
        if now > self.activity_stale_at:
            self.record_activity(now)
        self.reader.received(nbytes)
        self.process()

    def eof_received(self) -> None:
        """Let the transport close: a client that has stopped sending expects no more responses."""

    def pause_writing(self) -> None:
        """Stop sending: the transport's buffer is full."""
        if isinstance(self.output, TransportOutput):
            self.output.pause()

    def resume_writing(self) -> None:
        """Continue sending."""
        if isinstance(self.output, TransportOutput):
            self.output.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release buffers and run the disconnect callbacks of pending requests."""
        self.lost = True
        self.reader.clear()
        self.output.close()
        if self.paused:
            self.hub.stats.paused -= 1
            self.paused = 0
        self.ready_parts.clear()
        exchange, self.head, self.tail = self.head, None, None
        while exchange is not None:
            next_exchange = exchange.next_exchange
            for callback in exchange.on_connection_lost():
                try:
                    callback()
                except Exception as e:
                    log.error("disconnect callback failed", peer=str(self.peer), exc_info=e)
            exchange = next_exchange
        self.hub.remove(self, self.reason or CloseReason.PEER)

    # -- requests

    def process(self) -> None:
        """Dispatch the complete requests received, up to the in-flight limits."""
        reader, hub = self.reader, self.hub
        limits = hub.limits
        self.dispatching = True
        try:
            while not self.reason:
                if (self.head is not None or self.unsent_bytes > limits.max_unsent_bytes) and self.at_limit(limits):
                    self.flush()
                    if self.at_limit(limits):
                        self.pause(PAUSED_FOR_BACKLOG)
                        break
                frame = reader.next_frame()
                if frame is None:
                    break
                hub.stats.requests += 1
                self.frame_bytes = len(frame)
                hub.handler(self, frame)
                frame.release()
                if reader.start == reader.end and self.head is None and self.unsent_bytes <= limits.max_unsent_bytes:
                    break  # no bytes left and no response pending
        except ProtocolViolation as e:
            self.close_for_violation(str(e), e.response)
        except Exception as e:
            log.error("request handler failed", peer=self.peer.address, exc_info=e)
            self.close(CloseReason.FAILED)
        finally:
            self.dispatching = False
        if self.lost:
            return
        if self.reason:
            reader.clear()
        else:
            reader.retain_partial_frame()
            if hub.pool.held_bytes > limits.max_receive_bytes:
                hub.pressure.pause_largest()
        self.flush()

    def at_limit(self, limits: ServerLimits) -> bool:
        """Return whether requests in flight or unsent bytes are at their limits."""
        return (
            self.open_exchanges >= limits.max_in_flight
            or self.open_bytes > limits.max_in_flight_bytes
            or self.unsent_bytes > limits.max_unsent_bytes
        )

    def close_for_violation(self, message: str, response: bytes = b"") -> None:
        """Log and close. `response`, in the client's own protocol, is sent unless earlier responses are pending."""
        self.hub.log_peer_warning("protocol violation", self.peer, message)
        if response and self.head is None and not self.lost:
            self.ready_parts.append(response)
            self.unsent_bytes += len(response)
        self.close(CloseReason.VIOLATION)

    def open_exchange(self) -> PendingExchange:
        """Open the exchange for the request being dispatched."""
        exchange = PendingExchange(self, self.frame_bytes)
        if self.lost:
            exchange.connection = None
            return exchange
        if self.tail is None:
            self.head = exchange
        else:
            self.tail.next_exchange = exchange
        self.tail = exchange
        self.open_exchanges += 1
        self.open_bytes += self.frame_bytes
        return exchange

    def reply(self, frame: Buffer) -> None:
        """Reply with one buffer to the request being dispatched."""
        if self.tail is None and not self.lost:
            self.ready_parts.append(frame)
            self.unsent_bytes += len(frame)
        else:
            self.open_exchange().reply([frame])

    def on_completed(self, exchange: PendingExchange) -> None:
        """Schedule the response; responses that complete in the same event loop iteration are sent together."""
        for part in exchange.parts:
            self.unsent_bytes += NOMINAL_SLICE_BYTES if isinstance(part, LogSlice) else len(part)
        if exchange is self.head and not self.dispatching:
            self.hub.flush_soon(self)

    # -- responses

    def flush(self) -> None:
        """Send the completed responses up to the first pending one."""
        exchange = self.head
        if self.ready_parts or (exchange is not None and exchange.is_complete and not self.lost):
            parts, self.ready_parts = self.ready_parts, []
            while exchange is not None and exchange.is_complete:
                parts.extend(exchange.parts)
                exchange.parts = ()
                self.open_exchanges -= 1
                self.open_bytes -= exchange.request_bytes
                exchange = exchange.next_exchange
            self.head = exchange
            if exchange is None:
                self.tail = None
            if parts:
                self.output.send(parts)
        if self.paused & (PAUSED_FOR_BACKLOG | PAUSED_FOR_CLOSE):
            self.on_backlog_reduced()

    def on_sent(self, size: int, released: int) -> None:
        """Count the sent bytes and resume reading if the backlog allows it."""
        hub = self.hub
        hub.stats.bytes_out += size
        self.unsent_bytes -= released
        now = hub.loop.time()
        if now > self.activity_stale_at and size:
            self.record_activity(now)
        if self.paused & (PAUSED_FOR_BACKLOG | PAUSED_FOR_CLOSE):
            self.on_backlog_reduced()

    def on_send_failed(self, error: OSError, reading: bool) -> None:
        """Close the connection at once."""
        if reading:
            log.error("failed to read records for a response", peer=self.peer.address, error=str(error))
        self.reason = self.reason or (CloseReason.FAILED if reading else CloseReason.PEER)
        self.transport.abort()

    def on_backlog_reduced(self) -> None:
        """Resume reading at half the limits, or close a connection that waited only for its responses."""
        if self.paused & PAUSED_FOR_CLOSE:
            if self.head is None and self.output.idle:
                self.transport.close()
            return
        limits = self.hub.limits
        is_below_resume_level = (
            self.open_exchanges <= limits.max_in_flight // 2
            and self.open_bytes <= limits.max_in_flight_bytes // 2
            and self.unsent_bytes <= limits.max_unsent_bytes // 2
        )
        if is_below_resume_level and not self.resuming:
            self.resuming = True
            self.hub.loop.call_soon(self.resume_processing)

    def resume_processing(self) -> None:
        """Process the requests that arrived before the pause, then read again."""
        self.resuming = False
        if self.lost or self.reason or not self.paused & PAUSED_FOR_BACKLOG:
            return
        self.resume(PAUSED_FOR_BACKLOG)
        self.reader.reload()
        self.process()

    # -- flow control

    def pause(self, reason: int) -> None:
        """Stop reading, for one more reason."""
        if not self.paused and not self.lost:
            self.transport.pause_reading()
            self.hub.stats.paused += 1
            self.hub.stats.pauses += 1
        self.paused |= reason

    def resume(self, reason: int) -> None:
        """Remove a pause reason; read again if none is left."""
        if not self.paused & reason:
            return
        self.paused &= ~reason
        if not self.paused:
            self.hub.stats.paused -= 1
            if not self.transport.is_closing():
                self.transport.resume_reading()

    def record_activity(self, now: float) -> None:
        """Record the time of the last activity; not repeated before `activity_stale_at`."""
        self.last_active = now
        self.activity_stale_at = now + self.hub.idle.activity_resolution_s
        self.hub.idle.touch(self)

    # -- closing

    @property
    def is_waiting_for_broker(self) -> bool:
        """Whether the peer is silent because it waits for a response or the broker has stopped reading."""
        if not self.output.idle:
            return False
        return self.head is not None or bool(self.paused & PAUSED_FOR_MEMORY)

    def abort(self, reason: str) -> None:
        """Close the connection behind the completed responses, for a request that must not get a response."""
        self.hub.log_peer_warning("connection aborted", self.peer, reason)
        self.close(CloseReason.ABORTED)

    def close(self, reason: CloseReason) -> None:
        """Close the connection; discard the responses that the socket does not accept at once."""
        if self.reason is not None:
            return
        self.reason = reason
        if not self.lost:
            self.hub.loop.call_soon(self.flush_and_abort)

    def flush_and_abort(self) -> None:
        """Send what the socket accepts, then close."""
        if not self.lost:
            self.flush()
            self.transport.abort()

    def finish(self) -> None:
        """Stop reading, and close once all requests have their responses."""
        self.pause(PAUSED_FOR_CLOSE)
        self.reason = self.reason or CloseReason.SHUTDOWN
        self.on_backlog_reduced()
