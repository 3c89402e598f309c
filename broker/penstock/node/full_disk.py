"""The start of a broker on a full disk: only once it runs can retention free space. Used by `broker`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.log.log_dir import LogDirectory
from penstock.log.transient_errors import RESERVE_NAME
from penstock.runtime.logging import get_logger
from penstock.state.store import StoreUnavailable

T = TypeVar("T")

log = get_logger("penstock.node")


async def despite_full_disk(log_dir: LogDirectory, write: Callable[[], Awaitable[T]]) -> T:
    """What a start has to write into the store beside the logs: where there is no space, that which the logs keep for
    the way out is given up, most of which is left for them. They take it again later. Raises what `write` does.

    For the store of a broker that is alone, where a write that can be repeated has failed for want of space.
    """
    try:
        return await write()
    except StoreUnavailable as e:
        files, reserve = log_dir.files, f"{log_dir.path}/{RESERVE_NAME}"
        if not files.exists(reserve):
            raise
        log.warning("the reserve is given up so that the broker can start", reason=str(e))
        files.remove(reserve)
        return await write()
