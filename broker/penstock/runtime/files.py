"""The file system as the log needs it: a protocol, so that tests and simulations can inject failures and crashes.

`disk.OsFiles` is the real one. All methods raise OSError as the system calls do. Paths are strings.
"""

from __future__ import annotations

from typing import Protocol

Buffer = bytes | bytearray | memoryview


class File(Protocol):
    """An open file. One thread at a time appends; `sync`, `read_at` and `load` may run in other threads."""

    path: str

    def append(self, data: Buffer) -> None:
        """Write all of `data` at the end. After an OSError any part of it may have been written."""

    def write_at(self, offset: int, data: Buffer) -> None:
        """Overwrite bytes in place."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes; fewer only at the end of the file."""

    def is_cached(self, offset: int, size: int) -> bool:
        """Return whether reading the range is known not to wait for the disk."""

    def read_cached(self, offset: int, size: int) -> Buffer | None:
        """Return `size` bytes if that takes no wait for the disk; else None, also if the file is too short."""

    def load(self, offset: int, size: int) -> None:
        """Bring a range into the page cache, waiting for the disk."""

    def stream(self, offset: int, size: int) -> bool:
        """Read ahead of a reader that reads from disk and was sent a range. Returns False if the range is recent enough
        to stay in the page cache."""

    def size(self) -> int:
        """Return the size in bytes."""

    def truncate(self, size: int) -> None:
        """Set the size in bytes; appends continue there."""

    def sync(self) -> None:
        """Return when the content and the size are on disk (fdatasync)."""

    def start_writeback(self, offset: int, size: int) -> None:
        """Ask the kernel to write a range, without waiting; no effect where unsupported."""

    def fileno(self) -> int:
        """Return the descriptor, for sendfile."""

    def close(self) -> None:
        """Close the file."""


class Files(Protocol):
    """A file system."""

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File:
        """Open a file for appending, or read-only; with `create`, create it if missing."""

    def exists(self, path: str) -> bool:
        """Return whether a path exists."""

    def list(self, path: str) -> list[str]:
        """Return the names in a directory in no order; empty if the directory does not exist."""

    def make_dir(self, path: str) -> None:
        """Create a directory and its parents; no effect if it exists."""

    def sync_dir(self, path: str) -> None:
        """Make creations, renames and deletions in a directory durable."""

    def rename(self, old: str, new: str) -> None:
        """Rename atomically, replacing `new`."""

    def remove(self, path: str) -> None:
        """Delete a file."""

    def remove_tree(self, path: str) -> None:
        """Delete a directory and everything below it; no effect if it is missing."""

    def read(self, path: str) -> bytes:
        """Return the content of a file."""

    def write_atomic(self, path: str, data: Buffer) -> None:
        """Replace a file by way of a temporary file: write, fsync, rename, fsync of the directory."""

    def free_bytes(self, path: str) -> int:
        """Return the free space of the file system that holds `path`."""

    def lock(self, path: str) -> None:
        """Lock a file exclusively until the process ends. Raises BlockingIOError if another process holds it."""

    def unlock(self, path: str) -> None:
        """Release a lock before the process ends; no effect if it is not held."""
