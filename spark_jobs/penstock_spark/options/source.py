"""`spark.read` and `spark.readStream`: the options as one frozen value. Called by `source`, `progress` and `jobs`.

Where two options say the same, the order is the connector's: the one timestamp for all, timestamps by partition,
offsets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from penstock.client.types import TopicPartition
from penstock_spark.link.ports import FetchSizes
from penstock_spark.model.connection import ConnectionOptions
from penstock_spark.model.errors import InvalidOption
from penstock_spark.model.ranges import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED
from penstock_spark.options.kafka import COMMON, take_connection
from penstock_spark.options.names import settle
from penstock_spark.options.text import MAX_LONG, OptionReader, by_partition, partitions_of, shown, whole_number

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
    ASSIGN = "assign"
    SUBSCRIBE = "subscribe"
    PATTERN = "subscribePattern"


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """Which partitions are read: of `choice` one of the three others is set."""

    choice: SelectionKind
    partitions: frozenset[TopicPartition] = frozenset()
    topics: frozenset[str] = frozenset()
    pattern: str = ""
    """Found anywhere in a topic's name, as the connector has it."""

    def __str__(self) -> str:
        named = (
            self.pattern or ", ".join(sorted(self.topics)) or ", ".join(f"{t}-{p}" for t, p in sorted(self.partitions))
        )
        return f"{self.choice.value} {named}"

    @property
    def names(self) -> frozenset[str] | None:
        """The topics to ask for; None: all there are."""
        if self.choice is SelectionKind.PATTERN:
            return None
        return self.topics or frozenset(topic for topic, _ in self.partitions)

    def takes(self, topic: str) -> bool:
        names = self.names
        return topic in names if names is not None else re.search(self.pattern, topic) is not None

    def takes_partition(self, topic: str, partition: int) -> bool:
        if self.choice is SelectionKind.ASSIGN:
            return TopicPartition(topic, partition) in self.partitions
        return self.takes(topic)


class BoundKind(Enum):
    EVERYWHERE = "everywhere"
    OFFSETS = "offsets"
    TIMES = "times"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class OffsetBound:
    """Where reading begins or ends. `everywhere` is `EARLIEST`, `LATEST`, or for `TIME` milliseconds since 1970."""

    kind: BoundKind
    everywhere: int = EARLIEST
    each: Mapping[TopicPartition, int] | None = None


@dataclass(frozen=True, slots=True)
class SourceOptions:
    connection: ConnectionOptions
    selection: TopicSelection
    starting: OffsetBound
    ending: OffsetBound
    """Of a streaming query `LATEST` everywhere."""
    no_match_is_latest: bool
    """Where no record is as young as the starting timestamp: begin at the end. Otherwise it is an error."""
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
    """How often, and how long after, ends of partitions are asked for again when they lie before what was read."""
    progress_group: str | None
    """The group whose committed offsets follow the query; None: named by `progress` after the query."""
    group_prefix: str
    warnings: tuple[str, ...]

    @classmethod
    def parse(cls, given: Mapping[str, Any], *, streaming: bool) -> SourceOptions:
        """Raises `InvalidOption`. Options of the connector that have no meaning here come back as `warnings`."""
        options = OptionReader(given)
        _refuse_foreign(options, streaming)
        give_up_ms = options.take_whole("kafkaConsumer.pollTimeoutMs", DEFAULT_GIVE_UP_MS, 1, 2**31 - 1)
        starting = _take_bound(options, "starting", LATEST if streaming else EARLIEST)
        ending = _take_bound(options, "ending", LATEST)
        strategy = options.take_choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
        if not streaming:
            _check_batch(starting, ending)
        prefix = options.take_text("groupIdPrefix")
        own_group = _take_group(options, "kafka.group.id")
        progress_group = _take_group(options, "penstock.progress.group")
        if own_group and prefix:
            options.warn("option 'groupIdPrefix' has no meaning beside 'kafka.group.id'")
        sizes = _take_sizes(options)
        parsed = cls(
            connection=take_connection(options, give_up_ms),
            selection=_take_selection(options),
            starting=starting,
            ending=ending,
            no_match_is_latest=strategy == "latest",
            fail_on_data_loss=options.take_bool("failOnDataLoss", True),
            skip_corrupt_batches=options.take_choice("onCorruptBatch", ("fail", "skip"), "fail") == "skip",
            isolation=_take_isolation(options),
            sizes=sizes,
            include_headers=options.take_bool("includeHeaders", False),
            min_partitions=options.take_int("minPartitions", None, 1, 2**31 - 1),
            max_records_per_partition=options.take_int("maxRecordsPerPartition", None, 1),
            max_offsets_per_trigger=options.take_int("maxOffsetsPerTrigger", None, 1),
            min_offsets_per_trigger=options.take_int("minOffsetsPerTrigger", None, 1),
            max_trigger_delay_ms=options.take_time_ms("maxTriggerDelay", DEFAULT_MAX_TRIGGER_DELAY_MS),
            retries=options.take_whole("fetchOffset.numRetries", DEFAULT_RETRIES, 1, 1000),
            retry_interval_ms=options.take_whole(
                "fetchOffset.retryIntervalMs", DEFAULT_RETRY_INTERVAL_MS, 0, 3_600_000
            ),
            progress_group=progress_group or own_group,
            group_prefix=prefix or "penstock-spark",
            warnings=(),
        )
        _check_triggers(parsed)
        settle(options, KNOWN, producer=False)
        return replace(parsed, warnings=tuple(options.warnings))


