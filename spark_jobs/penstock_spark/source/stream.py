"""`spark.readStream.format("penstock")`. Made by `datasource`.

Spark keeps one reader for each query, in a Python process of the driver, and asks it before each batch how far the
batch is to go (`latestOffset`), then for the ranges of its tasks (`partitions`). What is answered to the first stands
in the checkpoint, so a batch that is repeated after a crash has the same ends. Losses are found before a batch is
written there where that can be, and while it is planned or read otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from penstock.client.types import TopicPartition
from penstock_spark.link.link import Link
from penstock_spark.link.ports import Link as LinkPort
from penstock_spark.model.ranges import EARLIEST, LATEST, OffsetRange
from penstock_spark.options.source import SourceOptions
from penstock_spark.progress.offsets import StreamOffset
from penstock_spark.source import losses
from penstock_spark.source.changes import Changes, compare, made_anew
from penstock_spark.source.discovery import Existing, look, missing, require, resolve, seen
from penstock_spark.source.reading import Task, read_task, tasks
from penstock_spark.source.splitting import limited, split


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._warned: set[str] = set()
        self._available_now = False
        self._target: StreamOffset | None = None
        """With Trigger.AvailableNow: the ends when the query began."""
        self._latest: StreamOffset | None = None
        self._last_batch_s: float | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        link = self._link()
        existing = look(link, self._options.selection)
        require(self._options.selection, existing.partitions)
        begins = resolve(link, self._options.starting, existing, self._options, starting=True)
        return StreamOffset(begins, existing.ids, initial=True).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._available_now = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Raises `DataLoss` before a batch begins that could not be read."""
        begin = StreamOffset.from_json(start)
        now = self._now(begin)
        self._latest = now
        self._warn_once(*self._options.warnings, missing(self._options.selection, now.offsets))
        found = compare(begin, now)
        losses.Losses(self._options.fail_on_data_loss).report(found.losses)
        ends = self._ends(now, found, limit)
        if ends is None or (ends == begin.offsets and now.ids == begin.ids and not begin.initial):
            return start
        ids = {topic: now.ids.get(topic, id_) for topic, id_ in begin.ids.items()} | dict(now.ids)
        kept = {topic: ids[topic] for topic in {one.topic for one in ends} if topic in ids}
        return StreamOffset(ends, kept, began=begin.offsets if begin.initial else None).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return None if self._latest is None else self._latest.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        if start == end:
            return []
        begin, until = StreamOffset.from_json(start), StreamOffset.from_json(end)
        return [InputPartition(one) for one in plan(self._link(), self._options, begin, until)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(self._options, partition.value)

    def _link(self) -> LinkPort:
        return Link.to(self._options.connection)

    def _warn_once(self, *texts: str) -> None:
        for text in texts:
            if text and text not in self._warned:
                self._warned.add(text)
                losses.log.warning("%s", text)

    def _now(self, begin: StreamOffset) -> StreamOffset:
        if self._target is not None:
            return self._target
        now = ends_of_all(self._link(), self._options, begin)
        if self._available_now:
            self._target = now
        return now

    def _ends(self, now: StreamOffset, found: Changes, limit: ReadLimit) -> Mapping[TopicPartition, int] | None:
        """None: not enough is there yet."""
        low, high = self._options.min_offsets_per_trigger, self._options.max_offsets_per_trigger
        if isinstance(limit, ReadMaxRows):
            high = limit.max_rows
        if isinstance(limit, ReadAllAvailable) or (low is None and high is None):
            return now.offsets
        begins = found.begins
        if found.new:
            begins = begins | dict(self._link().offsets(dict.fromkeys(found.new, EARLIEST), self._options.isolation))
        # With Trigger.AvailableNow there is nothing to wait for; and a loss is to be left behind, not told of for ever.
        waiting = low is not None and not self._available_now and not found.losses
        if low is not None and waiting and self._waits(low, begins, now.offsets):
            return None
        return now.offsets if high is None else limited(high, begins, now.offsets)

    def _waits(self, low: int, begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> bool:
        now_s = time.monotonic()
        due = self._last_batch_s is None or (now_s - self._last_batch_s) * 1000 >= self._options.max_trigger_delay_ms
        if not due and sum(end - begins.get(one, end) for one, end in ends.items()) < low:
            return True
        self._last_batch_s = now_s
        return False


def ends_of_all(link: LinkPort, options: SourceOptions, begin: StreamOffset) -> StreamOffset:
    """The ends of all partitions. After a change of leaders an end may lie for a while before what was read already,
    and a broker whose view lags may lack a topic or a partition, or still have another topic of the name: what looks
    like a loss is asked for again, as often as the options say, before it counts as one."""
    known = seen(begin.offsets, begin.ids)
    for _ in attempts(options):
        existing = look(link, options.selection, known)
        ends = link.offsets(dict.fromkeys(existing.partitions, LATEST), options.isolation)
        now = StreamOffset(dict(ends), _of_topics(existing, ends))
        if not compare(begin, now).losses:
            break
    return now


def attempts(options: SourceOptions) -> Iterator[int]:
    """How often what looks like a loss is asked for, with pauses between."""
    for attempt in range(options.retries):
        if attempt:
            time.sleep(options.retry_interval_ms / 1000)
        yield attempt


def plan(link: LinkPort, options: SourceOptions, begin: StreamOffset, until: StreamOffset) -> list[Task]:
    """What each task reads of the batch from `begin` to `until`. Raises `DataLoss`."""
    start = StreamOffset(until.began, begin.ids) if until.began is not None else begin
    anew = made_anew(start, until)
    begins = {one: offset for one, offset in start.offsets.items() if one.topic not in anew}
    wanted = {one for one, end in until.offsets.items() if end > begins.get(one, -1)}
    gone, log_starts = _still_there(link, options, wanted, until)
    found = [text for topic, text in gone.items() if topic in {one.topic for one in wanted}]
    ranges: list[OffsetRange] = []
    for one in sorted(wanted):
        if one.topic in gone:
            continue
        log_start, end = log_starts.get(one), until.offsets[one]
        if log_start is None:
            found.append(losses.deleted_partition(one, begins.get(one, 0)))
            continue
        if one not in begins and log_start:
            found.append(losses.late_beginning(one, log_start))
        first = begins.get(one, log_start)
        if first < log_start:
            found.append(losses.aged_out(one, first, log_start, end))
        ranges.append(OffsetRange(*one, max(first, log_start), end))
    losses.Losses(options.fail_on_data_loss).report(found)
    return tasks(split(ranges, options.min_partitions, options.max_records_per_partition), until.ids)


def _still_there(
    link: LinkPort, options: SourceOptions, wanted: set[TopicPartition], until: StreamOffset
) -> tuple[dict[str, str], Mapping[TopicPartition, int]]:
    """(what topics were made anew since `until`, where the others' logs begin); partitions that are gone are left
    out."""
    known = seen(until.offsets, until.ids)
    for _ in attempts(options):
        existing = look(link, options.selection, known)
        gone = made_anew(until, StreamOffset({}, existing.ids))
        log_starts = link.offsets(dict.fromkeys(wanted & existing.partitions, EARLIEST), options.isolation)
        if not gone and wanted <= log_starts.keys():
            break
    return gone, log_starts


def _of_topics(existing: Existing, ends: Mapping[TopicPartition, int]) -> dict[str, Any]:
    return {topic: existing.ids[topic] for topic in {one.topic for one in ends} if topic in existing.ids}
