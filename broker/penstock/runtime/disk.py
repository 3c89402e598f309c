"""The real file system, as `files` asks for it. Made by `node` and by tools that read a data directory offline."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from time import perf_counter_ns

from penstock.runtime import linux
from penstock.runtime.files import Buffer
from penstock.runtime.page_cache import CachedTail, PageCache

FILE_MODE = 0o640
DIR_MODE = 0o750
TEMPORARY = ".tmp"


class OsFile:
    """A file descriptor. Its file position is always the end of the file, so that appending is one write."""

    __slots__ = ("fd", "path", "tail")

    def __init__(self, path: str, fd: int, tail: CachedTail | None = None) -> None:
        self.path = path
        self.fd = fd
        self.tail = tail

    def __repr__(self) -> str:
        return f"<OsFile {self.path} fd {self.fd}>"

    def append(self, data: Buffer) -> None:
        size = len(data)
        began_ns = perf_counter_ns()
        written = os.write(self.fd, data)
        if written != size:
            self.append_rest(memoryview(data), written)
        if self.tail is not None:
            self.tail.appended(size, perf_counter_ns() - began_ns)

    def append_rest(self, data: memoryview, written: int) -> None:
        """After a short write: the next one either takes more or says why not."""
        while written < len(data):
            written += os.write(self.fd, data[written:])

    def write_at(self, offset: int, data: Buffer) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self.fd, view, offset)
            offset, view = offset + written, view[written:]
        os.lseek(self.fd, 0, os.SEEK_END)

    def read_at(self, offset: int, size: int) -> bytes:
        data = os.pread(self.fd, size, offset)
        if len(data) == size or not data:
            return data
        return self.read_rest(data, offset, size)

    def read_rest(self, data: bytes, offset: int, size: int) -> bytes:
        """After a short read: goes on to the end of the range or of the file."""
        parts = [data]
        got = len(data)
        while got < size and (data := os.pread(self.fd, size - got, offset + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def cached(self, offset: int, size: int) -> bool:
        return size <= 0 or linux.is_cached(self.fd, offset, size)

    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self.fd, size)
        os.lseek(self.fd, size, os.SEEK_SET)
        if self.tail is not None:
            self.tail.reset(size)

    def sync(self) -> None:
        linux.datasync(self.fd)

    def start_writeback(self, offset: int, size: int) -> None:
        linux.start_writeback(self.fd, offset, size)

    def fileno(self) -> int:
        return self.fd

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if self.tail is not None:
            self.tail.fd = -1
        if fd >= 0:
            os.close(fd)


class OsFiles:
    """The machine's own file system. Locks last until the process ends or `unlock`.

    `tail_cache_bytes` is how much of what was appended last stays in the page cache where new memory is dear (see
    `page_cache`); negative leaves all of that to the kernel.
    """

    def __init__(self, tail_cache_bytes: int = -1) -> None:
        self.locks: dict[str, int] = {}
        self.page_cache = PageCache(tail_cache_bytes) if tail_cache_bytes >= 0 else None

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> OsFile:
        flags = os.O_CLOEXEC | (os.O_RDONLY if read_only else os.O_RDWR) | (os.O_CREAT if create else 0)
        fd = os.open(path, flags, FILE_MODE)
        if read_only:
            return OsFile(path, fd)
        end = os.lseek(fd, 0, os.SEEK_END)
        return OsFile(path, fd, self.page_cache.follow(fd, end) if self.page_cache is not None else None)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def list(self, path: str) -> list[str]:
        try:
            return os.listdir(path)
        except FileNotFoundError:
            return []

    def make_dir(self, path: str) -> None:
        os.makedirs(path, DIR_MODE, exist_ok=True)

    def sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def remove(self, path: str) -> None:
        os.remove(path)

    def remove_tree(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def read(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def write_atomic(self, path: str, data: Buffer) -> None:
        temporary = path + TEMPORARY
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        except OSError:
            with contextlib.suppress(OSError):
                os.remove(temporary)
            raise
        finally:
            os.close(fd)
        os.replace(temporary, path)
        self.sync_dir(os.path.dirname(path))

    def free_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def lock(self, path: str) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        self.locks[path] = fd

    def unlock(self, path: str) -> None:
        """Gives a lock back before the process ends; nothing where it is not held."""
        fd = self.locks.pop(path, None)
        if fd is not None:
            os.close(fd)
