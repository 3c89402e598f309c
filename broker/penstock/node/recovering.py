"""Recovery of the logs in a thread, for the sake of the health pages, by a broker that may be told to end meanwhile.

A thread cannot be cancelled. As long as it runs it writes into the data directory, and the directory's lock, by which
the next process knows that nobody does, must not be given back. Used by `broker` and `clustered`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from penstock.log.log_dir import LogDirectory
from penstock.runtime.logging import get_logger

log = get_logger("penstock.node")


async def in_thread(log_dir: LogDirectory, work: Callable[[], None]) -> None:
    """Runs what recovers; where that is cancelled, it ends with the partition at hand, and is waited for. Raises what
    `work` does."""
    working = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        await asyncio.shield(working)
    except asyncio.CancelledError:
        log_dir.cancel_recovery()
        log.info("stopping: the partition at hand is looked at to its end")
        while not working.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([working])
        working.exception()  # that it was given up, as a rule; the broker ends in any case
        raise