def _refuse_foreign(options: OptionReader, streaming: bool) -> None:
    if "path" in options:
        raise InvalidOption("topics have no path: leave the argument of load() away, and set 'subscribe'")
    if not streaming:
        for name in _NOT_BATCH:
            if options.take(name) is not None:
                options.warn(f"option {name!r} has no meaning in a batch query")
        return
    for name in _NOT_STREAMING:
        if name in options:
            raise InvalidOption(f"option {name!r} is for batch queries: a streaming query goes on until it is stopped")


def _take_selection(options: OptionReader) -> TopicSelection:
    given = [choice for choice in SelectionKind if choice.value in options]
    if len(given) != 1:
        wanted = ", ".join(repr(choice.value) for choice in SelectionKind)
        how = "is needed" if not given else f"can be given, not {len(given)}"
        raise InvalidOption(f"exactly one of the options {wanted} {how}")
    text = options.take_text(given[0].value)
    assert text is not None, "an option that is there was not found"
    if given[0] is SelectionKind.ASSIGN:
        return TopicSelection(SelectionKind.ASSIGN, partitions=partitions_of("assign", text))
    if given[0] is SelectionKind.SUBSCRIBE:
        topics = frozenset(one.strip() for one in text.split(",") if one.strip())
        if not topics:
            raise InvalidOption(f"option 'subscribe' names no topic: {text!r}")
        return TopicSelection(SelectionKind.SUBSCRIBE, topics=topics)
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidOption(f"option 'subscribePattern' is no regular expression of Python: {error}") from None
    return TopicSelection(SelectionKind.PATTERN, pattern=text)


def _take_bound(options: OptionReader, which: str, default: int) -> OffsetBound:
    everywhere = options.take_text(f"{which}Timestamp")
    times = options.take_text(f"{which}OffsetsByTimestamp")
    offsets = options.take_text(f"{which}Offsets")
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
        raise InvalidOption(f"option '{which}Offsets' is earliest, latest, or JSON as {_OFFSETS}, not {shown(offsets)}")
    return OffsetBound(BoundKind.OFFSETS, each=by_partition(f"{which}Offsets", offsets, EARLIEST, _OFFSETS))


def _check_batch(starting: OffsetBound, ending: OffsetBound) -> None:
    if starting.kind is BoundKind.EVERYWHERE and starting.everywhere == LATEST:
        raise InvalidOption("option 'startingOffsets' can't be latest in a batch query: it would read nothing")
    if ending.kind is BoundKind.EVERYWHERE and ending.everywhere == EARLIEST:
        raise InvalidOption("option 'endingOffsets' can't be earliest in a batch query: it would read nothing")
    for bound, which, wrong, word in (
        (starting, "startingOffsets", LATEST, "latest"),
        (ending, "endingOffsets", EARLIEST, "earliest"),
    ):
        for (topic, partition), offset in (bound.each or {}).items():
            if bound.kind is BoundKind.OFFSETS and offset == wrong:
                raise InvalidOption(f"option {which!r}: {topic}-{partition} can't be {word} ({wrong}) in a batch query")
    if starting.kind is not ending.kind or starting.each is None or ending.each is None:
        return
    if starting.each.keys() != ending.each.keys():
        differing = ", ".join(f"{topic}-{partition}" for topic, partition in starting.each.keys() ^ ending.each.keys())
        raise InvalidOption(f"where reading begins and where it ends is not given for the same partitions: {differing}")
    for (topic, partition), first in starting.each.items():
        last = ending.each[TopicPartition(topic, partition)]
        if first > last >= 0:
            raise InvalidOption(f"{topic}-{partition}: reading begins at {first}, after its end at {last}")


def _check_triggers(options: SourceOptions) -> None:
    low, high = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if low is not None and high is not None and low > high:
        raise InvalidOption(f"option 'minOffsetsPerTrigger' is {low}, more than 'maxOffsetsPerTrigger', {high}")


def _take_isolation(options: OptionReader) -> int:
    level = options.take_choice("kafka.isolation.level", ("read_uncommitted", "read_committed"), "read_uncommitted")
    return READ_COMMITTED if level == "read_committed" else READ_UNCOMMITTED


def _take_group(options: OptionReader, name: str) -> str | None:
    group = options.take_text(name)
    if group is not None and len(group) > MAX_GROUP_CHARS:
        raise InvalidOption(
            f"option {name!r} has {len(group)} characters; a group's name has at most {MAX_GROUP_CHARS}"
        )
    return group


def _take_sizes(options: OptionReader) -> FetchSizes:
    usual = FetchSizes()
    answer = options.take_whole("kafka.fetch.max.bytes", 1 << 30, 1, 1 << 30)
    partition = options.take_whole("kafka.max.partition.fetch.bytes", usual.partition_bytes, 1, 1 << 30)
    return FetchSizes(min(partition, answer), usual.ahead)
