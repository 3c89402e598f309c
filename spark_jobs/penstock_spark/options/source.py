"""Options of `spark.read` and `spark.readStream` as one frozen value. Called by `source`, `progress` and `jobs`.

Options for the same bound have the connector's precedence: one timestamp for all, timestamps by partition, offsets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from penstock.client import FetchSizes, TopicPartition
from penstock.config.addresses import quoted
from penstock_spark.model.connection import ConnectionOptions
from penstock_spark.model.errors import InvalidOption
from penstock_spark.model.ranges import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED
from penstock_spark.options.kafka import COMMON, pop_connection
from penstock_spark.options.names import reject_unknown
from penstock_spark.options.text import MAX_LONG, OptionReader, by_partition, partitions_of, whole_number

KNOWN = (
    "assign",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "onCorruptBatch",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "penstock.progress.group",
    "kafka.group.id",
    "kafka.isolation.level",
    "kafka.fetch.max.bytes",
    "kafka.max.partition.fetch.bytes",
    *COMMON,
)
_OFFSETS = '{"topicA": {"0": 23, "1": -2}, "topicB": {"0": -1}}'
_TIMES = '{"topicA": {"0": 1700000000000, "1": 1700000000000}}'
_NOT_STREAMING = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_NOT_BATCH = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
MAX_GROUP_CHARS = 249
DEFAULT_MAX_TRIGGER_DELAY_MS = 15 * 60_000
DEFAULT_GIVE_UP_MS = 120_000
DEFAULT_RETRIES = 3
DEFAULT_RETRY_INTERVAL_MS = 1000


class SelectionKind(Enum):
    """The option that selects partitions."""

    ASSIGN = "assign"
    SUBSCRIBE = "subscribe"
    PATTERN = "subscribePattern"


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """The partitions to read: for each `choice` one of the other fields is set."""

    choice: SelectionKind
    partitions: frozenset[TopicPartition] = frozenset()
    topics: frozenset[str] = frozenset()
    pattern: str = ""
    """A regular expression that may match anywhere in a topic's name, as in the connector."""

    def __str__(self) -> str:
        named = (
            self.pattern or ", ".join(sorted(self.topics)) or ", ".join(f"{t}-{p}" for t, p in sorted(self.partitions))
        )
        return f"{self.choice.value} {named}"

    @property
    def names(self) -> frozenset[str] | None:
        """Names of the topics to query; None: all topics."""
        if self.choice is SelectionKind.PATTERN:
            return None
        return self.topics or frozenset(topic for topic, _ in self.partitions)

    def selects(self, topic: str) -> bool:
        """Return whether a topic of this name is selected."""
        names = self.names
        return topic in names if names is not None else re.search(self.pattern, topic) is not None

    def selects_partition(self, topic: str, partition: int) -> bool:
        """Return whether a partition is selected."""
        if self.choice is SelectionKind.ASSIGN:
            return TopicPartition(topic, partition) in self.partitions
        return self.selects(topic)


