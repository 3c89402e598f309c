"""Publishers and consumers of the queue load: AMQP 0-9-1, JetStream, and a publisher for Kafka's protocol."""

from __future__ import annotations

import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from bench import amqp_wire, nats_wire, wire
from bench.amqp_wire import AmqpConnection, Confirm, Delivery
from bench.connection import Connection
from bench.loads.one_by_one import accepted
from bench.loads.specs import Queue as Spec
from bench.loads.stream import Stream
from bench.nats_wire import Message, NatsConnection
from bench.wire import WireError

QUEUE_ARGUMENTS: dict[str, str | int] = {"x-queue-type": "quorum"}
EXPIRED = b"408"
APPLIED_POLL_S = 0.002


class Received(NamedTuple):
    """A delivered message: its body, whether it was delivered before, and what acknowledges it."""

    body: bytes
    is_redelivered: bool
    token: bytes


class Publisher(ABC):
    """Sends messages on one connection and counts those that the server has not confirmed."""

    sent = 0
    confirmed = 0

    @property
    @abstractmethod
    def socket(self) -> socket.socket: ...

    @property
    def unconfirmed(self) -> int:
        return self.sent - self.confirmed

    @property
    def is_ready(self) -> bool:
        """Whether the connection can take another message."""
        return True

    @abstractmethod
    def send(self, values: Sequence[bytes]) -> None:
        """Send messages."""

    @abstractmethod
    def push(self) -> None:
        """Send what the socket did not accept before."""

    @abstractmethod
    def on_readable(self) -> None:
        """Count confirms. Raises WireError or RuntimeError if a message was rejected."""

    @abstractmethod
    def close(self) -> None: ...


class Member(Protocol):
    """A consumer on one connection."""

    @property
    def socket(self) -> socket.socket: ...

    def start(self) -> None:
        """Begin to consume."""

    def receive(self) -> list[Received]:
        """Return the messages that have arrived."""

    def accept(self, messages: Sequence[Received]) -> None:
        """Acknowledge all messages, which include the oldest of this member that is not acknowledged."""

    def release(self, message: Received) -> None:
        """Put a message back into the queue."""

    def push(self) -> None:
        """Send what the socket did not accept before."""

    def synchronize(self) -> None:
        """Wait until the server has read all acknowledgements; drop the messages that arrive meanwhile."""

    def close(self) -> None: ...


class ConfirmCounter:
    """Counts a channel's confirms, which can be of single messages out of order or of all up to one."""

    def __init__(self) -> None:
        self._lowest = 1
        self._above: set[int] = set()

    @property
    def confirmed(self) -> int:
        return self._lowest - 1 + len(self._above)

    def add(self, confirm: Confirm) -> None:
        if confirm.is_multiple:
            self._lowest = max(self._lowest, confirm.tag + 1)
            self._above = {tag for tag in self._above if tag >= self._lowest}
        else:
            self._above.add(confirm.tag)
        while self._lowest in self._above:
            self._above.remove(self._lowest)
            self._lowest += 1


class AmqpPublisher(Publisher):
    """A channel in confirm mode; messages are persistent."""

    def __init__(self, address: str, queue: str, limit_s: float) -> None:
        self._connection = AmqpConnection(address, limit_s)
        self._connection.ask(amqp_wire.method(amqp_wire.CONFIRM_SELECT, b"\0"), amqp_wire.CONFIRM_SELECT_OK)
        self._connection.stream.start_polling()
        self._queue, self._counter = queue, ConfirmCounter()

    @property
    def socket(self) -> socket.socket:
        return self._connection.stream.socket

    def send(self, values: Sequence[bytes]) -> None:
        self.sent += len(values)
        self._connection.stream.send(b"".join(amqp_wire.publish(self._queue, value) for value in values))

    def push(self) -> None:
        self._connection.stream.push()

    def on_readable(self) -> None:
        for each in self._connection.reader.feed(self._connection.stream.receive()):
            if isinstance(each, Confirm):
                self._counter.add(each)
        self.confirmed = self._counter.confirmed

    def close(self) -> None:
        self._connection.close()


