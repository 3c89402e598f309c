"""If new memory is slow, appends reuse the page cache of older data."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from penstock.runtime import linux
from penstock.runtime.cache_budget import AUTOMATIC, MIN_KEEP_BYTES, REFRESH_INTERVAL_NS, CacheBudget
from penstock.runtime.cache_hints import ThreadedHints
from penstock.runtime.disk import OsFile, OsFiles
from penstock.runtime.page_cache import SLOW_FOR_NS, STEP_BYTES, CachedTail, PageCache

BATCH = STEP_BYTES // 4
SLOW_NS, FAST_NS = 2 * BATCH, BATCH // 10


class RecordedHints:
    """Records hints instead of giving them; refreshes happen at once."""

    def __init__(self) -> None:
        self.given: list[tuple[str, int, int]] = []

    def write(self, fd: int, start: int, size: int) -> None:
        self.given.append(("write", start, size))

    def drop(self, fd: int, start: int, size: int) -> None:
        self.given.append(("drop", start, size))

    def read_ahead(self, fd: int, start: int, size: int) -> None:
        self.given.append(("read ahead", start, size))

    def refresh(self, budget: CacheBudget) -> None:
        budget.refresh()

    def dropped_ends(self) -> list[int]:
        return [start + size for hint, start, size in self.given if hint == "drop"]


class Bench:
    """A page cache on a clock that the test moves, with memory that the test sets."""

    def __init__(self, keep_bytes: int | None) -> None:
        self.hints = RecordedHints()
        self.now_ns = 0
        self.memory: int | None = 4 * MIN_KEEP_BYTES
        self.cache = PageCache(CacheBudget(lambda: self.memory, keep_bytes), self.hints, lambda: self.now_ns)

    def track(self, size_bytes: int = 0) -> CachedTail:
        return self.cache.track(3, size_bytes)


def append(tail: CachedTail, steps: int, elapsed_ns: int = SLOW_NS) -> None:
    for _ in range(steps * 4):
        tail.record_append(BATCH, elapsed_ns)


def test_while_memory_is_fast_the_page_cache_is_left_to_the_kernel() -> None:
    bench = Bench(2 * STEP_BYTES)
    append(bench.track(), 10, FAST_NS)
    assert bench.hints.given == []
    assert len(bench.cache.recent) == 2, "no more is recorded than would be kept"


def test_if_memory_is_slow_data_is_written_early_and_the_oldest_beyond_the_bound_is_dropped() -> None:
    bench = Bench(2 * STEP_BYTES)
    append(bench.track(100), 4)
    starts = [100 + i * STEP_BYTES for i in range(4)]
    assert [start for hint, start, _ in bench.hints.given if hint == "write"] == starts
    assert bench.hints.dropped_ends() == [start + STEP_BYTES for start in starts[:2]]
    assert all(size == STEP_BYTES for hint, _, size in bench.hints.given if hint == "write")


def test_a_drop_includes_the_pages_shared_with_the_range_before_it() -> None:
    bench = Bench(0)
    append(bench.track(100), 2)
    drops = [(start, start + size) for hint, start, size in bench.hints.given if hint == "drop"]
    assert drops == [(0, 100 + STEP_BYTES), (100, 100 + 2 * STEP_BYTES)]


def test_the_bound_holds_over_all_files() -> None:
    bench = Bench(2 * STEP_BYTES)
    first, second = bench.track(), bench.track()
    append(first, 2)
    append(second, 2)
    assert bench.hints.dropped_ends() == [STEP_BYTES, 2 * STEP_BYTES]
    assert {byte_range.tail for byte_range in bench.cache.recent} == {second}


def test_appends_into_reused_pages_are_fast_and_reuse_continues() -> None:
    bench = Bench(0)
    tail = bench.track()
    append(tail, 1)
    append(tail, 3, FAST_NS)
    assert len(bench.hints.dropped_ends()) == 4


def test_after_a_while_memory_is_measured_again() -> None:
    bench = Bench(0)
    tail = bench.track()
    append(tail, 1)
    bench.now_ns = SLOW_FOR_NS
    bench.hints.given.clear()
    append(tail, 2, FAST_NS)
    assert bench.hints.given == []
    append(tail, 1)
    assert bench.hints.given


def test_one_interrupted_append_does_not_make_memory_slow() -> None:
    bench = Bench(0)
    tail = bench.track()
    tail.record_append(BATCH, 1_000_000_000)
    append(tail, 3, FAST_NS)
    assert bench.hints.given == []


def test_small_appends_do_not_make_memory_slow() -> None:
    bench = Bench(0)
    tail = bench.track()
    for _ in range(STEP_BYTES // 1024):
        tail.record_append(1024, 1_000_000)
    assert bench.hints.given == []
    assert len(bench.cache.recent) == 0


def test_a_truncated_file_continues_at_its_new_end() -> None:
    bench = Bench(0)
    tail = bench.track()
    append(tail, 1)
    tail.truncate(500)
    assert tail.kept_from == 500
    bench.hints.given.clear()
    append(tail, 1)
    assert bench.hints.dropped_ends() == [500 + STEP_BYTES]


def test_a_reader_from_disk_is_read_ahead_of() -> None:
    bench = Bench(0)
    tail = bench.track(64 * STEP_BYTES)
    assert tail.stream(STEP_BYTES, STEP_BYTES)
    assert tail.stream(2 * STEP_BYTES, 100)
    assert bench.hints.given == [
        ("read ahead", 2 * STEP_BYTES, STEP_BYTES),
        ("read ahead", 2 * STEP_BYTES + 100, 100),
    ]


def test_a_reader_of_recent_data_is_not_a_reader_from_disk() -> None:
    bench = Bench(2 * STEP_BYTES)
    tail = bench.track()
    append(tail, 4)
    bench.hints.given.clear()
    assert not tail.stream(2 * STEP_BYTES, STEP_BYTES)
    assert bench.hints.given == []
    assert tail.stream(2 * STEP_BYTES - 10, 100)


@pytest.mark.parametrize(("start", "ahead"), [(0, 1000), (STEP_BYTES - 1000, 0)])
def test_read_ahead_ends_with_the_file(start: int, ahead: int) -> None:
    bench = Bench(0)
    tail = bench.track(STEP_BYTES)
    size = STEP_BYTES - 1000
    assert tail.stream(start, size)
    assert bench.hints.given == ([("read ahead", size, ahead)] if ahead else [])


def test_a_closed_file_gets_no_hints() -> None:
    bench = Bench(0)
    tail = bench.track()
    append(tail, 1)
    bench.hints.given.clear()
    tail.fd = -1
    append(tail, 1)
    assert tail.stream(0, STEP_BYTES)
    assert bench.hints.given == []


def test_by_default_a_share_of_the_memory_is_kept_until_it_becomes_scarce() -> None:
    bench = Bench(None)
    tail = bench.track()
    steps = 2 * MIN_KEEP_BYTES // STEP_BYTES
    append(tail, steps)
    assert bench.hints.dropped_ends() == []
    append(tail, 1)
    assert bench.hints.dropped_ends() == [STEP_BYTES]
    bench.memory, bench.now_ns = 3 * MIN_KEEP_BYTES, REFRESH_INTERVAL_NS
    append(tail, 1)
    assert bench.cache.recent_bytes == 3 * MIN_KEEP_BYTES // 2
    assert tail.kept_from == tail.end - bench.cache.recent_bytes


def test_when_memory_is_measured_again_the_data_that_is_kept_is_still_known() -> None:
    bench = Bench(2 * STEP_BYTES)
    tail = bench.track()
    append(tail, 2)
    bench.now_ns = SLOW_FOR_NS
    append(tail, 1, FAST_NS)
    append(tail, 1)
    assert bench.cache.recent_bytes == 2 * STEP_BYTES
    assert bench.hints.dropped_ends() == [2 * STEP_BYTES]


def opened(path: Path, keep_bytes: int) -> tuple[OsFile, PageCache]:
    """Return a file on the real disk with a page cache that gives real hints."""
    cache = PageCache(CacheBudget(lambda: None, keep_bytes), ThreadedHints())
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    return OsFile(str(path), fd, cache.track(fd, 0)), cache


def wait_until_evicted(file: OsFile, offset: int, size: int) -> None:
    deadline = time.monotonic() + 60
    while file.is_cached(offset, size):  # another thread gives the hint
        assert time.monotonic() < deadline, "the range is still in memory"
        time.sleep(0.01)


@pytest.mark.skipif(not linux.RWF_NOWAIT, reason="the platform does not tell what is cached")
def test_dropped_data_is_no_longer_in_memory_but_still_in_the_file(tmp_path: Path) -> None:
    file, cache = opened(tmp_path / "f", 4 * STEP_BYTES)
    cache.slow_until_ns = time.monotonic_ns() + SLOW_FOR_NS
    data = os.urandom(BATCH)
    for _ in range(4 * 4):
        file.append(data)
    assert file.is_cached(0, STEP_BYTES)
    file.sync()
    for _ in range(4 * 4):
        file.append(data)
    file.sync()
    wait_until_evicted(file, 0, STEP_BYTES)
    assert file.is_cached(7 * STEP_BYTES, STEP_BYTES)
    file.load(0, STEP_BYTES)
    assert file.is_cached(0, STEP_BYTES)
    assert file.read_at(0, BATCH) == data
    file.close()


def test_without_a_bound_appends_are_not_tracked(tmp_path: Path) -> None:
    file = OsFiles().open(str(tmp_path / "f"), create=True)
    assert file.tail is None
    assert not file.stream(0, 1)
    file.close()


def test_files_of_a_broker_share_a_page_cache(tmp_path: Path) -> None:
    files = OsFiles(tail_cache_bytes=5)
    first, second = (files.open(str(tmp_path / name), create=True) for name in "ab")
    assert first.tail is not None
    assert second.tail is not None
    assert first.tail.cache is second.tail.cache is files.page_cache
    assert first.tail.cache.budget.keep_bytes == 5
    first.close()
    second.close()
    assert first.tail.fd == -1


def test_the_automatic_bound_is_a_share_of_this_machines_memory() -> None:
    cache = OsFiles(tail_cache_bytes=AUTOMATIC).page_cache
    assert cache is not None
    assert cache.budget.keep_bytes >= MIN_KEEP_BYTES
