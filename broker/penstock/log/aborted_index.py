"""Index of a partition's aborted transactions, which read_committed consumers filter out (KIP-98).

The newest entries are in memory and in the checkpoint's snapshot. Once there are `MAX_RECENT_ENTRIES`, the older half
moves to files beside the segments, so memory is bounded however long the history. A snapshot then names these files and
their valid entry counts; bytes that a crash leaves beyond those counts are overwritten. `replica.transactions` owns the
index and adds markers in offset order, on append and during recovery.

The file `<first marker's offset>.aborted` holds entries of 36 bytes: producer id i64, first offset i64, marker offset
i64, stable offset i64, CRC-32C u32 of the preceding fields. Entries are in marker order.
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
MAX_RECENT_ENTRIES = 2048
"""Entries in memory at which the older half moves to a file."""
MAX_FILE_ENTRIES = 65_536
"""Entries per file before a new file starts."""
BLOCK_ENTRIES = 128
"""Entries read from a file at once."""

logger = get_logger(__name__)


class AbortedTransaction(NamedTuple):
    """A transaction aborted by the marker at `last_offset`.

    All transactions that started below `stable_offset` ended at or before this marker: a search for offsets below it
    stops at this entry.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    stable_offset: int


class Chunk(NamedTuple):
    """An index file and its valid entries; their markers lie between `base_offset` and `last_offset`."""

    base_offset: int
    entries: int
    last_offset: int


class Spill(NamedTuple):
    """Entries that are being moved to a file; `chunk` describes the resulting file."""

    chunk: Chunk
    position: int
    data: bytes
    moved: int
    """Number of entries."""
    replaces: bool
    """Whether the entries extend the last file."""


Snapshot = tuple[list[AbortedTransaction], list[Chunk]]