class BoundKind(Enum):
    """How a bound is given: one offset for all, offsets by partition, times by partition, one time for all."""

    EVERYWHERE = "everywhere"
    OFFSETS = "offsets"
    TIMES = "times"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class OffsetBound:
    """Start or end of reading. `everywhere` is `EARLIEST`, `LATEST`, or for `TIME` milliseconds since the epoch."""

    kind: BoundKind
    everywhere: int = EARLIEST
    each: Mapping[TopicPartition, int] | None = None


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The parsed options of a reader."""

    connection: ConnectionOptions
    selection: TopicSelection
    starting: OffsetBound
    ending: OffsetBound
    """For streaming queries always `LATEST`."""
    no_match_is_latest: bool
    """Start at the end if no record is as new as the starting timestamp; otherwise that is an error."""
    fail_on_data_loss: bool
    skip_corrupt_batches: bool
    isolation: int
    sizes: FetchSizes
    include_headers: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    retries: int
    retry_interval_ms: int
    """Number and interval of further queries for end offsets that lie before the offsets read already."""
    progress_group: str | None
    """Group that gets the query's offsets; None: `progress` derives it from the query."""
    group_prefix: str
    warnings: tuple[str, ...]

    @classmethod
    def parse(cls, given: Mapping[str, Any], *, streaming: bool) -> SourceOptions:
        """Parse options. Raises `InvalidOption`; `warnings` has the options of the connector that are ignored."""
        options = OptionReader(given)
        _reject_other_mode(options, streaming)
        give_up_ms = options.pop_int("kafkaConsumer.pollTimeoutMs", DEFAULT_GIVE_UP_MS, 1, 2**31 - 1)
        starting = _pop_bound(options, "starting", LATEST if streaming else EARLIEST)
        ending = _pop_bound(options, "ending", LATEST)
        strategy = options.pop_choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
        if not streaming:
            _check_batch(starting, ending)
        prefix = options.pop_text("groupIdPrefix")
        own_group = _pop_group(options, "kafka.group.id")
        progress_group = _pop_group(options, "penstock.progress.group")
        if own_group and prefix:
            options.warn('option "groupIdPrefix" is ignored: "kafka.group.id" is set')
        sizes = _pop_sizes(options)
        parsed = cls(
            connection=pop_connection(options, give_up_ms),
            selection=_pop_selection(options),
            starting=starting,
            ending=ending,
            no_match_is_latest=strategy == "latest",
            fail_on_data_loss=options.pop_bool("failOnDataLoss", True),
            skip_corrupt_batches=options.pop_choice("onCorruptBatch", ("fail", "skip"), "fail") == "skip",
            isolation=_pop_isolation(options),
            sizes=sizes,
            include_headers=options.pop_bool("includeHeaders", False),
            min_partitions=options.pop_optional_int("minPartitions", None, 1, 2**31 - 1),
            max_records_per_partition=options.pop_optional_int("maxRecordsPerPartition", None, 1),
            max_offsets_per_trigger=options.pop_optional_int("maxOffsetsPerTrigger", None, 1),
            min_offsets_per_trigger=options.pop_optional_int("minOffsetsPerTrigger", None, 1),
            max_trigger_delay_ms=options.pop_duration_ms("maxTriggerDelay", DEFAULT_MAX_TRIGGER_DELAY_MS),
            retries=options.pop_int("fetchOffset.numRetries", DEFAULT_RETRIES, 1, 1000),
            retry_interval_ms=options.pop_int("fetchOffset.retryIntervalMs", DEFAULT_RETRY_INTERVAL_MS, 0, 3_600_000),
            progress_group=progress_group or own_group,
            group_prefix=prefix or "penstock-spark",
            warnings=(),
        )
        _check_triggers(parsed)
        reject_unknown(options, KNOWN, producer=False)
        return replace(parsed, warnings=tuple(options.warnings))


def _reject_other_mode(options: OptionReader, streaming: bool) -> None:
    if "path" in options:
        raise InvalidOption('topics have no path; remove the argument of load(), and set option "subscribe"')
    if not streaming:
        for name in _NOT_BATCH:
            if options.pop(name) is not None:
                options.warn(f'option "{name}" is ignored in a batch query')
        return
    for name in _NOT_STREAMING:
        if name in options:
            raise InvalidOption(f'option "{name}" is for batch queries only; remove it from the streaming query')


def _pop_selection(options: OptionReader) -> TopicSelection:
    given = [choice for choice in SelectionKind if choice.value in options]
    if len(given) != 1:
        names = ", ".join(f'"{choice.value}"' for choice in SelectionKind)
        how = "none is set" if not given else f"{len(given)} are set"
        raise InvalidOption(f"exactly one of the options {names} is required, but {how}")
    text = options.pop_text(given[0].value)
    assert text is not None, "the option was found before"
    if given[0] is SelectionKind.ASSIGN:
        return TopicSelection(SelectionKind.ASSIGN, partitions=partitions_of("assign", text))
    if given[0] is SelectionKind.SUBSCRIBE:
        topics = frozenset(one.strip() for one in text.split(",") if one.strip())
        if not topics:
            raise InvalidOption(f'option "subscribe" names no topic: {quoted(text)}; list topics, comma-separated')
        return TopicSelection(SelectionKind.SUBSCRIBE, topics=topics)
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidOption(
            f'option "subscribePattern": invalid regular expression {quoted(text)}: {error}; use Python\'s syntax'
        ) from None
    return TopicSelection(SelectionKind.PATTERN, pattern=text)


