"""A machine's disk and page cache. `files` gives a process access to it.

The disk guarantees only what the kernel does: bytes survive a power loss once `sync` of their file has returned, names
once `sync_dir` of their directory has. Of all other changes the seed chooses a subset of pages and names that survives.
A killed process leaves the page cache unchanged. A disk may be full, or writes and syncs may fail; the data of a failed
sync stays in the cache and never reaches the disk.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, NamedTuple

from penstock.runtime.files import Buffer

if TYPE_CHECKING:
    from penstock_simulation.process import Process
    from penstock_simulation.world import World

TEMPORARY = ".tmp"
ROOMY_BYTES = 1 << 40


class Write(NamedTuple):
    """An unsynced change of a file's content; without `data` a truncation to `offset`."""

    offset: int
    data: bytes | None


class Naming(NamedTuple):
    """An unsynced change of a directory."""

    kind: str
    path: str
    inode: Inode | None = None
    old: str = ""

    @property
    def directory(self) -> str:
        return parent(self.path)


class Inode:
    """A file: content in the page cache, content on disk, and the changes between them."""

    __slots__ = ("content", "durable", "pending", "written")

    def __init__(self) -> None:
        self.content, self.durable = bytearray(), bytearray()
        self.pending: list[Write] = []
        self.written = 0
        """Total number of changes, including the pending ones."""

    def write(self, offset: int, data: bytes) -> None:
        overwrite(self.content, offset, data)
        self.pending.append(Write(offset, data))
        self.written += 1

    def truncate(self, size: int) -> None:
        resize(self.content, size)
        self.pending.append(Write(size, None))
        self.written += 1

    def take(self, until: int) -> list[Write]:
        """Remove and return the pending ones of the first `until` changes."""
        count = max(until - (self.written - len(self.pending)), 0)
        done, self.pending = self.pending[:count], self.pending[count:]
        return done


class Names:
    """A directory tree. Keys of `files` and `directories` are full paths."""

    def __init__(self) -> None:
        self.files: dict[str, Inode] = {}
        self.directories: dict[str, None] = {"/": None}

    def copy(self) -> Names:
        other = Names()
        other.files, other.directories = dict(self.files), dict(self.directories)
        return other

    def apply(self, change: Naming) -> None:
        kind, path = change.kind, change.path
        if kind == "create" and change.inode is not None:
            self.files[path] = change.inode
        elif kind == "mkdir":
            self.directories[path] = None
        elif kind == "remove":
            if self.files.get(path) is change.inode:
                del self.files[path]
        elif kind == "rmdir":
            self.directories.pop(path, None)
        elif kind == "rename" and change.inode is not None:
            self.files[path] = change.inode
            if self.files.get(change.old) is change.inode:
                del self.files[change.old]
        elif kind == "rename":
            self.rename_tree(change.old, path)

    def rename_tree(self, old: str, new: str) -> None:
        for name in [n for n in self.files if n.startswith(old + "/")]:
            self.files[new + name[len(old) :]] = self.files.pop(name)
        for name in [d for d in self.directories if d == old or d.startswith(old + "/")]:
            del self.directories[name]
            self.directories[new + name[len(old) :]] = None

    def drop_lost(self) -> None:
        """Remove names whose directory did not survive."""
        for directory in sorted(self.directories):
            if directory != "/" and parent(directory) not in self.directories:
                del self.directories[directory]
        for name in [n for n in self.files if parent(n) not in self.directories]:
            del self.files[name]


