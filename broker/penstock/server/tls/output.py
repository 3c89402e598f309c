"""Encrypts responses and writes them to the socket; slices of log files are read from the page cache."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from penstock.api.exchange import ResponsePart
from penstock.log.types import LogSlice
from penstock.server.core import ConnectionCore
from penstock.server.output import SocketOutput, join_small, release_sent
from penstock.wire.primitives import Buffer

MAX_ENCRYPTED_BYTES = 128 << 10
"""Bytes that are encrypted at once, which bounds the encrypted bytes that wait for the peer."""
MAX_BYTES_PER_TURN = 1 << 20
"""Bytes that one connection may encrypt before it yields to others: about a millisecond."""
MAX_PROTOCOL_BYTES = 256 << 10
"""Unsent bytes of the TLS protocol itself: a peer that causes more without reading is cut off."""


class TlsOutput(SocketOutput):
    """Writes to the connection's descriptor. Before the handshake has begun, it sends plain text."""

    __slots__ = ("ciphertext", "outgoing", "session")

    def __init__(
        self,
        sender: ConnectionCore,
        loop: asyncio.AbstractEventLoop,
        executor: Executor | None,
        fd: int,
        is_closing: Callable[[], bool],
    ) -> None:
        super().__init__(sender, loop, executor, fd, is_closing)
        self.session: ssl.SSLObject | None = None
        self.outgoing = ssl.MemoryBIO()
        self.ciphertext: memoryview | None = None
        """Encrypted bytes that the socket has not accepted."""

    @property
    def idle(self) -> bool:
        """Whether everything was sent."""
        return not self.queue and self.ciphertext is None

    def send(self, parts: Sequence[ResponsePart]) -> None:
        """Encrypt and write small responses at once; queue the rest."""
        is_busy = self.queue is not None or self.ciphertext is not None or self.waiting or self.is_streaming
        whole = None if is_busy or self.lost or self.is_closing() else join_small(parts)
        if whole is None or len(whole) > MAX_ENCRYPTED_BYTES:
            super(SocketOutput, self).send(parts)
            return
        released = release_sent(parts)
        try:
            self.encrypt(whole)
            self.write_ciphertext()
        except BlockingIOError:
            self.wait()
        except OSError as e:
            self.sender.on_send_failed(e, reading=False)
            return
        self.sender.on_sent(len(whole), released, self.loop.time())

    def send_protocol(self) -> None:
        """Send what TLS itself has to send: messages of the handshake, alerts, session tickets."""
        if not self.outgoing.pending or self.lost or self.is_closing():
            return
        waiting = b"" if self.ciphertext is None else self.ciphertext
        self.ciphertext = memoryview(b"".join((waiting, self.outgoing.read())))
        if self.waiting:
            if len(self.ciphertext) > MAX_PROTOCOL_BYTES + MAX_ENCRYPTED_BYTES:
                self.sender.transport.abort()
            return
        try:
            self.write_ciphertext()
        except BlockingIOError:
            self.wait()
        except OSError as e:
            self.sender.on_send_failed(e, reading=False)

    def send_close_notify(self) -> None:
        """Send close_notify behind the responses; not if some are unsent: the peer must see that they are missing."""
        if self.session is None or not self.idle or self.lost or self.is_closing():
            return
        with contextlib.suppress(ssl.SSLError):  # SSLWantReadError: the broker does not wait for the peer's
            self.session.unwrap()
        self.send_protocol()

    def pump(self) -> None:
        """Encrypt and send in order; yield after MAX_BYTES_PER_TURN."""
        budget = MAX_BYTES_PER_TURN
        try:
            while not self.reading and not self.lost and not self.is_closing():
                self.write_ciphertext()
                if not self.queue:
                    return
                if budget <= 0:
                    self.yield_to_loop()
                    return
                budget -= self.encrypt_next()
        except BlockingIOError:
            self.wait()
        except OSError as e:
            self.sender.on_send_failed(e, reading=e.errno is None)
        finally:
            self.report_progress()

    def write_ciphertext(self) -> None:
        """Write the encrypted bytes. Raises BlockingIOError if the socket does not accept all."""
        data = self.ciphertext
        while data is not None:
            sent = os.write(self.fd, data)
            data = self.ciphertext = data[sent:] if sent < len(data) else None

    def encrypt(self, data: Buffer) -> None:
        """Encrypt `data` behind the messages of TLS itself. Raises ssl.SSLError."""
        if self.session is None:
            self.ciphertext = memoryview(data)
        elif len(data):
            self.session.write(data)
            self.ciphertext = memoryview(self.outgoing.read())

    def encrypt_next(self) -> int:
        """Encrypt up to MAX_ENCRYPTED_BYTES from the start of the queue; return the number of bytes.

        Returns 0 if a slice must be loaded first.
        """
        assert self.queue, "the queue is not empty"
        buffers: list[Buffer] = []
        total, position = 0, self.position
        for part in self.queue:
            size = min((part.size if isinstance(part, LogSlice) else len(part)) - position, MAX_ENCRYPTED_BYTES - total)
            if isinstance(part, LogSlice):
                if not self.may_read(part, position, size, is_first=not buffers):
                    break
                buffers.append(self.read_range(part, position, size))
            else:
                buffers.append(memoryview(part)[position : position + size])
            total, position = total + size, 0
            if total == MAX_ENCRYPTED_BYTES:
                break
        if buffers:
            self.encrypt(buffers[0] if len(buffers) == 1 else b"".join(buffers))
            self.advance(total)
        return total

    def may_read(self, part: LogSlice, position: int, size: int, is_first: bool) -> bool:
        """Return whether a range can be read without waiting for the disk; if not, load the first."""
        if is_first:
            return self.is_readable(part, size)
        return part.file.is_cached(part.position + position, size)

    def read_range(self, part: LogSlice, position: int, size: int) -> bytes:
        """Read a range of a slice. Raises OSError if the file is too short."""
        data = part.file.read_at(part.position + position, size)
        if len(data) != size:
            raise OSError(f'"{part.file.path}" ends inside the {part.size} bytes at {part.position}')
        return data
