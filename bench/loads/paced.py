"""Latency at a fixed rate, to the producer's response and to the consumer.

The client sends requests on a schedule without waiting for responses and measures latency from the scheduled time, so
that a stall of the broker counts for every message that it delays. Each message is a separate request. With
`in_flight`, messages that are due while that many requests are in flight share one batch, as in common clients. One
thread serves both raw connections and never sleeps: the client has its own core, and each sleep would add the kernel's
wake-up time to the figures.
"""

from __future__ import annotations

import gc
import time
from collections import deque

from bench import wire
from bench.connection import Connection
from bench.loads.one_by_one import accepted
from bench.loads.section import Section, percentiles
from bench.loads.specs import Metrics
from bench.loads.specs import Paced as Spec
from bench.loads.stream import Stream

WARM_UP_S = 0.5
DRAIN_LIMIT_S = 10.0
MOST_MESSAGES = 500  # of 1 KiB, half of the default maximum batch size


class _Run:
    def __init__(self, spec: Spec, producing: Stream, consuming: Stream, first_offset: int) -> None:
        self.spec = spec
        self.producing, self.consuming = producing, consuming
        self.first_offset = self.next_offset = first_offset
        self.requests: dict[int, bytes] = {}
        self.scheduled_ns: list[int] = []
        self.waiting = 0
        self.under_way: deque[int] = deque()
        self.produced_ns: list[int] = []
        self.consumed_ns: list[int] = []
        self.late = self.sent = 0

    def ask_for_more(self) -> None:
        self.consuming.send(wire.fetch_request(self.spec.topic, 0, self.next_offset))

    def until_sent(self, messages: int) -> None:
        interval_ns = int(1e9 / self.spec.rate_per_s)
        due = time.perf_counter_ns() + interval_ns
        left = messages
        while left or self.waiting:
            now = time.perf_counter_ns()
            while left and due <= now:
                self.late += now > due + interval_ns
                self.scheduled_ns.append(due)
                self.waiting += 1
                left -= 1
                due += interval_ns
            self.send_waiting()
            self.poll()

    def send_waiting(self) -> None:
        limit = self.spec.in_flight
        while self.waiting and not self.producing.full and (not limit or len(self.under_way) < limit):
            count = min(self.waiting, MOST_MESSAGES) if limit else 1
            self.waiting -= count
            self.under_way.append(count)
            self.sent += 1
            self.producing.send(self.request_of(count))

    def request_of(self, messages: int) -> bytes:
        if messages not in self.requests:
            batch = wire.record_batch([b"x" * self.spec.size_bytes] * messages)
            self.requests[messages] = wire.produce_request(self.spec.topic, [(0, batch)])
        return self.requests[messages]

    def until_drained(self) -> None:
        deadline = time.monotonic() + DRAIN_LIMIT_S
        while min(len(self.produced_ns), len(self.consumed_ns)) < len(self.scheduled_ns):
            self.poll()
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"of {len(self.scheduled_ns)} messages {len(self.produced_ns)} were answered and "
                    f"{len(self.consumed_ns)} consumed {DRAIN_LIMIT_S} s after the last one was sent"
                )

    def poll(self) -> None:
        if self.producing.full:
            self.producing.push()
        for answer in self.producing.answers():
            now = time.perf_counter_ns()
            accepted(answer)
            for _ in range(self.under_way.popleft()):
                self.produced_ns.append(now - self.scheduled_ns[len(self.produced_ns)])
        for answer in self.consuming.answers():
            self._consumed(wire.fetch_response(answer), time.perf_counter_ns())

    def _consumed(self, fetched: wire.Fetched, now: int) -> None:
        if fetched.error:
            raise RuntimeError(f"a fetch failed with error code {fetched.error}")
        if fetched.next_offset > self.next_offset:
            self.next_offset = fetched.next_offset
            while len(self.consumed_ns) < self.next_offset - self.first_offset:
                self.consumed_ns.append(now - self.scheduled_ns[len(self.consumed_ns)])
        self.ask_for_more()


def run(spec: Spec) -> Metrics:
    """Return `produce_p50_ms` .. `end_to_end_p999_ms`. Raises RuntimeError if a message is rejected or missing."""
    producing, consuming = Connection(spec.address, spec.limit_s), Connection(spec.address, spec.limit_s)
    try:
        first = wire.produce_request(spec.topic, [(0, wire.record_batch([b"x"]))])
        offset = accepted(producing.ask(first)) + 1
        current = _Run(spec, Stream(producing), Stream(consuming), offset)
        gc.disable()
        current.ask_for_more()
        warm_up = int(WARM_UP_S * spec.rate_per_s)
        current.until_sent(warm_up)
        section = Section(spec.broker_pids)
        current.until_sent(int(spec.seconds * spec.rate_per_s))
        current.until_drained()
        metrics = section.finish(len(current.scheduled_ns) - warm_up, spec.size_bytes)
    finally:
        producing.close()
        consuming.close()
    return {
        **metrics,
        **percentiles(current.produced_ns[warm_up:], "produce_"),
        **percentiles(current.consumed_ns[warm_up:], "end_to_end_"),
        "sent_late": current.late,
        "requests": current.sent,
    }
