"""Starts a broker on a full disk: retention can free space only once it runs. Used by `broker`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.log.log_dir import LogDirectory
from penstock.log.transient_errors import RESERVE_NAME
from penstock.runtime.logging import get_logger
from penstock.state.store import StoreUnavailable

T = TypeVar("T")

log = get_logger("penstock.node")


async def write_despite_full_disk(log_dir: LogDirectory, write: Callable[[], Awaitable[T]]) -> T:
    """Run a write to the embedded store; if the disk is full, delete the logs' reserve and retry.

    The logs create the reserve again later. Raises the errors of `write`.
    """
    try:
        return await write()
    except StoreUnavailable as e:
        files, reserve = log_dir.files, f"{log_dir.path}/{RESERVE_NAME}"
        if not files.exists(reserve):
            raise
        log.warning("disk full; deleting the reserve file to start the broker", reason=str(e))
        files.remove(reserve)
        return await write()
