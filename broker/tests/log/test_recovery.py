"""After an unclean shutdown all flushed data is present; torn writes are truncated, damage is repaired or refused."""

from __future__ import annotations

import errno
import random
from dataclasses import replace
from pathlib import Path

import pytest
from faulty import FaultyFiles
from log_kit import (
    SMALL,
    START_MS,
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

from penstock.config.topic import FOREVER
from penstock.log.checkpoint import FILE_NAME, TABLE_NAME, decode, encode
from penstock.log.deferred_syncs import DeferredSyncs
from penstock.log.flusher import Flusher
from penstock.log.recovery import RecoveredLog
from penstock.log.recovery import recover as recover_deferred
from penstock.log.segment import LOG
from penstock.log.types import CorruptLog

DIRECTORY = "/data/01234567-89ab-4def-8123-456789abcdef-0"


def recover(files: MemoryFiles, directory: str, state: Digest, from_table: bytes | None, now_ms: int) -> RecoveredLog:
    """Recover one partition durably."""
    syncs = DeferredSyncs(Flusher(files, lambda error: None).sync_all)
    recovered = recover_deferred(files, directory, state, from_table, now_ms, syncs)
    syncs.run()
    return recovered


class Crashed:
    """A directory with one log, as a killed process leaves it."""

    def __init__(self) -> None:
        self.files = MemoryFiles()
        self.batches: list[bytes] = []
        self.digest = (0, 0)

    @property
    def content(self) -> bytes:
        return b"".join(self.batches)

    def names(self, suffix: str) -> list[str]:
        return sorted(f"{DIRECTORY}/{n}" for n in self.files.list(DIRECTORY) if n.endswith(suffix))

    def bytes_of(self, path: str) -> bytearray:
        return self.files.inodes[self.files.names[path]]

    async def check(self, lost: int = 0) -> None:
        """Check that the log has all batches but the last `lost`, and accepts appends."""
        batches = self.batches[: len(self.batches) - lost]
        async with opened(self.files, "/data") as directory:
            assert not directory.corrupt
            state = Digest()
            log = open_log(directory, state=state)
            assert read_all(log) == b"".join(batches)
            assert state.count == len(batches)
            for number in random.Random(1).sample(range(len(batches)), 10):
                offset = headers_in(batches[number])[0].base_offset
                assert read_all(log, offset, offset + 3) == batches[number]
            found = log.offset_for_timestamp(START_MS + 50, log.end_offset)
            assert found is not None
            assert found.timestamp_ms >= START_MS + 50
            batches.append(append(log))
            await log.flush()
            assert read_all(log) == b"".join(batches)


@pytest.fixture
async def crashed() -> Crashed:
    """Return a crashed log with as many batches before its checkpoint as after it."""
    crash = Crashed()
    async with opened(crash.files, "/data", clean=False) as directory:
        log = open_log(directory)
        for part in range(2):
            for number in range(60):
                stamped = batch_of(3, timestamp_ms=START_MS + len(crash.batches), producer=(number % 4, 0, number))
                crash.batches.append(append(log, stamped, epoch=part + 1))
            await log.flush()
            await settle(directory)
            if part == 0:
                directory.start_checkpoint(log)
                await settle(directory)
    return crash


async def test_what_was_flushed_is_there_after_a_crash(crashed: Crashed) -> None:
    await crashed.check()


async def test_only_what_no_checkpoint_vouches_for_is_read(crashed: Crashed) -> None:
    stored = decode(bytes(crashed.bytes_of(f"{DIRECTORY}/{FILE_NAME}")))
    recovered = recover(crashed.files, DIRECTORY, Digest(), None, 0)
    assert recovered.read_bytes == len(crashed.content) - sum(row.size_bytes for row in stored.segments)
    assert recovered.torn_bytes == 0


async def test_what_no_checkpoint_vouches_for_is_written_again_before_it_counts(crashed: Crashed) -> None:
    """After a failed sync, the kernel may consider lost pages clean: another sync would not write them."""
    files, before = crashed.files, len(crashed.files.trace)
    log_inodes = {files.names[path]: path for path in crashed.names(LOG)}
    state = Digest()
    recovered = recover(files, DIRECTORY, state, None, START_MS)
    written = dict.fromkeys(log_inodes, 0)
    for op in files.trace[before:]:
        if op.kind == "write" and op.inode in written:
            assert bytes(files.inodes[op.inode][op.offset :][: len(op.data)]) == op.data
            written[op.inode] += len(op.data)
        if op.kind == "sync" and op.inode in written:
            log_inodes.pop(op.inode, None)
    assert sum(written.values()) == recovered.read_bytes > 0
    assert all(not written[inode] for inode in log_inodes), "and then synced"


async def test_a_second_crash_need_not_read_the_same_again(crashed: Crashed) -> None:
    async with opened(crashed.files, "/data", clean=False):
        pass
    async with opened(crashed.files, "/data", clean=False) as directory:
        assert directory.was_unclean
        table = directory.stored
    again = recover(crashed.files, DIRECTORY, Digest(), next(iter(table.values())), 0)
    assert again.read_bytes == 0


@pytest.mark.parametrize("kept", [0, 1, 11, 12, 60, 61, 62, -1])
async def test_a_batch_torn_at_any_byte_is_cut_off(crashed: Crashed, kept: int) -> None:
    last = crashed.bytes_of(crashed.names(LOG)[-1])
    size = len(crashed.batches[-1])
    del last[len(last) - size + kept % size :]
    async with opened(crashed.files, "/data", clean=False) as directory:
        assert sum(directory.torn_bytes.values()) == kept % size
    await crashed.check(lost=1)


async def test_zeros_behind_the_last_batch_are_cut_off(crashed: Crashed) -> None:
    crashed.bytes_of(crashed.names(LOG)[-1]).extend(bytes(5000))
    await crashed.check()


async def test_random_bytes_behind_the_last_batch_are_cut_off(crashed: Crashed) -> None:
    seed = any_seed()
    note_seed(seed)
    crashed.bytes_of(crashed.names(LOG)[-1]).extend(random.Random(seed).randbytes(5000))
    await crashed.check()


async def test_any_flipped_bit_behind_the_checkpoint_cuts_the_log_before_it(crashed: Crashed) -> None:
    seed = any_seed()
    note_seed(seed)
    rng = random.Random(seed)
    path = crashed.names(LOG)[-1]
    content = crashed.bytes_of(path)
    sound = bytes(content)
    base = crashed.content.index(sound)
    for _ in range(40):
        at = rng.randrange(len(content))
        content[at] ^= 1 << rng.randrange(8)
        recovered = recover(crashed.files, DIRECTORY, Digest(), None, 0)
        start, number = 0, 0
        while start + len(crashed.batches[number]) <= base + at:
            start += len(crashed.batches[number])
            number += 1
        ends = headers_in(crashed.batches[number])[0].base_offset
        leader_epoch = range(12, 16)
        if at - (start - base) not in leader_epoch:  # the CRC does not cover the leader epoch
            assert recovered.checkpoint.end_offset == ends
        content[:] = sound


async def test_a_segment_that_lost_its_end_takes_the_later_ones_with_it(crashed: Crashed) -> None:
    names = crashed.names(LOG)
    stored = decode(bytes(crashed.bytes_of(f"{DIRECTORY}/{FILE_NAME}")))
    behind = [n for n in names if int(n[-24:-4]) > stored.segments[-1].base_offset]
    assert len(behind) >= 2
    first = crashed.bytes_of(behind[0])
    del first[len(first) - len(crashed.batches[-1]) :]
    missing = headers_in(bytes(first))[-1].last_offset + 1
    lost = sum(headers_in(b)[0].base_offset >= missing for b in crashed.batches)
    await crashed.check(lost)


async def test_a_damaged_batch_below_the_checkpoint_is_never_cut_off_silently(crashed: Crashed) -> None:
    first = crashed.bytes_of(crashed.names(LOG)[0])
    del first[-10:]
    async with opened(crashed.files, "/data") as directory:
        (error,) = directory.corrupt.values()
        assert '00000000000000000000.log" has' in str(error)
        with pytest.raises(CorruptLog, match="expected"):
            open_log(directory)
    assert len(crashed.names(LOG)) > 3, "nothing is removed"


async def test_a_missing_segment_below_the_checkpoint_is_refused(crashed: Crashed) -> None:
    crashed.files.remove(crashed.names(LOG)[1])
    async with opened(crashed.files, "/data") as directory:
        (error,) = directory.corrupt.values()
        assert "is missing" in str(error)


async def test_one_damaged_partition_does_not_stop_the_others(crashed: Crashed) -> None:
    async with opened(crashed.files, "/data", clean=False) as directory:
        open_log(directory)
        batch = append(open_log(directory, partition=1))
        await directory.flusher.wait_idle()
    crashed.files.remove(crashed.names(LOG)[0])
    async with opened(crashed.files, "/data") as directory:
        assert len(directory.corrupt) == 1
        assert read_all(open_log(directory, partition=1)) == batch


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["flip", "tear", "remove", "grow"])
async def test_damaged_indexes_are_built_anew(crashed: Crashed, suffix: str, damage: str) -> None:
    rng = random.Random(f"{suffix} {damage}")
    for path in crashed.names(suffix):
        content = crashed.bytes_of(path)
        if damage == "remove":
            crashed.files.remove(path)
        elif damage == "grow":
            content.extend(rng.randbytes(24))
        elif content:
            if damage == "flip":
                content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            else:
                del content[-5:]
    await crashed.check()


