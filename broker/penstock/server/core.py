"""The state of a client connection without I/O: bytes in, requests dispatched in order, responses out in request order.

A connection stops reading at a limit of requests in flight, of their size, and of unsent response bytes, and resumes at
half of it. The core has no socket, clock or event loop: times are arguments in seconds, and it acts on its
surroundings through `ConnectionTransport`, `ResponseOutput` and `ConnectionHub`. `connection` extends it with the
callbacks of asyncio. A whole response leaves in one call of `ResponseOutput.send`.

Extension points, see docs/decisions/0035: `stage` dispatches each frame and may be replaced between two frames, for
example by a handshake (`begin_handshake`, `end_handshake`); `peer` is replaced as a whole when more is known about the
peer; `pause` takes any further bit as a reason to read and dispatch nothing until `resume`, while completed responses
are still sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.api.exchange import Callback, FrameHandler, PeerInfo, ProtocolViolation, ResponsePart
from penstock.log.types import LogSlice
from penstock.runtime.logging import get_logger
from penstock.runtime.tasks import report
from penstock.security.quotas.request_meter import RequestMeter
from penstock.server.buffers import MAX_FRAME_SETTING, BufferPool, RequestReader
from penstock.server.limits import ServerLimits
from penstock.server.pending_exchange import PendingExchange
from penstock.server.stats import CloseReason, ServerStats
from penstock.wire.primitives import Buffer
from penstock.wire.produce_template import ProduceTemplate

log = get_logger(__name__)

NOMINAL_SLICE_BYTES = 1024
"""Size that counts for an unsent slice: its bytes are in a file, not in memory."""

# Pause reasons, a bit mask.
PAUSED_FOR_BACKLOG = 1
PAUSED_FOR_MEMORY = 2
PAUSED_FOR_CLOSE = 4
PAUSED_FOR_QUOTA = 16
STOPS_DISPATCH = ~PAUSED_FOR_MEMORY
"""Reasons for which requests that were received already wait too. Without memory they do not: dispatch frees it."""


class ConnectionTransport(Protocol):
    """The effects on a connection's socket; `asyncio.Transport` implements them."""

    def pause_reading(self) -> None:
        """Stop receiving."""

    def resume_reading(self) -> None:
        """Receive again."""

    def is_closing(self) -> bool:
        """Return whether the transport is closed or about to be."""

    def close(self) -> None:
        """Close the socket."""

    def abort(self) -> None:
        """Close the socket and discard what it has not sent."""


class ResponseOutput(Protocol):
    """The queue of unsent responses; `output.Output` implements it."""

    @property
    def idle(self) -> bool:
        """Whether the queue is empty."""

    def send(self, parts: Sequence[ResponsePart]) -> None:
        """Send in order, taking ownership of the slices; reports to `on_sent` and `on_send_failed`."""

    def discard(self) -> None:
        """Release the unsent parts. Called once, when the connection is lost."""


class ConnectionHub(Protocol):
    """What the connections of a broker share; `hub.Hub` implements it."""

    handler: FrameHandler
    limits: ServerLimits
    pool: BufferPool
    stats: ServerStats

    def call_soon(self, callback: Callable[[], None]) -> object:
        """Call `callback` from the event loop, after the current callback."""

    def flush_soon(self, connection: ConnectionCore) -> None:
        """Call the connection's `flush` from the event loop."""

    def watch_handshake(self, connection: ConnectionCore) -> None:
        """Close the connection if `end_handshake` is not called in time."""

    def unwatch_handshake(self, connection: ConnectionCore) -> None:
        """The handshake is complete."""

    def record_activity(self, connection: ConnectionCore, now: float) -> None:
        """Set the connection's `last_active` and `activity_stale_at`."""

    def resume_later(self, connection: ConnectionCore, delay_s: float) -> None:
        """Call the connection's `resume` for its quota pause after a time, or later if it is called again."""

    def relieve_memory(self) -> None:
        """Pause a connection: incomplete requests exceed their limit."""

    def log_peer_warning(self, event: str, peer: PeerInfo, why: str) -> None:
        """Log a warning about a peer."""


