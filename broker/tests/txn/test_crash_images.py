"""After a crash at any point, recovery restores the open transactions, aborted transactions and fenced producers."""

from __future__ import annotations

import random
from random import Random
from uuid import uuid4

import pytest
from log_kit import CLUSTER, SMALL, TOPIC, HandClock, abandon, any_seed, batch_of, note_seed, settle
from memory_files import CrashImages, MemoryFiles

from penstock.log.compaction.runner import ThreadRunner
from penstock.log.log_dir import LogDirectory
from penstock.log.partition_log import PartitionLog
from penstock.replica.producer_state import ProducerState
from penstock.wire.batch import ATTRIBUTES, CRC, TRANSACTIONAL, checksum, read_header, stamp
from penstock.wire.control_batch import Marker, build_marker

PATH = "/data"
Known = tuple[dict[int, int], list[tuple[int, int]], dict[int, tuple[int, int]]]


def known(state: ProducerState, end: int) -> Known:
    transactions = state.transactions
    epochs = {pid: (entry.epoch, entry.coordinator_epoch) for pid, entry in state.entries.items()}
    return dict(transactions.open), transactions.aborted_between(0, end, 0), epochs


def opened(files: MemoryFiles) -> LogDirectory:
    directory = LogDirectory(
        files, PATH, HandClock(), 0, random=Random(1), new_id=uuid4, compaction=ThreadRunner(files)
    )
    directory.claim(CLUSTER)
    directory.recover(ProducerState)
    directory.start()
    return directory


def write(log: PartitionLog, state: ProducerState, batch: bytearray) -> None:
    stamp(batch, 0, log.end_offset, 1)
    view = memoryview(batch)
    header = read_header(view)
    log.append(view, header, 1)
    state.observe(header, view)


def data(pid: int, epoch: int, sequence: int) -> bytearray:
    batch = batch_of(2, producer=(pid, epoch, sequence))
    ATTRIBUTES.pack_into(batch, 21, TRANSACTIONAL)
    CRC.pack_into(batch, 17, checksum(memoryview(batch), 0, len(batch)))
    return batch


async def work(files: MemoryFiles, rng: random.Random, steps: int) -> tuple[dict[int, Known], list[tuple[int, int]]]:
    """Write transactions. Returns the state by log end offset, and (trace length, flushed offset) after each flush."""
    directory = opened(files)
    state = ProducerState()
    log = directory.open_or_create(TOPIC, "events", 0, SMALL, state)
    ends, promised = {0: known(state, 0)}, []
    epochs, sequences = dict.fromkeys(range(4), 0), dict.fromkeys(range(4), 0)
    for _ in range(steps):
        pid = rng.randrange(4)
        if rng.random() < 0.6:
            write(log, state, data(pid, epochs[pid], sequences[pid]))
            sequences[pid] += 2
        else:
            fences = rng.random() < 0.3
            if fences:
                epochs[pid], sequences[pid] = epochs[pid] + 1, 0
            marker = Marker(pid, epochs[pid], not fences and rng.random() < 0.5, rng.randrange(3))
            if not state.check_marker(marker):
                write(log, state, build_marker(marker, 0))
        ends[log.end_offset] = known(state, log.end_offset)
        if rng.random() < 0.2:
            directory.start_checkpoint(log)
        if rng.random() < 0.3:
            await log.flush()
            promised.append((len(files.trace), log.end_offset))
        if rng.random() < 0.2:
            await settle(directory)
    await abandon(directory)
    return ends, promised


async def find_broken(seed: int, steps: int, every: int) -> list[str]:
    files = MemoryFiles()
    ends, promised = await work(files, random.Random(seed), steps)
    images, broken = CrashImages(files.trace), []
    for at in range(0, len(files.trace) + 1, every):
        directory = opened(images.image(at, random.Random(f"{seed} {at}")))
        state = ProducerState()
        log = directory.open_or_create(TOPIC, "events", 0, SMALL, state)
        flushed = max((end for length, end in promised if length <= at), default=0)
        if log.end_offset < flushed:
            broken.append(f"after {at} steps: an acknowledged batch is gone")
        elif known(state, log.end_offset) != ends[log.end_offset]:
            broken.append(f"after {at} steps: {known(state, log.end_offset)} is not {ends[log.end_offset]}")
        await abandon(directory)
    return broken


@pytest.mark.slow
async def test_transactions_are_what_they_were_after_a_crash_at_any_step() -> None:
    seed = any_seed()
    note_seed(seed)
    broken = await find_broken(seed, 60, 2)
    assert not broken, "\n".join(broken[:5])
