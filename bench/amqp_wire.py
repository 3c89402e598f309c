"""The frames of AMQP 0-9-1 that the queue load sends and reads, encoded by hand as `wire` does for Kafka's protocol."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from bench.byte_stream import ByteStream
from bench.wire import WireError

PROTOCOL_HEADER = b"AMQP\0\0\x09\x01"
METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END = b"\xce"
MAX_FRAME_BYTES = 131072
CONNECTION_START, CONNECTION_START_OK = (10, 10), (10, 11)
CONNECTION_TUNE, CONNECTION_TUNE_OK = (10, 30), (10, 31)
CONNECTION_OPEN, CONNECTION_OPEN_OK, CONNECTION_CLOSE = (10, 40), (10, 41), (10, 50)
CHANNEL_OPEN, CHANNEL_OPEN_OK, CHANNEL_CLOSE = (20, 10), (20, 11), (20, 40)
QUEUE_DECLARE, QUEUE_DECLARE_OK, QUEUE_DELETE, QUEUE_DELETE_OK = (50, 10), (50, 11), (50, 40), (50, 41)
BASIC_QOS, BASIC_QOS_OK, BASIC_CONSUME, BASIC_CONSUME_OK = (60, 10), (60, 11), (60, 20), (60, 21)
BASIC_PUBLISH, BASIC_DELIVER, BASIC_ACK, BASIC_NACK = (60, 40), (60, 60), (60, 80), (60, 120)
CONFIRM_SELECT, CONFIRM_SELECT_OK = (85, 10), (85, 11)
CHANNEL = 1
DURABLE, PASSIVE = 2, 1
MULTIPLE, REQUEUE = 1, 2
PERSISTENT = struct.pack(">HB", 0x1000, 2)
"""The property flags of a message that has a delivery mode, and the mode: persistent."""
_FRAME = struct.Struct(">BHI")
_DELIVERY_TAG = struct.Struct(">QB")
Method = tuple[int, int]


class Delivery(NamedTuple):
    """A message: its body, the tag that acknowledges it, and whether it was delivered before."""

    body: bytes
    tag: int
    is_redelivered: bool


class Confirm(NamedTuple):
    """A publisher's confirm of one message, or of all up to it."""

    tag: int
    is_multiple: bool


def short_string(text: str) -> bytes:
    data = text.encode()
    return bytes([len(data)]) + data


