"""A file system in memory that records a trace of its operations, so that a crash can be simulated at any point.

It guarantees only what the kernel guarantees: bytes survive once `sync` of their file has returned, names once
`sync_dir` of their directory has. `CrashImages` derives possible disk contents from a trace.
"""

from __future__ import annotations

import errno
import random
import threading
from typing import Any, NamedTuple

from penstock.runtime.files import Buffer

PAGE = 64
"""Unit of writes that a crash can lose (bytes); small, so that short logs have many pages."""


class Op(NamedTuple):
    """One step of the trace."""

    kind: str
    inode: int = -1
    path: str = ""
    new_path: str = ""
    offset: int = 0
    data: bytes = b""
    upto: int = 0
    """For syncs: number of steps before the sync began."""
    note: Any = None


class MemoryFile:
    """An open file."""

    def __init__(self, files: MemoryFiles, path: str, inode: int) -> None:
        self.files, self.path, self.inode = files, path, inode
        self.content = files.inodes[inode]
        self.open = True

    def append(self, data: Buffer) -> None:
        self.write_at(len(self.content), data)

    def write_at(self, offset: int, data: Buffer) -> None:
        assert self.open, f"{self.path} is closed"
        data = bytes(data)
        with self.files.lock_:
            self.files.record(Op("write", self.inode, self.path, offset=offset, data=data))
            apply_write(self.content, offset, data)

    def read_at(self, offset: int, size: int) -> bytes:
        assert self.open, f"{self.path} is closed"
        return bytes(self.content[offset : offset + size])

    def is_cached(self, offset: int, size: int) -> bool:
        return True

    def read_cached(self, offset: int, size: int) -> bytes | None:
        data = self.read_at(offset, size) if self.is_cached(offset, size) else b""
        return data if len(data) == size else None

    def load(self, offset: int, size: int) -> None:
        assert self.open, f"{self.path} is closed"

    def stream(self, offset: int, size: int) -> bool:
        return False

    def size(self) -> int:
        return len(self.content)

    def truncate(self, size: int) -> None:
        assert self.open, f"{self.path} is closed"
        with self.files.lock_:
            self.files.record(Op("truncate", self.inode, self.path, offset=size))
            apply_truncate(self.content, size)

    def sync(self) -> None:
        assert self.open, f"{self.path} is closed"
        with self.files.lock_:
            self.files.record(Op("sync", self.inode, self.path, upto=len(self.files.trace)))

    def start_writeback(self, offset: int, size: int) -> None:
        pass

    def fileno(self) -> int:
        raise OSError(errno.EBADF, "a file in memory has no descriptor")

    def close(self) -> None:
        self.open = False


class MemoryFiles:
    """Implements `runtime.files.Files`."""

    def __init__(self) -> None:
        self.inodes: list[bytearray] = []
        self.names: dict[str, int] = {}
        self.directories: set[str] = {"/"}
        self.trace: list[Op] = []
        self.locked: set[str] = set()
        self.lock_ = threading.RLock()

    def record(self, op: Op) -> None:
        self.trace.append(op)

    def mark(self, note: Any) -> None:
        """Record an event outside the file system, such as an acknowledgement."""
        with self.lock_:
            self.record(Op("mark", note=note))

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> MemoryFile:
        with self.lock_:
            inode = self.names.get(path)
            if inode is None:
                if not create:
                    raise FileNotFoundError(errno.ENOENT, "no such file", path)
                if parent(path) not in self.directories:
                    raise FileNotFoundError(errno.ENOENT, "no such directory", path)
                inode = self.add(path, b"")
                self.record(Op("create", inode, path))
            return MemoryFile(self, path, inode)

    def add(self, path: str, content: bytes) -> int:
        self.inodes.append(bytearray(content))
        self.names[path] = len(self.inodes) - 1
        return len(self.inodes) - 1

    def exists(self, path: str) -> bool:
        return path in self.names or path in self.directories

    def list(self, path: str) -> list[str]:
        with self.lock_:
            everything = [*self.names, *self.directories]
        return [p[len(path) + 1 :] for p in everything if parent(p) == path and p != path]

    def make_dir(self, path: str) -> None:
        with self.lock_:
            if path not in self.directories:
                self.make_dir(parent(path))
                self.directories.add(path)
                self.record(Op("make_dir", path=path))

    def sync_dir(self, path: str) -> None:
        with self.lock_:
            if path not in self.directories:
                raise FileNotFoundError(errno.ENOENT, "no such directory", path)
            self.record(Op("sync_dir", path=path, upto=len(self.trace)))

    def rename(self, old: str, new: str) -> None:
        with self.lock_:
            if old in self.names:
                self.names[new] = self.names.pop(old)
            elif old in self.directories:
                rename_tree(self.names, self.directories, old, new)
            else:
                raise FileNotFoundError(errno.ENOENT, "no such file", old)
            self.record(Op("rename", self.names.get(new, -1), old, new))

    def remove(self, path: str) -> None:
        with self.lock_:
            if path not in self.names:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            inode = self.names.pop(path)
            self.record(Op("remove", inode, path))

    def remove_tree(self, path: str) -> None:
        with self.lock_:
            for name in [n for n in self.names if n.startswith(path + "/")]:
                self.remove(name)
            for name in [d for d in self.directories if d == path or d.startswith(path + "/")]:
                self.directories.remove(name)
                self.record(Op("remove_dir", path=name))

    def read(self, path: str) -> bytes:
        file = self.open(path, read_only=True)
        return file.read_at(0, file.size())

    def write_atomic(self, path: str, data: Buffer) -> None:
        temporary = path + ".tmp"
        file = self.open(temporary, create=True)
        file.truncate(0)
        file.append(data)
        file.sync()
        file.close()
        self.rename(temporary, path)
        self.sync_dir(parent(path))

    def free_bytes(self, path: str) -> int:
        return 1 << 40

    def lock(self, path: str) -> None:
        if path in self.locked:
            raise BlockingIOError(errno.EWOULDBLOCK, "locked", path)
        self.locked.add(path)

    def unlock(self, path: str) -> None:
        self.locked.discard(path)


def parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def rename_tree(names: dict[str, int], directories: set[str], old: str, new: str) -> None:
    for name in [n for n in names if n.startswith(old + "/")]:
        names[new + name[len(old) :]] = names.pop(name)
    for name in [d for d in directories if d == old or d.startswith(old + "/")]:
        directories.remove(name)
        directories.add(new + name[len(old) :])


def apply_write(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def apply_truncate(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


class CrashImages:
    """Possible disk contents after a crash at any step of a trace."""

    def __init__(self, trace: list[Op]) -> None:
        self.trace = trace

    def image(self, steps: int, rng: random.Random) -> MemoryFiles:
        """Return an image after `steps` steps: all synced data, and a random subset of the other pages and names."""
        trace = self.trace[:steps]
        synced: dict[int, int] = {}
        synced_dirs: dict[str, int] = {}
        for op in trace:
            if op.kind == "sync":
                synced[op.inode] = op.upto
            elif op.kind == "sync_dir":
                synced_dirs[op.path] = op.upto
        files = MemoryFiles()
        count = 1 + max((op.inode for op in trace), default=-1)
        keep = rng.choice([0.0, 0.2, 0.5, 0.9, 1.0])
        contents = [bytearray() for _ in range(count)]
        for number, op in enumerate(trace):
            if op.kind in ("write", "truncate"):
                play(contents[op.inode], op, rng, 1.0 if number < synced.get(op.inode, 0) else keep)
        files.inodes = contents
        for number, op in enumerate(trace):
            directory = parent(op.new_path or op.path)
            durable = number < synced_dirs.get(directory, 0)
            if durable or rng.random() < keep or (op.kind in ("make_dir",) and rng.random() < keep):
                play_name(files, op)
        drop_lost_directories(files)
        return files


def play(content: bytearray, op: Op, rng: random.Random, keep: float) -> None:
    """Apply a write or truncation, keeping each page with a probability."""
    if op.kind == "truncate":
        if rng.random() < keep:
            apply_truncate(content, op.offset)
        return
    for start in range(op.offset - op.offset % PAGE, op.offset + len(op.data), PAGE):
        first, last = max(start, op.offset), min(start + PAGE, op.offset + len(op.data))
        if rng.random() < keep:
            apply_write(content, first, op.data[first - op.offset : last - op.offset])


def play_name(files: MemoryFiles, op: Op) -> None:
    if op.kind == "create":
        files.names[op.path] = op.inode
    elif op.kind == "make_dir":
        files.directories.add(op.path)
    elif op.kind == "remove":
        if files.names.get(op.path) == op.inode:
            del files.names[op.path]
    elif op.kind == "remove_dir":
        files.directories.discard(op.path)
    elif op.kind == "rename" and op.inode >= 0:
        files.names[op.new_path] = op.inode
        if files.names.get(op.path) == op.inode:
            del files.names[op.path]
    elif op.kind == "rename":
        rename_tree(files.names, files.directories, op.path, op.new_path)


def drop_lost_directories(files: MemoryFiles) -> None:
    """Remove names whose directory did not survive."""
    for directory in sorted(files.directories):
        if directory != "/" and parent(directory) not in files.directories:
            files.directories.discard(directory)
    for name in list(files.names):
        if parent(name) not in files.directories:
            del files.names[name]
