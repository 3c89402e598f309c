"""100 producers at several times the broker's capacity, on raw connections served by one thread.

Four phases: single requests on an idle broker (the baseline); one request at a time from every producer (the capacity);
every producer on a schedule of `factor` times its share of the capacity, without waiting for responses, as far as its
socket accepts it; and single requests again, until the broker is back to normal. At the end a librdkafka consumer reads
the whole topic, and the load searches it for each acknowledged message.
"""

from __future__ import annotations

import gc
import selectors
import statistics
import struct
import time
from collections import deque
from collections.abc import Iterable

from confluent_kafka import Consumer, TopicPartition

from bench import wire
from bench.connection import Connection
from bench.loads.specs import Metrics
from bench.loads.specs import Surge as Spec
from bench.loads.stream import Stream

IDENTITY = struct.Struct(">II")  # producer, sequence: the first bytes of each value
BASELINE_REQUESTS = 200
CAPACITY_S = 2.0
NORMAL_FACTOR = 3.0  # normal: the surge is answered and a window's median is within this factor of the baseline's
NORMAL_WINDOW = 20
DRAIN_LIMIT_S = 60.0
PROBE = 0xFFFFFFFF

Identity = tuple[int, int]


class _Producer:
    """One connection with its requests in flight, in order."""

    def __init__(self, spec: Spec, number: int) -> None:
        self.number = number
        self.stream = Stream(Connection(spec.address, spec.limit_s))
        self._spec = spec
        self._filler = b"x" * (spec.size_bytes - IDENTITY.size)
        self._sequence = 0
        self.under_way: deque[Identity] = deque()

    def send(self) -> None:
        identity = (self.number, self._sequence)
        self._sequence += 1
        self.under_way.append(identity)
        batch = wire.record_batch([IDENTITY.pack(*identity) + self._filler])
        partition = self.number % self._spec.partitions
        self.stream.send(wire.produce_request(self._spec.topic, [(partition, batch)]))

    def take_answers(self) -> tuple[list[Identity], int]:
        """Return the acknowledged identities, and the number of requests rejected with an error code."""
        acknowledged, refused = [], 0
        for answer in self.stream.answers():
            identity = self.under_way.popleft()
            produced = next(wire.produce_response(answer))
            if produced.error == 0:
                acknowledged.append(identity)
            else:
                refused += 1
        return acknowledged, refused


