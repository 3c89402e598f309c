"""Restarts after `kill -9`: a small one on a real broker, and how lost records are counted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench import requirements
from bench.peers.broker import Broker, Peer
from bench.peers.penstock import Penstock
from bench.requirements import RESTART_CASES
from bench.suites import restart
from bench.suites.restart import Fill

FILL = Fill(partitions=5, segments=2)


@pytest.fixture(scope="module")
def broker(start_broker: Callable[[Peer], Broker]) -> Broker:
    return start_broker(Penstock())


def test_every_required_line_has_a_case() -> None:
    required = {line.case for line in requirements.ALL if line.suite == "restart"}
    assert required == set(RESTART_CASES)


def test_a_partition_gets_all_of_its_segments() -> None:
    written = FILL.batches * len(restart.batch())
    assert written >= FILL.segments * restart.SEGMENT_BYTES > written - len(restart.batch())


def test_a_killed_broker_serves_all_partitions_again_and_has_lost_nothing(broker: Broker) -> None:
    killed = broker.pid
    metrics = restart.restart(broker, FILL)
    assert broker.pid != killed
    assert metrics["seconds"] > 0
    assert metrics["broker_cpu_s"] > 0
    assert metrics["lost"] == 0
    segments = [path for path in broker.data_dir.rglob("*.log") if path.stat().st_size]
    assert len(segments) >= FILL.partitions * FILL.segments
    more = Fill(FILL.partitions, FILL.segments + 1)
    missing = more.records - FILL.records - 1  # `restart` has written two more records to each partition
    assert restart.count_lost(broker.address, more) == FILL.partitions * missing
