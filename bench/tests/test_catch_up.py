"""The first read of a topic: cases, order of the lanes, and the dropped page cache."""

from __future__ import annotations

import os
import time
from pathlib import Path

from bench import requirements
from bench.peers.broker import Broker
from bench.peers.mock import Mock
from bench.requirements import SIZES
from bench.session import Lane
from bench.suites import catch_up

FILE_BYTES = 1 << 20


def test_every_required_line_has_a_case() -> None:
    names = [case.name for case in catch_up.cases(SIZES)]
    assert len(set(names)) == len(names)
    required = [line for line in requirements.ALL if line.suite == "catch-up"]
    assert required
    assert {line.case for line in required} <= set(names)


def test_the_order_of_the_lanes_reverses_each_round(tmp_path: Path) -> None:
    broker = Broker(Mock(), {0}, tmp_path)
    first, second = Lane("first", broker), Lane("second", broker)
    names = [(round_, lane.name) for round_, lane in catch_up.turns([first, second], 3)]
    assert names == [(0, "first"), (0, "second"), (1, "second"), (1, "first"), (2, "first"), (2, "second")]


def is_cached(path: Path) -> bool:
    """Return whether the first byte can be read without the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.preadv(fd, [bytearray(1)], 0, os.RWF_NOWAIT) == 1
    except BlockingIOError:
        return False
    finally:
        os.close(fd)


def test_dropping_the_page_cache_evicts_segments(tmp_path: Path) -> None:
    broker = Broker(Mock(), {0}, tmp_path)
    segment = broker.data_dir / "topic-0" / "00000000000000000000.log"
    segment.parent.mkdir(parents=True)
    segment.write_bytes(bytes(FILE_BYTES))
    assert is_cached(segment)
    deadline = time.monotonic() + 60
    while is_cached(segment):  # the kernel keeps pages that it uses itself at the time
        assert time.monotonic() < deadline, "the segment is still in memory"
        catch_up.drop_page_cache(broker)
    assert segment.read_bytes() == bytes(FILE_BYTES)
