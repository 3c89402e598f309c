"""Where a seal is read to: the last data below it, and how the record of a seal changes. Called by
`sealed_partition`."""

from __future__ import annotations

import asyncio

from penstock.replica.leader import Leader
from penstock.shrink.relay import read_batches
from penstock.shrink.relay_state import select_batches
from penstock.state.shrink_records import SealRecord
from penstock.state.view import SealView

FIRST_WINDOW = 64
"""Offsets before the seal that are searched first; each further search covers 16 times as many."""
MAX_SCANNED_BYTES = 1 << 20


def sealed_record(before: SealView | None, offset: int, target: int, drained_offset: int, log_start: int) -> SealRecord:
    """Return the record of a partition that is sealed at an offset."""
    gaps = [] if before is None else [gap for gap in before.gaps if gap[1] > log_start]
    has_records = log_start < drained_offset
    return SealRecord(offset=offset, target=target, drained_offset=drained_offset, has_records=has_records, gaps=gaps)


def emptied_record(seal: SealView) -> SealRecord:
    """Return the record of a sealed partition whose records below the seal are all deleted."""
    return SealRecord(
        offset=seal.offset,
        target=seal.target,
        drained_offset=seal.drained_offset,
        has_records=False,
        gaps=list(seal.gaps),
    )


def opened_record(seal: SealView, relayed_end: int, log_start: int) -> SealRecord:
    """Return the record of a partition that is opened again: what is relayed becomes a gap."""
    gaps = [gap for gap in seal.gaps if gap[1] > log_start]
    if relayed_end > max(seal.offset, log_start):
        first = seal.offset
        if gaps and gaps[-1][1] == first:
            first = gaps.pop()[0]
        gaps.append((first, relayed_end))
    return SealRecord(gaps=gaps)


async def find_drained_offset(leader: Leader, seal: int) -> int:
    """Return the end of the last batch with records below the seal; the log start if there is none.

    Markers and aborted transactions before the seal are no records: some clients never commit an offset behind them.
    Raises LogError, OSError, MalformedMessage.
    """
    log, window = leader.log, FIRST_WINDOW
    while True:
        first = max(log.start_offset, seal - window)
        found = await last_data_end(leader, first, seal)
        if found is not None or first <= log.start_offset:
            return log.start_offset if found is None else found
        window *= 16


async def last_data_end(leader: Leader, position: int, seal: int) -> int | None:
    """Return the end of the last batch with records in a range; None if there is none."""
    found: int | None = None
    while position < seal:
        records = leader.read(max(position, leader.log.start_offset), MAX_SCANNED_BYTES, True, seal)
        if records is None:
            break
        try:
            batches = await asyncio.to_thread(read_batches, records)
        finally:
            records.release()
        if not batches:
            break
        end = batches[-1].end_offset
        aborted = leader.aborted_between(position, end)
        found = max((batch.end_offset for batch in select_batches(batches, 0, aborted)), default=found)
        position = end
    return found
