"""Where snapshots are stored: a directory of a mounted volume, or a bucket (`object_store`)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from penstock_operator.snapshots.errors import SnapshotError

READ_BYTES = 1 << 20
PARTIAL = ".partial"


class SnapshotDestination(Protocol):
    """Files of one Cluster. All methods raise `SnapshotError`."""

    def write(self, file: str, chunks: Iterable[bytes]) -> None:
        """Store a file, replacing one of that name. It is complete and durable, or it does not exist."""

    def read(self, file: str) -> Iterator[bytes]:
        """Yield the content of a file."""

    def files(self) -> list[str]:
        """Return the names of all files."""

    def remove(self, file: str) -> None:
        """Delete a file."""


class DirectoryDestination:
    """A directory, such as that of a mounted volume."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, file: str, chunks: Iterable[bytes]) -> None:
        """Write a temporary file, flush it, and rename it."""
        temporary = self._folder / f"{file}{PARTIAL}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for left in self._folder.glob(f"*{PARTIAL}"):
                left.unlink()
            try:
                with temporary.open("wb") as out:
                    for chunk in chunks:
                        out.write(chunk)
                    out.flush()
                    os.fsync(out.fileno())
                temporary.rename(self._folder / file)
            finally:
                temporary.unlink(missing_ok=True)
            flush_directory(self._folder)
        except OSError as e:
            raise SnapshotError(f'cannot write "{self._folder / file}": {e.strerror or e}') from None

    def read(self, file: str) -> Iterator[bytes]:
        """Yield the content of a file."""
        try:
            with (self._folder / file).open("rb") as source:
                while chunk := source.read(READ_BYTES):
                    yield chunk
        except OSError as e:
            raise SnapshotError(f'cannot read "{self._folder / file}": {e.strerror or e}') from None

    def files(self) -> list[str]:
        """Return the names of all files."""
        try:
            return sorted(path.name for path in self._folder.iterdir() if path.is_file())
        except FileNotFoundError:
            return []
        except OSError as e:
            raise SnapshotError(f'cannot list "{self._folder}": {e.strerror or e}') from None

    def remove(self, file: str) -> None:
        """Delete a file."""
        try:
            (self._folder / file).unlink(missing_ok=True)
        except OSError as e:
            raise SnapshotError(f'cannot delete "{self._folder / file}": {e.strerror or e}') from None


def flush_directory(folder: Path) -> None:
    """Make renames in a directory durable. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
