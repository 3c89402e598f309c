"""Which transactions of a partition were aborted, so that read_committed readers can leave them out (KIP-98).

The newest are in memory and in the checkpoint's snapshot. When there are many, the older half is moved to files beside
the segments, so that memory is bounded by `RECENT` however long the history; a snapshot then names the files and how
many of their entries count. What a crash leaves behind that is overwritten. Owned by `replica.transactions`, told of
markers in offset order by appends and by recovery alike.

A file `<first marker's offset>.aborted` has entries of 36 bytes: producer id i64, first offset i64, offset of the
marker i64, stable offset i64, CRC-32C u32 of these. They are in the order of their markers.
"""

from __future__ import annotations

import asyncio
import struct
from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from crc32c import crc32c

from penstock.log.types import CorruptLog
from penstock.runtime.files import Files
from penstock.runtime.logging import get_logger

SUFFIX = ".aborted"
ENTRY = struct.Struct(">qqqq")
CRC = struct.Struct(">I")
ENTRY_SIZE = ENTRY.size + CRC.size
RECENT = 2048
"""Entries in memory from which on the older half is moved to a file."""
FILE_ENTRIES = 65_536
"""Entries after which a new file begins."""
READ_ENTRIES = 128

logger = get_logger(__name__)


class Aborted(NamedTuple):
    """A transaction that was aborted by the marker at `last_offset`.

    All transactions that began below `stable_offset` have ended with this marker or before: a search for what
    concerns offsets below it need not look further.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    stable_offset: int


class Chunk(NamedTuple):
    """A file with `entries` that count; the markers lie from `base_offset` to `last_offset`."""

    base_offset: int
    entries: int
    last_offset: int


class Spill(NamedTuple):
    """Entries on their way to a file: `chunk` is what that file will be."""

    chunk: Chunk
    position: int
    data: bytes
    moved: int
    """How many entries."""
    replaces: bool
    """Whether the file is the last one, going on."""


Snapshot = tuple[list[Aborted], list[Chunk]]


class AbortedIndex:
    """Aborted transactions in the order of their markers. Runs on the event loop, or in a thread during recovery."""

    __slots__ = (
        "__weakref__", "cached", "chunks", "dead", "directory", "files", "recent", "restored", "snapshots", "spilling",
    )  # fmt: skip

    def __init__(self) -> None:
        self.recent: list[Aborted] = []
        self.chunks: list[Chunk] = []
        self.dead: list[tuple[Chunk, int]] = []
        """Files that nobody needs, and at which snapshot that was found: an older one still names them."""
        self.snapshots = self.restored = 0
        self.spilling: asyncio.Future[None] | None = None
        self.files: Files | None = None
        self.directory = ""
        self.cached: tuple[Chunk, int, list[Aborted]] | None = None
        """What was read last: consumers read on from where they were."""

    def __len__(self) -> int:
        return len(self.recent) + sum(chunk.entries for chunk in self.chunks)

    def attach(self, files: Files, directory: str) -> None:
        """Tells where the partition's files are: before this nothing is moved to them, nor read from them."""
        self.files, self.directory = files, directory
        self.spill_soon()

    def note(self, aborted: Aborted) -> None:
        """Takes in the next one."""
        recent = self.recent
        assert not recent or recent[-1].last_offset < aborted.last_offset, "markers come in order"
        recent.append(aborted)
        if len(recent) >= RECENT:
            self.spill_soon()

    def search(self, from_offset: int, to_offset: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of those that have data from `from_offset` up to before `to_offset`, in order of
        their first offsets. Raises CorruptLog."""
        found = []
        for one in self.entries(from_offset):
            if one.first_offset < to_offset:
                found.append((one.first_offset, one.producer_id))
            if one.stable_offset >= to_offset:
                break
        found.sort()
        return [(producer_id, first_offset) for first_offset, producer_id in found]

    def entries(self, from_offset: int) -> Iterator[Aborted]:
        """Those whose marker is at `from_offset` or later."""
        for chunk in self.chunks:
            if chunk.last_offset >= from_offset:
                yield from self.of_chunk(chunk, from_offset)
        recent = self.recent
        if recent and recent[-1].last_offset >= from_offset:
            first = bisect_left(recent, from_offset, key=lambda one: one.last_offset)
            yield from recent[first:]

    def forget_before(self, start_offset: int) -> None:
        """The log begins at `start_offset` now."""
        recent = self.recent
        if recent and recent[0].last_offset < start_offset and self.spilling is None and not self.chunks:
            count = bisect_left(self.recent, start_offset, key=lambda one: one.last_offset)
            del recent[:count]
        while len(self.chunks) > 1 and self.chunks[0].last_offset < start_offset:
            self.dead.append((self.chunks.pop(0), self.snapshots))

    # --- snapshots

    def snapshot(self) -> Snapshot:
        self.snapshots += 1
        return list(self.recent), list(self.chunks)

    def restore(self, snapshot: Snapshot | None) -> None:
        """Starts from a snapshot, or from nothing. What is on its way to a file then counts for nothing."""
        recent, chunks = snapshot if snapshot is not None else ([], [])
        if any(a.last_offset >= b.last_offset for a, b in pairwise(recent)):
            raise ValueError("aborted transactions are out of order")
        self.recent, self.chunks = list(recent), list(chunks)
        self.cached = None
        self.restored += 1

    # --- files

    def path(self, chunk: Chunk) -> str:
        return f"{self.directory}/{chunk.base_offset:020d}{SUFFIX}"

    def of_chunk(self, chunk: Chunk, from_offset: int) -> Iterator[Aborted]:
        low, high = 0, (chunk.entries - 1) // READ_ENTRIES
        while low < high:  # the last block that begins at or before `from_offset`, as the one before may hold it
            middle = (low + high + 1) // 2
            if self.block(chunk, middle)[0].last_offset <= from_offset:
                low = middle
            else:
                high = middle - 1
        for number in range(low, (chunk.entries - 1) // READ_ENTRIES + 1):
            for one in self.block(chunk, number):
                if one.last_offset >= from_offset:
                    yield one

    def block(self, chunk: Chunk, number: int) -> list[Aborted]:
        """Up to `READ_ENTRIES` entries of a file. Raises CorruptLog."""
        if self.cached is not None and self.cached[:2] == (chunk, number):
            return self.cached[2]
        assert self.files is not None, "the index was attached before it is searched"
        first = number * READ_ENTRIES
        count, path = min(READ_ENTRIES, chunk.entries - first), self.path(chunk)
        try:
            file = self.files.open(path, read_only=True)
            try:
                data = file.read_at(first * ENTRY_SIZE, count * ENTRY_SIZE)
            finally:
                file.close()
        except OSError as e:
            raise CorruptLog(f"the list of aborted transactions {path} cannot be read: {e}") from e
        if len(data) != count * ENTRY_SIZE:
            raise CorruptLog(f"{path} ends before entry {first + count}, which was on disk")
        entries = []
        for at in range(0, len(data), ENTRY_SIZE):
            if crc32c(data[at : at + ENTRY.size]) != CRC.unpack_from(data, at + ENTRY.size)[0]:
                raise CorruptLog(f"{path}: the CRC of entry {first + at // ENTRY_SIZE} does not match its bytes")
            entries.append(Aborted._make(ENTRY.unpack_from(data, at)))
        self.cached = chunk, number, entries
        return entries

    def spill_soon(self) -> None:
        """Moves the older half of what is in memory to a file, in a thread. On the event loop, or not at all."""
        if len(self.recent) < RECENT or self.files is None or self.spilling is not None:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # a thread that recovers: who attaches comes again
        spill = self.next_spill()
        dead = [chunk for chunk, since in self.dead if self.snapshots >= since + 2]
        self.dead = self.dead[len(dead) :]
        paths = [self.path(chunk) for chunk in dead]
        work = loop.run_in_executor(None, write, self.files, self.directory, self.path(spill.chunk), spill, paths)
        self.spilling = work
        restored = self.restored
        work.add_done_callback(lambda done: self.spilled(spill, done, restored))

    def next_spill(self) -> Spill:
        moved = self.recent[: len(self.recent) // 2]
        data = bytearray()
        for one in moved:
            entry = ENTRY.pack(*one)
            data += entry + CRC.pack(crc32c(entry))
        last = self.chunks[-1] if self.chunks else None
        if last is not None and last.entries < FILE_ENTRIES:
            chunk = Chunk(last.base_offset, last.entries + len(moved), moved[-1].last_offset)
            return Spill(chunk, last.entries * ENTRY_SIZE, bytes(data), len(moved), replaces=True)
        chunk = Chunk(moved[0].last_offset, len(moved), moved[-1].last_offset)
        return Spill(chunk, 0, bytes(data), len(moved), replaces=False)

    def spilled(self, spill: Spill, done: asyncio.Future[None], restored: int) -> None:
        self.spilling = None
        if self.restored != restored:
            return  # the log was truncated meanwhile: what was written counts for nothing
        if done.cancelled() or (error := done.exception()) is not None:
            if not done.cancelled():
                logger.warning("aborted transactions stay in memory", path=self.path(spill.chunk), error=str(error))
            return
        if spill.replaces:
            self.chunks.pop()
        self.chunks.append(spill.chunk)
        del self.recent[: spill.moved]
        self.cached = None


def write(files: Files, directory: str, path: str, spill: Spill, dead: list[str]) -> None:
    """Makes entries durable, and removes files that are not needed. In a thread."""
    is_new = not files.exists(path)
    file = files.open(path, create=True)
    try:
        file.truncate(spill.position)
        file.append(spill.data)
        file.sync()
    finally:
        file.close()
    for one in dead:
        if files.exists(one):
            files.remove(one)
    if is_new or dead:
        files.sync_dir(directory)
