"""Messages about lost records, which are errors or warnings depending on `failOnDataLoss`.

Called by `batch`, `stream` and `reading`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.client import TopicPartition
from penstock_spark.model.errors import DataLoss, OffsetGone
from penstock_spark.model.ranges import OffsetRange

log = logging.getLogger("penstock_spark")
ADVICE = (
    'Some records can no longer be read; to continue without them set option "failOnDataLoss" to false, otherwise '
    "restore them, or start again with a new checkpoint"
)
MAX_SHOWN = 20


@dataclass(frozen=True, slots=True)
class LossReporter:
    """Reports losses."""

    fail: bool

    def report(self, losses: Iterable[str]) -> None:
        """Raise `DataLoss` with the first losses, or log a warning for each."""
        found = list(losses)
        if not found:
            return
        if self.fail:
            more = f" (and {len(found) - MAX_SHOWN} more)" if len(found) > MAX_SHOWN else ""
            raise DataLoss(f"{'; '.join(found[:MAX_SHOWN])}{more}. {ADVICE}")
        for one in found:
            log.warning("%s; the query continues, because failOnDataLoss is false", one)


def named(one: TopicPartition | OffsetRange) -> str:
    """Return topic and partition for a message."""
    return f'topic "{one.topic}", partition {one.partition}'


def deleted_partition(one: TopicPartition, offset: int) -> str:
    """Message for a partition that was deleted."""
    return f"{named(one)} no longer exists; it had been read up to offset {offset}"


def hidden_partition(one: TopicPartition, offset: int, drained: int) -> str:
    """Message for a partition that brokers hide although it has unread records."""
    return (
        f"{named(one)} is hidden since the topic has fewer partitions, and its offsets {offset} to {drained - 1} "
        "were not read; give the topic its partitions back (`penstock topic alter`) to read them"
    )


def vanished(one: TopicPartition) -> str:
    """Message for a partition that was deleted while the query started."""
    return f"{named(one)} existed when the query started, and no longer does"


def recreated_topic(topic: str, was: object, is_: object) -> str:
    """Message for a topic that was deleted and created again."""
    return f'topic "{topic}" was deleted and created again: its id was {was} and is {is_}; unread records are lost'


def cut_off(one: TopicPartition, offset: int, end: int) -> str:
    """Message for a log that was truncated."""
    return f"{named(one)} ends at offset {end}, but was read up to offset {offset}: its log was truncated"


def begins_beyond_end(one: TopicPartition, offset: int, end: int) -> str:
    """Message for a start after the log's end."""
    return f"{named(one)} was to be read from offset {offset}, but ends at offset {end}"


def aged_out(one: TopicPartition, start: int, log_start: int, end: int) -> str:
    """Message for records that retention deleted."""
    return (
        f"{named(one)}: offsets {start} to {min(log_start, end) - 1} were deleted before they were read; "
        f"the log starts at offset {log_start}"
    )


def late_beginning(one: TopicPartition, log_start: int) -> str:
    """Message for a new partition that has already lost records."""
    return f"{named(one)} is new to the query and starts at offset {log_start} instead of 0"


def beyond_end(one: TopicPartition, end: int, log_end: int) -> str:
    """Message for an end after the log's end."""
    return f"{named(one)} was to be read up to offset {end}, but ends at offset {log_end}"


def while_reading(gone: OffsetGone, position: int, range_: OffsetRange) -> str:
    """Message for a range whose next offset left the log while it was read."""
    one = TopicPartition(range_.topic, range_.partition)
    if gone.log_start > position:
        return aged_out(one, position, gone.log_start, range_.end)
    return beyond_end(one, range_.end, gone.end)
