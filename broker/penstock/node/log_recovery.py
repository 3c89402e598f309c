"""Runs log recovery in a thread, so that the health endpoints respond and the broker can be stopped meanwhile.

A thread cannot be cancelled. While it writes to the data directory, the directory's lock must not be released. Used by
`broker` and `clustered`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from penstock.log.log_dir import LogDirectory
from penstock.runtime.logging import get_logger

log = get_logger("penstock.node")


async def run_recovery(log_dir: LogDirectory, work: Callable[[], None]) -> None:
    """Run `work` in a thread. On cancellation, wait until it has finished the current partition. Raises the errors of
    `work`."""
    working = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        await asyncio.shield(working)
    except asyncio.CancelledError:
        log_dir.cancel_recovery()
        log.info("stopping after the recovery of the current partition")
        while not working.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([working])
        working.exception()  # usually its cancellation; the broker stops in any case
        raise
