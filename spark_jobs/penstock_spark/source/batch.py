"""`spark.read.format("penstock")`: planned once, in a Python process of the driver. Made by `datasource`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.client.types import TopicPartition
from penstock_spark.link.link import Link
from penstock_spark.link.ports import Link as LinkPort
from penstock_spark.model.ranges import EARLIEST, LATEST, OffsetRange
from penstock_spark.options.source import Kind, SourceOptions
from penstock_spark.source import losses
from penstock_spark.source.discovery import look, require, resolve
from penstock_spark.source.reading import Task, read_task, tasks
from penstock_spark.source.splitting import split


class BatchReader(DataSourceReader):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        for text in self._options.warnings:
            losses.log.warning("%s", text)
        planned = plan(Link.to(self._options.connection), self._options)
        # Of an empty list Spark would make a partition without a value: `read` takes it as nothing.
        return [InputPartition(one) for one in planned]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:
            return iter(())
        return read_task(self._options, partition.value)


def plan(link: LinkPort, options: SourceOptions) -> list[Task]:
    """What each task reads. Raises `InvalidOption` and `DataLoss`."""
    existing = look(link, options.selection)
    require(options.selection, existing.partitions)
    begins = resolve(link, options.starting, existing, options, starting=True)
    ends = resolve(link, options.ending, existing, options, starting=False)
    if options.starting.kind is Kind.OFFSETS:
        begins = _not_before(begins, link.offsets(dict.fromkeys(begins, EARLIEST), options.isolation), ends, options)
    if options.ending.kind is Kind.OFFSETS:
        ends = _not_beyond(ends, link.offsets(dict.fromkeys(ends, LATEST), options.isolation), options)
    ranges = [OffsetRange(*one, begins[one], ends[one]) for one in sorted(begins.keys() & ends.keys())]
    return tasks(split(ranges, options.min_partitions, options.max_records_per_partition), existing.ids)


def _not_before(
    begins: Mapping[TopicPartition, int],
    log_starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    options: SourceOptions,
) -> dict[TopicPartition, int]:
    """Where an offset that was asked for is no longer there."""
    gone = [one for one, begin in sorted(begins.items()) if begin < min(log_starts.get(one, 0), ends.get(one, 0))]
    losses.Losses(options.fail_on_data_loss).report(
        losses.aged_out(one, begins[one], log_starts[one], ends[one]) for one in gone
    )
    return {one: max(begin, log_starts.get(one, 0)) for one, begin in begins.items()}


def _not_beyond(
    ends: Mapping[TopicPartition, int], log_ends: Mapping[TopicPartition, int], options: SourceOptions
) -> dict[TopicPartition, int]:
    """Where an offset that was asked for is not yet there, or no longer."""
    beyond = [one for one, end in sorted(ends.items()) if end > log_ends.get(one, end)]
    losses.Losses(options.fail_on_data_loss).report(losses.beyond_end(one, ends[one], log_ends[one]) for one in beyond)
    return {one: min(end, log_ends.get(one, end)) for one, end in ends.items()}
