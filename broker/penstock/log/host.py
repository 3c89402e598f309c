"""The interface of the log directory that `PartitionLog` uses. Implemented by `LogDirectory`."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Protocol, TypeVar

from penstock.log.file_pool import FilePool
from penstock.log.index_files import IndexCache
from penstock.runtime.clock import Clock
from penstock.runtime.files import Files

L = TypeVar("L", contravariant=True)
"""`PartitionLog`, which imports this module."""


class LogHost(Protocol[L]):
    """The log directory, as a `PartitionLog` uses it."""

    files: Files
    pool: FilePool
    clock: Clock
    indexes: IndexCache
    random: Random

    def request_flush(self, log: L) -> None:
        """Add the log to the next flush round."""

    def fail(self, error: Exception) -> None:
        """Stop the whole log directory."""

    def mark_dirty(self, log: L) -> None:
        """Handle the first append since the log's last checkpoint."""

    def on_created(self, log: L) -> None:
        """Handle the creation of the log's directory."""

    def create_files(self, log: L) -> asyncio.Future[None] | None:
        """Create the log's directory and first segment in a thread; None if the log directory is closing."""

    def on_rolled(self, log: L) -> None:
        """Schedule retention and compaction after a segment was sealed or settings changed."""

    def start_checkpoint(self, log: L) -> None:
        """Checkpoint the log in the background."""

    async def advance_start(self, log: L) -> None:
        """Make a new start offset durable and drop the segments below it."""

    async def truncate(self, log: L, offset: int) -> None:
        """Remove all batches at or after `offset`, durably."""

    async def truncate_fully_and_start_at(self, log: L, offset: int) -> None:
        """Remove all batches durably; the log then starts at `offset`."""

    async def delete(self, log: L) -> None:
        """Delete the log's directory."""

    async def close_log(self, log: L) -> None:
        """Checkpoint and close the log."""