@pytest.mark.parametrize("damage", ["flip", "tear", "remove", "empty"])
async def test_a_damaged_checkpoint_means_that_all_is_read(crashed: Crashed, damage: str) -> None:
    path = f"{DIRECTORY}/{FILE_NAME}"
    content = crashed.bytes_of(path)
    if damage == "remove":
        crashed.files.remove(path)
    elif damage == "flip":
        content[len(content) // 2] ^= 4
    else:
        del content[0 if damage == "empty" else len(content) // 2 :]
    assert recover(crashed.files, DIRECTORY, Digest(), None, 0).read_bytes == len(crashed.content)
    await crashed.check()


@pytest.mark.slow
async def test_every_flipped_bit_of_a_checkpoint_is_noticed(crashed: Crashed) -> None:
    content = crashed.bytes_of(f"{DIRECTORY}/{FILE_NAME}")
    for at in range(len(content)):
        content[at] ^= 1 << at % 8
        assert recover(crashed.files, DIRECTORY, Digest(), None, 0).read_bytes == len(crashed.content)
        content[at] ^= 1 << at % 8


async def test_with_a_damaged_checkpoint_a_tear_in_the_middle_is_refused(crashed: Crashed) -> None:
    crashed.bytes_of(f"{DIRECTORY}/{FILE_NAME}")[10] ^= 1
    crashed.bytes_of(crashed.names(LOG)[1])[100] ^= 1
    async with opened(crashed.files, "/data") as directory:
        (error,) = directory.corrupt.values()
        assert "acknowledged records may be lost" in str(error)


async def test_a_snapshot_that_the_state_does_not_know_means_that_all_is_replayed(crashed: Crashed) -> None:
    path = f"{DIRECTORY}/{FILE_NAME}"
    stored = decode(bytes(crashed.bytes_of(path)))
    fields = {name: getattr(stored, name) for name in stored.__struct_fields__}
    crashed.files.write_atomic(path, encode(type(stored)(**{**fields, "snapshot": b"from another release"})))
    await crashed.check()


async def test_leftovers_of_interrupted_work_are_removed(crashed: Crashed) -> None:
    for name in ("00000000000000000000.log.deleted", "x.tmp", "00000000000000000000.log.1-1.cleaned"):
        crashed.files.open(f"{DIRECTORY}/{name}", create=True)
    await crashed.check()
    left = crashed.files.list(DIRECTORY)
    assert not [n for n in left if n.endswith((".deleted", ".tmp", ".cleaned"))]


async def test_large_batches_and_small_ones_are_verified_alike() -> None:
    files, rng = MemoryFiles(), random.Random(2)
    config = replace(SMALL, segment_bytes=64 << 20)
    async with opened(files, "/data", clean=False) as directory:
        log = open_log(directory, config)
        for size in (10, 3 << 20, 10, 1 << 20, (1 << 20) - 139, 5):
            append(log, batch_of(1, value=rng.randbytes(size)))
        content = read_all(log, max_bytes=1 << 30)
        await log.flush()
    async with opened(files, "/data") as directory:
        assert read_all(open_log(directory, config), max_bytes=1 << 30) == content


async def test_a_log_that_may_have_gaps_keeps_them() -> None:
    files = MemoryFiles()
    async with opened(files, "/data", clean=False) as directory:
        log = open_log(directory)
        await log.permit_gaps()
        batches = [append(log, base_offset=log.end_offset + n % 3) for n in range(50)]
        await log.flush()
    async with opened(files, "/data") as directory:
        assert read_all(open_log(directory)) == b"".join(batches)


@pytest.mark.slow
async def test_the_name_of_a_new_segment_is_made_durable_though_nothing_is_in_it_yet() -> None:
    """After a kill between a roll and the flush, later flushes sync only the file and not its directory."""
    files = MemoryFiles()
    async with opened(files, "/data", clean=False) as directory:
        log = open_log(directory)
        written = append(log)
        await log.flush()
        directory.start_checkpoint(log)
        await settle(directory)
        log.roll(log.end_offset)
    async with opened(files, "/data", clean=False) as directory:
        log = open_log(directory)
        assert len(log.segments) == 2
        written += append(log)
        await log.flush()
        steps = len(files.trace)
    for seed in range(40):
        image = CrashImages(files.trace).image(steps, random.Random(seed))
        async with opened(image, "/data", clean=False) as directory:
            assert read_all(open_log(directory)) == written, f"seed {seed}"


@pytest.mark.parametrize("gaps", [False, True])
async def test_a_crash_within_recovery_leaves_the_batches_before_the_invalid_one(gaps: bool) -> None:
    """A segment after the invalid batch must not come back, also where a log may skip offsets."""
    files = MemoryFiles()
    async with opened(files, "/data", clean=False) as directory:
        log = open_log(directory, replace(SMALL, flush_messages=FOREVER))
        if gaps:
            await log.permit_gaps()
        batches = [append(log) for _ in range(60)]
    names = sorted(f"{DIRECTORY}/{name}" for name in files.list(DIRECTORY) if name.endswith(LOG))
    assert len(names) >= 4
    torn = files.open(names[1])
    torn.truncate(torn.size() - 10)
    for path in files.list(DIRECTORY):
        files.open(f"{DIRECTORY}/{path}").sync()
    for path in (DIRECTORY, "/data", "/"):
        files.sync_dir(path)
    expected = [batch for batch in batches if headers_in(batch)[0].base_offset < torn_offset(files, names[1])]
    start = len(files.trace)
    async with opened(files, "/data", clean=False) as directory:
        assert read_all(open_log(directory)) == b"".join(expected)
    for steps in range(start, len(files.trace) + 1):
        for seed in range(2):
            image = CrashImages(files.trace).image(steps, random.Random(seed))
            async with opened(image, "/data", clean=False) as directory:
                assert read_all(open_log(directory)) == b"".join(expected), f"step {steps - start}, seed {seed}"


def torn_offset(files: MemoryFiles, path: str) -> int:
    """Return the base offset of the last, incomplete batch of a segment."""
    content, position, offset = bytes(files.inodes[files.names[path]]), 0, 0
    while position < len(content):
        offset = int.from_bytes(content[position : position + 8], "big")
        position += 12 + int.from_bytes(content[position + 8 : position + 12], "big")
    assert position > len(content), "the last batch is incomplete"
    return offset


async def test_all_files_are_synced_before_the_recovered_checkpoints_are_written() -> None:
    files = MemoryFiles()
    async with opened(files, "/data", clean=False) as directory:
        for partition in range(10):
            append(open_log(directory, replace(SMALL, flush_messages=FOREVER), partition))
    start = len(files.trace)
    async with opened(files, "/data", clean=False):
        pass
    steps = files.trace[start:]
    table = next(n for n, op in enumerate(steps) if op.kind == "rename" and op.new_path.endswith(TABLE_NAME))
    written = {op.inode for op in steps[:table] if op.kind == "write" and op.path.endswith(LOG)}
    assert len(written) == 10
    assert {op.inode for op in steps[:table] if op.kind == "sync" and op.path.endswith(LOG)} == written
    assert len({op.path for op in steps[:table] if op.kind == "sync_dir"} - {"/data"}) == 10


async def test_after_a_failed_sync_nothing_is_served_and_the_next_start_recovers_everything(tmp_path: Path) -> None:
    files, path = FaultyFiles(), str(tmp_path / "data")
    async with opened(files, path, clean=False) as directory:
        batches = [append(open_log(directory, partition=partition)) for partition in range(10)]
        await directory.flusher.wait_idle()
    files.fail("sync", errno.EIO, lambda synced: "-7/" in synced)
    with pytest.raises(OSError, match="Input/output error"):
        async with opened(files, path, clean=False):
            pass
    files.heal()
    assert not files.exists(f"{path}/{TABLE_NAME}"), "no checkpoint covers what may not be on disk"
    files.synced.clear()
    async with opened(files, path, clean=False) as directory:
        assert len([synced for synced in files.synced if synced.endswith(LOG)]) == 10
        for partition in range(10):
            assert read_all(open_log(directory, partition=partition)) == batches[partition]
