"""Records with headers and their first bytes in a fetch, and the load of delayed delivery on a broker."""

from __future__ import annotations

import asyncio
import importlib
import os
import struct
from collections.abc import Callable
from typing import Any

import pytest

from bench import admin, client, wire
from bench.loads import specs
from bench.peers.broker import Broker, Peer
from bench.peers.penstock import Penstock
from bench.suites import delayed

kafka_record: Any = importlib.import_module("kafka.record")
DELAY_MS, HOUR_MS = 500, 3_600_000


def test_a_record_has_its_header() -> None:
    batch = wire.record_batch([b"a", b"b"], headers=[(b"n", b"1"), (b"name", b"22")])
    parsed = kafka_record.MemoryRecords(batch).next_batch()
    assert parsed.validate_crc()
    records = [(each.value, list(each.headers)) for each in parsed]
    assert records == [(b"a", [("n", b"1")]), (b"b", [("name", b"22")])]


def test_the_first_bytes_of_each_record_are_read_without_control_batches_and_partial_ones() -> None:
    plain = wire.record_batch([b"one!", b"two!!"], timestamp_ms=7)
    headed = wire.record_batch([b"x" * 300], timestamp_ms=8, headers=[(b"n", b"1")])
    control = bytearray(wire.record_batch([b"no"], timestamp_ms=9))
    struct.pack_into(">h", control, 21, wire.CONTROL)
    data = b"before" + plain + bytes(control) + headed
    end = len(data)
    data += wire.record_batch([b"cut"])[:-1]
    found = list(wire.first_bytes(data, 6, end, 3))
    assert found == [(7, b"one"), (7, b"two"), (8, b"xxx")]
    assert list(wire.first_bytes(data, 6, len(data), 3)) == found


@pytest.fixture(scope="module")
def broker(start_broker: Callable[[Peer], Broker]) -> Broker:
    return start_broker(Penstock())


def _create_topic(broker: Broker, name: str, *, is_scheduled: bool, delay_ms: int) -> None:
    admin.create_topics(broker.address, [name], 2, delayed.Kind(is_scheduled).settings(delay_ms))


def _spec(
    broker: Broker, topic: str, *, is_scheduled: bool, rate_per_s: int = 0, delay_ms: int = DELAY_MS
) -> specs.Delayed:
    return specs.Delayed(
        address=broker.address,
        topic=topic,
        broker_pids=broker.pids,
        core=min(os.sched_getaffinity(0)),
        partitions=2,
        messages=1200,
        size_bytes=100,
        delay_ms=delay_ms,
        is_scheduled=is_scheduled,
        rate_per_s=rate_per_s,
        seconds=0.5,
    )


@pytest.mark.parametrize("is_scheduled", [False, True])
def test_records_are_delivered_after_their_delay_and_counted_from_it(broker: Broker, is_scheduled: bool) -> None:
    topic = f"due-{is_scheduled}"
    _create_topic(broker, topic, is_scheduled=is_scheduled, delay_ms=DELAY_MS)
    metrics = client.run(_spec(broker, topic, is_scheduled=is_scheduled, rate_per_s=200))
    assert metrics["messages"] == 100
    assert metrics["earliest_ms"] >= 0
    assert metrics["late_p50_ms"] <= metrics["late_p99_ms"]


@pytest.mark.parametrize("is_scheduled", [False, True])
def test_records_that_wait_are_published_to_all_partitions(broker: Broker, is_scheduled: bool) -> None:
    topic = f"waiting-{is_scheduled}"
    _create_topic(broker, topic, is_scheduled=is_scheduled, delay_ms=HOUR_MS)
    metrics = client.run(_spec(broker, topic, is_scheduled=is_scheduled, delay_ms=HOUR_MS))
    assert metrics["messages"] == 1200
    asyncio.run(delayed.wait_until_known(broker.address, topic, 2, 1200))
