"""Runs in a task: fetches a range of offsets and yields its records as Arrow batches. Called by `batch` and `stream` in
Spark's Python workers."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator

import pyarrow as pa

from penstock_spark.decode.decoder import RangeDecoder
from penstock_spark.link.link import Link
from penstock_spark.link.worker_gc import freeze_loaded_objects
from penstock_spark.model.errors import CorruptBatch, OffsetGone, TopicGone
from penstock_spark.model.ranges import OffsetRange
from penstock_spark.options.source import SourceOptions
from penstock_spark.source import losses
from penstock_spark.source.splitting import ReadTask

log = logging.getLogger("penstock_spark")


def read_task(options: SourceOptions, task: ReadTask) -> Iterator[pa.RecordBatch]:
    """Yield the records of a task.

    Raises `DataLoss` for lost records if failOnDataLoss is true, else continues after them. Raises `CorruptBatch`, or
    skips such batches if onCorruptBatch is "skip".
    """
    freeze_loaded_objects()
    link = Link.to(options.connection)
    left = [task.range_]
    skipped = 0
    while left:
        range_ = left.pop()
        read_to = range_.start
        try:
            for rows in read_range(options, link, range_, task):
                read_to = int(rows.column("offset")[-1].as_py()) + 1
                yield rows
        except CorruptBatch as e:
            if not options.skip_corrupt_batches or e.offsets is None:
                raise
            first, last = e.offsets
            skipped += 1
            log.warning("%s; offsets %d to %d are skipped (batch %d of this task)", e, first, last, skipped)
            if last + 1 < range_.end:
                left.append(range_._replace(start=max(last + 1, read_to)))
            if read_to < first:  # records before the batch, which were to be decoded with it
                left.append(range_._replace(start=read_to, end=first))


def read_range(options: SourceOptions, link: Link, left: OffsetRange, task: ReadTask) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range. Raises `DataLoss`, `CorruptBatch`."""
    report = losses.LossReporter(options.fail_on_data_loss).report
    while left.start < left.end:
        decoder = RangeDecoder(left, options.isolation, options.include_headers)
        fetching = link.fetch(left, options.isolation, options.sizes, task.topic_id)
        assert isinstance(fetching, Generator), "a fetch must be closable"
        try:
            for fetched in fetching:
                yield from decoder.feed(fetched)
            return
        except OffsetGone as gone:
            position = max(decoder.next_offset, left.start)
            if gone.log_start <= position < gone.end:
                raise
            report([losses.while_reading(gone, position, left)])
            left = left._replace(start=gone.log_start if gone.log_start > position else left.end)
        except TopicGone as gone:
            report([f"{gone}; offsets {max(decoder.next_offset, left.start)} to {left.end - 1} were to be read"])
            return
        finally:
            # Spark may stop reading early, for example for a LIMIT: the running fetch must end too.
            fetching.close()
