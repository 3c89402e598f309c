"""A client connection with TLS: decrypts what the transport receives, and passes it to the core.

The connection does TLS itself, by an `ssl.SSLObject`, instead of asyncio's transport: the hub admits it when TCP is
accepted, and it bounds the time and the bytes of the handshake. See docs/decisions/0036.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import replace
from typing import cast

from penstock.server.buffers import HTTP_RESPONSE
from penstock.server.connection import ServerConnection
from penstock.server.hub import Hub
from penstock.server.output import Output
from penstock.server.stats import CloseReason
from penstock.server.tls.listener_tls import ListenerTls
from penstock.server.tls.output import TlsOutput
from penstock.wire.foreign import ForeignProtocol, foreign_protocol

HANDSHAKE_TIMEOUT_S = 10.0
MAX_HANDSHAKE_BYTES = 128 << 10
"""Bytes that a client may send in the handshake; OpenSSL accepts certificate chains of 100 KiB."""
ALERT_LINGER_S = 1.0
"""Time that a refused client has to read the alert. A socket that is closed while the client still sends is reset, and
the client may not see the alert; with TLS 1.3 it sends requests before it learns that its certificate is refused.
"""
TLS_HANDSHAKE = 0x16
"""Content type of the first record of a TLS client."""
ReadInto = Callable[[int, memoryview], int]
"""`SSLObject.read` with a buffer: reads at most one record, and returns the number of bytes."""
HINTS = {
    "CERTIFICATE_VERIFY_FAILED": "add the client's CA to ssl.truststore.location",
    "NO_SHARED_CIPHER": "the client supports none of ssl.cipher.suites, or not the kind of the broker's key",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "ssl.client.auth is required; configure a client certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the client does not trust the broker's certificate; give it the CA",
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust the broker's certificate; give it the CA",
    "UNSUPPORTED_PROTOCOL": "the client supports none of ssl.enabled.protocols",
}
"""What to do about OpenSSL's reasons."""


