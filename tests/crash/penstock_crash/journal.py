"""A load's record of its acknowledgements: it survives the broker and can be read while it grows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Entry = list[Any]
"""Kind and fields of an entry."""


class JournalWriter:
    """Writer of entries: one line each, written with one system call, so that entries of several threads never mix."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, kind: str, *fields: Any) -> None:
        line = json.dumps([kind, *fields], separators=(",", ":")).encode() + b"\n"
        written = os.write(self._fd, line)
        assert written == len(line), "the journal could not be written: is the disk full?"


class Journal:
    """Reader of a journal that another process writes. `entries` contains all entries read so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: list[Entry] = []
        self._position = 0

    def read(self) -> list[Entry]:
        """Read and return the entries added since the last call."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        new = [json.loads(line) for line in whole.splitlines()]
        self.entries += new
        return new

    def of(self, kind: str) -> Iterator[Entry]:
        """Return the fields of the entries of one kind read so far."""
        return (entry[1:] for entry in self.entries if entry[0] == kind)
