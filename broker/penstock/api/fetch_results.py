"""The result of reading the partitions of a Fetch request. Used by `fetch`."""

from __future__ import annotations

from penstock.api.fetch_sessions import FetchTarget, Topic
from penstock.log.types import LogSlice
from penstock.wire.errors import ErrorCode
from penstock.wire.fetch_frame import FetchedPartition


class FetchedPartitions:
    """The result of reading the targets once."""

    __slots__ = ("bytes", "partitions", "urgent")

    def __init__(self) -> None:
        self.partitions: list[tuple[FetchTarget, FetchedPartition]] = []
        self.bytes = 0
        self.urgent = False
        """Whether to respond at once: an error or a divergence."""

    def release(self) -> None:
        """Release the slices; the result is discarded."""
        for _, fetched in self.partitions:
            if isinstance(fetched.records, LogSlice):
                fetched.records.release()


def by_topic(found: list[tuple[FetchTarget, FetchedPartition]]) -> list[tuple[Topic, list[FetchedPartition]]]:
    """Group results by topic. Neighbours mostly share their topic object."""
    if len(found) == 1:
        ((target, fetched),) = found
        return [(target.topic, [fetched])]
    topics: dict[Topic, list[FetchedPartition]] = {}
    last: Topic | None = None
    group: list[FetchedPartition] = []
    for target, fetched in found:
        if target.topic is not last:
            last = target.topic
            group = topics.setdefault(last, [])
        group.append(fetched)
    return list(topics.items())


def is_redirect(fetched: FetchedPartition) -> bool:
    """Return whether the result sends the reader elsewhere: to another offset or replica."""
    return fetched.diverging is not None or fetched.preferred_read_replica >= 0


def sent_state(fetched: FetchedPartition) -> tuple[int, int, int]:
    """Return the state to compare with `FetchTarget.last_sent`."""
    return fetched.error, fetched.high_watermark, fetched.log_start_offset


def record_sent(found: list[tuple[FetchTarget, FetchedPartition]]) -> None:
    """Record what the response tells the reader."""
    for target, fetched in found:
        target.last_sent = sent_state(fetched) if not fetched.error else None


def epoch_error(claimed: int, current: int) -> ErrorCode:
    """Compare a client's leader epoch, -1 for none, with the current one (KIP-320)."""
    if claimed < 0 or claimed == current:
        return ErrorCode.NONE
    return ErrorCode.FENCED_LEADER_EPOCH if claimed < current else ErrorCode.UNKNOWN_LEADER_EPOCH