def _pop_bound(options: OptionReader, which: str, default: int) -> OffsetBound:
    everywhere = options.pop_text(f"{which}Timestamp")
    times = options.pop_text(f"{which}OffsetsByTimestamp")
    offsets = options.pop_text(f"{which}Offsets")
    if everywhere is not None:
        return OffsetBound(BoundKind.TIME, whole_number(f"{which}Timestamp", everywhere, 0, MAX_LONG))
    if times is not None:
        return OffsetBound(BoundKind.TIMES, each=by_partition(f"{which}OffsetsByTimestamp", times, 0, _TIMES))
    if offsets is None:
        return OffsetBound(BoundKind.EVERYWHERE, default)
    named = {"earliest": EARLIEST, "latest": LATEST}.get(offsets.lower())
    if named is not None:
        return OffsetBound(BoundKind.EVERYWHERE, named)
    if not offsets.startswith("{"):
        raise InvalidOption(
            f'option "{which}Offsets": invalid value {quoted(offsets)}; use earliest, latest, or JSON: {_OFFSETS}'
        )
    return OffsetBound(BoundKind.OFFSETS, each=by_partition(f"{which}Offsets", offsets, EARLIEST, _OFFSETS))


def _check_batch(starting: OffsetBound, ending: OffsetBound) -> None:
    if starting.kind is BoundKind.EVERYWHERE and starting.everywhere == LATEST:
        raise InvalidOption('option "startingOffsets" must not be latest in a batch query: it would read nothing')
    if ending.kind is BoundKind.EVERYWHERE and ending.everywhere == EARLIEST:
        raise InvalidOption('option "endingOffsets" must not be earliest in a batch query: it would read nothing')
    for bound, which, wrong, word in (
        (starting, "startingOffsets", LATEST, "latest"),
        (ending, "endingOffsets", EARLIEST, "earliest"),
    ):
        for (topic, partition), offset in (bound.each or {}).items():
            if bound.kind is BoundKind.OFFSETS and offset == wrong:
                raise InvalidOption(
                    f'option "{which}": {topic}-{partition} must not be {word} ({wrong}) in a batch query'
                )
    if starting.kind is not ending.kind or starting.each is None or ending.each is None:
        return
    if starting.each.keys() != ending.each.keys():
        differing = ", ".join(f"{topic}-{partition}" for topic, partition in starting.each.keys() ^ ending.each.keys())
        raise InvalidOption(f"starting and ending offsets must name the same partitions; they differ in {differing}")
    for (topic, partition), first in starting.each.items():
        last = ending.each[TopicPartition(topic, partition)]
        if first > last >= 0:
            raise InvalidOption(f"{topic}-{partition}: the start {first} is after the end {last}")


def _check_triggers(options: SourceOptions) -> None:
    low, high = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if low is not None and high is not None and low > high:
        raise InvalidOption(
            f'option "minOffsetsPerTrigger" is {low}, more than "maxOffsetsPerTrigger" ({high}); lower it'
        )


def _pop_isolation(options: OptionReader) -> int:
    level = options.pop_choice("kafka.isolation.level", ("read_uncommitted", "read_committed"), "read_uncommitted")
    return READ_COMMITTED if level == "read_committed" else READ_UNCOMMITTED


def _pop_group(options: OptionReader, name: str) -> str | None:
    group = options.pop_text(name)
    if group is not None and len(group) > MAX_GROUP_CHARS:
        raise InvalidOption(
            f'option "{name}": the group name has {len(group)} characters; at most {MAX_GROUP_CHARS} are allowed'
        )
    return group


def _pop_sizes(options: OptionReader) -> FetchSizes:
    defaults = FetchSizes()
    response = options.pop_int("kafka.fetch.max.bytes", 1 << 30, 1, 1 << 30)
    partition = options.pop_int("kafka.max.partition.fetch.bytes", defaults.partition_bytes, 1, 1 << 30)
    return FetchSizes(min(partition, response), defaults.ahead)
