"""The client protocol of NATS and the requests of JetStream that the queue load uses, encoded by hand."""

from __future__ import annotations

import time
import uuid
from typing import Any, NamedTuple

import msgspec

from bench.byte_stream import ByteStream
from bench.wire import WireError

CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true,"lang":"bench"}\r\n'
PING, PONG = b"PING\r\n", b"PONG\r\n"
ACK, RELEASE = b"+ACK", b"-NAK"
NEXT_LIFETIME_NS = 30_000_000_000
ACK_WAIT_NS = 30_000_000_000
LEADER_LIMIT_S = 30.0
POLL_S = 0.1
DELIVERIES_TOKEN, TOKENS_WITHOUT_DOMAIN = 4, 9
"""The place of the number of deliveries in `$JS.ACK.stream.consumer.deliveries...`, the subject of acknowledgements;
with a domain and an account hash it is two places further on."""


class Message(NamedTuple):
    """A message of a subscription: its subject, the subject for the reply, and the payload without headers.

    `status` is the first line of headers that have no message, such as `408 Request Timeout`; empty for messages.
    """

    subject: bytes
    reply: bytes
    payload: bytes
    status: bytes = b""

    @property
    def is_redelivered(self) -> bool:
        """Whether JetStream has delivered the message before."""
        tokens = self.reply.split(b".")
        place = DELIVERIES_TOKEN if len(tokens) <= TOKENS_WITHOUT_DOMAIN else DELIVERIES_TOKEN + 2
        return tokens[place] != b"1"


def subscribe(subject: str, sid: int) -> bytes:
    return f"SUB {subject} {sid}\r\n".encode()


def publish(subject: str, payload: bytes, reply: str = "") -> bytes:
    head = f"PUB {subject} {reply + ' ' if reply else ''}{len(payload)}\r\n"
    return head.encode() + payload + b"\r\n"


def answer(reply: bytes, payload: bytes) -> bytes:
    """Return a message to the reply subject of a delivery: its acknowledgement or its release."""
    return b"PUB %b %d\r\n%b\r\n" % (reply, len(payload), payload)


def next_request(stream: str, consumer: str, batch: int, reply: str) -> bytes:
    """Return a pull request for up to `batch` messages, sent to `reply` as they come."""
    body = msgspec.json.encode({"batch": batch, "expires": NEXT_LIFETIME_NS})
    return publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", body, reply)


def stream_request(stream: str, replicas: int) -> tuple[str, bytes]:
    """Return subject and body that create a work queue: a message is deleted when it is acknowledged."""
    body = {"name": stream, "subjects": [stream], "storage": "file", "retention": "workqueue", "num_replicas": replicas}
    return f"$JS.API.STREAM.CREATE.{stream}", msgspec.json.encode(body)


def consumer_request(stream: str, consumer: str, max_ack_pending: int) -> tuple[str, bytes]:
    """Return subject and body that create a durable pull consumer with explicit acknowledgements."""
    config = {
        "durable_name": consumer,
        "ack_policy": "explicit",
        "deliver_policy": "all",
        "max_ack_pending": max_ack_pending,
        "ack_wait": ACK_WAIT_NS,
    }
    body = {"stream_name": stream, "config": config}
    return f"$JS.API.CONSUMER.DURABLE.CREATE.{stream}.{consumer}", msgspec.json.encode(body)


class MessageReader:
    """Splits received bytes into messages; counts the PINGs that need a PONG."""

    def __init__(self) -> None:
        self._data = b""
        self.pings = 0
        self.pongs = 0
        self.information: dict[str, Any] = {}

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that are complete. Raises WireError for -ERR and for unknown operations."""
        if self._data:
            data = self._data + data
        found: list[Message] = []
        position = 0
        while (end := data.find(b"\r\n", position)) >= 0:
            line, after = data[position:end], end + 2
            if line.startswith((b"MSG ", b"HMSG ")):
                size = int(line[line.rindex(b" ") + 1 :])
                if len(data) < after + size + 2:
                    break
                found.append(_message(line, data[after : after + size]))
                after += size + 2
            else:
                self._on_operation(line)
            position = after
        self._data = data[position:]
        return found

    def _on_operation(self, line: bytes) -> None:
        if line == b"PING":
            self.pings += 1
        elif line == b"PONG":
            self.pongs += 1
        elif line.startswith(b"INFO "):
            self.information = msgspec.json.decode(line[5:])
        elif line != b"+OK":
            raise WireError(f"the server sent {line!r}")


def _message(line: bytes, content: bytes) -> Message:
    operation, subject, _sid, *more = line.split(b" ")
    if operation == b"MSG":
        return Message(subject, more[0] if len(more) == 2 else b"", content)
    headers = int(more[-2])
    first = content[: content.index(b"\r\n")].removeprefix(b"NATS/1.0").strip()
    return Message(subject, more[0] if len(more) == 3 else b"", content[headers:], first)


class NatsConnection:
    """A connection with a subscription to all subjects below an `inbox` of its own."""

    def __init__(self, address: str, timeout_s: float) -> None:
        self.stream = ByteStream(address, timeout_s)
        self.reader = MessageReader()
        self.inbox = f"_INBOX.{uuid.uuid4().hex}"
        while not self.reader.information:
            self.reader.feed(self.stream.receive())
        self.stream.send(CONNECT + subscribe(f"{self.inbox}.>", 1))
        self.synchronize()

    def synchronize(self) -> None:
        """Wait until the server has read all that was sent; drop the messages that arrive meanwhile."""
        self.stream.stop_polling()
        awaited = self.reader.pongs + 1
        self.stream.send(PING)
        while self.reader.pongs < awaited:
            self.reader.feed(self.stream.receive())

    def receive(self) -> list[Message]:
        """Return the messages that have arrived, and respond to the server's PINGs."""
        messages = self.reader.feed(self.stream.receive())
        if self.reader.pings:
            self.stream.send(PONG * self.reader.pings)
            self.reader.pings = 0
        return messages

    def ask(self, subject: str, body: bytes) -> dict[str, Any]:
        """Send a request to JetStream's API and return its response. Only before the connection polls.

        Raises WireError if it is an error, or if JetStream does not respond.
        """
        self.stream.send(publish(subject, body, f"{self.inbox}.api"))
        while True:
            for message in self.receive():
                if message.status:
                    raise WireError(f"JetStream does not serve {subject}: {message.status.decode()}")
                response: dict[str, Any] = msgspec.json.decode(message.payload)
                if "error" in response:
                    raise WireError(f"{subject} failed: {response['error']}")
                return response

    def close(self) -> None:
        self.stream.close()


def is_serving(address: str, nodes: int) -> bool:
    """Return whether JetStream of the server at `address` serves, and in a cluster knows `nodes` nodes."""
    try:
        connection = NatsConnection(address, 5.0)
        try:
            connection.ask("$JS.API.INFO", b"")
            known = connection.reader.information.get("connect_urls", ())
            return nodes == 1 or len(known) >= nodes
        finally:
            connection.close()
    except (OSError, WireError):
        return False


def create_stream(connection: NatsConnection, stream: str, replicas: int) -> str:
    """Create a stream once enough nodes are known. Return its leader's name, empty on a server alone."""
    deadline = time.monotonic() + LEADER_LIMIT_S
    while True:
        try:
            response = connection.ask(*stream_request(stream, replicas))
            return str(response.get("cluster", {}).get("leader", ""))
        except WireError:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)
