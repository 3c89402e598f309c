"""Helpers of the log tests: batches, a manual clock, a digest of batches, and an open log directory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import struct
import sys
from collections.abc import AsyncIterator, Callable
from random import Random
from uuid import UUID, uuid4

from crc32c import crc32c

from penstock.config.topic import FOREVER, TopicConfig
from penstock.log.compaction.runner import CompactionRunner, ThreadRunner
from penstock.log.log_dir import LogDirectory
from penstock.log.partition_log import PartitionLog
from penstock.runtime.clock import Clock
from penstock.runtime.files import Files
from penstock.wire.batch import CRC, HEADER_SIZE, BatchHeader, checksum, read_header, stamp
from penstock.wire.records import Codec, Record, build_batch

TOPIC = UUID("01234567-89ab-4def-8123-456789abcdef")
CLUSTER = "kit-cluster"
START_MS = 1_700_000_000_000
SMALL = TopicConfig(segment_bytes=2048, index_interval_bytes=256, file_delete_delay_ms=0, retention_ms=-1)
UNFLUSHED = TopicConfig(flush_messages=FOREVER, retention_ms=-1)


class HandClock:
    """Wall clock and boot clock, advanced by the test."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.now_ms = now_ms
        self.since_boot_ms = 1_000_000

    def wall_ms(self) -> int:
        return self.now_ms

    def boot_ms(self) -> int:
        return self.since_boot_ms

    def advance(self, by_ms: int) -> None:
        self.now_ms += by_ms
        self.since_boot_ms += by_ms


class Digest:
    """A `BatchState` that distinguishes any two histories of batches."""

    def __init__(self) -> None:
        self.value = 0
        self.count = 0
        self.start_offset = 0

    def restore(self, snapshot: bytes | None) -> None:
        if snapshot is None:
            self.value = self.count = 0
            return
        if len(snapshot) != 12:
            raise ValueError(f"{len(snapshot)} bytes are no snapshot")
        self.value, self.count = struct.unpack(">Iq", snapshot)

    def replay(self, header: BatchHeader) -> None:
        self.value = crc32c(
            struct.pack(">qqi", header.base_offset, header.producer_id, header.base_sequence), self.value
        )
        self.count += 1

    def replay_control(self, header: BatchHeader, batch: bytes | bytearray | memoryview) -> None:
        self.replay(header)

    def forget_before(self, start_offset: int) -> None:
        self.start_offset = start_offset

    def snapshot(self) -> bytes:
        return struct.pack(">Iq", self.value, self.count)


def batch_of(
    count: int = 3,
    *,
    timestamp_ms: int = START_MS,
    value: bytes = b"some value",
    producer: tuple[int, int, int] | None = None,
) -> bytearray:
    """Return a batch of `count` records whose timestamps increase by one."""
    records = [Record(key=b"k%d" % i, value=value, timestamp_ms=timestamp_ms + i) for i in range(count)]
    batch = bytearray(build_batch(records, codec=Codec.NONE))
    if producer is not None:
        struct.pack_into(">qhi", batch, 43, *producer)
        CRC.pack_into(batch, 17, checksum(memoryview(batch), 0, len(batch)))
    return batch


def append(log: PartitionLog, batch: bytearray | None = None, epoch: int = 1, base_offset: int | None = None) -> bytes:
    """Append a batch as the leader does; return the bytes that reads must return."""
    batch = batch if batch is not None else batch_of()
    stamp(batch, 0, log.end_offset if base_offset is None else base_offset, epoch)
    header = read_header(batch)
    view = memoryview(batch)
    log.append(view, header, epoch)
    log.state.replay(header)
    return bytes(batch)


def read_all(
    log: PartitionLog, offset: int | None = None, limit_offset: int | None = None, max_bytes: int = 1 << 20
) -> bytes:
    """Return all batches from an offset on, as a consumer fetches them."""
    offset = log.start_offset if offset is None else offset
    limit_offset = log.end_offset if limit_offset is None else limit_offset
    content = b""
    while offset < limit_offset:
        part = log.read(offset, max_bytes, limit_offset, at_least_one=True)
        if part is None:
            break
        data = part.file.read_at(part.position, part.size)
        part.release()
        headers = headers_in(data)
        assert headers[0].last_offset >= offset, f"a read at {offset} began with a batch that ends before"
        offset = headers[-1].last_offset + 1
        content += data
    return content


def headers_in(data: bytes) -> list[BatchHeader]:
    """Return the headers of whole batches; fail on other bytes."""
    found, position = [], 0
    while position < len(data):
        assert position + HEADER_SIZE <= len(data), "a slice ends within a header"
        header = read_header(data, position)
        assert header.magic == 2, "a slice is cut between batches"
        found.append(header)
        position += header.size_bytes
    assert position == len(data), "a slice ends within a batch"
    return found


@contextlib.asynccontextmanager
async def opened(
    files: Files,
    path: str,
    clock: Clock | None = None,
    *,
    make_state: Callable[[], Digest] = Digest,
    max_open_files: int = 512,
    compaction: CompactionRunner | None = None,
    clean: bool = True,
) -> AsyncIterator[LogDirectory]:
    """Yield a started log directory. With `clean` False, close it without a write, as after `kill -9`."""
    directory = LogDirectory(
        files,
        path,
        clock or HandClock(),
        0,
        max_open_files,
        random=Random(1),
        new_id=uuid4,
        compaction=compaction or ThreadRunner(files),
    )
    try:
        directory.claim(CLUSTER)
        directory.recover(make_state)
        directory.start()
        yield directory
    finally:
        if clean:
            await directory.close()
        else:
            await abandon(directory)


async def abandon(directory: LogDirectory) -> None:
    """Stop the threads and release the lock; write nothing."""
    directory.retention.stop()
    directory.closing = True
    if directory.checkpoint_timer is not None:
        directory.checkpoint_timer.cancel()
    await directory.compactor.stop()
    await directory.maintenance.stop()
    await directory.creations.stop()
    await directory.flusher.stop()
    for log in directory.logs.values():
        directory.maintenance.release(log)
    directory.files.unlock(f"{directory.path}/.lock")


def open_log(
    directory: LogDirectory,
    config: TopicConfig = SMALL,
    partition: int = 0,
    topic_id: UUID = TOPIC,
    state: Digest | None = None,
) -> PartitionLog:
    return directory.open_or_create(topic_id, "events", partition, config, state or Digest())


async def settle(directory: LogDirectory) -> None:
    """Wait until no flush and no background work runs."""
    for _ in range(1000):
        await directory.flusher.wait_idle()
        tasks = [t for t in [*directory.maintenance.tasks, directory.compactor.task] if t is not None]
        if tasks:
            await asyncio.wait(tasks)
        await asyncio.sleep(0)
        busy = directory.maintenance.tasks or directory.compactor.task or directory.compactor.queue
        if not (busy or directory.flusher.requested or directory.flusher.running):
            return
    raise AssertionError("background work does not finish")


def note_seed(seed: int) -> None:
    """Print the seed, which pytest shows if a random test fails."""
    sys.stdout.write(f"PENSTOCK_TEST_SEED={seed}\n")


def any_seed() -> int:
    """Return the seed from `PENSTOCK_TEST_SEED`, or a random one."""
    return int(os.environ.get("PENSTOCK_TEST_SEED", random.randrange(1 << 30)))