class AbortedIndex:
    """Aborted transactions in marker order. Used on the event loop, or in a thread during recovery."""

    __slots__ = (
        "__weakref__", "cached_block", "chunks", "directory", "files", "obsolete", "recent", "restores",
        "snapshot_count", "spilling",
    )  # fmt: skip

    def __init__(self) -> None:
        self.recent: list[AbortedTransaction] = []
        self.chunks: list[Chunk] = []
        self.obsolete: list[tuple[Chunk, int]] = []
        """Obsolete files, each with the snapshot count at that time: the previous snapshot still names them."""
        self.snapshot_count = self.restores = 0
        self.spilling: asyncio.Future[None] | None = None
        self.files: Files | None = None
        self.directory = ""
        self.cached_block: tuple[Chunk, int, list[AbortedTransaction]] | None = None
        """The last block read: consumers mostly continue where they stopped."""

    def __len__(self) -> int:
        return len(self.recent) + sum(chunk.entries for chunk in self.chunks)

    def attach(self, files: Files, directory: str) -> None:
        """Set the partition's directory; before this call no entry moves to a file and no file is read."""
        self.files, self.directory = files, directory
        self.start_spill()

    def add(self, aborted: AbortedTransaction) -> None:
        """Add the next aborted transaction; markers come in offset order."""
        recent = self.recent
        assert not recent or recent[-1].last_offset < aborted.last_offset, "markers are in offset order"
        recent.append(aborted)
        if len(recent) >= MAX_RECENT_ENTRIES:
            self.start_spill()

    def search(self, from_offset: int, to_offset: int) -> list[tuple[int, int]]:
        """Return (producer id, first offset) of aborted transactions with data in [`from_offset`, `to_offset`), by
        first offset.

        Raises CorruptLog.
        """
        found = []
        for entry in self.entries(from_offset):
            if entry.first_offset < to_offset:
                found.append((entry.first_offset, entry.producer_id))
            if entry.stable_offset >= to_offset:
                break
        found.sort()
        return [(producer_id, first_offset) for first_offset, producer_id in found]

    def entries(self, from_offset: int) -> Iterator[AbortedTransaction]:
        """Yield the transactions whose marker is at or after `from_offset`."""
        for chunk in self.chunks:
            if chunk.last_offset >= from_offset:
                yield from self.chunk_entries(chunk, from_offset)
        recent = self.recent
        if recent and recent[-1].last_offset >= from_offset:
            first = bisect_left(recent, from_offset, key=lambda entry: entry.last_offset)
            yield from recent[first:]

    def forget_before(self, start_offset: int) -> None:
        """Drop transactions that ended before the log's new `start_offset`."""
        recent = self.recent
        if recent and recent[0].last_offset < start_offset and self.spilling is None and not self.chunks:
            count = bisect_left(self.recent, start_offset, key=lambda entry: entry.last_offset)
            del recent[:count]
        while len(self.chunks) > 1 and self.chunks[0].last_offset < start_offset:
            self.obsolete.append((self.chunks.pop(0), self.snapshot_count))

    # --- snapshots

    def snapshot(self) -> Snapshot:
        """Return the recent entries and the files, for a checkpoint."""
        self.snapshot_count += 1
        return list(self.recent), list(self.chunks)

    def restore(self, snapshot: Snapshot | None) -> None:
        """Replace the contents by a snapshot, or clear them; a spill in progress is discarded.

        Raises ValueError if the entries are out of order.
        """
        recent, chunks = snapshot if snapshot is not None else ([], [])
        if any(a.last_offset >= b.last_offset for a, b in pairwise(recent)):
            raise ValueError("aborted transactions are out of order")
        self.recent, self.chunks = list(recent), list(chunks)
        self.cached_block = None
        self.restores += 1

    # --- files

    def path(self, chunk: Chunk) -> str:
        """Return the path of an index file."""
        return f"{self.directory}/{chunk.base_offset:020d}{SUFFIX}"

    def chunk_entries(self, chunk: Chunk, from_offset: int) -> Iterator[AbortedTransaction]:
        """Yield the entries of a file whose marker is at or after `from_offset`. Raises CorruptLog."""
        low, high = 0, (chunk.entries - 1) // BLOCK_ENTRIES
        while low < high:  # find the last block that starts at or before `from_offset`
            middle = (low + high + 1) // 2
            if self.read_block(chunk, middle)[0].last_offset <= from_offset:
                low = middle
            else:
                high = middle - 1
        for number in range(low, (chunk.entries - 1) // BLOCK_ENTRIES + 1):
            for entry in self.read_block(chunk, number):
                if entry.last_offset >= from_offset:
                    yield entry

    def read_block(self, chunk: Chunk, number: int) -> list[AbortedTransaction]:
        """Return up to `BLOCK_ENTRIES` entries of a file. Raises CorruptLog."""
        if self.cached_block is not None and self.cached_block[:2] == (chunk, number):
            return self.cached_block[2]
        assert self.files is not None, "the index was attached before it is searched"
        first = number * BLOCK_ENTRIES
        count, path = min(BLOCK_ENTRIES, chunk.entries - first), self.path(chunk)
        try:
            file = self.files.open(path, read_only=True)
            try:
                data = file.read_at(first * ENTRY_SIZE, count * ENTRY_SIZE)
            finally:
                file.close()
        except OSError as e:
            raise CorruptLog(f'aborted transaction index "{path}" cannot be read: {e}') from e
        if len(data) != count * ENTRY_SIZE:
            raise CorruptLog(f'aborted transaction index "{path}" ends before entry {first + count}')
        entries = []
        for at in range(0, len(data), ENTRY_SIZE):
            if crc32c(data[at : at + ENTRY.size]) != CRC.unpack_from(data, at + ENTRY.size)[0]:
                raise CorruptLog(
                    f'aborted transaction index "{path}": CRC mismatch in entry {first + at // ENTRY_SIZE}'
                )
            entries.append(AbortedTransaction._make(ENTRY.unpack_from(data, at)))
        self.cached_block = chunk, number, entries
        return entries

    def start_spill(self) -> None:
        """Move the older half of the entries in memory to a file, in a thread; only on the event loop."""
        if len(self.recent) < MAX_RECENT_ENTRIES or self.files is None or self.spilling is not None:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # a recovery thread: `attach` spills later
        spill = self.encode_spill()
        obsolete = [chunk for chunk, since in self.obsolete if self.snapshot_count >= since + 2]
        self.obsolete = self.obsolete[len(obsolete) :]
        paths = [self.path(chunk) for chunk in obsolete]
        work = loop.run_in_executor(None, write_spill, self.files, self.directory, self.path(spill.chunk), spill, paths)
        self.spilling = work
        restores = self.restores
        work.add_done_callback(lambda done: self.complete_spill(spill, done, restores))

    def encode_spill(self) -> Spill:
        """Encode the older half of the recent entries, for the last file or a new one."""
        moved = self.recent[: len(self.recent) // 2]
        data = bytearray()
        for entry in moved:
            packed = ENTRY.pack(*entry)
            data += packed + CRC.pack(crc32c(packed))
        last = self.chunks[-1] if self.chunks else None
        if last is not None and last.entries < MAX_FILE_ENTRIES:
            chunk = Chunk(last.base_offset, last.entries + len(moved), moved[-1].last_offset)
            return Spill(chunk, last.entries * ENTRY_SIZE, bytes(data), len(moved), replaces=True)
        chunk = Chunk(moved[0].last_offset, len(moved), moved[-1].last_offset)
        return Spill(chunk, 0, bytes(data), len(moved), replaces=False)

    def complete_spill(self, spill: Spill, done: asyncio.Future[None], restores: int) -> None:
        """Replace the spilled entries in memory by their file; a failed spill keeps them."""
        self.spilling = None
        if self.restores != restores:
            return  # the log was truncated meanwhile
        if done.cancelled() or (error := done.exception()) is not None:
            if not done.cancelled():
                logger.warning("aborted transactions stay in memory", path=self.path(spill.chunk), error=str(error))
            return
        if spill.replaces:
            self.chunks.pop()
        self.chunks.append(spill.chunk)
        del self.recent[: spill.moved]
        self.cached_block = None


def write_spill(files: Files, directory: str, path: str, spill: Spill, obsolete: list[str]) -> None:
    """Append entries durably and remove obsolete files. Runs in a thread."""
    is_new = not files.exists(path)
    file = files.open(path, create=True)
    try:
        file.truncate(spill.position)
        file.append(spill.data)
        file.sync()
    finally:
        file.close()
    for name in obsolete:
        if files.exists(name):
            files.remove(name)
    if is_new or obsolete:
        files.sync_dir(directory)
