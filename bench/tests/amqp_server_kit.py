"""A server of AMQP 0-9-1 with one queue in memory: as much of the protocol as the queue load uses.

It decodes frames itself, so that it does not repeat an error of the client's code.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections import deque
from dataclasses import dataclass, field

DELIVER = (60, 60)


@dataclass
class Record:
    """What the members of the queue did."""

    accepted: int = 0
    released: int = 0
    released_again: int = 0
    """Messages that were released after they had been released before."""
    acks: list[bool] = field(default_factory=list)
    """For each basic.ack, whether it was for all messages up to one."""


class Session:
    """One client's connection, with the messages that it holds by delivery tag."""

    def __init__(self, server: AmqpServer, connection: socket.socket) -> None:
        self.server, self.connection = server, connection
        self.file = connection.makefile("rb")
        self.held: dict[int, tuple[bytes, bool]] = {}
        self.prefetch = self.next_tag = 1
        self.published = 0
        self.is_consuming = False

    def serve(self) -> None:
        """Serve until the client closes."""
        try:
            assert self.file.read(8) == b"AMQP\0\0\x09\x01"
            self.send(
                (10, 10), b"\0\x09" + bytes(4) + struct.pack(">I", 5) + b"PLAIN" + struct.pack(">I", 5) + b"en_US", 0
            )
            while head := self.file.read(7):
                kind, channel, size = struct.unpack(">BHI", head)
                payload = self.file.read(size)
                assert self.file.read(1) == b"\xce"
                with self.server.lock:
                    self.on_frame(kind, channel, payload)
        except ConnectionError:
            return

    def send(self, method: tuple[int, int], arguments: bytes, channel: int = 1) -> None:
        payload = struct.pack(">HH", *method) + arguments
        self.connection.sendall(struct.pack(">BHI", 1, channel, len(payload)) + payload + b"\xce")

    def on_frame(self, kind: int, channel: int, payload: bytes) -> None:
        if kind == 3:
            self.published += 1
            self.server.messages.append((payload, False))
            self.send((60, 80), struct.pack(">QB", self.published, 0))
            self.server.deliver()
        elif kind == 1:
            self.on_method(struct.unpack_from(">HH", payload), payload[4:], channel)

    def on_method(self, method: tuple[int, ...], arguments: bytes, channel: int) -> None:
        responses = {
            (10, 11): ((10, 30), struct.pack(">HIH", 2047, 131072, 60)),
            (10, 40): ((10, 41), b"\0"),
            (20, 10): ((20, 11), bytes(4)),
            (50, 10): ((50, 11), b"\1q" + bytes(8)),
            (50, 40): ((50, 41), bytes(4)),
            (60, 10): ((60, 11), b""),
            (60, 20): ((60, 21), b"\1c"),
            (85, 10): ((85, 11), b""),
        }
        if method in responses:
            self.send(*responses[method], channel)
        if method == (60, 10):
            self.prefetch = struct.unpack(">IHB", arguments)[1]
        elif method == (60, 20):
            self.is_consuming = True
        elif method == (60, 80):
            self.on_ack(*struct.unpack(">QB", arguments))
        elif method == (60, 120):
            tag, flags = struct.unpack(">QB", arguments)
            assert flags == 2
            body, was_released = self.held.pop(tag)
            self.server.record.released += 1
            self.server.record.released_again += was_released
            self.server.messages.appendleft((body, True))
        self.server.deliver()

    def on_ack(self, tag: int, flags: int) -> None:
        assert tag in self.held, "a message is acknowledged once, by the member that holds it"
        tags = [held for held in self.held if held <= tag] if flags else [tag]
        for each in tags:
            del self.held[each]
        self.server.record.accepted += len(tags)
        self.server.record.acks.append(bool(flags))

    def deliver(self, body: bytes, *, redelivered: bool) -> None:
        tag, self.next_tag = self.next_tag, self.next_tag + 1
        self.held[tag] = body, redelivered
        self.send(DELIVER, b"\1c" + struct.pack(">Q?", tag, redelivered) + b"\0\1q")
        header = struct.pack(">HHQH", 60, 0, len(body), 0)
        self.connection.sendall(struct.pack(">BHI", 2, 1, len(header)) + header + b"\xce")
        self.connection.sendall(struct.pack(">BHI", 3, 1, len(body)) + body + b"\xce")


class AmqpServer:
    """The queue and its listener; each connection has a thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.messages: deque[tuple[bytes, bool]] = deque()
        self.record = Record()
        self.sessions: list[Session] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self.listen, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.listener.getsockname()[1]}"

    def listen(self) -> None:
        """Accept connections until the listener is closed."""
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            session = Session(self, connection)
            self.sessions.append(session)
            threading.Thread(target=session.serve, daemon=True).start()

    def deliver(self) -> None:
        """Deliver what the members have room for."""
        for session in self.sessions:
            while self.messages and session.is_consuming and len(session.held) < session.prefetch:
                body, redelivered = self.messages.popleft()
                session.deliver(body, redelivered=redelivered)

    def close(self) -> None:
        self.listener.close()