class Disk:
    """One file system on one machine."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.rng = world.streams[f"disk {name}"]
        self.page = self.rng.choice([64, 512, 4096])
        """Bytes that are written or lost as a unit."""
        self.uncached = self.rng.choice([0.0, 0.02, 0.2])
        self.slow = self.rng.choice([0.0, 0.01, 0.05])
        self.sync_s = self.rng.choice([0.000_2, 0.001, 0.005])
        self.dragging_s = 0.0
        """Extra duration of a sync while other I/O keeps the disk busy."""
        self.cache, self.durable = Names(), Names()
        self.namings: list[Naming] = []
        self.used_bytes = 0
        self.capacity_bytes = ROOMY_BYTES
        self.failing_writes = self.failing_syncs = 0
        """Number of next operations that fail."""
        self.tainted = False
        """Whether a sync has failed since the machine started: cached data may then never reach the disk."""
        self.locked: dict[str, Process] = {}
        self.syncs = 0

    def sync_delay_s(self) -> float:
        """Return the duration of the next sync."""
        mean_s = 0.1 if self.rng.random() < self.slow else self.sync_s
        return 0.000_05 + self.rng.expovariate(1 / (mean_s + self.dragging_s))

    # Faults

    def fill(self, room_bytes: int) -> None:
        """Limit the free space to `room_bytes`."""
        self.world.note("disk full", self.name, room_bytes)
        self.capacity_bytes = self.used_bytes + room_bytes

    def empty(self) -> None:
        self.world.note("disk roomy", self.name)
        self.capacity_bytes = ROOMY_BYTES

    def lose_power(self) -> None:
        """Replace the cache by the content that survived."""
        self.tainted = False
        keep = self.rng.choice([0.0, 0.2, 0.5, 0.9, 1.0])
        known = dict.fromkeys([*self.cache.files.values(), *self.durable.files.values()])
        known.update(dict.fromkeys(n.inode for n in self.namings if n.inode is not None))
        for inode in known:
            for change in inode.pending:
                self.persist_some(inode.durable, change, keep)
            inode.pending.clear()
            inode.content = bytearray(inode.durable)
        for naming in self.namings:
            if self.rng.random() < keep:
                self.durable.apply(naming)
        self.namings.clear()
        self.durable.drop_lost()
        self.cache = self.durable.copy()
        self.used_bytes = sum(len(inode.content) for inode in self.cache.files.values())
        self.locked.clear()

    def persist_some(self, durable: bytearray, change: Write, keep: float) -> None:
        """Persist a random subset of the pages of a change."""
        if change.data is None:
            if self.rng.random() < keep:
                resize(durable, change.offset)
            return
        page, end = self.page, change.offset + len(change.data)
        for start in range(change.offset - change.offset % page, end, page):
            first, last = max(start, change.offset), min(start + page, end)
            if self.rng.random() < keep:
                overwrite(durable, first, change.data[first - change.offset : last - change.offset])

    # File content

    def write(self, inode: Inode, offset: int, data: Buffer) -> None:
        if self.failing_writes > 0:
            self.failing_writes -= 1
            self.world.note("write fails", self.name)
            raise OSError(errno.EIO, "the disk is broken")
        room = self.capacity_bytes - self.used_bytes
        grown = max(offset + len(data) - len(inode.content), 0)
        if grown <= room:
            inode.write(offset, bytes(data))
            self.used_bytes += grown
            return
        fits = max(len(data) - (grown - max(room, 0)), 0)
        before = len(inode.content)
        if fits:
            inode.write(offset, bytes(data[:fits]))
            self.used_bytes += len(inode.content) - before
        raise OSError(errno.ENOSPC, "no space left on device")

    def truncate(self, inode: Inode, size: int) -> None:
        before = len(inode.content)
        inode.truncate(size)
        self.used_bytes += size - before

    def sync(self, inode: Inode, until: int) -> None:
        """Complete a sync of the file's first `until` changes."""
        self.syncs += 1
        done = inode.take(until)
        if self.failing_syncs > 0:
            self.fail_sync()
            for change in done:
                self.persist_some(inode.durable, change, 0.5)
            raise OSError(errno.EIO, "the disk is broken")
        for change in done:
            persist(inode.durable, change)

    def fail_sync(self) -> None:
        self.failing_syncs -= 1
        self.tainted = True
        self.world.note("sync fails", self.name)

    # Directory entries

    def change(self, naming: Naming) -> None:
        self.cache.apply(naming)
        self.namings.append(naming)

    def sync_dir(self, path: str) -> None:
        if self.failing_syncs > 0:
            self.fail_sync()
            raise OSError(errno.EIO, "the disk is broken")
        left = []
        for naming in self.namings:
            if naming.directory == path:
                self.durable.apply(naming)
            else:
                left.append(naming)
        self.namings = left

    def remove(self, path: str) -> None:
        inode = self.cache.files.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        self.change(Naming("remove", path, inode))
        self.used_bytes -= len(inode.content)


def parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def overwrite(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def persist(durable: bytearray, change: Write) -> None:
    if change.data is None:
        resize(durable, change.offset)
    else:
        overwrite(durable, change.offset, change.data)
