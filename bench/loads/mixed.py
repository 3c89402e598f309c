"""A producer at a fixed rate, a consumer at the tail, and a consumer that reads the partition from its beginning.

One thread serves three raw connections, one for each role, because they share the client's core: a thread that polls
without a pause would take the core from the consumer behind, and a full client for each role would take it from the
other two. The thread sleeps in select() until the next batch is due or a response arrives. A sleep ends about 0.1 ms
late, by the kernel's timer slack and the wake-up of the process, and this is part of each latency on both sides;
`send_delay_p99_ms` is the part from the schedule to the send. The consumer behind copies each response into one buffer
and reads only the headers of the batches. It thus takes 0.2 s of the client's core per GB, and a response on another
connection waits at most about 0.1 ms for one of its copies.
"""

from __future__ import annotations

import gc
import select
import socket
import time

from bench import wire
from bench.connection import Connection
from bench.loads.one_by_one import accepted
from bench.loads.section import Section, percentiles
from bench.loads.specs import Metrics
from bench.loads.specs import Mixed as Spec
from bench.loads.stream import Stream

WARM_UP_S = 0.5
DRAIN_LIMIT_S = 60.0
DRAIN_POLL_S = 0.05
MAX_RESPONSE_BYTES = 4 << 20  # a fetch requests 1 MiB; a larger first batch is returned whole


class BatchProducer:
    """Sends one batch at each scheduled time, whether or not the earlier ones have a response."""

    def __init__(self, stream: Stream, spec: Spec, start_ns: int) -> None:
        batch = wire.record_batch([b"x" * spec.size_bytes] * spec.batch_messages)
        self.stream = stream
        self.request = wire.produce_request(spec.topic, [(0, batch)])
        self.interval_ns = int(1e9 * spec.batch_messages / spec.rate_per_s)
        self.due_ns = start_ns + self.interval_ns
        self.scheduled_ns: list[int] = []
        self.send_delays_ns: list[int] = []
        self.latencies_ns: list[int] = []
        """Times from the schedule to the response."""

    def schedule(self, now_ns: int) -> None:
        """Schedule the batches that are due."""
        while self.due_ns <= now_ns:
            self.scheduled_ns.append(self.due_ns)
            self.due_ns += self.interval_ns

    def send_scheduled(self) -> None:
        """Send scheduled batches as far as the socket accepts them."""
        if self.stream.full:
            self.stream.push()
        while len(self.send_delays_ns) < len(self.scheduled_ns) and not self.stream.full:
            self.send_delays_ns.append(time.perf_counter_ns() - self.scheduled_ns[len(self.send_delays_ns)])
            self.stream.send(self.request)

    def on_readable(self) -> None:
        """Record the responses that have arrived. Raises RuntimeError if the broker rejected a batch."""
        for response in self.stream.answers():
            accepted(response)
            self.latencies_ns.append(time.perf_counter_ns() - self.scheduled_ns[len(self.latencies_ns)])


class TailConsumer:
    """Fetches each batch of the producer as soon as the broker returns it; `first_offset` is that of the first one."""

    def __init__(self, stream: Stream, spec: Spec, producer: BatchProducer, first_offset: int) -> None:
        self.stream, self.spec, self.producer = stream, spec, producer
        self.first_offset = self.next_offset = first_offset
        self.latencies_ns: list[int] = []
        """Times from the schedule to the response of the fetch."""

    def fetch(self) -> None:
        self.stream.send(wire.fetch_request(self.spec.topic, 0, self.next_offset))

    def on_readable(self) -> None:
        """Record the batches that have arrived, and fetch again. Raises RuntimeError if the fetch failed."""
        for response in self.stream.answers():
            self.next_offset = max(self.next_offset, _fetched_until(response))
            now_ns = time.perf_counter_ns()
            for scheduled_ns in self.producer.scheduled_ns[len(self.latencies_ns) : self.received_batches]:
                self.latencies_ns.append(now_ns - scheduled_ns)
            self.fetch()

    @property
    def received_batches(self) -> int:
        return (self.next_offset - self.first_offset) // self.spec.batch_messages


class LaggingConsumer:
    """Reads the offsets from 0 to `end_offset` of a partition, again and again, with one fetch in flight."""

    def __init__(self, sock: socket.socket, topic: str, end_offset: int) -> None:
        self.socket = sock
        self.socket.setblocking(False)
        self.response = ResponseBuffer(self.socket)
        self.topic, self.end_offset = topic, end_offset
        self.next_offset = self.messages = self.passes = 0

    def fetch(self) -> None:
        """Request the next messages. The socket has room, because no other request is in flight."""
        self.socket.sendall(wire.fetch_request(self.topic, 0, self.next_offset))

    def on_readable(self) -> None:
        """Count the messages of a complete response, and fetch again. Raises RuntimeError if the fetch failed."""
        response = self.response.receive()
        if response is None:
            return
        next_offset = min(max(_fetched_until(response), self.next_offset), self.end_offset)
        self.messages += next_offset - self.next_offset
        is_complete = next_offset == self.end_offset
        self.passes += is_complete
        self.next_offset = 0 if is_complete else next_offset
        self.fetch()