class ConnectionCore:
    """Implements `api.exchange.PeerConnection` for handlers.

    The owner sets `peer`, `transport` and `output`, receives into `reader.get_buffer()`, passes the number of bytes to
    `receive`, and calls `on_lost` once when the connection is lost.
    """

    __slots__ = (
        "activity_stale_at",
        "dispatching",
        "frame_bytes",
        "head",
        "hub",
        "last_active",
        "lost",
        "lost_callbacks",
        "meter",
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
        "stage",
        "tail",
        "transport",
        "unsent_bytes",
    )

    peer: PeerInfo
    transport: ConnectionTransport
    output: ResponseOutput

    def __init__(self, hub: ConnectionHub) -> None:
        self.hub = hub
        self.stage: FrameHandler = hub.handler
        """Dispatches the next frame."""
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
        self.meter: RequestMeter | None = None
        self.lost_callbacks: list[Callback] | None = None
        self.last_active = self.activity_stale_at = 0.0
        """When the peer last received or sent bytes, and until when that is precise enough."""

    # -- requests

    def receive(self, size: int, now: float) -> None:
        """Dispatch the complete requests in the buffer, to which `size` bytes were added, up to the limits."""
        reader, hub = self.reader, self.hub
        limits, stats = hub.limits, hub.stats
        max_unsent_bytes = limits.max_unsent_bytes
        stats.bytes_in += size
        if now > self.activity_stale_at:
            hub.record_activity(self, now)
        reader.received(size)
        self.dispatching = True
        try:
            while not self.reason:
                if self.paused and self.paused & STOPS_DISPATCH:
                    break
                if (self.head is not None or self.unsent_bytes > max_unsent_bytes) and self.at_limit(limits):
                    self.flush()
                    if self.at_limit(limits):
                        self.pause(PAUSED_FOR_BACKLOG)
                        break
                frame = reader.next_frame()
                if frame is None:
                    break
                stats.requests += 1
                self.frame_bytes = len(frame)
                stage = self.stage  # Python specialises this load, but not that of a call by `self.stage(...)`
                stage(self, frame)
                frame.release()
                if reader.start == reader.end and self.head is None and self.unsent_bytes <= max_unsent_bytes:
                    break  # no bytes left and no response pending
        except ProtocolViolation as e:
            self.close_for_violation(str(e), e.response)
        except Exception as e:
            report("request handler failed", e, peer=self.peer.address)
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
                hub.relieve_memory()
        self.flush()

    def at_limit(self, limits: ServerLimits) -> bool:
        """Return whether requests in flight or unsent bytes are at their limits."""
        return (
            self.open_exchanges >= limits.max_in_flight
            or self.open_bytes > limits.max_in_flight_bytes
            or self.unsent_bytes > limits.max_unsent_bytes
        )

    def open_exchange(self) -> PendingExchange:
        """Open the exchange for the request being dispatched."""
        exchange = PendingExchange(self, self.frame_bytes)
        if self.meter is not None:
            exchange.throttle_ms = self.meter.throttle_ms
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

    # -- handshakes

    def begin_handshake(self, stage: FrameHandler, max_frame_bytes: int, setting: str) -> None:
        """Let `stage` dispatch the next frames, and close the connection if no `end_handshake` follows in time.

        Frames are limited to `max_frame_bytes`, by the setting of this name.
        """
        self.stage = stage
        reader = self.reader
        reader.max_frame_bytes = min(max_frame_bytes, self.hub.pool.max_request_bytes)
        reader.max_frame_setting = setting
        self.produce_template = None
        self.hub.watch_handshake(self)

    def end_handshake(self, peer: PeerInfo, stage: FrameHandler) -> None:
        """Let `stage` dispatch the next frames, of usual size, from the client that `peer` describes."""
        self.peer, self.stage = peer, stage
        reader = self.reader
        reader.max_frame_bytes, reader.max_frame_setting = self.hub.pool.max_request_bytes, MAX_FRAME_SETTING
        self.hub.unwatch_handshake(self)

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

    def on_sent(self, size: int, released: int, now: float) -> None:
        """Count the sent bytes and resume reading if the backlog allows it."""
        self.hub.stats.bytes_out += size
        self.unsent_bytes -= released
        if now > self.activity_stale_at and size:
            self.hub.record_activity(self, now)
        if self.paused & (PAUSED_FOR_BACKLOG | PAUSED_FOR_CLOSE):
            self.on_backlog_reduced()

    def on_send_failed(self, error: OSError, reading: bool) -> None:
        """Close the connection at once."""
        if reading:
            log.error("failed to read records for a response", peer=self.peer.address, error=str(error))
        self.reason = self.reason or (CloseReason.FAILED if reading else CloseReason.PEER)
        self.transport.abort()

    # -- flow control

    def on_backlog_reduced(self) -> None:
        """Resume reading at half the limits, or close a connection that waited only for its responses."""
        if self.paused & PAUSED_FOR_CLOSE:
            if self.head is None and self.output.idle:
                self.end_output()
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
            self.hub.call_soon(self.resume_after_backlog)

    def resume_after_backlog(self) -> None:
        """Resume, unless the connection is being closed."""
        self.resuming = False
        if not self.reason:
            self.resume(PAUSED_FOR_BACKLOG)

    def pause(self, reason: int) -> None:
        """Stop reading, for one more reason."""
        if self.lost:
            return
        if not self.paused:
            self.transport.pause_reading()
            self.hub.stats.paused += 1
            self.hub.stats.pauses += 1
        self.paused |= reason

    def throttle(self, throttle_ms: int) -> None:
        """Do not read the connection for a time; its responses are still sent (KIP-219)."""
        if not self.lost:
            self.pause(PAUSED_FOR_QUOTA)
            self.hub.resume_later(self, throttle_ms / 1000)

    def resume(self, reason: int) -> None:
        """Remove a pause reason: dispatch the requests that arrived before the pause; read again if none is left."""
        assert not self.dispatching, "the receive buffer is in use"
        if not self.paused & reason:
            return
        self.paused &= ~reason
        if not self.paused:
            self.hub.stats.paused -= 1
            if not self.transport.is_closing():
                self.transport.resume_reading()
        if reason & STOPS_DISPATCH:
            self.reader.get_buffer()
            self.receive(0, 0.0)  # is no activity of the peer

    @property
    def is_waiting_for_broker(self) -> bool:
        """Whether the peer is silent because it waits for a response or the broker has stopped reading."""
        return self.output.idle and (self.head is not None or self.paused != 0)

    # -- closing

    def close_for_violation(self, message: str, response: bytes) -> None:
        """Log and close. `response`, in the client's own protocol, is sent unless earlier responses are pending."""
        self.hub.log_peer_warning("protocol violation", self.peer, message)
        if response and self.head is None and not self.lost:
            self.ready_parts.append(response)
            self.unsent_bytes += len(response)
        self.close(CloseReason.VIOLATION)

    def abort(self, reason: str) -> None:
        """Close the connection behind the completed responses, for a request that must not get a response."""
        self.hub.log_peer_warning("connection aborted", self.peer, reason)
        self.close(CloseReason.ABORTED)

    def reject(self, event: str, why: str) -> None:
        """Log `event`, and close the connection behind the completed responses: the client is not authenticated."""
        self.hub.log_peer_warning(event, self.peer, why)
        self.close(CloseReason.AUTHENTICATION)

    def close(self, reason: CloseReason) -> None:
        """Close the connection; discard the responses that the socket does not accept at once."""
        if self.reason is not None:
            return
        self.reason = reason
        if not self.lost:
            self.hub.call_soon(self.flush_and_abort)

    def flush_and_abort(self) -> None:
        """Send what the socket accepts, then close."""
        if not self.lost:
            self.flush()
            self.end_output()
            self.transport.abort()

    def end_output(self) -> None:
        """Send what ends the connection's protocol below Kafka's, before the socket is closed. Without one: nothing."""

    def finish(self) -> None:
        """Stop reading, and close once all requests have their responses."""
        self.pause(PAUSED_FOR_CLOSE)
        self.reason = self.reason or CloseReason.SHUTDOWN
        self.on_backlog_reduced()

    def on_lost(self) -> None:
        """Release buffers and run the disconnect callbacks of pending requests."""
        self.lost = True
        self.reader.clear()
        self.output.discard()
        if self.paused:
            self.hub.stats.paused -= 1
            self.paused = 0
        self.ready_parts.clear()
        exchange, self.head, self.tail = self.head, None, None
        while exchange is not None:
            next_exchange = exchange.next_exchange
            self.run_lost_callbacks(exchange.disconnect())
            exchange = next_exchange
        callbacks, self.lost_callbacks = self.lost_callbacks, None
        self.run_lost_callbacks(callbacks or [])

    def add_lost_callback(self, callback: Callback) -> None:
        """Call `callback` when the connection is lost, after those of its pending requests."""
        if self.lost_callbacks is None:
            self.lost_callbacks = []
        self.lost_callbacks.append(callback)

    def run_lost_callbacks(self, callbacks: list[Callback]) -> None:
        """Run callbacks of a lost connection; one that fails does not prevent the others."""
        for callback in callbacks:
            try:
                callback()
            except Exception as e:
                report("disconnect callback failed", e, peer=str(self.peer))
