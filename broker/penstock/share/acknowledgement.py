"""Acknowledgements of a member: their types, and whether a request's are well-formed. Used by `partition`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import groupby
from typing import NamedTuple

from penstock.share.dead_letters import MAX_REASON_CHARS
from penstock.share.redelivery import GROUP_BACKOFF, MAX_DELAY_MS
from penstock.wire.errors import ErrorCode


class AckType(IntEnum):
    """The acknowledgement of a record. GAP is that of an offset without a record; RENEW extends the lock (KIP-1222)."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


ACK_TYPES = frozenset(AckType)
FAILURES = frozenset({AckType.RELEASE, AckType.REJECT})


class AckBatch(NamedTuple):
    """Acknowledgements of adjacent offsets: one type for all, or one for each. `last` is inclusive.

    Records that are released are available after `delay_ms`. `reason` is for the dead letters of those that are
    released or rejected.
    """

    first: int
    last: int
    types: Sequence[int]
    delay_ms: int = GROUP_BACKOFF
    reason: str = ""


class AckResult(NamedTuple):
    """The result of an acknowledgement: an error, or the number of the write to wait for, 0 if there is none."""

    error: ErrorCode
    write: int = 0


def are_well_formed(batches: Sequence[AckBatch]) -> bool:
    """Return whether acknowledgements are in order, of known types, one or as many as their offsets, and delays and
    reasons within their bounds."""
    previous = -1
    for first, last, types, delay_ms, reason in batches:
        if not previous < first <= last or len(types) not in (1, last - first + 1):
            return False
        if not ACK_TYPES.issuperset(types) or not GROUP_BACKOFF <= delay_ms <= MAX_DELAY_MS:
            return False
        if len(reason) > MAX_REASON_CHARS:
            return False
        previous = last
    return True


def ack_runs(batch: AckBatch) -> Iterator[tuple[int, int, int]]:
    """Yield (first, last, type) for adjacent offsets of one type."""
    if len(batch.types) == 1:
        yield batch.first, batch.last, batch.types[0]
        return
    first = batch.first
    for ack_type, equal in groupby(batch.types):
        last = first + sum(1 for _ in equal) - 1
        yield first, last, ack_type
        first = last + 1
