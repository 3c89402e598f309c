"""Records that were to be read and are gone: said in words, and made an error or a warning as `failOnDataLoss` says.

Called by `batch`, `stream` and `reading`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.client.types import TopicPartition
from penstock_spark.model.errors import DataLoss, OffsetGone
from penstock_spark.model.ranges import OffsetRange

log = logging.getLogger("penstock_spark")
CURE = (
    "Some records can no longer be read. If the query is to go on without them, set the option failOnDataLoss to "
    "false; otherwise bring them back, or begin anew with a new checkpoint"
)
MAX_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Losses:
    fail: bool

    def report(self, losses: Iterable[str]) -> None:
        """Raises `DataLoss` for the first ones, or warns of each."""
        found = list(losses)
        if not found:
            return
        if self.fail:
            more = f" (and {len(found) - MAX_SHOWN} more)" if len(found) > MAX_SHOWN else ""
            raise DataLoss(f"{'; '.join(found[:MAX_SHOWN])}{more}. {CURE}")
        for one in found:
            log.warning("%s. The query goes on, because failOnDataLoss is false", one)


def named(one: TopicPartition | OffsetRange) -> str:
    return f"topic {one.topic!r}, partition {one.partition}"


def deleted_partition(one: TopicPartition, offset: int) -> str:
    return f"{named(one)} no longer exists; it had been read up to offset {offset}"


def vanished(one: TopicPartition) -> str:
    return f"{named(one)} was there when the query began, and is no longer"


def made_anew(topic: str, was: object, is_: object) -> str:
    return f"topic {topic!r} was deleted and made anew: its id was {was} and is {is_}; what was unread is lost"


def cut_off(one: TopicPartition, offset: int, end: int) -> str:
    return f"{named(one)} ends at offset {end}, but had been read up to offset {offset}: records were cut off its log"


def begins_beyond_end(one: TopicPartition, offset: int, end: int) -> str:
    return f"{named(one)} was to be read from offset {offset} on, but ends at offset {end}"


def aged_out(one: TopicPartition, start: int, log_start: int, end: int) -> str:
    return (
        f"{named(one)}: offsets {start} to {min(log_start, end) - 1} were deleted before they were read; "
        f"the log begins at offset {log_start}"
    )


def late_beginning(one: TopicPartition, log_start: int) -> str:
    return f"{named(one)} is new to the query and begins at offset {log_start} instead of 0"


def beyond_end(one: TopicPartition, end: int, log_end: int) -> str:
    return f"{named(one)} was to be read up to offset {end}, but ends at offset {log_end}"


def while_reading(gone: OffsetGone, position: int, range_: OffsetRange) -> str:
    one = TopicPartition(range_.topic, range_.partition)
    if gone.log_start > position:
        return aged_out(one, position, gone.log_start, range_.end)
    return beyond_end(one, range_.end, gone.end)
