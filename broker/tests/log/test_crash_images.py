"""Acknowledged data survives a crash at any step, whichever unsynced pages and names the disk lost.

A workload runs on a file system that records each step. The tests then open every prefix of the trace, with random
subsets of unsynced data, as a broker does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
import structlog
from log_kit import (
    SMALL,
    Digest,
    HandClock,
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

from penstock.log.flusher import Flusher, FlushWork
from penstock.log.log_dir import LogDirectory
from penstock.log.partition_log import PartitionLog
from penstock.log.types import LogError

PATH = "/data"
CONFIGS = [SMALL, replace(SMALL, retention_bytes=6000), replace(SMALL, segment_bytes=1 << 20)]


@dataclass
class History:
    """The batches appended to one log."""

    batches: list[bytes] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def digest_at(self, end_offset: int) -> tuple[int, int]:
        digest = Digest()
        for batch, end in zip(self.batches, self.ends, strict=True):
            if end <= end_offset:
                digest.replay(headers_in(batch)[0])
        return digest.value, digest.count

    def between(self, start_offset: int, end_offset: int) -> bytes:
        """Return the batches that contain offsets from `start_offset` to `end_offset`."""
        return b"".join(b for b, end in zip(self.batches, self.ends, strict=True) if start_offset < end <= end_offset)


@dataclass
class Promises:
    """Guarantees given to clients at each step of a trace, by partition."""

    histories: dict[int, History]
    files: MemoryFiles

    def at(self, steps: int) -> tuple[dict[int, int], dict[int, int], dict[int, int]]:
        """Return (acknowledged ends, durable starts, highest requested starts) after `steps` steps."""
        ends: dict[int, int] = {}
        starts: dict[int, int] = {}
        requested: dict[int, int] = {}
        for op in self.files.trace[:steps]:
            if op.kind == "mark":
                what, partition, offset = op.note
                known = {"acknowledged": ends, "started": starts, "requested": requested}[what]
                known[partition] = max(known.get(partition, 0), offset)
        return ends, starts, requested


async def work(files: MemoryFiles, rng: random.Random, steps: int) -> Promises:
    """Run appends, rolls, checkpoints, retention by size and DeleteRecords on three partitions."""
    histories = {p: History() for p in range(len(CONFIGS))}
    async with opened(files, PATH, clean=False) as directory:
        drop = directory.retention.drop

        def noted_drop(log: PartitionLog) -> None:
            files.mark(("requested", log.partition, log.start_offset))
            drop(log)

        directory.retention.drop = noted_drop
        logs = [open_log(directory, config, partition) for partition, config in enumerate(CONFIGS)]
        for log in logs:
            log.on_flushed = lambda log: files.mark(("acknowledged", log.partition, log.flushed_offset))
            await begin(log, rng)
        for step in range(steps):
            log = rng.choice(logs)
            await act(directory, files, log, histories[log.partition], rng, step)
            if step == steps // 2:
                await settle(directory)
                await delete_some(files, next(log for log in logs if log.flushed_offset), rng)
        await settle(directory)
    return Promises(histories, files)


async def begin(log: PartitionLog, rng: random.Random) -> None:
    """Create a log's first files in advance, or concurrently with appends, or leave them to the first append."""
    choice = rng.random()
    if choice < 0.5:
        await log.ensure_prepared()
    elif choice < 0.75:
        log.prepare()


async def act(
    directory: LogDirectory, files: MemoryFiles, log: PartitionLog, history: History, rng: random.Random, step: int
) -> None:
    choice = rng.random()
    if choice < 0.86:
        for _ in range(rng.choice([1, 1, 3])):
            producer = (rng.randrange(5), 0, step)
            batch = batch_of(rng.randrange(1, 6), value=rng.randbytes(rng.choice([5, 40, 200])), producer=producer)
            history.batches.append(append(log, batch, epoch=1 + step // 40))
            history.ends.append(log.end_offset)
    elif choice < 0.92:
        directory.start_checkpoint(log)
    elif choice < 0.96 and log.flushed_offset:
        await delete_some(files, log, rng)
    else:
        directory.retention.apply(log)
    if rng.random() < 0.6:
        await asyncio.sleep(0)
    if rng.random() < 0.2:
        await settle(directory)


async def delete_some(files: MemoryFiles, log: PartitionLog, rng: random.Random) -> None:
    offset = rng.randrange(log.flushed_offset + 1)
    files.mark(("requested", log.partition, offset))
    await log.delete_records_before(offset)
    files.mark(("started", log.partition, offset))


async def check(promises: Promises, steps: int, image: MemoryFiles) -> None:
    """Open an image as a broker does and compare its content with the promises."""
    ends, starts, requested = promises.at(steps)
    async with opened(image, PATH, HandClock()) as directory:
        assert not directory.corrupt, f"{directory.corrupt}"
        for partition, history in promises.histories.items():
            state = Digest()
            log = open_log(directory, CONFIGS[partition], partition, state=state)
            assert log.end_offset >= ends.get(partition, 0), "an acknowledged batch is gone"
            assert log.end_offset in (0, *history.ends), "the log ends between batches"
            assert log.start_offset >= starts.get(partition, 0), "deleted records are back"
            assert log.start_offset <= max(requested.get(partition, 0), 0), "records are gone that were not deleted"
            assert read_all(log) == history.between(log.start_offset, log.end_offset), "bytes differ"
            assert (state.value, state.count) == history.digest_at(log.end_offset), "the producers' state differs"
            before = log.end_offset
            last = append(log, batch_of(2), epoch=10_000)
            await log.flush()
            assert read_all(log, before) == last, "the log cannot go on"
            assert log.epoch_at(before) == 10_000


async def find_broken(promises: Promises, seed: int, every: int) -> list[str]:
    """Return the failures in the images of a trace: one random image at each `every`-th boundary."""
    images, broken = CrashImages(promises.files.trace), []
    for steps in range(0, len(promises.files.trace) + 1, every):
        rng = random.Random(f"{seed} {steps}")
        try:
            await check(promises, steps, images.image(steps, rng))
        except (AssertionError, LogError) as e:
            broken.append(f"seed {seed}, after {steps} steps: {e}")
    return broken


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Silence the warnings of thousands of recoveries."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


@pytest.fixture
def seed() -> int:
    return int(os.environ.get("PENSTOCK_TEST_SEED", random.randrange(1 << 30)))


@pytest.mark.slow
async def test_all_that_was_acknowledged_survives_a_crash_at_any_step(seed: int) -> None:
    note_seed(seed)
    promises = await work(MemoryFiles(), random.Random(seed), 90)
    broken = await find_broken(promises, seed, 1)
    assert not broken, "\n".join(broken[:10])


@pytest.mark.slow
async def test_a_skipped_sync_is_caught(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    note_seed(seed)

    def skip(self: Flusher, work: list[FlushWork]) -> None:
        pass

    monkeypatch.setattr(Flusher, "sync", skip)
    promises = await work(MemoryFiles(), random.Random(seed), 60)
    monkeypatch.undo()
    broken = await find_broken(promises, seed, 2)
    assert any("acknowledged batch is gone" in line for line in broken)


@pytest.mark.slow
async def test_a_skipped_sync_of_directories_is_caught(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    note_seed(seed)

    def only_files(self: Flusher, work: list[FlushWork]) -> None:
        for one in work:
            for file in one.files:
                file.sync()

    monkeypatch.setattr(Flusher, "sync", only_files)
    promises = await work(MemoryFiles(), random.Random(seed), 60)
    monkeypatch.undo()
    broken = await find_broken(promises, seed, 2)
    assert any("acknowledged batch is gone" in line for line in broken)
