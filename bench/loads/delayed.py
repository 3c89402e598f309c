"""Records that are delivered later: many that wait, or some that are due at a fixed rate and how late each is.

Due times are wall-clock times, and broker and client share the clock. In a topic with a delay, a record is due when the
delay has passed since its append, which is its timestamp. A scheduled record is due at the time of its header, which
its value repeats.
"""

from __future__ import annotations

import gc
import struct
import time
from random import Random

from bench import wire
from bench.connection import Connection
from bench.loads.one_by_one import accepted
from bench.loads.section import Section, percentiles
from bench.loads.specs import Delayed as Spec
from bench.loads.specs import Metrics
from bench.loads.stream import Stream

DELIVER_AT = b"penstock-deliver-at"
BATCH = 500
IN_FLIGHT = 5
RANDOM_SEED = 1
LONGEST_DELAYS = 10
"""The delays of scheduled records are up to this many times the shortest."""
DUE_MS = struct.Struct(">q")
BATCHES_PER_S = 100
DRAIN_LIMIT_S = 30.0


def run(spec: Spec) -> Metrics:
    """Run the load. Raises RuntimeError or WireError if a record is rejected or not delivered."""
    gc.disable()
    return _at_rate(spec) if spec.rate_per_s else _fill(spec)


def batch(spec: Spec, due_ms: list[int]) -> bytes:
    """Return a batch with a record for each due time."""
    values = [DUE_MS.pack(due).ljust(spec.size_bytes, b"x") for due in due_ms]
    headers = [(DELIVER_AT, str(due).encode()) for due in due_ms] if spec.is_scheduled else None
    return wire.record_batch(values, headers=headers)


def _fill(spec: Spec) -> Metrics:
    """Publish records that wait, with IN_FLIGHT requests in flight."""
    random = Random(RANDOM_SEED)
    connection = Connection(spec.address, spec.limit_s)
    try:
        section = Section(spec.broker_pids)
        sent = in_flight = requests = 0
        while sent < spec.messages or in_flight:
            if sent < spec.messages and in_flight < IN_FLIGHT:
                count = min(BATCH, spec.messages - sent)
                now_ms = time.time_ns() // 1_000_000
                due = [now_ms + int(spec.delay_ms * random.uniform(1, LONGEST_DELAYS)) for _ in range(count)]
                partition = requests % spec.partitions
                connection.socket.sendall(wire.produce_request(spec.topic, [(partition, batch(spec, due))]))
                sent, in_flight, requests = sent + count, in_flight + 1, requests + 1
            else:
                accepted(_receive(connection))
                in_flight -= 1
        return section.finish(spec.messages, spec.size_bytes)
    finally:
        connection.close()


def _receive(connection: Connection) -> bytes:
    """Return the next of several responses."""
    (size,) = struct.unpack(">i", connection.exactly(4))
    return connection.exactly(size)


class _Paced:
    """A producer and a consumer of one partition."""

    def __init__(self, spec: Spec, producing: Connection, consuming: Connection) -> None:
        self.spec = spec
        self.producing, self.consuming = Stream(producing), Stream(consuming)
        self.sent = self.delivered = self.next_offset = 0
        self.late_ns: list[int] = []

    def fetch(self) -> None:
        self.consuming.send(wire.fetch_request(self.spec.topic, 0, self.next_offset))

    def publish(self, count: int) -> None:
        due_ms = time.time_ns() // 1_000_000 + self.spec.delay_ms
        request = wire.produce_request(self.spec.topic, [(0, batch(self.spec, [due_ms] * count))])
        self.producing.send(request)
        self.sent += count

    def poll(self) -> None:
        """Handle responses; each delivered record counts from its due time."""
        if self.producing.full:
            self.producing.push()
        for answer in self.producing.answers():
            accepted(answer)
        for answer in self.consuming.answers():
            self.on_fetched(answer)

    def on_fetched(self, answer: bytes) -> None:
        now_ns = time.time_ns()
        fetched = wire.fetch_response(answer)
        if fetched.error:
            raise RuntimeError(f"a fetch failed with error code {fetched.error}")
        for timestamp_ms, value in wire.first_bytes(answer, fetched.start, fetched.end, DUE_MS.size):
            due_ms = DUE_MS.unpack(value)[0] if self.spec.is_scheduled else timestamp_ms + self.spec.delay_ms
            self.late_ns.append(now_ns - due_ms * 1_000_000)
        self.next_offset = max(self.next_offset, fetched.next_offset)
        self.fetch()


def _at_rate(spec: Spec) -> Metrics:
    """Publish small batches for `seconds`, and read until all records have been delivered."""
    producing, consuming = Connection(spec.address, spec.limit_s), Connection(spec.address, spec.limit_s)
    try:
        load = _Paced(spec, producing, consuming)
        load.fetch()
        count = max(spec.rate_per_s // BATCHES_PER_S, 1)
        interval_ns = count * 1_000_000_000 // spec.rate_per_s
        section = Section(spec.broker_pids)
        due_ns = time.perf_counter_ns()
        end_ns = due_ns + int(spec.seconds * 1e9)
        while due_ns < end_ns:
            while due_ns < end_ns and time.perf_counter_ns() >= due_ns and not load.producing.full:
                load.publish(count)
                due_ns += interval_ns
            load.poll()
        deadline = time.perf_counter() + spec.delay_ms / 1000 + DRAIN_LIMIT_S
        while len(load.late_ns) < load.sent:
            load.poll()
            if time.perf_counter() > deadline:
                raise RuntimeError(f"of {load.sent} records {len(load.late_ns)} were delivered")
        if len(load.late_ns) > load.sent:
            raise RuntimeError(f"{load.sent} records were delivered {len(load.late_ns)} times")
        metrics = section.finish(load.sent, spec.size_bytes)
        return metrics | percentiles(load.late_ns, "late_") | {"earliest_ms": min(load.late_ns) / 1e6}
    finally:
        producing.close()
        consuming.close()
