"""What a log needs of its log directory. Implemented by `LogDir`, called by `PartitionLog`."""

from __future__ import annotations

import asyncio
from typing import Protocol, TypeVar

from penstock.log.file_pool import FilePool
from penstock.log.index_files import IndexCache
from penstock.runtime.clock import Clock
from penstock.runtime.files import Files

L = TypeVar("L", contravariant=True)
"""`PartitionLog`, which imports this."""


class Host(Protocol[L]):
    """See the module."""

    files: Files
    pool: FilePool
    clock: Clock
    indexes: IndexCache

    def request_flush(self, log: L) -> None: ...

    def fail(self, error: Exception) -> None:
        """Stops the whole log directory."""

    def note_dirty(self, log: L) -> None:
        """The log was appended to for the first time since its last checkpoint."""

    def note_created(self, log: L) -> None:
        """The log has a directory now."""

    def create(self, log: L) -> asyncio.Future[None] | None:
        """Has the log's directory and first segment made in a thread; None where the log directory is closing."""

    def note_rolled(self, log: L) -> None:
        """A segment was sealed, or settings changed: retention and compaction may have something to do."""

    def checkpoint_soon(self, log: L) -> None: ...

    async def advance_start(self, log: L) -> None:
        """Makes a new start offset durable; drops segments below it."""

    async def truncate(self, log: L, offset: int) -> None: ...

    async def start_over(self, log: L, offset: int) -> None: ...

    async def delete(self, log: L) -> None: ...

    async def close_log(self, log: L) -> None: ...
