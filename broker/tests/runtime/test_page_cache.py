"""If new memory is slow, appends reuse the page cache of older appended data."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from penstock.runtime import linux, page_cache
from penstock.runtime.disk import OsFiles
from penstock.runtime.page_cache import STEP_BYTES, ByteRange, CachedTail, Hint, PageCache

BATCH = STEP_BYTES // 4
SLOW_NS, FAST_NS = 2 * BATCH, BATCH // 10


class Recording(PageCache):
    """A `PageCache` that records its hints to the kernel."""

    def __init__(self, keep_bytes: int) -> None:
        super().__init__(keep_bytes)
        self.hints_given: list[tuple[str, int, int]] = []

    def hint(self, hint: Hint, byte_range: ByteRange) -> None:
        self.hints_given.append(("forget" if hint is linux.drop_cached else "write", byte_range.start, byte_range.size))


def append(tail: CachedTail, steps: int, elapsed_ns: int) -> None:
    for _ in range(steps * 4):
        tail.record_append(BATCH, elapsed_ns)


def test_while_memory_is_fast_all_is_left_to_the_kernel() -> None:
    cache = Recording(2 * STEP_BYTES)
    append(cache.track(3, 0), 10, FAST_NS)
    assert cache.hints_given == []
    assert len(cache.recent) == 2, "and no more is remembered than would be kept"


def test_where_memory_is_slow_data_is_written_early_and_the_oldest_beyond_the_bound_is_let_go() -> None:
    cache = Recording(2 * STEP_BYTES)
    append(cache.track(3, 100), 4, SLOW_NS)
    starts = [100 + i * STEP_BYTES for i in range(4)]
    assert [start for what, start, _ in cache.hints_given if what == "write"] == starts
    assert [start for what, start, _ in cache.hints_given if what == "forget"] == starts[:2]
    assert all(size == STEP_BYTES for _, _, size in cache.hints_given)


def test_the_bound_holds_over_all_files() -> None:
    cache = Recording(2 * STEP_BYTES)
    first, second = cache.track(3, 0), cache.track(4, 0)
    append(first, 2, SLOW_NS)
    append(second, 2, SLOW_NS)
    assert [one for one in cache.hints_given if one[0] == "forget"] == [
        ("forget", 0, STEP_BYTES),
        ("forget", STEP_BYTES, STEP_BYTES),
    ]
    assert {byte_range.tail for byte_range in cache.recent} == {second}


def test_pages_that_are_reused_are_fast_and_reusing_goes_on_all_the_same() -> None:
    cache = Recording(0)
    tail = cache.track(3, 0)
    append(tail, 1, SLOW_NS)
    append(tail, 3, FAST_NS)
    assert [what for what, *_ in cache.hints_given].count("forget") == 4


def test_after_a_while_it_is_found_out_anew_whether_memory_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Recording(0)
    tail = cache.track(3, 0)
    append(tail, 1, SLOW_NS)
    later = time.monotonic_ns() + page_cache.SLOW_FOR_NS
    monkeypatch.setattr(time, "monotonic_ns", lambda: later)
    cache.hints_given.clear()
    append(tail, 2, FAST_NS)
    assert cache.hints_given == []
    append(tail, 1, SLOW_NS)
    assert cache.hints_given


def test_one_interrupted_append_says_nothing_of_memory() -> None:
    cache = Recording(0)
    tail = cache.track(3, 0)
    tail.record_append(BATCH, 1_000_000_000)
    append(tail, 3, FAST_NS)
    assert cache.hints_given == []


def test_small_appends_say_nothing_of_memory() -> None:
    cache = Recording(0)
    tail = cache.track(3, 0)
    for _ in range(STEP_BYTES // 1024):
        tail.record_append(1024, 1_000_000)
    assert cache.hints_given == []
    assert len(cache.recent) == 0


def test_a_truncated_file_goes_on_from_its_new_end() -> None:
    cache = Recording(0)
    tail = cache.track(3, 0)
    append(tail, 1, SLOW_NS)
    tail.reset(500)
    cache.hints_given.clear()
    append(tail, 1, SLOW_NS)
    assert ("forget", 500, STEP_BYTES) in cache.hints_given


def test_what_was_let_go_is_no_longer_in_memory_and_still_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not linux.RWF_NOWAIT:
        pytest.fail("the supported platform can tell what is cached")
    monkeypatch.setattr(page_cache, "SLOW_NS_PER_BYTE", -1e9)  # every append counts as slow
    file = OsFiles(tail_cache_bytes=4 * STEP_BYTES).open(str(tmp_path / "f"), create=True)
    data = os.urandom(BATCH)
    for _ in range(4 * 4):
        file.append(data)
    assert file.is_cached(0, STEP_BYTES)
    file.sync()
    for _ in range(4 * 4):
        file.append(data)
    file.sync()
    deadline = time.monotonic() + 30
    while file.is_cached(0, STEP_BYTES):  # another thread gives the hint
        assert time.monotonic() < deadline, "the first step is still in memory"
        time.sleep(0.01)
    assert file.is_cached(7 * STEP_BYTES, STEP_BYTES)
    assert file.read_at(0, BATCH) == data
    file.close()


def test_nothing_is_said_of_a_file_that_is_closed(tmp_path: Path) -> None:
    files = OsFiles(tail_cache_bytes=0)
    file = files.open(str(tmp_path / "f"), create=True)
    file.append(b"x" * 10)
    tail = file.tail
    assert tail is not None
    file.close()
    cache = files.page_cache
    assert cache is not None
    cache.hint(linux.drop_cached, ByteRange(tail, 0, 10))
    assert cache.thread is None


def test_without_a_bound_appends_are_not_followed(tmp_path: Path) -> None:
    file = OsFiles().open(str(tmp_path / "f"), create=True)
    assert file.tail is None
    file.close()