class NatsPublisher(Publisher):
    """Publishes into a stream; each message asks for JetStream's response."""

    def __init__(self, address: str, stream: str, limit_s: float) -> None:
        self._connection = NatsConnection(address, limit_s)
        self._connection.stream.start_polling()
        self._stream, self._reply = stream, f"{self._connection.inbox}.p"

    @property
    def socket(self) -> socket.socket:
        return self._connection.stream.socket

    def send(self, values: Sequence[bytes]) -> None:
        self.sent += len(values)
        self._connection.stream.send(b"".join(nats_wire.publish(self._stream, value, self._reply) for value in values))

    def push(self) -> None:
        self._connection.stream.push()

    def on_readable(self) -> None:
        for message in self._connection.receive():
            if message.status or b'"error"' in message.payload:
                raise WireError(f"JetStream rejected a message: {message.status!r} {message.payload!r}")
            self.confirmed += 1

    def close(self) -> None:
        self._connection.close()


class KafkaPublisher(Publisher):
    """Sends each call's messages as one batch with acks=all, to the topic's partitions in turn."""

    def __init__(self, address: str, topic: str, partitions: int, limit_s: float) -> None:
        self._connection = Connection(address, limit_s)
        self._stream = Stream(self._connection)
        self._topic, self._partitions = topic, partitions
        self._requests = self._responses = 0
        self._sizes: list[int] = []

    @property
    def socket(self) -> socket.socket:
        return self._stream.socket

    @property
    def is_ready(self) -> bool:
        return not self._stream.full

    def send(self, values: Sequence[bytes]) -> None:
        self.sent += len(values)
        partition = self._requests % self._partitions
        self._requests += 1
        self._sizes.append(len(values))
        self._stream.send(wire.produce_request(self._topic, [(partition, wire.record_batch(values))]))

    def push(self) -> None:
        self._stream.push()

    def on_readable(self) -> None:
        for answer in self._stream.answers():
            accepted(answer)
            self.confirmed += self._sizes[self._responses]
            self._responses += 1

    def close(self) -> None:
        self._connection.close()


class AmqpMember:
    """A consumer with `prefetch` unacknowledged messages at most."""

    def __init__(self, address: str, queue: str, prefetch: int, limit_s: float) -> None:
        self._connection = AmqpConnection(address, limit_s)
        self._connection.ask(amqp_wire.qos(prefetch), amqp_wire.BASIC_QOS_OK)
        self._connection.stream.start_polling()
        self._queue = queue

    @property
    def socket(self) -> socket.socket:
        return self._connection.stream.socket

    def start(self) -> None:
        self._connection.stream.send(amqp_wire.consume(self._queue))

    def receive(self) -> list[Received]:
        return [
            Received(each.body, each.is_redelivered, each.tag.to_bytes(8))
            for each in self._connection.reader.feed(self._connection.stream.receive())
            if isinstance(each, Delivery)
        ]

    def accept(self, messages: Sequence[Received]) -> None:
        tag = int.from_bytes(messages[-1].token)
        self._connection.stream.send(amqp_wire.ack(tag, multiple=len(messages) > 1))

    def release(self, message: Received) -> None:
        self._connection.stream.send(amqp_wire.release(int.from_bytes(message.token)))

    def synchronize(self) -> None:
        self._connection.stream.stop_polling()
        self._connection.ask(amqp_wire.qos(1), amqp_wire.BASIC_QOS_OK)

    def push(self) -> None:
        self._connection.stream.push()

    def close(self) -> None:
        self._connection.close()


class NatsMember:
    """A pull consumer that asks for more when half of its `prefetch` has arrived, as the client libraries do."""

    def __init__(self, address: str, stream: str, consumer: str, prefetch: int, limit_s: float) -> None:
        self._connection = NatsConnection(address, limit_s)
        self._connection.stream.start_polling()
        self._stream, self._consumer, self._prefetch, self._requested = stream, consumer, prefetch, 0

    @property
    def socket(self) -> socket.socket:
        return self._connection.stream.socket

    def start(self) -> None:
        missing = self._prefetch - self._requested
        self._requested = self._prefetch
        reply = f"{self._connection.inbox}.m"
        self._connection.stream.send(nats_wire.next_request(self._stream, self._consumer, missing, reply))

    def receive(self) -> list[Received]:
        messages = self._connection.receive()
        found = [_received(message) for message in messages if not message.status]
        self._requested -= len(found)
        if len(found) < len(messages):
            self._on_status([message.status for message in messages if message.status])
        if self._requested <= self._prefetch // 2:
            self.start()
        return found

    def _on_status(self, statuses: list[bytes]) -> None:
        """Ask again after a pull request expired. Raises WireError for other states."""
        unexpected = [status for status in statuses if not status.startswith(EXPIRED)]
        if unexpected:
            raise WireError(f"a pull request failed: {unexpected}")
        self._requested = 0

    def accept(self, messages: Sequence[Received]) -> None:
        """Send an acknowledgement for each message in one write: a work queue has no other."""
        self._connection.stream.send(b"".join(nats_wire.answer(each.token, nats_wire.ACK) for each in messages))

    def release(self, message: Received) -> None:
        self._connection.stream.send(nats_wire.answer(message.token, nats_wire.RELEASE))

    def synchronize(self) -> None:
        self._connection.synchronize()

    def push(self) -> None:
        self._connection.stream.push()

    def close(self) -> None:
        self._connection.close()


