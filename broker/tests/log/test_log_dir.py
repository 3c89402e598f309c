"""Ownership of a data directory, opening and closing it, and deleted or unknown topics."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from uuid import UUID, uuid4

import pytest
from faulty import FaultyFiles
from log_kit import CLUSTER, SMALL, TOPIC, Digest, HandClock, append, open_log, opened, read_all, settle
from memory_files import MemoryFiles

from penstock.log.log_dir import LogDirectory
from penstock.log.meta import WrongDirectory
from penstock.log.opening import DirectoryInUse
from penstock.log.partition_log import PartitionLog
from penstock.log.types import CorruptLog, LogDirFailed
from penstock.runtime.disk import OsFiles

META = "/data/meta.json"


def claim(files: MemoryFiles, cluster: str = CLUSTER, broker: int = 0) -> None:
    directory = LogDirectory(files, "/data", HandClock(), broker, random=Random(1), new_id=uuid4)
    try:
        directory.claim(cluster)
    finally:
        files.unlock("/data/.lock")


async def test_a_directory_keeps_its_identity() -> None:
    files = MemoryFiles()
    ids = []
    for _ in range(2):
        async with opened(files, "/data") as directory:
            ids.append(directory.directory_id)
    assert ids[0] == ids[1]
    meta = json.loads(files.read(META))
    assert (meta["cluster_id"], meta["broker_id"], meta["format_version"]) == (CLUSTER, 0, 1)
    assert UUID(meta["directory_id"]) == ids[0]


async def test_a_directory_of_another_cluster_or_broker_is_refused() -> None:
    files = MemoryFiles()
    claim(files)
    with pytest.raises(WrongDirectory, match=r'"/data" belongs to cluster "kit-cluster", not "other"; use a separate'):
        claim(files, cluster="other")
    with pytest.raises(WrongDirectory, match=r'"/data" belongs to broker 0, not 7; use a separate'):
        claim(files, broker=7)


async def test_a_directory_in_a_newer_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    files = MemoryFiles()
    monkeypatch.setattr("penstock.log.meta.FORMAT_VERSION", 2)
    claim(files)
    monkeypatch.undo()
    with pytest.raises(WrongDirectory, match=r'"/data" has format 2, .* start the newer release again'):
        claim(files)


async def test_every_flipped_bit_and_every_tear_of_the_meta_file_is_noticed() -> None:
    files = MemoryFiles()
    claim(files)
    content = files.inodes[files.names[META]]
    sound = bytes(content)
    for at in range(len(sound.rstrip())):
        for damaged in (sound[:at], sound[:at] + bytes([sound[at] ^ 1 << at % 8]) + sound[at + 1 :]):
            content[:] = damaged
            if damaged.lower() == sound.lower() or damaged.split() == sound.split():
                continue  # an upper-case hexadecimal digit or other white space is equivalent
            with pytest.raises(WrongDirectory):
                claim(files)


@pytest.mark.integration
async def test_a_second_process_is_refused_and_the_directory_is_free_after_the_first(tmp_path: Path) -> None:
    code = (
        "import sys; from penstock.runtime.disk import OsFiles; from penstock.runtime.clock import SystemClock;"
        "from penstock.log.log_dir import LogDirectory;"
        "LogDirectory(OsFiles(), sys.argv[1], SystemClock(), 0, random=None, new_id=None)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    async with opened(OsFiles(), str(tmp_path)):
        second = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
        assert second.returncode
        assert f'DirectoryInUse: "{tmp_path}" is in use by another process' in second.stderr
        with pytest.raises(DirectoryInUse):
            LogDirectory(OsFiles(), str(tmp_path), HandClock(), 0, random=Random(1), new_id=uuid4)
    assert subprocess.run(command, check=False, env=os.environ).returncode == 0


async def test_after_a_clean_end_no_segment_is_touched_before_somebody_asks() -> None:
    files = MemoryFiles()
    batches = {}
    async with opened(files, "/data") as directory:
        for number in range(100):
            batches[number] = append(open_log(directory, partition=number))
    opened_paths: list[str] = []
    files.open, inner = lambda path, **how: (opened_paths.append(path), inner(path, **how))[1], files.open  # type: ignore[method-assign]
    async with opened(files, "/data") as directory:
        assert not directory.was_unclean
        assert len(directory.unopened()) == 100
        logs = [open_log(directory, partition=number) for number in range(100)]
        assert not [path for path in opened_paths if TOPIC.hex[:8] in path]
        assert {log.end_offset for log in logs} == {3}
        assert all(read_all(log) == batches[log.partition] for log in logs)


async def test_a_clean_end_keeps_what_was_never_opened() -> None:
    files = MemoryFiles()
    async with opened(files, "/data") as directory:
        batch = append(open_log(directory))
    for _ in range(2):
        async with opened(files, "/data") as directory:
            assert not directory.was_unclean
    async with opened(files, "/data") as directory:
        assert read_all(open_log(directory)) == batch


async def test_an_unclean_end_is_told_and_a_new_directory_is_not_unclean() -> None:
    files = MemoryFiles()
    async with opened(files, "/data", clean=False) as directory:
        assert not directory.was_unclean
        append(open_log(directory))
    async with opened(files, "/data") as directory:
        assert directory.was_unclean
    async with opened(files, "/data") as directory:
        assert not directory.was_unclean


@pytest.mark.parametrize("damage", ["flip", "tear", "remove"])
@pytest.mark.parametrize("name", ["checkpoints", "clean-shutdown"])
async def test_a_damaged_clean_mark_or_table_means_recovery(name: str, damage: str) -> None:
    files = MemoryFiles()
    async with opened(files, "/data") as directory:
        log = open_log(directory)
        batches = [append(log) for _ in range(50)]
    content = files.inodes[files.names[f"/data/{name}"]]
    if damage == "remove":
        files.remove(f"/data/{name}")
    elif damage == "tear":
        del content[len(content) // 2 :]
    else:
        content[len(content) // 2] ^= 1
    async with opened(files, "/data") as directory:
        assert directory.was_unclean
        state = Digest()
        log = open_log(directory, state=state)
        assert read_all(log) == b"".join(batches)
        assert state.count == 50


async def test_a_log_that_changed_after_a_clean_end_is_found_out() -> None:
    files = MemoryFiles()
    async with opened(files, "/data") as directory:
        log = open_log(directory)
        append(log)
        path = log.segments[0].path
    files.inodes[files.names[path]].extend(b"more")
    async with opened(files, "/data") as directory:
        log = open_log(directory)
        with pytest.raises(CorruptLog):
            read_all(log)
        with pytest.raises(LogDirFailed, match=r"has .* bytes, expected"):
            append(log)
        assert directory.failed is None
        assert append(open_log(directory, partition=1)), "other logs go on"


async def test_a_deleted_topic_is_gone_also_after_a_restart() -> None:
    files = MemoryFiles()
    other = uuid4()
    async with opened(files, "/data") as directory:
        for number in range(3):
            append(open_log(directory, partition=number))
        open_log(directory, partition=3)
        kept = append(open_log(directory, topic_id=other))
    async with opened(files, "/data") as directory:
        open_log(directory, partition=0)
        directory.delete_topic(TOPIC)
        assert directory.unopened() == [(other, 0)]
        await settle(directory)
    async with opened(files, "/data") as directory:
        assert directory.unopened() == [(other, 0)]
        assert read_all(open_log(directory, topic_id=other)) == kept
        await settle(directory)
        assert not [n for n in files.list("/data") if str(TOPIC) in n]
        log = open_log(directory)
        assert (log.start_offset, log.end_offset) == (0, 0)


async def test_a_topic_deleted_while_its_flush_is_under_way_does_not_stop_the_directory(tmp_path: Path) -> None:
    async with opened(OsFiles(), str(tmp_path)) as directory:
        for number in range(20):
            log = open_log(directory, partition=number, topic_id=UUID(int=number + 1))
            append(log)
            directory.delete_topic(log.topic_id)
        await settle(directory)
        assert directory.failed is None
        assert not [n for n in os.listdir(tmp_path) if n.endswith(tuple("0123456789")) and "-" in n]


async def test_a_topic_is_deleted_with_a_log_that_had_failed_alone(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with opened(files, str(tmp_path)) as directory:
        log = open_log(directory)
        held = files.hold(log.directory)
        append(log)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert directory.flusher.running
        log.fail(CorruptLog("its file is not as long as what was written"))
        deleted = asyncio.gather(*directory.delete_topic(TOPIC))
        await asyncio.wait([deleted], timeout=0.1)
        held.set()  # a file must not be closed during a sync
        await deleted
        await settle(directory)
        assert not [name for name in files.list(str(tmp_path)) if str(TOPIC) in name]
        assert directory.failed is None


async def test_directories_that_nobody_knows_go_to_quarantine() -> None:
    files = MemoryFiles()
    async with opened(files, "/data") as directory:
        append(open_log(directory, partition=0))
        append(open_log(directory, partition=1))
    for _ in range(2):
        async with opened(files, "/data") as directory:
            directory.quarantine_unknown({(TOPIC, 0)})
            assert directory.unopened() == [(TOPIC, 0)]
    assert files.exists(f"/data/quarantine/{TOPIC}-1/00000000000000000000.log")
    assert files.exists(f"/data/{TOPIC}-0/00000000000000000000.log")


async def test_deleting_records_moves_the_start_for_good() -> None:
    files = MemoryFiles()
    async with opened(files, "/data", clean=False) as directory:
        log = open_log(directory)
        for _ in range(60):
            append(log)
        await log.delete_records_before(100)
        assert log.start_offset == 100
        assert log.segments[0].base_offset <= 100 < log.segments[1].base_offset
    async with opened(files, "/data") as directory:
        assert open_log(directory).start_offset == 100


async def test_a_closed_log_can_be_opened_again() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory)
        first = append(log)
        await log.close()
        again: PartitionLog = open_log(directory, SMALL)
        second = append(again)
        assert read_all(again) == first + second


async def test_sizes_of_partitions_are_known_without_opening_them() -> None:
    files = MemoryFiles()
    async with opened(files, "/data") as directory:
        size = len(append(open_log(directory)))
    async with opened(files, "/data") as directory:
        assert directory.partition_bytes(TOPIC, 0) == size
        open_log(directory)
        assert directory.partition_bytes(TOPIC, 0) == size
        assert directory.partition_bytes(TOPIC, 1) == 0
