"""How much a batch reads, and how that is divided among tasks: the rules of Spark's own Kafka connector, as functions
without I/O. Called by `batch` and `stream`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from penstock.client.types import TopicPartition
from penstock_spark.model.ranges import OffsetRange


class ReadTask(NamedTuple):
    """What one task reads. Pickled."""

    range_: OffsetRange
    topic_id: UUID | None
    """Of the topic that the range was planned for, where the broker has ids: another topic of its name is not read."""


def tasks(ranges: list[OffsetRange], ids: Mapping[str, UUID]) -> list[ReadTask]:
    return [ReadTask(one, ids.get(one.topic)) for one in ranges]


def limited(
    limit: int, begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Ends that lie at most about `limit` records after the begins, each partition in proportion to what it holds.

    A partition that would get less than one record gets one, so that small partitions do not starve beside large ones:
    the sum may be greater than the limit by as many as there are such partitions.
    """
    sizes = {one: end - begins[one] for one, end in ends.items() if one in begins and end > begins[one]}
    total = sum(sizes.values())
    found = dict(ends)
    for one, size in sizes.items():
        share = limit * (size / total)
        found[one] = min(ends[one], begins[one] + int(math.ceil(share) if share < 1 else math.floor(share)))
    return found


def split(ranges: Iterable[OffsetRange], min_partitions: int | None, max_records: int | None) -> list[OffsetRange]:
    """A range for each task. Empty ranges are left out.

    First no range has more than `max_records` offsets; where that makes fewer than `min_partitions` of them, the larger
    ones are divided further, in proportion. Divided ranges stay in the order of their offsets.
    """
    found = [one for one in ranges if one.end > one.start]
    if max_records is not None:
        found = [part for one in found for part in _divided(one, -(-(one.end - one.start) // max_records))]
    if min_partitions is None or len(found) >= min_partitions:
        return found
    total = sum(one.end - one.start for one in found)
    whole = {one for one in found if _parts(one.end - one.start, total, min_partitions) == 1}
    left = total - sum(one.end - one.start for one in whole)
    wanted = max(min_partitions - len(whole), 1)
    divided: list[OffsetRange] = []
    for one in found:
        divided += [one] if one in whole else _divided(one, _parts(one.end - one.start, left, wanted))
    return divided


def _parts(size: int, total: int, wanted: int) -> int:
    return max(int(size / total * wanted + 0.5), 1)


def _divided(one: OffsetRange, parts: int) -> list[OffsetRange]:
    """As equal as whole numbers can be, the greater ones last."""
    size = one.end - one.start
    parts = min(parts, size)
    quotient, rest = divmod(size, parts)
    found, start = [], one.start
    for index in range(parts):
        end = start + quotient + (1 if index >= parts - rest else 0)
        found.append(OffsetRange(one.topic, one.partition, start, end))
        start = end
    return found