class TlsConnection(ServerConnection):
    """A connection of a listener with TLS."""

    __slots__ = ("handshake_bytes", "handshake_timer", "incoming", "is_established", "is_refused", "tls")

    output: TlsOutput

    def __init__(self, hub: Hub, listener: str, tls: ListenerTls) -> None:
        super().__init__(hub, listener)
        self.tls = tls
        self.incoming = ssl.MemoryBIO()
        self.is_established = False
        self.is_refused = False
        """Whether the client was sent an alert; what it still sends is discarded."""
        self.handshake_bytes = 0
        self.handshake_timer: asyncio.TimerHandle | None = None

    def make_output(self, transport: asyncio.Transport) -> Output:
        """Return an output that encrypts, and limit the time of the handshake."""
        loop = self.hub.loop
        self.handshake_timer = loop.call_later(HANDSHAKE_TIMEOUT_S, self.on_handshake_timeout)
        sock = transport.get_extra_info("socket")
        return TlsOutput(self, loop, self.hub.executor, sock.fileno(), transport.is_closing)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer to receive encrypted bytes into; all connections of the listener share it."""
        return self.tls.receive_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Continue the handshake, or process the requests in the bytes received."""
        if self.reason or self.is_refused:
            return
        data = self.tls.receive_buffer[:nbytes]
        if self.is_established:
            self.incoming.write(data)
            self.read_records()
        else:
            self.continue_handshake(data)

    # -- handshake

    def continue_handshake(self, data: memoryview) -> None:
        """Pass received bytes to the handshake, within its limits."""
        session = self.output.session
        if session is None:
            if data[0] != TLS_HANDSHAKE:
                self.refuse_plain_text(bytes(data[:4]))
                return
            session = self.output.session = self.tls.wrap(self.incoming, self.output.outgoing)
        self.handshake_bytes += len(data)
        if self.handshake_bytes > MAX_HANDSHAKE_BYTES:
            self.fail_handshake(f"the client sent more than {MAX_HANDSHAKE_BYTES} bytes")
            return
        self.incoming.write(data)
        try:
            session.do_handshake()
            self.on_handshake_completed(session)
        except ssl.SSLWantReadError:
            self.output.send_protocol()
        except ssl.SSLError as e:
            self.output.send_protocol()
            self.refuse_client(failure_text(e))
        except ValueError as e:
            self.fail_handshake(str(e))

    def on_handshake_completed(self, session: ssl.SSLObject) -> None:
        """Set the client's principal, and process the requests that came with the handshake. Raises ValueError."""
        self.tls.check_suite(session)
        self.peer = replace(self.peer, principal=self.tls.principal(session))
        self.is_established = True
        self.tls.handshakes += 1
        self.stop_handshake_timer()
        self.output.send_protocol()
        self.read_records()

    def refuse_plain_text(self, first: bytes) -> None:
        """Close the connection of a client that does not speak TLS."""
        self.tls.failed_handshakes += 1
        foreign = foreign_protocol(int.from_bytes(first, "big", signed=True)) if len(first) == 4 else None
        what = "speaks without TLS" if foreign is None else f"speaks {foreign.value} without TLS"
        self.close_for_violation(
            f"the client {what}, but this listener requires TLS; set security.protocol=SSL or SASL_SSL in the client",
            HTTP_RESPONSE if foreign is ForeignProtocol.HTTP else b"",
        )

    def fail_handshake(self, why: str) -> None:
        """Log and close."""
        self.tls.failed_handshakes += 1
        self.hub.log_peer_warning("TLS handshake failed", self.peer, why)
        self.close(CloseReason.TLS)

    def refuse_client(self, why: str) -> None:
        """Log, and close when the client has closed or has had time to read the alert that it was sent."""
        self.is_refused = True
        self.tls.failed_handshakes += 1
        self.hub.log_peer_warning("TLS handshake failed", self.peer, why)
        self.stop_handshake_timer()
        self.handshake_timer = self.hub.loop.call_later(ALERT_LINGER_S, self.close, CloseReason.TLS)

    def on_handshake_timeout(self) -> None:
        """Close a connection without a handshake in time; one that is not read, because of a quota, gets more."""
        self.handshake_timer = None
        if self.paused and not self.reason:
            self.handshake_timer = self.hub.loop.call_later(HANDSHAKE_TIMEOUT_S, self.on_handshake_timeout)
        elif not self.reason:
            self.fail_handshake(f"it was not complete after {HANDSHAKE_TIMEOUT_S:.0f} s")

    def stop_handshake_timer(self) -> None:
        """Cancel the timer."""
        if self.handshake_timer is not None:
            self.handshake_timer.cancel()
            self.handshake_timer = None

    # -- data

    def read_records(self) -> None:
        """Decrypt and process what was received, until a record is incomplete or the connection is paused."""
        loop, is_open = self.hub.loop, True
        while is_open and not self.reason and not self.paused and not self.lost:
            buffer = self.reader.get_buffer()
            size, is_open = self.decrypt(buffer)
            if size:
                self.receive(size, loop.time())
            if size < len(buffer):
                break
        if not is_open and not self.reason:
            self.end_output()
            self.transport.close()
        elif not self.lost:
            self.output.send_protocol()

    def decrypt(self, buffer: memoryview) -> tuple[int, bool]:
        """Decrypt records into `buffer` until it is full or no complete record is left.

        Returns the number of bytes, and whether the peer may send more.
        """
        session, incoming = self.output.session, self.incoming
        assert session is not None, "the handshake is complete"
        read = cast(ReadInto, session.read)
        size = left = len(buffer)
        is_open = True
        try:
            while left and (incoming.pending or session.pending()):
                number = read(left, buffer)
                if not number:
                    is_open = False
                    break
                left -= number
                buffer = buffer[number:]
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as e:
            self.output.send_protocol()
            self.hub.log_peer_warning("TLS failed", self.peer, failure_text(e))
            self.close(CloseReason.TLS)
        return size - left, is_open

    def end_output(self) -> None:
        """Send close_notify: the client knows then that the responses are complete (RFC 8446, section 6.1).

        What was not read is discarded before. If the shutdown read a fatal alert, it would leave the error in OpenSSL's
        queue, and the next operation on another connection of this thread would fail with it.
        """
        if self.is_established:
            self.incoming.read()
            self.output.send_close_notify()

    def resume(self, reason: int) -> None:
        """Remove a pause reason, and process what was received before the pause."""
        super().resume(reason)
        if self.is_established and not self.paused and not self.lost:
            self.read_records()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything and leave the hub."""
        self.stop_handshake_timer()
        if self.is_refused:
            self.reason = self.reason or CloseReason.TLS
        elif self.output.session is not None and not self.is_established and not self.reason:
            self.tls.failed_handshakes += 1
            self.hub.log_peer_warning("TLS handshake failed", self.peer, "the client closed the connection")
        super().connection_lost(exc)


def failure_text(error: ssl.SSLError) -> str:
    """Return OpenSSL's reason, and what to do about it."""
    reason = error.reason or "protocol error"
    detail = getattr(error, "verify_message", "")
    words = reason.lower().replace("_", " ") + (f": {detail}" if detail else "")
    hint = HINTS.get(reason)
    return words if hint is None else f"{words}; {hint}"
