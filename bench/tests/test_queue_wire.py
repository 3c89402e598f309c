"""The frames of AMQP and of NATS: what the load sends byte by byte, and what it reads in pieces of any size."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from bench import amqp_wire, nats_wire
from bench.amqp_wire import Confirm, Delivery, FrameReader
from bench.loads.queue_clients import ConfirmCounter
from bench.nats_wire import Message, MessageReader
from bench.wire import WireError


def _pieces(data: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def _delivery(tag: int, body: bytes, *, redelivered: bool = False, body_frames: int = 1) -> bytes:
    """Return the frames of a basic.deliver as the protocol's specification lays them out."""
    arguments = amqp_wire.short_string("ctag") + struct.pack(">Q?", tag, redelivered)
    arguments += amqp_wire.short_string("") + amqp_wire.short_string("q")
    header = struct.pack(">HHQH", 60, 0, len(body), 0x1000) + b"\2"
    step = max(-(-len(body) // body_frames), 1)
    parts = b"".join(amqp_wire.frame(amqp_wire.BODY, 1, part) for part in _pieces(body, step))
    return amqp_wire.method(amqp_wire.BASIC_DELIVER, arguments) + amqp_wire.frame(amqp_wire.HEADER, 1, header) + parts


def test_a_published_message_is_a_method_a_header_and_a_body_frame() -> None:
    assert amqp_wire.publish("q", b"abc") == (
        b"\1\0\1\0\0\0\x0a\0\x3c\0\x28\0\0\0\1q\0\xce"
        b"\2\0\1\0\0\0\x0f\0\x3c\0\0\0\0\0\0\0\0\0\3\x10\0\2\xce"
        b"\3\0\1\0\0\0\3abc\xce"
    )


def test_a_large_message_is_split_into_frames_of_the_negotiated_size() -> None:
    body = b"x" * (amqp_wire.MAX_FRAME_BYTES + 1)
    sizes = []
    data = amqp_wire.publish("q", body)
    position = 0
    while position < len(data):
        kind, _channel, size = struct.unpack_from(">BHI", data, position)
        if kind == amqp_wire.BODY:
            sizes.append(size)
        position += size + 8
    assert sum(sizes) == len(body)
    assert max(sizes) + 8 == amqp_wire.MAX_FRAME_BYTES


def test_a_queue_is_declared_durable_with_its_arguments() -> None:
    data = amqp_wire.declare("q", {"x-queue-type": "quorum", "n": 3})
    table = b"\x0cx-queue-typeS\0\0\0\6quorum" + b"\1nI\0\0\0\3"
    assert data[7:-1] == b"\0\x32\0\x0a\0\0\1q\2" + struct.pack(">I", len(table)) + table


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("body_frames", [1, 3])
def test_deliveries_and_confirms_are_read_from_pieces(size: int, body_frames: int) -> None:
    data = _delivery(7, b"one two three", body_frames=body_frames) + amqp_wire.ack(3, multiple=True)
    data += _delivery(8, b"four", redelivered=True)
    reader = FrameReader()
    found = [each for piece in _pieces(data, size) for each in reader.feed(piece)]
    assert found == [Delivery(b"one two three", 7, False), Confirm(3, True), Delivery(b"four", 8, True)]


def test_a_closed_channel_and_a_frame_without_an_end_are_errors() -> None:
    closed = amqp_wire.method(amqp_wire.CHANNEL_CLOSE, struct.pack(">H", 404) + amqp_wire.short_string("NOT_FOUND"))
    with pytest.raises(WireError, match="NOT_FOUND"):
        FrameReader().feed(closed)
    with pytest.raises(WireError, match="0xCE"):
        FrameReader().feed(closed[:-1] + b"\0" + closed)


def test_confirms_count_in_any_order() -> None:
    counter = ConfirmCounter()
    for confirm, expected in (
        (Confirm(2, False), 1),
        (Confirm(4, False), 2),
        (Confirm(1, False), 3),
        (Confirm(4, True), 4),
        (Confirm(3, True), 4),
        (Confirm(5, False), 5),
    ):
        counter.add(confirm)
        assert counter.confirmed == expected, confirm


EXPIRED_HEADERS = b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 5\r\nNats-Pending-Bytes: 0\r\n\r\n"
HEADERS = b"NATS/1.0\r\nA: bcdef\r\n\r\n"
NATS_BYTES = (
    b'INFO {"server_name":"n1","connect_urls":["127.0.0.1:1"]}\r\n'
    b"PING\r\n"
    b"MSG in.m 1 $JS.ACK.s.c.1.5.6.1700000000000000000.0 5\r\na\r\nbc\r\n"
    b'MSG in.p 1 26\r\n{"stream":"s", "seq":1234}\r\n'
    b"HMSG in.m 1 %d %d\r\n%b\r\n"
    b"HMSG in.m 1 $JS.ACK.d.h.s.c.2.5.6.1700000000000000000.0.r %d %d\r\n%bxyz\r\n"
    b"PONG\r\n"
) % (
    len(EXPIRED_HEADERS),
    len(EXPIRED_HEADERS),
    EXPIRED_HEADERS,
    len(HEADERS),
    len(HEADERS) + 3,
    HEADERS,
)


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_messages_of_nats_are_read_from_pieces(size: int) -> None:
    reader = MessageReader()
    found = [each for piece in _pieces(NATS_BYTES, size) for each in reader.feed(piece)]
    assert found == [
        Message(b"in.m", b"$JS.ACK.s.c.1.5.6.1700000000000000000.0", b"a\r\nbc"),
        Message(b"in.p", b"", b'{"stream":"s", "seq":1234}'),
        Message(b"in.m", b"", b"", b"408 Request Timeout"),
        Message(b"in.m", b"$JS.ACK.d.h.s.c.2.5.6.1700000000000000000.0.r", b"xyz"),
    ]
    assert (reader.pings, reader.pongs, reader.information["server_name"]) == (1, 1, "n1")


def test_a_redelivery_is_known_by_the_subject_of_its_acknowledgement() -> None:
    for subject, expected in (
        (b"$JS.ACK.s.c.1.5.6.17.0", False),
        (b"$JS.ACK.s.c.2.5.6.17.0", True),
        (b"$JS.ACK.d.h.s.c.1.5.6.17.0.r", False),
        (b"$JS.ACK.d.h.s.c.2.5.6.17.0.r", True),
    ):
        assert Message(b"in.m", subject, b"").is_redelivered is expected, subject


def test_an_error_of_nats_names_it() -> None:
    with pytest.raises(WireError, match="Authorization Violation"):
        MessageReader().feed(b"-ERR 'Authorization Violation'\r\n")


def test_what_is_published_to_nats_has_its_size() -> None:
    assert nats_wire.publish("s", b"ab", "in.p") == b"PUB s in.p 2\r\nab\r\n"
    assert nats_wire.publish("s", b"") == b"PUB s 0\r\n\r\n"
    assert nats_wire.answer(b"$JS.ACK.x", nats_wire.ACK) == b"PUB $JS.ACK.x 4\r\n+ACK\r\n"
