"""Limits a batch and divides it among tasks, with the rules of Spark's Kafka connector. No I/O. Called by `batch` and
`stream`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from penstock.client import TopicPartition
from penstock_spark.model.ranges import OffsetRange


class ReadTask(NamedTuple):
    """The range of one task. Pickled."""

    range_: OffsetRange
    topic_id: UUID | None
    """Id of the topic that was planned, if the broker has ids: another topic of the same name is not read."""


def tasks(ranges: list[OffsetRange], ids: Mapping[str, UUID]) -> list[ReadTask]:
    """Return the tasks of ranges."""
    return [ReadTask(one, ids.get(one.topic)) for one in ranges]


def limit_ends(
    limit: int, begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return ends that are about `limit` records after the begins, in proportion to each partition's size.

    A partition with a share of less than one record gets one, so that small partitions do not starve. The sum may
    exceed the limit by the number of such partitions.
    """
    sizes = {one: end - begins[one] for one, end in ends.items() if one in begins and end > begins[one]}
    total = sum(sizes.values())
    found = dict(ends)
    for one, size in sizes.items():
        share = limit * (size / total)
        found[one] = min(ends[one], begins[one] + int(math.ceil(share) if share < 1 else math.floor(share)))
    return found


def split(ranges: Iterable[OffsetRange], min_partitions: int | None, max_records: int | None) -> list[OffsetRange]:
    """Return a range for each task, without empty ones.

    First, ranges are divided until none has more than `max_records` offsets. If there are fewer than
    `min_partitions`, the larger ones are divided further, in proportion. Divided ranges stay in order.
    """
    found = [one for one in ranges if one.end > one.start]
    if max_records is not None:
        found = [part for one in found for part in _divided(one, -(-(one.end - one.start) // max_records))]
    if min_partitions is None or len(found) >= min_partitions:
        return found
    total = sum(one.end - one.start for one in found)
    whole = {one for one in found if _parts(one.end - one.start, total, min_partitions) == 1}
    left = total - sum(one.end - one.start for one in whole)
    needed = max(min_partitions - len(whole), 1)
    divided: list[OffsetRange] = []
    for one in found:
        divided += [one] if one in whole else _divided(one, _parts(one.end - one.start, left, needed))
    return divided


def _parts(size: int, total: int, count: int) -> int:
    return max(int(size / total * count + 0.5), 1)


def _divided(one: OffsetRange, parts: int) -> list[OffsetRange]:
    """Divide a range into parts of equal size, the larger ones last."""
    size = one.end - one.start
    parts = min(parts, size)
    quotient, rest = divmod(size, parts)
    found, start = [], one.start
    for index in range(parts):
        end = start + quotient + (1 if index >= parts - rest else 0)
        found.append(OffsetRange(one.topic, one.partition, start, end))
        start = end
    return found
