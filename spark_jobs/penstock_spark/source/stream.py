"""`spark.readStream.format("penstock")`. Created by `datasource`.

Spark keeps one reader for each query, in a Python process of the driver. Before each batch it asks the reader for the
batch's end (`latestOffset`), then for the ranges of its tasks (`partitions`). The end is stored in the checkpoint, so a
batch that is repeated after a crash has the same end. Losses are detected before the end is stored if possible, else
while the batch is planned or read.
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

from penstock.client import TopicPartition, TopicPartitions
from penstock_spark.link.link import Link
from penstock_spark.link.ports import BrokerLink
from penstock_spark.model.errors import Unavailable
from penstock_spark.model.ranges import EARLIEST, LATEST, OffsetRange
from penstock_spark.options.source import SelectionKind, SourceOptions, TopicSelection
from penstock_spark.progress.offsets import StreamOffset
from penstock_spark.source import losses
from penstock_spark.source.changes import (
    TopologyChanges,
    compare,
    missing_partitions,
    recreated_topics,
    with_hidden,
)
from penstock_spark.source.discovery import (
    ExistingPartitions,
    attempts,
    find_partitions,
    known_topics,
    missing,
    require,
    resolve,
)
from penstock_spark.source.splitting import ReadTask, limit_ends, split, tasks


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of a streaming query."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._warned: set[str] = set()
        self._available_now = False
        self._target: StreamOffset | None = None
        """With Trigger.AvailableNow: the ends at the start of the query."""
        self._latest: StreamOffset | None = None
        self._last_batch_s: float | None = None
        self._hidden: dict[TopicPartition, int] = {}
        """Hidden partitions of the last query for ends; see `latest_ends`."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return a marker for the start. Spark also calls this to repeat the first batch, whose own `@from` has the
        start; the options may resolve to other offsets by then."""
        return StreamOffset({}, initial=True).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that the options set."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the query at the current ends."""
        self._available_now = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch. Raises `DataLoss` if it could not be read."""
        begin = StreamOffset.from_json(start)
        if begin.initial:
            begin = starting_offset(self._link(), self._options)
        now = self._now(begin)
        self._latest = now
        self._warn_once(*self._options.warnings, missing(self._options.selection, now.offsets))
        found = compare(begin, now, self._hidden)
        losses.LossReporter(self._options.fail_on_data_loss).report(found.losses)
        ends = self._ends(now, found, limit)
        assert ends is not None or not begin.initial, "the first batch does not wait: its start has no offsets"
        if ends is None or (ends == begin.offsets and now.ids == begin.ids and not begin.initial):
            return start
        ids = {topic: now.ids.get(topic, id_) for topic, id_ in begin.ids.items()} | dict(now.ids)
        kept = {topic: ids[topic] for topic in {one.topic for one in ends} if topic in ids}
        return StreamOffset(ends, kept, began=begin.offsets if begin.initial else None).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the latest ends, which Spark reports."""
        return None if self._latest is None else self._latest.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the ranges of a batch, one for each task."""
        if start == end:
            return []
        begin, until = StreamOffset.from_json(start), StreamOffset.from_json(end)
        return [InputPartition(one) for one in plan(self._link(), self._options, begin, until)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range; runs in the task."""
        from penstock_spark.source.reading import read_task  # not needed to plan

        return read_task(self._options, partition.value)

    def _link(self) -> BrokerLink:
        return Link.to(self._options.connection)

    def _warn_once(self, *texts: str) -> None:
        for text in texts:
            if text and text not in self._warned:
                self._warned.add(text)
                losses.log.warning("%s", text)

    def _now(self, begin: StreamOffset) -> StreamOffset:
        if self._target is not None:
            return self._target
        now, self._hidden = latest_ends(self._link(), self._options, begin, self._hidden)
        if self._available_now:
            self._target = now
        return now

    def _ends(self, now: StreamOffset, found: TopologyChanges, limit: ReadLimit) -> Mapping[TopicPartition, int] | None:
        """Return the end of the next batch; None if there are too few records."""
        low, high = self._options.min_offsets_per_trigger, self._options.max_offsets_per_trigger
        if isinstance(limit, ReadMaxRows):
            high = limit.max_rows
        if isinstance(limit, ReadAllAvailable) or (low is None and high is None):
            return now.offsets
        begins = found.begins
        if found.new:
            begins = begins | dict(self._link().offsets(dict.fromkeys(found.new, EARLIEST), self._options.isolation))
        # With Trigger.AvailableNow no more records are awaited. A loss starts the batch, so that it is reported once.
        waiting = low is not None and not self._available_now and not found.losses
        if low is not None and waiting and self._waits(low, begins, now.offsets):
            return None
        return now.offsets if high is None else limit_ends(high, begins, now.offsets)

    def _waits(self, low: int, begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> bool:
        now_s = time.monotonic()
        due = self._last_batch_s is None or (now_s - self._last_batch_s) * 1000 >= self._options.max_trigger_delay_ms
        if not due and sum(end - begins.get(one, end) for one, end in ends.items()) < low:
            return True
        self._last_batch_s = now_s
        return False


def starting_offset(link: BrokerLink, options: SourceOptions) -> StreamOffset:
    """Return the start of a new query. Raises `InvalidOption`, and `Unavailable` if partitions keep changing."""
    known: dict[str, TopicPartitions] = {}
    for attempt in attempts(options):
        existing = find_partitions(link, options.selection, known, confirmed=attempt > 0)
        require(options.selection, existing.partitions)
        known = known_topics(existing.partitions, existing.ids)
        begins = resolve(link, options.starting, existing, options, starting=True)
        absent = sorted(existing.partitions - begins.keys())
        if not absent:
            return StreamOffset(begins, existing.ids, initial=True)
    raise Unavailable(losses.vanished(absent[0]))


def latest_ends(
    link: BrokerLink, options: SourceOptions, begin: StreamOffset, expected: Mapping[TopicPartition, int]
) -> tuple[StreamOffset, dict[TopicPartition, int]]:
    """Return the ends of all partitions, and the hidden ones of topics with fewer partitions (see `BrokerLink.hidden`).

    A hidden partition ends where the query has read to, if it has read all. `expected` are the hidden partitions of the
    last call: that brokers do not report them is no reason to ask all brokers.

    After a leader change an end may temporarily lie before the offsets read, and a broker with stale metadata may lack
    a topic or partition, or have an earlier topic of the name. So apparent losses are checked again with all brokers,
    as often as the options say.
    """
    known = known_topics(begin.offsets.keys() - expected.keys(), begin.ids)
    for attempt in attempts(options):
        existing = find_partitions(link, options.selection, known, confirmed=attempt > 0)
        ends = link.offsets(dict.fromkeys(existing.partitions, LATEST), options.isolation)
        now = StreamOffset(dict(ends), _topic_ids(existing, ends))
        missing_topics = {one.topic for one in missing_partitions(begin, now)}
        hidden = dict(link.hidden(missing_topics)) if missing_topics else {}
        now = with_hidden(begin, now, hidden)
        if not compare(begin, now).losses:
            break
    return now, hidden


def plan(link: BrokerLink, options: SourceOptions, begin: StreamOffset, until: StreamOffset) -> list[ReadTask]:
    """Return the range of each task for the batch from `begin` to `until`. Raises `DataLoss`."""
    start = begin
    if until.began is not None:
        start = StreamOffset(until.began, begin.ids)
    elif begin.initial:  # first batch of the connector's checkpoint, which keeps its start elsewhere
        start = starting_offset(link, options)
    for attempt in attempts(options):
        ranges, lost = _ranges(link, options, start, until, confirmed=attempt > 0)
        if not lost:
            break
    losses.LossReporter(options.fail_on_data_loss).report(lost)
    return tasks(split(ranges, options.min_partitions, options.max_records_per_partition), until.ids)


def _ranges(
    link: BrokerLink, options: SourceOptions, start: StreamOffset, until: StreamOffset, *, confirmed: bool
) -> tuple[list[OffsetRange], list[str]]:
    """Return the ranges to read, and messages about losses."""
    recreated = recreated_topics(start, until)
    begins = {one: offset for one, offset in start.offsets.items() if one.topic not in recreated}
    to_read = {one for one, end in until.offsets.items() if end > begins.get(one, -1)}
    # The planned partitions: the options may select others by now.
    planned = TopicSelection(SelectionKind.ASSIGN, partitions=frozenset(until.offsets))
    existing = find_partitions(link, planned, known_topics(to_read, until.ids), confirmed=confirmed)
    gone = recreated_topics(until, StreamOffset({}, existing.ids))
    log_starts = link.offsets(dict.fromkeys(to_read & existing.partitions, EARLIEST), options.isolation)
    lost = [text for topic, text in gone.items() if topic in {one.topic for one in to_read}]
    ranges: list[OffsetRange] = []
    for one in sorted(to_read):
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


def _topic_ids(existing: ExistingPartitions, ends: Mapping[TopicPartition, int]) -> dict[str, Any]:
    return {topic: existing.ids[topic] for topic in {one.topic for one in ends} if topic in existing.ids}
