"""A client far above its quota: it sends as fast as the broker reads, and ignores throttle times."""

from __future__ import annotations

import os
import select
import time

from bench import wire
from bench.connection import Connection
from bench.loads.specs import Flood as Spec
from bench.loads.specs import Metrics
from bench.loads.stream import Stream

MESSAGE_BYTES = 1000


def run(spec: Spec) -> Metrics:
    """Flood the broker for `spec.limit_s` seconds, or until the process is ended. Raises OSError if the broker closes
    the connection."""
    os.nice(19)  # the client that is measured shares the core
    request = _request(spec)
    connection = Connection(spec.address)
    stream = Stream(connection)
    deadline = time.monotonic() + spec.limit_s
    in_flight = answers = 0
    try:
        while time.monotonic() < deadline:
            if stream.full:
                stream.push()
            while in_flight < spec.depth and not stream.full:
                stream.send(request)
                in_flight += 1
            select.select([connection.socket], [connection.socket] if stream.full else [], [], 1.0)
            received = len(stream.answers())
            in_flight -= received
            answers += received
    finally:
        connection.close()
    return {"answers": answers}


def _request(spec: Spec) -> bytes:
    client_id = spec.client_id.encode()
    if spec.is_fetch:
        return wire.fetch_request(spec.topic, 0, 0, max_wait_ms=0, client_id=client_id)
    values = [b"x" * MESSAGE_BYTES] * max(spec.size_bytes // MESSAGE_BYTES, 1)
    return wire.produce_request(spec.topic, [(0, wire.record_batch(values))], acks=1, client_id=client_id)
