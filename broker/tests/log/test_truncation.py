"""Truncation keeps all records below its offset, even if a crash interrupts it."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from faulty import FaultyFiles
from log_kit import (
    SMALL,
    Digest,
    any_seed,
    append,
    batch_of,
    headers_in,
    note_seed,
    open_log,
    opened,
    read_all,
    settle,
)
from memory_files import CrashImages, MemoryFiles

from penstock.log import truncation
from penstock.log.types import LogFull


async def test_a_log_cut_within_a_batch_loses_that_batch_and_all_behind_it() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        state = Digest()
        log = open_log(directory, state=state)
        batches = [append(log, batch_of(3), epoch=1 + n // 20) for n in range(60)]
        assert len(log.segments) > 3
        await log.truncate_to(31)
        assert (log.end_offset, log.flushed_offset, log.latest_epoch) == (30, 30, 1)
        assert read_all(log) == b"".join(batches[:10])
        assert state.count == 10
        assert len(log.segments) == 1
        more = append(log, batch_of(3), epoch=7)
        await log.flush()
        assert read_all(log) == b"".join([*batches[:10], more])
        assert log.epoch_end_offset(1) == (1, 30)


async def test_cutting_behind_the_end_changes_nothing_and_cutting_all_leaves_an_empty_log() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory)
        batches = [append(log) for _ in range(40)]
        await log.truncate_to(log.end_offset)
        assert read_all(log) == b"".join(batches)
        await log.truncate_to(0)
        assert (log.start_offset, log.end_offset, log.size_bytes, log.latest_epoch) == (0, 0, 0, -1)
        assert read_all(log) == b""


@pytest.mark.slow
async def test_a_crash_while_a_log_is_cut_finds_either_end() -> None:
    seed = any_seed()
    note_seed(seed)
    rng = random.Random(seed)
    files = MemoryFiles()
    async with opened(files, "/data", clean=False) as directory:
        log = open_log(directory)
        batches = [append(log, batch_of(rng.randrange(1, 6))) for _ in range(60)]
        directory.start_checkpoint(log)
        await settle(directory)
        first = len(files.trace)
        end = headers_in(batches[25])[0].base_offset
        await log.truncate_to(end)
        cut = len(files.trace)
        after = [append(log, batch_of(2, value=b"of another leader"), epoch=2) for _ in range(5)]
        await log.flush()
    images = CrashImages(files.trace)
    whole, short = b"".join(batches), b"".join(batches[:25])
    outcomes = set()
    for steps in range(first, len(files.trace) + 1):
        image = images.image(steps, random.Random(f"{seed} {steps}"))
        async with opened(image, "/data") as directory:
            assert not directory.corrupt, f"after {steps} steps: {directory.corrupt}"
            content = read_all(open_log(directory, SMALL))
            if steps < cut:
                assert content.startswith(short)
                assert whole.startswith(content)
            else:
                assert content.startswith(short)
                assert (short + b"".join(after)).startswith(content)
            outcomes.add(len(content))
    assert {len(whole), len(short), len(short) + sum(map(len, after))} <= outcomes


async def test_cutting_below_the_first_segment_starts_the_log_over_at_that_offset() -> None:
    files = MemoryFiles()
    async with opened(files, "/data") as directory:
        log = open_log(directory)
        for _ in range(60):
            append(log)
        await log.delete_records_before(150)
        assert log.segments[0].base_offset > 50
        await log.truncate_to(50)
        assert (log.start_offset, log.end_offset, log.size_bytes) == (50, 50, 0)
        batch = append(log)
        await log.flush()
        assert read_all(log) == batch
    async with opened(files, "/data") as directory:
        assert read_all(open_log(directory)) == batch


def as_it_is(log: Any) -> tuple[Any, ...]:
    """Return all state that a truncation changes."""
    return (
        (log.start_offset, log.end_offset, log.flushed_offset, log.latest_epoch, log.size_bytes, len(log.segments)),
        log.epochs.entries(),
        log.state.snapshot(),
        read_all(log),
    )


@pytest.mark.parametrize(
    ("operation", "number"),
    [("write_atomic", errno.ENOSPC), ("write_atomic", errno.EMFILE), ("open", errno.EMFILE)],
)
@pytest.mark.parametrize("whole", [False, True])
async def test_a_log_that_cannot_be_cut_for_now_stays_whole_and_is_cut_later(
    tmp_path: Path, operation: str, number: int, whole: bool
) -> None:
    files = FaultyFiles()
    async with opened(files, str(tmp_path)) as directory:
        log = open_log(directory)
        batches = [append(log, epoch=1 + n // 5) for n in range(60)]
        await log.flush()
        await settle(directory)
        before = as_it_is(log)

        async def cut() -> None:
            await (log.truncate_fully_and_start_at(500) if whole else log.truncate_to(31))

        files.fail(operation, number, lambda path: not path.endswith(".log") or operation != "open" or not whole)
        if operation == "open" and whole:
            files.fail("write_atomic", number)
        with pytest.raises(LogFull):
            await cut()
        files.heal()
        assert directory.failed is None
        assert as_it_is(log) == before
        await cut()
        kept = b"" if whole else b"".join(batches[:10])
        assert (log.end_offset, log.flushed_offset, read_all(log)) == (500 if whole else 30, log.end_offset, kept)
        more = append(log, epoch=20)
        await log.flush()
    async with opened(files, str(tmp_path)) as directory:
        assert read_all(open_log(directory)) == kept + more


@pytest.mark.parametrize("whole", [False, True])
async def test_a_cut_that_counts_but_for_a_descriptor_counts(tmp_path: Path, whole: bool) -> None:
    files = FaultyFiles()
    async with opened(files, str(tmp_path), clean=False) as directory:
        log = open_log(directory)
        batches = [append(log) for _ in range(60)]
        await log.flush()
        await settle(directory)
        files.fail("sync_dir", errno.EMFILE, times=3)
        await (log.truncate_fully_and_start_at(500) if whole else log.truncate_to(31))
        assert files.failures == 3
        kept = b"" if whole else b"".join(batches[:10])
        more = append(log)
        await log.flush()
    async with opened(files, str(tmp_path)) as directory:
        assert read_all(open_log(directory)) == kept + more


@pytest.mark.parametrize("whole", [False, True])
async def test_a_log_that_could_not_be_cut_is_found_whole_after_a_crash(whole: bool) -> None:
    files = MemoryFiles()
    async with opened(files, "/data", clean=False) as directory:
        log = open_log(directory)
        batches = [append(log, epoch=1 + n // 5) for n in range(60)]
        await log.flush()
        write_atomic = files.write_atomic

        def full(path: str, data: Any) -> None:
            raise OSError(errno.ENOSPC, "no space")

        files.write_atomic = full  # type: ignore[method-assign]
        with pytest.raises(LogFull):
            await (log.truncate_fully_and_start_at(500) if whole else log.truncate_to(31))
        files.write_atomic = write_atomic  # type: ignore[method-assign]
        batches.append(append(log, epoch=20))
        await log.flush()
    image = CrashImages(files.trace).image(len(files.trace), random.Random(1))
    async with opened(image, "/data") as directory:
        assert not directory.corrupt
        assert read_all(open_log(directory)) == b"".join(batches)


async def test_without_a_descriptor_to_find_the_place_nothing_is_cut(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with opened(files, str(tmp_path)) as directory:
        log = open_log(directory)
        batches = [append(log) for _ in range(60)]
        await log.flush()
    async with opened(files, str(tmp_path)) as directory:
        log = open_log(directory)
        files.fail("open", errno.EMFILE)
        with pytest.raises(LogFull):
            await log.truncate_to(31)
        files.heal()
        assert directory.failed is None
        await log.truncate_to(31)
        assert read_all(log) == b"".join(batches[:10])


async def test_a_log_that_rolls_while_it_is_cut_ends_at_the_cut() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory, replace(SMALL, segment_bytes=1 << 20))
        batches = [append(log) for _ in range(20)]
        await log.flush()
        reading_when_prepared(directory, lambda: log.roll(log.end_offset) and None)
        await log.truncate_to(30)
        assert ([s.end_offset for s in log.segments], log.end_offset) == ([30], 30)
        more = append(log)
        assert read_all(log) == b"".join([*batches[:10], more])


async def test_what_must_be_done_once_a_cut_counts_waits_for_a_descriptor(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with opened(files, str(tmp_path)) as directory:
        log = open_log(directory)
        batches = [append(log) for _ in range(60)]
        await log.flush()
        await settle(directory)
        prepare = truncation.Truncation.prepare

        def then_none_is_left(work: truncation.Truncation) -> None:
            prepare(work)
            files.fail("open", errno.EMFILE, times=2)
            files.fail("sync_dir", errno.EMFILE, times=2)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(truncation.Truncation, "prepare", then_none_is_left)
            await log.truncate_to(31)
        assert files.failures == 4
        assert directory.failed is None
        assert read_all(log) == b"".join(batches[:10])


def reading_when_prepared(directory: Any, read: Callable[[], None]) -> None:
    """Call `read` each time the maintenance thread is about to prepare a truncation."""
    run = directory.maintenance.run

    async def slow(function: Callable[..., Any], *arguments: Any) -> Any:
        if function.__name__ == "prepare":
            read()
        return await run(function, *arguments)

    directory.maintenance.run = slow


async def test_a_reader_that_comes_while_a_cut_is_prepared_reads_to_its_end() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory, replace(SMALL, segment_bytes=1 << 20))
        batches = [append(log) for _ in range(40)]
        await log.flush()
        seen: list[bytes] = []

        def read() -> None:
            part = log.read(0, 500, 60, at_least_one=True)
            assert part is not None

            def finish() -> None:
                seen.append(part.file.read_at(part.position, part.size))
                part.release()

            asyncio.get_running_loop().call_later(0.05, finish)

        reading_when_prepared(directory, read)
        await log.truncate_to(90)
        assert len(seen) == 1
        assert b"".join(batches).startswith(seen[0])
        assert read_all(log) == b"".join(batches[:30])


async def test_a_reader_that_has_stopped_reading_does_not_hold_up_a_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truncation, "PINNED_WAIT_S", 0.05)
    seed = any_seed()
    note_seed(seed)
    files = MemoryFiles()
    async with opened(files, "/data", clean=False) as directory:
        log = open_log(directory)
        batches = [append(log) for _ in range(60)]
        await log.flush()
        parts = [log.read(offset, 1 << 20, log.end_offset, at_least_one=True) for offset in (0, 21, 100, 170)]
        contents = [part.file.read_at(part.position, part.size) for part in parts if part is not None]
        first = len(files.trace)
        await log.truncate_to(31)
        cut = len(files.trace)
        after = [append(log, batch_of(2, value=b"of another leader"), epoch=2) for _ in range(20)]
        await log.flush()
        assert read_all(log) == b"".join([*batches[:10], *after])
        for part, content in zip(parts, contents, strict=True):
            assert part is not None
            assert part.file.read_at(part.position, part.size) == content, "it sends what it began with"
            part.release()
        await log.truncate_fully_and_start_at(7)
        assert (log.start_offset, log.end_offset) == (7, 7)
    short, whole = b"".join(batches[:10]), b"".join(batches)
    for steps in range(first, cut + 1):
        image = CrashImages(files.trace).image(steps, random.Random(f"{seed} {steps}"))
        async with opened(image, "/data") as directory:
            assert not directory.corrupt, f"after {steps} steps: {directory.corrupt}"
            content = read_all(open_log(directory, SMALL))
            assert content == short if steps == cut else content.startswith(short)
            assert whole.startswith(content)


async def test_a_log_that_starts_over_where_a_dropped_segment_began_keeps_its_new_one(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with opened(files, str(tmp_path)) as directory:
        log = open_log(directory)
        for _ in range(60):
            append(log)
        await log.flush()
        base = log.segments[1].base_offset
        files.fail("write_atomic", errno.ENOSPC)
        with pytest.raises(LogFull):
            await log.delete_records_before(log.segments[3].base_offset)
        files.heal()
        await log.truncate_to(base)
        batch = append(log)
        directory.start_checkpoint(log)
        await settle(directory)
        assert (log.start_offset, read_all(log)) == (base, batch)
        assert [n for n in files.list(log.directory) if n.endswith(".log")] == [f"{base:020d}.log"]