def long_string(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def table(values: dict[str, str | int]) -> bytes:
    """Encode a table of strings and integers."""
    out = b""
    for name, value in values.items():
        encoded = b"I" + struct.pack(">i", value) if isinstance(value, int) else b"S" + long_string(value.encode())
        out += short_string(name) + encoded
    return long_string(out)


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return _FRAME.pack(kind, channel, len(payload)) + payload + FRAME_END


def method(which: Method, arguments: bytes, channel: int = CHANNEL) -> bytes:
    """Return a method frame."""
    return frame(METHOD, channel, struct.pack(">HH", *which) + arguments)


def start_ok(user: str, password: str) -> bytes:
    response = long_string(f"\0{user}\0{password}".encode())
    return method(CONNECTION_START_OK, table({}) + short_string("PLAIN") + response + short_string("en_US"), channel=0)


def tune_ok() -> bytes:
    """Return the client's limits: one channel, frames of 128 KiB, no heartbeats."""
    return method(CONNECTION_TUNE_OK, struct.pack(">HIH", CHANNEL, MAX_FRAME_BYTES, 0), channel=0)


def declare(queue: str, arguments: dict[str, str | int], *, flags: int = DURABLE) -> bytes:
    body = struct.pack(">H", 0) + short_string(queue) + bytes([flags]) + table(arguments)
    return method(QUEUE_DECLARE, body)


def delete(queue: str) -> bytes:
    return method(QUEUE_DELETE, struct.pack(">H", 0) + short_string(queue) + b"\0")


def qos(prefetch: int) -> bytes:
    return method(BASIC_QOS, struct.pack(">IHB", 0, prefetch, 0))


def consume(queue: str) -> bytes:
    return method(BASIC_CONSUME, struct.pack(">H", 0) + short_string(queue) + short_string("") + b"\0" + table({}))


def publish(queue: str, body: bytes) -> bytes:
    """Return the frames of a persistent message that the default exchange routes to `queue`."""
    content = b"".join(
        frame(BODY, CHANNEL, body[start : start + MAX_FRAME_BYTES - 8])
        for start in range(0, len(body), MAX_FRAME_BYTES - 8)
    )
    head = method(BASIC_PUBLISH, struct.pack(">H", 0) + short_string("") + short_string(queue) + b"\0")
    return head + frame(HEADER, CHANNEL, struct.pack(">HHQ", 60, 0, len(body)) + PERSISTENT) + content


def ack(tag: int, *, multiple: bool = False) -> bytes:
    return method(BASIC_ACK, _DELIVERY_TAG.pack(tag, MULTIPLE if multiple else 0))


def release(tag: int) -> bytes:
    """Return a basic.nack that puts the message back into the queue."""
    return method(BASIC_NACK, _DELIVERY_TAG.pack(tag, REQUEUE))


class FrameReader:
    """Splits received bytes into frames, and assembles deliveries from theirs."""

    def __init__(self) -> None:
        self._data = b""
        self._delivery: tuple[int, bool] | None = None
        self._missing = 0
        self._body: list[bytes] = []

    def feed(self, data: bytes) -> list[tuple[Method, bytes] | Delivery | Confirm]:
        """Return the methods, deliveries and confirms that are complete. Raises WireError."""
        if self._data:
            data = self._data + data
        found: list[tuple[Method, bytes] | Delivery | Confirm] = []
        position, end = 0, len(data)
        while end - position >= 8:
            kind, _channel, size = _FRAME.unpack_from(data, position)
            after = position + 7 + size
            if after >= end:
                break
            if data[after] != FRAME_END[0]:
                raise WireError(f"a frame of {size} B does not end with 0xCE")
            if kind == METHOD:
                self._on_method(data, position + 7, after, found)
            elif kind == HEADER:
                (self._missing,) = struct.unpack_from(">Q", data, position + 11)
            elif kind == BODY:
                self._on_body(data[position + 7 : after], found)
            position = after + 1
        self._data = data[position:]
        return found

    def _on_method(
        self, data: bytes, start: int, end: int, found: list[tuple[Method, bytes] | Delivery | Confirm]
    ) -> None:
        which = struct.unpack_from(">HH", data, start)
        if which == BASIC_DELIVER:
            position = start + 5 + data[start + 4]
            tag, redelivered = _DELIVERY_TAG.unpack_from(data, position)
            self._delivery = tag, bool(redelivered)
        elif which == BASIC_ACK:
            tag, multiple = _DELIVERY_TAG.unpack_from(data, start + 4)
            found.append(Confirm(tag, bool(multiple)))
        elif which in (CONNECTION_CLOSE, CHANNEL_CLOSE, BASIC_NACK):
            raise WireError(f"the server refused with method {which}: {data[start + 4 : end]!r}")
        else:
            found.append(((which[0], which[1]), data[start + 4 : end]))

    def _on_body(self, part: bytes, found: list[tuple[Method, bytes] | Delivery | Confirm]) -> None:
        if self._delivery is None:
            raise WireError("a message body arrived without a delivery")
        self._missing -= len(part)
        if self._body or self._missing:
            self._body.append(part)
            if self._missing:
                return
            part = b"".join(self._body)
            self._body.clear()
        found.append(Delivery(part, *self._delivery))
        self._delivery = None


class AmqpConnection:
    """A connection with one open channel."""

    def __init__(self, address: str, timeout_s: float, user: str = "guest", password: str = "guest") -> None:
        self.stream = ByteStream(address, timeout_s)
        self.reader = FrameReader()
        self.stream.send(PROTOCOL_HEADER)
        self.wait_for(CONNECTION_START)
        self.ask(start_ok(user, password), CONNECTION_TUNE)
        opening = method(CONNECTION_OPEN, short_string("/") + short_string("") + b"\0", channel=0)
        self.ask(tune_ok() + opening, CONNECTION_OPEN_OK)
        self.ask(method(CHANNEL_OPEN, short_string("")), CHANNEL_OPEN_OK)

    def ask(self, request: bytes, response: Method) -> bytes:
        """Send a request and return the arguments of its response. Only before the connection polls."""
        self.stream.send(request)
        return self.wait_for(response)

    def wait_for(self, response: Method) -> bytes:
        while True:
            for each in self.reader.feed(self.stream.receive()):
                if each[0] == response:
                    assert isinstance(each[1], bytes), "a method has arguments"
                    return each[1]

    def close(self) -> None:
        self.stream.close()


def is_serving(address: str) -> bool:
    """Return whether the server at `address` accepts a login."""
    try:
        AmqpConnection(address, 5.0).close()
    except (OSError, WireError):
        return False
    return True


def declared_depth(arguments: bytes) -> int:
    """Return the number of messages that a queue.declare-ok reports."""
    (depth,) = struct.unpack_from(">I", arguments, 1 + arguments[0])
    return int(depth)


def highest(confirms: Sequence[Confirm]) -> int:
    """Return the highest confirmed tag."""
    return max((confirm.tag for confirm in confirms), default=0)
