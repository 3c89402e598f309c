"""The aborted transaction index: searches in memory and in files, and recovery after a crash."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_kit import any_seed, note_seed

from penstock.log import aborted_index
from penstock.log.aborted_index import AbortedIndex, AbortedTransaction
from penstock.log.types import CorruptLog
from penstock.runtime.disk import OsFiles


def history(rng: random.Random, count: int, producers: int = 5) -> list[AbortedTransaction]:
    """Return aborted transactions that overlap between producers."""
    opened: dict[int, int] = {}
    found: list[AbortedTransaction] = []
    offset = 0
    while len(found) < count:
        producer_id = rng.randrange(producers)
        offset += rng.randrange(1, 4)
        if producer_id in opened:
            first = opened.pop(producer_id)
            found.append(AbortedTransaction(producer_id, first, offset, min(opened.values(), default=offset + 1)))
        else:
            opened[producer_id] = offset
    return found


def expected(entries: list[AbortedTransaction], start: int, end: int) -> list[tuple[int, int]]:
    overlapping = [one for one in entries if one.last_offset >= start and one.first_offset < end]
    found = sorted((one.first_offset, one.producer_id) for one in overlapping)
    return [(producer_id, first) for first, producer_id in found]


@given(st.integers(0, 1 << 30), st.data())
@settings(max_examples=60)
def test_a_search_finds_what_overlaps_the_range(seed: int, data: st.DataObject) -> None:
    entries = history(random.Random(seed), 40)
    index = AbortedIndex()
    for one in entries:
        index.add(one)
    # A reader never reads past the last stable offset.
    stable = entries[-1].stable_offset
    start = data.draw(st.integers(0, stable))
    end = data.draw(st.integers(start, stable))
    assert index.search(start, end) == expected(entries, start, end)


async def spilled(index: AbortedIndex) -> None:
    while index.spilling is not None:
        # `await index.spilling` returns at once if the future is already done (possible from Python 3.14 on), and the
        # index's callback would never run.
        await asyncio.wait([index.spilling])


async def add_all(index: AbortedIndex, entries: list[AbortedTransaction]) -> None:
    for one in entries:
        index.add(one)
        await spilled(index)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aborted_index, "MAX_RECENT_ENTRIES", 20)
    monkeypatch.setattr(aborted_index, "MAX_FILE_ENTRIES", 70)
    monkeypatch.setattr(aborted_index, "BLOCK_ENTRIES", 7)


async def test_memory_is_bounded_and_what_was_moved_to_files_is_found(small: None, tmp_path: Path) -> None:
    seed = any_seed()
    note_seed(seed)
    rng = random.Random(seed)
    entries = history(rng, 500)
    index = AbortedIndex()
    index.attach(OsFiles(), str(tmp_path))
    await add_all(index, entries)
    assert len(index.recent) < 20
    assert len(index.chunks) > 3
    assert len(index) == 500
    stable = entries[-1].stable_offset
    for _ in range(300):
        start = rng.randrange(stable)
        end = rng.randrange(start, stable + 1)
        assert index.search(start, end) == expected(entries, start, end)


async def test_an_older_snapshot_and_what_came_after_it_make_the_same_index(small: None, tmp_path: Path) -> None:
    seed = any_seed()
    note_seed(seed)
    rng = random.Random(seed)
    entries = history(rng, 300)
    index = AbortedIndex()
    index.attach(OsFiles(), str(tmp_path))
    stopped = rng.randrange(300)
    await add_all(index, entries[:stopped])
    snapshot = index.snapshot()
    await add_all(index, entries[stopped : stopped + rng.randrange(100)])  # lost in the crash
    again = AbortedIndex()
    again.restore(snapshot)
    again.attach(OsFiles(), str(tmp_path))
    await add_all(again, entries[stopped:])
    stable = entries[-1].stable_offset
    for start in range(0, stable, 11):
        assert again.search(start, stable) == expected(entries, start, stable)


async def test_what_lies_before_the_start_of_the_log_is_forgotten_and_its_files_go(small: None, tmp_path: Path) -> None:
    entries = history(random.Random(1), 400)
    index = AbortedIndex()
    index.attach(OsFiles(), str(tmp_path))
    await add_all(index, entries[:300])
    start = entries[250].last_offset
    before = {p.name for p in tmp_path.iterdir()}
    index.forget_before(start)
    assert index.search(start, entries[299].stable_offset) == expected(entries[:300], start, entries[299].stable_offset)
    index.snapshot()
    index.snapshot()
    await add_all(index, entries[300:])
    assert before - {p.name for p in tmp_path.iterdir()}, "no file went"
    stable = entries[-1].stable_offset
    assert index.search(start, stable) == expected(entries, start, stable)


async def test_a_damaged_file_is_an_error_and_not_an_answer(small: None, tmp_path: Path) -> None:
    entries = history(random.Random(1), 100)
    index = AbortedIndex()
    index.attach(OsFiles(), str(tmp_path))
    await add_all(index, entries)
    first = tmp_path / f"{index.chunks[0].base_offset:020d}.aborted"
    content = bytearray(first.read_bytes())
    content[9] ^= 1
    first.write_bytes(content)
    index.cached_block = None
    with pytest.raises(CorruptLog, match="CRC"):
        index.search(0, entries[-1].stable_offset)
    first.unlink()
    with pytest.raises(CorruptLog, match="cannot be read"):
        index.search(0, entries[-1].stable_offset)


async def test_on_a_full_disk_all_stays_in_memory(small: None, tmp_path: Path) -> None:
    entries = history(random.Random(1), 100)
    index = AbortedIndex()
    index.attach(OsFiles(), str(tmp_path / "missing"))
    for one in entries:
        index.add(one)
        if index.spilling is not None:
            with pytest.raises(FileNotFoundError):
                await index.spilling
    stable = entries[-1].stable_offset
    assert index.search(0, stable) == expected(entries, 0, stable)
