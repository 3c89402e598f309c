"""Collects the syncs of many recovered partitions, because together they take far less time. Used by `recovery`.

One after the other, each sync waits for a commit of the file system: the start after a crash with a thousand partitions
then takes as long as two thousand commits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.runtime.files import File

MAX_PENDING_FILES = 64
"""Open files that wait for their sync."""
MAX_PENDING_BYTES = 256 << 20
"""Rewritten bytes that wait for their sync."""

SyncAll = Callable[[Sequence[File], Sequence[str]], None]
"""Makes files durable, then directories. Raises OSError."""


class DeferredSyncs:
    """Files and directories that were changed and are not synced yet. The files stay open, so that their syncs report
    the errors of earlier writes."""

    def __init__(self, sync_all: SyncAll) -> None:
        self.sync_all = sync_all
        self.files: list[File] = []
        self.directories: dict[str, None] = {}
        self.pending_bytes = 0

    def add_file(self, file: File, written_bytes: int) -> None:
        """Take over an open file; sync everything if much is pending. Raises OSError."""
        self.files.append(file)
        self.pending_bytes += written_bytes
        if len(self.files) >= MAX_PENDING_FILES or self.pending_bytes >= MAX_PENDING_BYTES:
            self.run()

    def add_directory(self, path: str) -> None:
        """Sync a directory with the next run."""
        self.directories[path] = None

    def run(self) -> None:
        """Sync everything that is pending. Raises OSError."""
        try:
            if self.files or self.directories:
                self.sync_all(self.files, list(self.directories))
        finally:
            self.close()

    def close(self) -> None:
        """Close the files without syncing them."""
        for file in self.files:
            file.close()
        self.files, self.directories, self.pending_bytes = [], {}, 0