class _Crowd:
    """All producers, the selector over their sockets, and the acknowledged identities."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.selector = selectors.DefaultSelector()
        self.producers = [_Producer(spec, number) for number in range(spec.producers)]
        for producer in self.producers:
            self.selector.register(producer.stream.socket, selectors.EVENT_READ, producer)
        self.acknowledged: set[Identity] = set()
        self.refused = 0
        self.most_under_way = 0

    def serve(self) -> None:
        """Read the available responses, and continue sends that a full socket had not accepted."""
        for key, _events in self.selector.select(0):
            acknowledged, refused = key.data.take_answers()
            self.acknowledged.update(acknowledged)
            self.refused += refused
        for producer in self.producers:
            if producer.stream.full:
                producer.stream.push()

    @property
    def under_way(self) -> int:
        return sum(len(producer.under_way) for producer in self.producers)

    def closed_loop(self, seconds: float) -> float:
        """Keep one request of each producer in flight. Return responses per second."""
        begun, before = time.monotonic(), len(self.acknowledged)
        while time.monotonic() < begun + seconds:
            for producer in self.producers:
                if not producer.under_way:
                    producer.send()
            self.serve()
        return (len(self.acknowledged) - before) / (time.monotonic() - begun)

    def open_loop(self, rate_per_s: float) -> int:
        """Send `rate_per_s` requests per second in total. Return how many were due, sent or not."""
        begun = time.monotonic()
        limit = self.spec.limit_bytes // self.spec.size_bytes
        sent = due = 0
        while (now := time.monotonic()) < begun + self.spec.seconds and sent < limit:
            due = int((now - begun) * rate_per_s)
            for producer in self.producers:
                if sent < due and not producer.stream.full:
                    producer.send()
                    sent += 1
            self.serve()
            self.most_under_way = max(self.most_under_way, self.under_way)
        return due

    def drain(self) -> None:
        deadline = time.monotonic() + DRAIN_LIMIT_S
        while self.under_way:
            self.serve()
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.under_way} requests were not answered {DRAIN_LIMIT_S} s after the surge")

    def close(self) -> None:
        self.selector.close()
        for producer in self.producers:
            producer.stream.connection.close()


def _median_ms(window: Iterable[tuple[float, float]]) -> float:
    return statistics.median(taken_ms for _at, taken_ms in window)


class _Probe:
    """Single requests on a separate connection, timed in milliseconds."""

    def __init__(self, spec: Spec) -> None:
        self._connection = Connection(spec.address, spec.limit_s)
        batch = wire.record_batch([IDENTITY.pack(PROBE, PROBE)])
        self._request = wire.produce_request(spec.topic, [(0, batch)])

    def ask_ms(self) -> float:
        started = time.perf_counter()
        produced = next(wire.produce_response(self._connection.ask(self._request)))
        if produced.error:
            raise RuntimeError(f"a single request was refused with error code {produced.error}")
        return (time.perf_counter() - started) * 1000

    def back_to_normal_s(self, crowd: _Crowd, normal_ms: float) -> float:
        """Send requests until all of a window are normal, and serve the crowd. Return the seconds until the window's
        start."""
        begun = time.monotonic()
        window: deque[tuple[float, float]] = deque(maxlen=NORMAL_WINDOW)
        while time.monotonic() < begun + DRAIN_LIMIT_S:
            at = time.monotonic() - begun
            window.append((at, self.ask_ms()))
            crowd.serve()
            if crowd.under_way:
                window.clear()
            elif len(window) == NORMAL_WINDOW and _median_ms(window) <= NORMAL_FACTOR * normal_ms:
                return window[0][0]
        raise RuntimeError(f"the broker was not back to normal {DRAIN_LIMIT_S} s after the surge")

    def close(self) -> None:
        self._connection.close()


def _stored(spec: Spec) -> tuple[set[Identity], int]:
    """Return the identities that a consumer finds in the topic, and the number of duplicates."""
    consumer = Consumer(
        {
            "bootstrap.servers": spec.address,
            "group.id": "surge",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    found: set[Identity] = set()
    repeated = 0
    try:
        parts = [TopicPartition(spec.topic, index, 0) for index in range(spec.partitions)]
        ends = [consumer.get_watermark_offsets(part, timeout=30) for part in parts]
        left = sum(high - low for low, high in ends)
        consumer.assign(parts)
        deadline = time.monotonic() + spec.limit_s
        while left:
            messages = consumer.consume(100, timeout=0.5)
            if time.monotonic() > deadline:
                raise RuntimeError(f"{left} messages of the topic did not come in {spec.limit_s} s")
            for message in messages:
                value = message.value()
                if message.error() is not None or value is None:
                    raise RuntimeError(f"consuming failed: {message.error()}")
                identity = IDENTITY.unpack_from(value)
                repeated += identity in found and identity[0] != PROBE
                found.add(identity)
            left -= len(messages)
    finally:
        consumer.close()
    return found, repeated


def run(spec: Spec) -> Metrics:
    """Run the load. Return `lost`, `time_to_normal_s` and related metrics."""
    gc.disable()
    crowd, probe = _Crowd(spec), _Probe(spec)
    try:
        baseline_ms = statistics.median(probe.ask_ms() for _ in range(BASELINE_REQUESTS))
        capacity = crowd.closed_loop(min(CAPACITY_S, spec.seconds))
        crowd.drain()
        before, begun = len(crowd.acknowledged), time.monotonic()
        due = crowd.open_loop(capacity * spec.factor)
        surge_s = time.monotonic() - begun
        during = len(crowd.acknowledged) - before
        normal_s = probe.back_to_normal_s(crowd, baseline_ms)
    finally:
        crowd.close()
        probe.close()
    stored, repeated = _stored(spec)
    return {
        "capacity_mb_per_s": capacity * spec.size_bytes / 1e6,
        "offered_over_acknowledged": due / max(during, 1),
        "acknowledged_mb_per_s": during * spec.size_bytes / 1e6 / surge_s,
        "most_under_way_mb": crowd.most_under_way * spec.size_bytes / 1e6,
        "acknowledged": len(crowd.acknowledged),
        "refused": crowd.refused,
        "lost": len(crowd.acknowledged - stored),
        "repeated": repeated,
        "baseline_ms": baseline_ms,
        "time_to_normal_s": normal_s,
    }
