"""Parts of the guard tests: one partition on a real directory, whose disk can be blocked or made to fail."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import shutil
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from uuid import UUID, uuid4

from penstock.config.broker import BrokerConfig
from penstock.config.topic import TopicConfig
from penstock.log.log_dir import LogDirectory
from penstock.node.single import SingleMember
from penstock.replica.acceptance import Appended
from penstock.replica.blocked_producers import BlockedProducers
from penstock.replica.delayed_delivery import DelayedDelivery
from penstock.replica.isr_keeper import IsrKeeper
from penstock.replica.leader import Leader
from penstock.replica.producer_state import ProducerState
from penstock.runtime.clock import SystemClock
from penstock.runtime.disk import OsFile, OsFiles
from penstock.runtime.files import Buffer
from penstock.state.embedded import EmbeddedStore
from penstock.state.view import ClusterView, PartitionView
from penstock.wire.batch import read_header
from penstock.wire.batch_builder import build_batch
from penstock.wire.records import Record

TOPIC_ID = UUID("6f2d9a3e-57c1-4b8a-9d10-3c5e7f9a1b2d")
ANSWER_S = 20.0


class HeldFile(OsFile):
    """A file whose fdatasync blocks until released, and whose disk can be full or broken."""

    __slots__ = ("disk",)

    def __init__(self, path: str, fd: int, disk: HeldFiles) -> None:
        super().__init__(path, fd)
        self.disk = disk

    def sync(self) -> None:
        self.disk.reached.set()
        assert self.disk.go_on.wait(ANSWER_S), "the disk was not released"
        self.disk.syncs += 1
        if self.disk.broken:
            raise OSError(errno.EIO, "the disk is broken")
        super().sync()

    def append(self, data: Buffer) -> None:
        room = self.disk.room_bytes
        if room is not None and len(data) > room:
            super().append(memoryview(data)[:room])
            raise OSError(errno.ENOSPC, "no space left on device")
        super().append(data)


class HeldFiles(OsFiles):
    """The real file system. `reached` is set once a sync has started; setting `go_on` lets it finish."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()
        self.syncs = 0
        self.broken = False
        self.room_bytes: int | None = None

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> HeldFile:
        opened = super().open(path, create=create, read_only=read_only)
        return HeldFile(opened.path, opened.fd, self)

    def hold(self) -> None:
        self.reached.clear()
        self.go_on.clear()


class Place:
    """An open data directory with one partition."""

    def __init__(self, directory: LogDirectory, files: HeldFiles, partition: Leader) -> None:
        self.directory, self.files, self.partition = directory, files, partition
        self.log = partition.log

    def append(self, batch: bytes) -> Appended:
        return self.partition.append(memoryview(bytearray(batch)))

    async def until_committed(self, done: Appended) -> int:
        """Wait as acks=all does; return the error code, 0 once the batch is committed."""
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if self.partition.high_watermark >= done.required_offset:
            return 0
        self.partition.when_committed(done.required_offset, answer.set_result)
        return await asyncio.wait_for(answer, ANSWER_S)

    async def until_syncing(self) -> None:
        """Wait until the flush worker waits for the disk."""
        assert await asyncio.get_running_loop().run_in_executor(None, self.files.reached.wait, ANSWER_S)

    async def until_idle(self) -> None:
        """Wait until no flush is in progress."""
        await asyncio.wait_for(self.directory.flusher.wait_idle(), ANSWER_S)

    def offsets_from(self, offset: int) -> list[int]:
        """Return the base offsets of the batches from `offset` on, read in small fetches as a consumer does."""
        found: list[int] = []
        while offset < self.partition.high_watermark:
            part = self.log.read(offset, 1, self.partition.high_watermark, at_least_one=True)
            assert part is not None, f"nothing at {offset}"
            header = read_header(part.file.read_at(part.position, part.size))
            part.release()
            found.append(header.base_offset)
            offset = header.last_offset + 1
        return found


@contextlib.asynccontextmanager
async def place(path: Path, config: TopicConfig | None = None) -> AsyncIterator[Place]:
    """Open a data directory as a broker does; shut it down cleanly at the end."""
    files, store = HeldFiles(), EmbeddedStore(":memory:")
    directory = LogDirectory(files, str(path), SystemClock(), 0, 64, random=Random(1), new_id=uuid4)
    directory.claim("the-cluster")
    directory.recover(ProducerState)
    directory.start()
    try:
        producers = ProducerState()
        log = directory.open_or_create(TOPIC_ID, "guarded", 0, config or TopicConfig(), producers)
        clock = SystemClock()
        leader = Leader(
            "guarded",
            TOPIC_ID,
            0,
            1,
            log,
            producers,
            clock,
            host=IsrKeeper(store, ClusterView(), clock, BrokerConfig(), SingleMember()),
            broker_id=0,
            placed=PartitionView(0, [0], 0, 1, [0]),
            high_watermark=None,
            blocked_producers=BlockedProducers(),
            unflushed={},
            delayed=DelayedDelivery(clock, directory.maintenance.spawn),
        )
        yield Place(directory, files, leader)
    finally:
        files.go_on.set()
        await directory.close()
        await store.close()


def as_killed(path: Path, target: Path) -> Path:
    """Copy a directory in use: the state after a kill at this time, page cache included."""
    shutil.copytree(path, target)
    return target


def segment(path: Path) -> Path:
    """The only segment of the only partition."""
    (found,) = path.glob(f"{TOPIC_ID}-0/*.log")
    return found


def batch(count: int = 3, sequence: int = -1, value: bytes = b"value", timestamp_ms: int | None = None) -> bytes:
    """Return a batch with current timestamps; with a `sequence` its producer is idempotent."""
    now_ms = SystemClock().wall_ms() if timestamp_ms is None else timestamp_ms
    records = [Record(key=b"k%d" % i, value=value, timestamp_ms=now_ms) for i in range(count)]
    if sequence < 0:
        return build_batch(records)
    return build_batch(records, producer_id=77, producer_epoch=0, base_sequence=sequence)
