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
from penstock_spark.link.ports import TopicPartitions
from penstock_spark.model.errors import Unavailable
from penstock_spark.model.ranges import EARLIEST, LATEST, OffsetRange
from penstock_spark.options.source import SelectionKind, SourceOptions, TopicSelection
from penstock_spark.progress.offsets import StreamOffset
from penstock_spark.source import losses
from penstock_spark.source.changes import TopologyChanges, compare, made_anew
from penstock_spark.source.discovery import Existing, attempts, look, missing, require, resolve, seen
from penstock_spark.source.splitting import ReadTask, limited, split, tasks


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
        """Only that it is the beginning. Spark asks for it when it repeats the first batch too, whose own `@from` says
        where that began; by then the options may lead elsewhere, or nowhere."""
        return StreamOffset({}, initial=True).to_json()

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
        if begin.initial:
            begin = beginning(self._link(), self._options)
        now = self._now(begin)
        self._latest = now
        self._warn_once(*self._options.warnings, missing(self._options.selection, now.offsets))
        found = compare(begin, now)
        losses.Losses(self._options.fail_on_data_loss).report(found.losses)
        ends = self._ends(now, found, limit)
        assert ends is not None or not begin.initial, "the first batch waits for nothing: its start has no offsets"
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
        from penstock_spark.source.reading import read_task  # not needed to plan

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

    def _ends(self, now: StreamOffset, found: TopologyChanges, limit: ReadLimit) -> Mapping[TopicPartition, int] | None:
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


def beginning(link: LinkPort, options: SourceOptions) -> StreamOffset:
    """Where a new query begins. Raises `InvalidOption`, and `Unavailable` where partitions come and go."""
    known: dict[str, TopicPartitions] = {}
    for attempt in attempts(options):
        existing = look(link, options.selection, known, sure=attempt > 0)
        require(options.selection, existing.partitions)
        known = seen(existing.partitions, existing.ids)
        begins = resolve(link, options.starting, existing, options, starting=True)
        absent = sorted(existing.partitions - begins.keys())
        if not absent:
            return StreamOffset(begins, existing.ids, initial=True)
    raise Unavailable(losses.vanished(absent[0]))


def ends_of_all(link: LinkPort, options: SourceOptions, begin: StreamOffset) -> StreamOffset:
    """The ends of all partitions. After a change of leaders an end may lie for a while before what was read already,
    and a broker whose view lags may lack a topic or a partition, or still have another topic of the name: what looks
    like a loss is asked for again, of all brokers, as often as the options say, before it counts as one."""
    known = seen(begin.offsets, begin.ids)
    for attempt in attempts(options):
        existing = look(link, options.selection, known, sure=attempt > 0)
        ends = link.offsets(dict.fromkeys(existing.partitions, LATEST), options.isolation)
        now = StreamOffset(dict(ends), _of_topics(existing, ends))
        if not compare(begin, now).losses:
            break
    return now


def plan(link: LinkPort, options: SourceOptions, begin: StreamOffset, until: StreamOffset) -> list[ReadTask]:
    """What each task reads of the batch from `begin` to `until`. Raises `DataLoss`."""
    start = begin
    if until.began is not None:
        start = StreamOffset(until.began, begin.ids)
    elif begin.initial:  # the first batch of a checkpoint of the connector, which keeps its beginning elsewhere
        start = beginning(link, options)
    for attempt in attempts(options):
        ranges, lost = _ranges(link, options, start, until, sure=attempt > 0)
        if not lost:
            break
    losses.Losses(options.fail_on_data_loss).report(lost)
    return tasks(split(ranges, options.min_partitions, options.max_records_per_partition), until.ids)


def _ranges(
    link: LinkPort, options: SourceOptions, start: StreamOffset, until: StreamOffset, *, sure: bool
) -> tuple[list[OffsetRange], list[str]]:
    """(what is read, what of it is no longer there)."""
    anew = made_anew(start, until)
    begins = {one: offset for one, offset in start.offsets.items() if one.topic not in anew}
    wanted = {one for one, end in until.offsets.items() if end > begins.get(one, -1)}
    # Those that were planned: what the options select may have become other partitions since.
    planned = TopicSelection(SelectionKind.ASSIGN, partitions=frozenset(until.offsets))
    existing = look(link, planned, seen(until.offsets, until.ids), sure=sure)
    gone = made_anew(until, StreamOffset({}, existing.ids))
    log_starts = link.offsets(dict.fromkeys(wanted & existing.partitions, EARLIEST), options.isolation)
    lost = [text for topic, text in gone.items() if topic in {one.topic for one in wanted}]
    ranges: list[OffsetRange] = []
    for one in sorted(wanted):
        if one.topic in gone:
            continue
        log_start, end = log_starts.get(one), until.offsets[one]
        if log_start is None:
            lost.append(losses.deleted_partition(one, begins.get(one, 0)))
            continue
        if one not in begins and log_start:
            lost.append(losses.late_beginning(one, log_start))
        first = begins.get(one, log_start)
        if first < log_start:
            lost.append(losses.aged_out(one, first, log_start, end))
        ranges.append(OffsetRange(*one, max(first, log_start), end))
    return ranges, lost


def _of_topics(existing: Existing, ends: Mapping[TopicPartition, int]) -> dict[str, Any]:
    return {topic: existing.ids[topic] for topic in {one.topic for one in ends} if topic in existing.ids}
