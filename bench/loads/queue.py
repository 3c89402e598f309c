"""A queue of RabbitMQ or JetStream: publishing with confirms, and consumers that acknowledge what they get.

All connections are served by one selector of one thread, as in the `share` load. Publishing with confirms has a
variant for Kafka's protocol.
"""

from __future__ import annotations

import gc
import selectors
import struct
import time
import uuid
from collections.abc import Callable

from bench.loads.queue_clients import KINDS, Destination, Member, Publisher, Queue, Received
from bench.loads.section import Section, percentiles
from bench.loads.specs import Metrics
from bench.loads.specs import Queue as Spec

WINDOW = 1000
"""Messages that a publisher has unconfirmed at most."""
BATCH = 100
"""Messages in one write of a publisher; for Kafka's protocol, in one batch."""
ACKNOWLEDGED_TOGETHER = 100
WARM_UP_S = 0.5
STAMP = struct.Struct(">q")


class Consumer:
    """A member with the messages that it has not acknowledged yet."""

    def __init__(self, load: QueueLoad, member: Member) -> None:
        self._load, self.member = load, member
        self._held: list[Received] = []

    def on_readable(self) -> None:
        """Take the messages that have arrived and acknowledge them as the spec says."""
        messages = self.member.receive()
        if not messages:
            return
        load, spec = self._load, self._load.spec
        if spec.rate_per_s:
            load.on_delivered(messages)
        if spec.alternating:
            self._alternate(messages)
        elif spec.one_by_one:
            for message in messages:
                self.member.accept([message])
            load.accepted += len(messages)
        else:
            self._held += messages
            load.received += len(messages)
            if spec.rate_per_s or len(self._held) >= min(ACKNOWLEDGED_TOGETHER, spec.prefetch // 2):
                self.accept_held()
            if load.received >= load.filled:
                load.accept_all_held()

    def accept_held(self) -> None:
        if self._held:
            self.member.accept(self._held)
            self._load.accepted += len(self._held)
            self._held = []

    def _alternate(self, messages: list[Received]) -> None:
        """Release every second message that comes for the first time; accept all others."""
        for message in messages:
            if not message.is_redelivered and self._load.is_release_next():
                self.member.release(message)
            else:
                self.member.accept([message])
                self._load.accepted += 1


class QueueLoad:
    """The queue's clients."""

    def __init__(self, spec: Spec, destination: Destination) -> None:
        self.spec = spec
        self.accepted = self.received = self.filled = 0
        self.delivered_ns: list[int] = []
        self._deliveries = 0
        self.selector = selectors.DefaultSelector()
        self.publisher: Publisher = destination.publisher()
        self.selector.register(self.publisher.socket, selectors.EVENT_READ, self.publisher.on_readable)
        self.queue = destination if isinstance(destination, Queue) else None
        if spec.members and self.queue is None:
            raise ValueError(f'protocol "{spec.protocol}" has no members here; use the share load')
        self.consumers = [Consumer(self, self.queue.member()) for _ in range(spec.members)] if self.queue else []
        for consumer in self.consumers:
            self.selector.register(consumer.member.socket, selectors.EVENT_READ, consumer.on_readable)

    def is_release_next(self) -> bool:
        """Return True for every second call."""
        self._deliveries += 1
        return self._deliveries % 2 == 1

    def on_delivered(self, messages: list[Received]) -> None:
        """Record the time from the schedule to the delivery; each message starts with its scheduled time."""
        now = time.perf_counter_ns()
        self.delivered_ns.extend(now - STAMP.unpack_from(message.body)[0] for message in messages)

    def poll(self, timeout_s: float) -> None:
        """Handle what has arrived, and send what sockets did not accept before."""
        for key, _ in self.selector.select(timeout_s):
            key.data()
        self.publisher.push()
        for consumer in self.consumers:
            consumer.member.push()

    def wait_until(self, is_done: Callable[[], bool], what: str, limit_s: float) -> None:
        """Poll until a condition holds. Raises RuntimeError after `limit_s`."""
        deadline = time.perf_counter() + limit_s
        while not is_done():
            self.poll(0.01)
            if time.perf_counter() > deadline:
                raise RuntimeError(f"{what} after {limit_s:.0f} s: {self.state()}")

    def state(self) -> str:
        return f"{self.publisher.sent} sent, {self.publisher.confirmed} confirmed, {self.accepted} accepted"

    def accept_all_held(self) -> None:
        """Acknowledge what is left, so that the queue becomes empty."""
        for consumer in self.consumers:
            consumer.accept_held()

    def publish(self, messages: int, seconds: float) -> int:
        """Publish for `seconds`, `messages` at most, of which WINDOW are unconfirmed at most. Returns their number.

        Ends with the last confirm.
        """
        publisher, values = self.publisher, [b"x" * self.spec.size_bytes] * BATCH
        before = publisher.sent
        end, end_s = before + messages, time.perf_counter() + seconds
        while publisher.sent < end and time.perf_counter() < end_s:
            while publisher.sent < end and publisher.unconfirmed <= WINDOW - BATCH and publisher.is_ready:
                publisher.send(values[: end - publisher.sent])
            self.poll(0.01)
        self.wait_until(lambda: not publisher.unconfirmed, "not everything was confirmed", self.spec.limit_s)
        return publisher.sent - before

    def start_members(self) -> None:
        for consumer in self.consumers:
            consumer.member.start()

    def publish_on_schedule(self, seconds: float) -> int:
        """Publish single messages at the rate for `seconds`. Returns their number."""
        interval_ns = int(1e9 / self.spec.rate_per_s)
        due_ns = time.perf_counter_ns()
        end_ns = due_ns + int(seconds * 1e9)
        sent = 0
        while due_ns < end_ns:
            while due_ns < end_ns and time.perf_counter_ns() >= due_ns and self.publisher.is_ready:
                self.publisher.send([STAMP.pack(due_ns).ljust(self.spec.size_bytes, b"x")])
                due_ns += interval_ns
                sent += 1
            self.poll(0.0)
        return sent

    def close(self) -> None:
        self.publisher.close()
        for consumer in self.consumers:
            consumer.member.close()


def run(spec: Spec) -> Metrics:
    """Return the metrics of a section. Raises RuntimeError or WireError if a message is rejected or missing."""
    destination = KINDS[spec.protocol](spec, f"bench-{uuid.uuid4().hex}")
    load = QueueLoad(spec, destination)
    try:
        gc.disable()
        if spec.rate_per_s:
            return _at_rate(load)
        return _consume(load, load.queue) if load.queue and spec.members else _publish(load)
    finally:
        load.close()
        destination.delete()


def _publish(load: QueueLoad) -> Metrics:
    """Measure publishing."""
    spec = load.spec
    load.publish(spec.messages, WARM_UP_S)
    section = Section(spec.broker_pids)
    messages = load.publish(spec.messages, spec.seconds)
    return section.finish(messages, spec.size_bytes)


def _consume(load: QueueLoad, queue: Queue) -> Metrics:
    """Fill the queue, then measure its members until it is empty or the section's time is over.

    The section ends when the server has applied the acknowledgements.
    """
    spec = load.spec
    load.filled = load.publish(spec.messages, spec.fill_s)
    section = Section(spec.broker_pids)
    end_s = time.perf_counter() + spec.seconds
    load.start_members()
    load.wait_until(
        lambda: load.accepted >= load.filled or time.perf_counter() >= end_s, "the members stalled", spec.limit_s
    )
    if not load.accepted:
        raise RuntimeError(f"no message was accepted in {spec.seconds} s: {load.state()}")
    accepted = load.accepted
    for consumer in load.consumers:
        consumer.member.synchronize()
    queue.wait_until_applied(load.filled - accepted)
    return section.finish(accepted, spec.size_bytes)


def _at_rate(load: QueueLoad) -> Metrics:
    """Publish on a schedule to members that wait, and measure the time until the delivery."""
    spec = load.spec
    load.start_members()
    warm_up = load.publish_on_schedule(WARM_UP_S)
    section = Section(spec.broker_pids)
    messages = load.publish_on_schedule(spec.seconds)
    metrics = section.finish(messages, spec.size_bytes)
    load.wait_until(lambda: load.accepted >= warm_up + messages, "not everything was delivered", spec.limit_s)
    return metrics | percentiles(load.delivered_ns[warm_up:], "end_to_end_")
