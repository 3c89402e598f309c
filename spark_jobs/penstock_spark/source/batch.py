"""`spark.read.format("penstock")`: planned once, in a Python process of the driver. Created by `datasource`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.client import TopicPartition, TopicPartitions
from penstock_spark.link.link import Link
from penstock_spark.link.ports import BrokerLink
from penstock_spark.model.ranges import EARLIEST, LATEST, OffsetRange
from penstock_spark.options.source import BoundKind, SourceOptions
from penstock_spark.source import losses
from penstock_spark.source.discovery import (
    ExistingPartitions,
    attempts,
    find_partitions,
    known_topics,
    require,
    resolve,
)
from penstock_spark.source.splitting import ReadTask, split, tasks


class BatchReader(DataSourceReader):
    """Reader of a batch query."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Return the ranges to read, one for each task."""
        for text in self._options.warnings:
            losses.log.warning("%s", text)
        planned = plan(Link.to(self._options.connection), self._options)
        # Spark makes a partition without a value of an empty list; `read` returns no rows for it.
        return [InputPartition(one) for one in planned]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range; runs in the task."""
        if partition.value is None:
            return iter(())
        from penstock_spark.source.reading import read_task  # not needed to plan

        return read_task(self._options, partition.value)


def plan(link: BrokerLink, options: SourceOptions) -> list[ReadTask]:
    """Return the range of each task. Raises `InvalidOption` and `DataLoss`."""
    known: dict[str, TopicPartitions] = {}
    for attempt in attempts(options):
        existing = find_partitions(link, options.selection, known, confirmed=attempt > 0)
        require(options.selection, existing.partitions)
        known = known_topics(existing.partitions, existing.ids)
        ranges, lost = _ranges(link, options, existing)
        if not lost:
            break
    losses.LossReporter(options.fail_on_data_loss).report(lost)
    return tasks(split(ranges, options.min_partitions, options.max_records_per_partition), existing.ids)


def _ranges(
    link: BrokerLink, options: SourceOptions, existing: ExistingPartitions
) -> tuple[list[OffsetRange], list[str]]:
    """Return the ranges to read, and messages about losses."""
    begins = resolve(link, options.starting, existing, options, starting=True)
    ends = resolve(link, options.ending, existing, options, starting=False)
    found = sorted(begins.keys() & ends.keys())
    lost = [losses.vanished(one) for one in sorted(existing.partitions.difference(found))]
    log_starts: Mapping[TopicPartition, int] = {}
    log_ends: Mapping[TopicPartition, int] = {}
    if options.starting.kind is BoundKind.OFFSETS:
        log_starts = link.offsets(dict.fromkeys(found, EARLIEST), options.isolation)
    if options.ending.kind is BoundKind.OFFSETS:
        log_ends = link.offsets(dict.fromkeys(found, LATEST), options.isolation)
    ranges = []
    for one in found:
        begin, end = begins[one], ends[one]
        log_start, log_end = log_starts.get(one, begin), log_ends.get(one, end)
        if begin < min(log_start, end):
            lost.append(losses.aged_out(one, begin, log_start, end))
        if end > log_end:
            lost.append(losses.beyond_end(one, end, log_end))
        ranges.append(OffsetRange(*one, max(begin, log_start), min(end, log_end)))
    return ranges, lost
