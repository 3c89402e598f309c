"""The real file system behind the protocol of `files`. Created by `node` and by tools that read a data directory
offline."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from time import perf_counter_ns

from penstock.runtime import linux
from penstock.runtime.cache_budget import AUTOMATIC, AvailableMemory, CacheBudget
from penstock.runtime.cache_hints import ThreadedHints
from penstock.runtime.files import Buffer
from penstock.runtime.page_cache import CachedTail, PageCache

FILE_MODE = 0o640
DIR_MODE = 0o750
TEMPORARY = ".tmp"


class OsFile:
    """A file descriptor whose file position is always the end of the file, so that an append is one write."""

    __slots__ = ("fd", "path", "tail")

    def __init__(self, path: str, fd: int, tail: CachedTail | None = None) -> None:
        self.path = path
        self.fd = fd
        self.tail = tail

    def __repr__(self) -> str:
        return f"<OsFile {self.path} fd {self.fd}>"

    def append(self, data: Buffer) -> None:
        """Write all of `data` at the end. After an OSError any part of it may have been written."""
        size = len(data)
        started_ns = perf_counter_ns()
        written = os.write(self.fd, data)
        if written != size:
            self.append_remaining(memoryview(data), written)
        if self.tail is not None:
            self.tail.record_append(size, perf_counter_ns() - started_ns)

    def append_remaining(self, data: memoryview, written: int) -> None:
        """Finish a short write: the next write either continues or raises."""
        while written < len(data):
            written += os.write(self.fd, data[written:])

    def write_at(self, offset: int, data: Buffer) -> None:
        """Overwrite bytes in place."""
        view = memoryview(data)
        while view:
            written = os.pwrite(self.fd, view, offset)
            offset, view = offset + written, view[written:]
        os.lseek(self.fd, 0, os.SEEK_END)

    def read_at(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes; fewer only at the end of the file."""
        data = os.pread(self.fd, size, offset)
        if len(data) == size or not data:
            return data
        return self.read_remaining(data, offset, size)

    def read_remaining(self, data: bytes, offset: int, size: int) -> bytes:
        """Continue a short read up to the end of the range or of the file."""
        parts = [data]
        read_bytes = len(data)
        while read_bytes < size and (data := os.pread(self.fd, size - read_bytes, offset + read_bytes)):
            parts.append(data)
            read_bytes += len(data)
        return b"".join(parts)

    def is_cached(self, offset: int, size: int) -> bool:
        """Return whether the range is in the page cache, as far as known."""
        return size <= 0 or linux.is_cached(self.fd, offset, size)

    def read_cached(self, offset: int, size: int) -> Buffer | None:
        """Return `size` bytes from the page cache; None if they are not all there."""
        return linux.read_cached(self.fd, offset, size)

    def load(self, offset: int, size: int) -> None:
        """Bring a range into the page cache, waiting for the disk."""
        linux.load(self.fd, offset, size)

    def stream(self, offset: int, size: int) -> bool:
        """Read ahead of a reader from disk that was sent a range. Returns False if the range is recent."""
        return self.tail is not None and self.tail.stream(offset, size)

    def size(self) -> int:
        """Return the size in bytes."""
        return os.fstat(self.fd).st_size

    def truncate(self, size: int) -> None:
        """Set the size in bytes; appends continue there."""
        os.ftruncate(self.fd, size)
        os.lseek(self.fd, size, os.SEEK_SET)
        if self.tail is not None:
            self.tail.truncate(size)

    def sync(self) -> None:
        """Return when the content and the size are on disk (fdatasync). The error names the file."""
        try:
            linux.datasync(self.fd)
        except OSError as e:
            raise OSError(e.errno, e.strerror, self.path) from e

    def start_writeback(self, offset: int, size: int) -> None:
        """Ask the kernel to write a range, without waiting."""
        linux.start_writeback(self.fd, offset, size)

    def fileno(self) -> int:
        """Return the descriptor, for sendfile."""
        return self.fd

    def close(self) -> None:
        """Close the descriptor; no effect if it is closed."""
        fd, self.fd = self.fd, -1
        if self.tail is not None:
            self.tail.fd = -1
        if fd >= 0:
            os.close(fd)


class OsFiles:
    """The file system of the machine. Locks last until the process ends or `unlock`.

    `tail_cache_bytes` bounds how much recently appended data stays in the page cache on machines where new memory is
    slow (see `page_cache`). AUTOMATIC: a share of the memory; -1 leaves the page cache to the kernel.
    """

    def __init__(self, tail_cache_bytes: int = -1) -> None:
        self.locks: dict[str, int] = {}
        self.page_cache: PageCache | None = None
        if tail_cache_bytes != -1:
            fixed_bytes = None if tail_cache_bytes == AUTOMATIC else tail_cache_bytes
            self.page_cache = PageCache(CacheBudget(AvailableMemory(), fixed_bytes), ThreadedHints())

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> OsFile:
        """Open a file for appending, or read-only; with `create`, create it if missing."""
        flags = os.O_CLOEXEC | (os.O_RDONLY if read_only else os.O_RDWR) | (os.O_CREAT if create else 0)
        fd = os.open(path, flags, FILE_MODE)
        if read_only:
            return OsFile(path, fd)
        end = os.lseek(fd, 0, os.SEEK_END)
        return OsFile(path, fd, self.page_cache.track(fd, end) if self.page_cache is not None else None)

    def exists(self, path: str) -> bool:
        """Return whether a path exists."""
        return os.path.exists(path)

    def list(self, path: str) -> list[str]:
        """Return the names in a directory in no order; empty if the directory does not exist."""
        try:
            return os.listdir(path)
        except FileNotFoundError:
            return []

    def make_dir(self, path: str) -> None:
        """Create a directory and its parents; no effect if it exists."""
        try:
            os.mkdir(path, DIR_MODE)  # the parent of a partition's directory exists
        except (FileNotFoundError, FileExistsError):
            os.makedirs(path, DIR_MODE, exist_ok=True)

    def sync_dir(self, path: str) -> None:
        """Make creations, renames and deletions in a directory durable."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, old: str, new: str) -> None:
        """Rename atomically, replacing `new`."""
        os.replace(old, new)

    def remove(self, path: str) -> None:
        """Delete a file."""
        os.remove(path)

    def remove_tree(self, path: str) -> None:
        """Delete a directory and everything below it; no effect if it is missing."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        with open(path, "rb") as file:
            return file.read()

    def write_atomic(self, path: str, data: Buffer) -> None:
        """Replace a file by way of a temporary file: write, fsync, rename, fsync of the directory."""
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
        """Return the free space of the file system for unprivileged users."""
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def lock(self, path: str) -> None:
        """Lock a file exclusively until the process ends. Raises BlockingIOError if another process holds it."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        self.locks[path] = fd

    def unlock(self, path: str) -> None:
        """Release a lock before the process ends; no effect if it is not held."""
        fd = self.locks.pop(path, None)
        if fd is not None:
            os.close(fd)