def _received(message: Message) -> Received:
    return Received(message.payload, message.is_redelivered, message.reply)


class Destination(ABC):
    """What messages are published to in one section."""

    @abstractmethod
    def publisher(self) -> Publisher: ...

    @abstractmethod
    def delete(self) -> None:
        """Delete what exists for the section only, and close its connection."""


class Queue(Destination):
    """A queue that exists for one section, with its publisher and members."""

    @abstractmethod
    def member(self) -> Member: ...

    @abstractmethod
    def wait_until_applied(self, remaining: int) -> None:
        """Wait until the server has applied all acknowledgements that it has read; `remaining` messages are left."""


class AmqpQueue(Queue):
    """A quorum queue, whose leader is on the node at the first address."""

    def __init__(self, spec: Spec, name: str) -> None:
        self._spec, self._name, self._address = spec, name, spec.address.split(",")[0]
        self._admin = AmqpConnection(self._address, spec.limit_s)
        self._admin.ask(amqp_wire.declare(name, QUEUE_ARGUMENTS), amqp_wire.QUEUE_DECLARE_OK)
        self._marker: Publisher = AmqpPublisher(self._address, name, spec.limit_s)

    def publisher(self) -> Publisher:
        return AmqpPublisher(self._address, self._name, self._spec.limit_s)

    def member(self) -> Member:
        return AmqpMember(self._address, self._name, self._spec.prefetch, self._spec.limit_s)

    def wait_until_applied(self, remaining: int) -> None:
        """Publish a message and wait for its confirm: the queue's log has it after the acknowledgements."""
        del remaining
        self._marker.send([b"marker"])
        while self._marker.unconfirmed:
            self._marker.on_readable()

    def delete(self) -> None:
        self._marker.close()
        self._admin.ask(amqp_wire.delete(self._name), amqp_wire.QUEUE_DELETE_OK)
        self._admin.close()


class NatsQueue(Queue):
    """A work queue stream with one durable consumer. Clients connect to the leader of the stream."""

    CONSUMER = "members"

    def __init__(self, spec: Spec, name: str) -> None:
        self._spec, self._name = spec, name
        addresses = spec.address.split(",")
        self._admin = NatsConnection(addresses[0], spec.limit_s)
        leader = nats_wire.create_stream(self._admin, name, spec.replicas)
        self._address = addresses[int(leader.removeprefix("n")) - 1] if leader else addresses[0]
        pending = max(spec.members, 1) * spec.prefetch
        self._admin.ask(*nats_wire.consumer_request(name, self.CONSUMER, pending))

    def publisher(self) -> Publisher:
        return NatsPublisher(self._address, self._name, self._spec.limit_s)

    def member(self) -> Member:
        return NatsMember(self._address, self._name, self.CONSUMER, self._spec.prefetch, self._spec.limit_s)

    def wait_until_applied(self, remaining: int) -> None:
        """Query the stream until it has deleted what was acknowledged. Raises TimeoutError."""
        deadline = time.monotonic() + self._spec.limit_s
        while (left := self._admin.ask(f"$JS.API.STREAM.INFO.{self._name}", b"")["state"]["messages"]) > remaining:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the stream still has {left} messages instead of {remaining}")
            time.sleep(APPLIED_POLL_S)

    def delete(self) -> None:
        self._admin.ask(f"$JS.API.STREAM.DELETE.{self._name}", b"")
        self._admin.close()


class KafkaTopic(Destination):
    """A topic that exists already, for publishing only: the `share` load consumes from it."""

    def __init__(self, spec: Spec, name: str) -> None:
        del name
        self._spec = spec

    def publisher(self) -> Publisher:
        return KafkaPublisher(self._spec.address, self._spec.topic, self._spec.partitions, self._spec.limit_s)

    def delete(self) -> None:
        """Keep the topic, which the suite deletes."""


KINDS: dict[str, type[AmqpQueue] | type[NatsQueue] | type[KafkaTopic]] = {
    "amqp": AmqpQueue,
    "nats": NatsQueue,
    "kafka": KafkaTopic,
}
