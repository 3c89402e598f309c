"""Cutting a log back leaves what is below the cut, also when the machine stops in the middle of it."""

from __future__ import annotations

import random

from log_kit import SMALL, Digest, any_seed, append, batch_of, headers_in, note_seed, open_log, opened, read_all, settle
from memory_files import CrashImages, MemoryFiles


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


async def test_a_crash_while_a_log_is_cut_finds_either_end() -> None:
    seed = any_seed()
    note_seed(seed)
    rng = random.Random(seed)
    files = MemoryFiles()
    async with opened(files, "/data", clean=False) as directory:
        log = open_log(directory)
        batches = [append(log, batch_of(rng.randrange(1, 6))) for _ in range(60)]
        directory.checkpoint_soon(log)
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
