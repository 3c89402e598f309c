"""Single round trips: the client sends the next request when the last is answered.

The client uses a plain blocking socket and a request that is built in advance, so its share of a round trip is a few
microseconds for every broker. librdkafka's threads would add scheduling noise.
"""

from __future__ import annotations

import gc
import time

from bench import wire
from bench.connection import Connection
from bench.loads.section import Section, percentiles
from bench.loads.specs import Metrics
from bench.loads.specs import OneByOne as Spec

WARM_UP = 20


def run(spec: Spec) -> Metrics:
    """Run the load. Raises RuntimeError if the broker rejects a request."""
    request = wire.produce_request(spec.topic, [(0, wire.record_batch([b"x" * spec.size_bytes]))])
    connection = Connection(spec.address, spec.limit_s)
    try:
        for _ in range(WARM_UP):
            accepted(connection.ask(request))
        gc.disable()
        section = Section(spec.broker_pids)
        answers, latencies_ns = _time(connection, request, spec.requests)
        metrics = section.finish(spec.requests, spec.size_bytes)
    finally:
        connection.close()
    for answer in answers:
        accepted(answer)
    return {**metrics, **percentiles(latencies_ns, "")}


def _time(connection: Connection, request: bytes, requests: int) -> tuple[list[bytes], list[int]]:
    now, ask = time.perf_counter_ns, connection.ask
    answers, latencies_ns = [], []
    for _ in range(requests):
        start = now()
        answers.append(ask(request))
        latencies_ns.append(now() - start)
    return answers, latencies_ns


def accepted(answer: bytes | memoryview) -> int:
    """Return the base offset of an accepted batch. Raises RuntimeError if the broker rejected it."""
    produced = next(wire.produce_response(answer), None)
    if produced is None or produced.error:
        raise RuntimeError(f"the broker refused a batch: {produced}")
    return produced.base_offset
