"""Where a share group starts in a partition without a state: `share.auto.offset.reset`."""

from __future__ import annotations

import asyncio

from penstock.config.share_groups import ShareOffsetReset, ShareResetStrategy
from penstock.log.types import LogError
from penstock.replica.leader import Leader


async def initial_offset(leader: Leader, reset: ShareOffsetReset, now_ms: int) -> int | None:
    """Return the offset of the first record to deliver; None while the leader cannot tell.

    A new leader does not know what is committed (KIP-207) or due yet. A search by time runs in a thread.
    """
    if reset.strategy is ShareResetStrategy.EARLIEST:
        return leader.log.start_offset
    end = leader.visible_offset
    if not leader.is_end_known:
        return None
    if reset.strategy is ShareResetStrategy.LATEST:
        return end
    log, oldest_ms = leader.log, max(now_ms - reset.duration_ms, 0)
    try:
        found = await asyncio.to_thread(lambda: log.offset_for_timestamp(oldest_ms, end))
    except LogError:
        return None
    return end if found is None else found.offset