class ResponseBuffer:
    """Receives one response at a time from a non-blocking socket, without an allocation for each."""

    def __init__(self, sock: socket.socket, size_bytes: int = MAX_RESPONSE_BYTES) -> None:
        self._socket = sock
        self._buffer = memoryview(bytearray(size_bytes))
        self._received = 0

    def receive(self) -> memoryview | None:
        """Return the response without its size field, valid until the next call; None if it is not complete.

        Raises ConnectionError if the broker closed, WireError if the response does not fit.
        """
        try:
            received = self._socket.recv_into(self._buffer[self._received :])
        except BlockingIOError:
            return None
        if not received:
            raise ConnectionError("the broker closed the connection")
        self._received += received
        if self._received < 4:
            return None
        end = 4 + int.from_bytes(self._buffer[:4])
        if end > len(self._buffer) or self._received > end:
            raise wire.WireError(f"expected one response of at most {len(self._buffer)} bytes, got {end}")
        if self._received < end:
            return None
        self._received = 0
        return self._buffer[4:end]


def _fetched_until(response: bytes | memoryview) -> int:
    """Return the offset after a response's last batch, -1 if it has none. Raises RuntimeError if the fetch failed."""
    fetched = wire.fetch_response(response)
    if fetched.error:
        raise RuntimeError(f"a fetch failed with error code {fetched.error}")
    return fetched.next_offset


class MixedLoad:
    """The three roles, served in order: the consumer behind is the last one."""

    def __init__(self, producer: BatchProducer, tail: TailConsumer, lagging: LaggingConsumer) -> None:
        self.producer, self.tail, self.lagging = producer, tail, lagging

    @property
    def transferred_batches(self) -> int:
        """Batches that were acknowledged, plus batches that arrived at the tail."""
        return len(self.producer.latencies_ns) + len(self.tail.latencies_ns)

    def run(self, seconds: float, passes: int, limit_s: float) -> None:
        """Serve all roles for `seconds`, and until the consumer behind has read its messages `passes` times.

        Raises RuntimeError if that takes longer than `limit_s`.
        """
        started = time.perf_counter()
        while (elapsed := time.perf_counter() - started) < seconds or self.lagging.passes < passes:
            self.producer.schedule(time.perf_counter_ns())
            self.producer.send_scheduled()
            self.serve(max(self.producer.due_ns - time.perf_counter_ns(), 0) / 1e9)
            if elapsed > seconds + limit_s:
                raise RuntimeError(
                    f"the consumer behind read {self.lagging.messages} of {self.lagging.end_offset} messages "
                    f"in {limit_s} s"
                )

    def serve(self, timeout_s: float) -> None:
        """Sleep until a response arrives, and handle the responses that have arrived."""
        producing, tail, lagging = self.producer.stream.socket, self.tail.stream.socket, self.lagging.socket
        writing = [producing] if self.producer.stream.full else []
        readable, _, _ = select.select([producing, tail, lagging], writing, [], timeout_s)
        if producing in readable:
            self.producer.on_readable()
        if tail in readable:
            self.tail.on_readable()
        if lagging in readable:
            self.lagging.on_readable()

    def drain(self, limit_s: float) -> None:
        """Wait until each scheduled batch was acknowledged and consumed at the tail. Raises RuntimeError."""
        deadline = time.monotonic() + limit_s
        scheduled = len(self.producer.scheduled_ns)
        while self.transferred_batches < 2 * scheduled:
            self.producer.send_scheduled()
            self.serve(DRAIN_POLL_S)
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"of {scheduled} batches {len(self.producer.latencies_ns)} were acknowledged and "
                    f"{len(self.tail.latencies_ns)} consumed {limit_s} s after the last one was due"
                )


def run(spec: Spec) -> Metrics:
    """Return `produce_p50_ms` .. `end_to_end_p999_ms` of each batch, `lagging_mb_per_s`, and the cost per message.

    `messages` are those that were acknowledged, and those that each consumer received; the broker's CPU time counts per
    one of them. `messages_per_s` and `mb_per_s` are the producer's. Raises RuntimeError if a message is rejected or
    missing.
    """
    connections = [Connection(spec.address, spec.limit_s) for _ in range(3)]
    try:
        request = wire.produce_request(spec.topic, [(0, wire.record_batch([b"x"]))])
        first_offset = accepted(connections[0].ask(request)) + 1
        lagging = LaggingConsumer(connections[2].socket, spec.topic, spec.lagging_messages)
        producer = BatchProducer(Stream(connections[0]), spec, time.perf_counter_ns())
        tail = TailConsumer(Stream(connections[1]), spec, producer, first_offset)
        load = MixedLoad(producer, tail, lagging)
        gc.disable()
        tail.fetch()
        load.run(WARM_UP_S, 0, spec.limit_s)
        before, first = load.transferred_batches, len(producer.scheduled_ns)
        section = Section(spec.broker_pids)
        if spec.lagging_messages:
            lagging.fetch()
        load.run(spec.seconds, 1 if spec.lagging_messages else 0, spec.limit_s)
        transferred = (load.transferred_batches - before) * spec.batch_messages + lagging.messages
        metrics = section.finish(transferred, spec.size_bytes)
        load.drain(DRAIN_LIMIT_S)
    finally:
        for connection in connections:
            connection.close()
    produced = (len(producer.scheduled_ns) - first) * spec.batch_messages
    return {
        **metrics,
        **percentiles(producer.latencies_ns[first:], "produce_"),
        **percentiles(tail.latencies_ns[first:], "end_to_end_"),
        **percentiles(producer.send_delays_ns[first:], "send_delay_"),
        "batches": len(producer.scheduled_ns) - first,
        "messages_per_s": produced / metrics["wall_s"],
        "mb_per_s": produced * spec.size_bytes / metrics["wall_s"] / 1e6,
        "lagging_mb_per_s": lagging.messages * spec.size_bytes / metrics["wall_s"] / 1e6,
        "passes": lagging.passes,
    }
