"""`runtime.files.Files` for one process on a simulated disk, passed to the broker by `node`.

`Killed` unwinds the code of a killed process at its next operation. With a `fuse`, the process is killed within the
operation that brings the fuse to 0.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from penstock.runtime.files import Buffer
from penstock_simulation.disk import TEMPORARY, Inode, Naming, parent
from penstock_simulation.process import Killed

if TYPE_CHECKING:
    from penstock_simulation.process import Process


class SimFile:
    """An open file."""

    __slots__ = ("closed", "disk", "files", "inode", "path", "syncing")

    def __init__(self, files: SimFiles, path: str, inode: Inode) -> None:
        self.files, self.disk, self.path, self.inode = files, files.disk, path, inode
        self.closed = False
        self.syncing = -1
        """Number of changes that the pending sync covers; -1 if no sync is pending."""

    def __repr__(self) -> str:
        return f"<SimFile {self.path}>"

    def append(self, data: Buffer) -> None:
        self.step()
        self.disk.write(self.inode, len(self.inode.content), data)

    def write_at(self, offset: int, data: Buffer) -> None:
        self.step()
        self.disk.write(self.inode, offset, data)

    def read_at(self, offset: int, size: int) -> bytes:
        self.check()
        return bytes(self.inode.content[offset : offset + size])

    def is_cached(self, offset: int, size: int) -> bool:
        return not self.disk.uncached or self.disk.rng.random() >= self.disk.uncached

    def read_cached(self, offset: int, size: int) -> bytes | None:
        data = self.read_at(offset, size) if self.is_cached(offset, size) else b""
        return data if len(data) == size else None

    def load(self, offset: int, size: int) -> None:
        self.check()

    def stream(self, offset: int, size: int) -> bool:
        return False

    def size(self) -> int:
        self.check()
        return len(self.inode.content)

    def truncate(self, size: int) -> None:
        self.step()
        self.disk.truncate(self.inode, size)

    def begin_sync(self) -> None:
        """Start a sync that covers the changes written so far."""
        self.syncing = self.inode.written

    def sync(self) -> None:
        self.step()
        until, self.syncing = self.syncing, -1
        self.disk.sync(self.inode, self.inode.written if until < 0 else until)

    def start_writeback(self, offset: int, size: int) -> None:
        """No observable effect."""

    def fileno(self) -> int:
        raise OSError(errno.EBADF, "a simulated file has no descriptor")

    def close(self) -> None:
        self.closed = True

    def check(self) -> None:
        if not self.files.process.alive:
            raise Killed
        assert not self.closed, f"{self.path} is closed"

    def step(self) -> None:
        assert not self.closed, f"{self.path} is closed"
        self.files.step()


class SimFiles:
    """Implementation of `Files`."""

    def __init__(self, process: Process) -> None:
        assert process.machine is not None, "a process on a machine"
        self.process, self.disk = process, process.machine.disk
        self.fuse = -1
        """Changing operations until the process is killed; -1: never."""

    def step(self) -> None:
        """Check the process, and count down the fuse before an operation that changes the disk."""
        if not self.process.alive:
            raise Killed
        if self.fuse >= 0:
            self.fuse -= 1
            if self.fuse < 0:
                self.process.kill()
                raise Killed

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> SimFile:
        if not self.process.alive:
            raise Killed
        names = self.disk.cache
        inode = names.files.get(path)
        if inode is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            if parent(path) not in names.directories:
                raise FileNotFoundError(errno.ENOENT, "no such directory", path)
            self.step()
            inode = Inode()
            self.disk.change(Naming("create", path, inode))
        return SimFile(self, path, inode)

    def exists(self, path: str) -> bool:
        names = self.disk.cache
        return path in names.files or path in names.directories

    def list(self, path: str) -> list[str]:
        names = self.disk.cache
        return [p[len(path) + 1 :] for p in [*names.files, *names.directories] if parent(p) == path and p != path]

    def make_dir(self, path: str) -> None:
        if path not in self.disk.cache.directories:
            self.make_dir(parent(path))
            self.step()
            self.disk.change(Naming("mkdir", path))

    def sync_dir(self, path: str) -> None:
        self.step()
        if path not in self.disk.cache.directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        self.disk.sync_dir(path)

    def rename(self, old: str, new: str) -> None:
        self.step()
        names = self.disk.cache
        if old in names.files:
            replaced = names.files.get(new)
            if replaced is not None:
                self.disk.used_bytes -= len(replaced.content)
            self.disk.change(Naming("rename", new, names.files[old], old))
        elif old in names.directories:
            self.disk.change(Naming("rename", new, None, old))
        else:
            raise FileNotFoundError(errno.ENOENT, "no such file", old)

    def remove(self, path: str) -> None:
        self.step()
        self.disk.remove(path)

    def remove_tree(self, path: str) -> None:
        names = self.disk.cache
        for name in [n for n in names.files if n.startswith(path + "/")]:
            self.remove(name)
        inside = [d for d in names.directories if d == path or d.startswith(path + "/")]
        for name in sorted(inside, key=len, reverse=True):
            self.step()
            self.disk.change(Naming("rmdir", name))

    def read(self, path: str) -> bytes:
        if not self.process.alive:
            raise Killed
        inode = self.disk.cache.files.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return bytes(inode.content)

    def write_atomic(self, path: str, data: Buffer) -> None:
        temporary = path + TEMPORARY
        try:
            file = self.open(temporary, create=True)
            file.truncate(0)
            file.append(data)
            file.sync()
            file.close()
        except OSError:
            if temporary in self.disk.cache.files:
                self.remove(temporary)
            raise
        self.rename(temporary, path)
        self.sync_dir(parent(path))

    def free_bytes(self, path: str) -> int:
        return max(self.disk.capacity_bytes - self.disk.used_bytes, 0)

    def lock(self, path: str) -> None:
        holder = self.disk.locked.get(path)
        if holder is not None and holder.alive:
            raise BlockingIOError(errno.EWOULDBLOCK, "locked", path)
        self.disk.locked[path] = self.process

    def unlock(self, path: str) -> None:
        if self.disk.locked.get(path) is self.process:
            del self.disk.locked[path]
