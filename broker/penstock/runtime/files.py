"""The file system as the log needs it: a protocol, so that tests and simulations can fail it, cut it and forget.

`OsFiles` (in `disk`) is the real one. All methods raise OSError as the system calls do. Paths are strings.
"""

from __future__ import annotations

from typing import Protocol

Buffer = bytes | bytearray | memoryview


class File(Protocol):
    """An open file. Appends are made by one thread at a time; `sync` and `read_at` may run in other threads."""

    path: str

    def append(self, data: Buffer) -> None:
        """Writes all of `data` at the end. After an OSError any part of it may have been written."""

    def write_at(self, offset: int, data: Buffer) -> None:
        """Overwrites in place."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""

    def cached(self, offset: int, size: int) -> bool:
        """Whether reading that range is known not to wait for the disk."""

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """fdatasync: returns when the content, and the size, are on disk."""

    def start_writeback(self, offset: int, size: int) -> None:
        """Asks the kernel to begin writing a range, without waiting; does nothing where it cannot be asked."""

    def fileno(self) -> int:
        """The descriptor, for sendfile."""

    def close(self) -> None: ...


class Files(Protocol):
    """A file system."""

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File: ...

    def exists(self, path: str) -> bool: ...

    def list(self, path: str) -> list[str]:
        """The names in a directory, in no order; empty where there is no such directory."""

    def make_dir(self, path: str) -> None:
        """Makes a directory and its parents; nothing where it is there."""

    def sync_dir(self, path: str) -> None:
        """Makes creations, renames and deletions in a directory durable."""

    def rename(self, old: str, new: str) -> None:
        """Atomic; replaces `new`."""

    def remove(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None: ...

    def read(self, path: str) -> bytes:
        """A whole file."""

    def write_atomic(self, path: str, data: Buffer) -> None:
        """Replaces a file as a whole: temporary file, fsync, rename, fsync of the directory."""

    def free_bytes(self, path: str) -> int: ...

    def lock(self, path: str) -> None:
        """Takes an exclusive lock on a file until the process ends; raises BlockingIOError where another has it."""

    def unlock(self, path: str) -> None:
        """Gives a lock back before the process ends; nothing where it is not held."""
