"""The kinds of jobs, as a file says them. What each does is in the module of its name."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock_spark.jobs.spec.problems import FieldError
from penstock_spark.jobs.spec.scalars import Duration, Sql
from penstock_spark.jobs.spec.specs import (
    COLUMN,
    DeltaTarget,
    FileTarget,
    JobFileSpec,
    JobSpec,
    NewTopicSpec,
    Options,
    ParquetTarget,
    SourceSpec,
    StreamJob,
    Target,
    TopicJob,
    TopicTarget,
    check_brokers,
    check_columns,
    check_count,
    check_no_circle,
    check_options,
    check_replication,
    check_topic,
)

UTC = ("UTC", "Etc/UTC", "GMT", "Z")


class Archive(TopicJob, tag="archive", frozen=True, kw_only=True):
    """Topics to a Parquet folder or a Delta table, every record exactly once."""

    to: FileTarget

    def is_direct(self, time_zone: str) -> bool:
        """Whether Spark has nothing to do with the records themselves: bytes or text, no query, folders by the records'
        own time. `time_zone`: the session's, in which Spark says what day it is."""
        plain = {self.transform.key.format, self.transform.value.format} <= {"binary", "string"}
        time = self.to.time
        timely = time is None or (time.column == "timestamp" and time_zone in UTC)
        return plain and timely and self.transform.sql is None


class Window(JobFileSpec, frozen=True, kw_only=True):
    """Windows of event time: `length` long, a new one every `slide` (default: length, so that none overlap)."""

    length: Duration
    slide: Duration | None = None

    def __post_init__(self) -> None:
        if self.length.ms < 1:
            raise FieldError("length", "more than nothing")
        if self.slide is not None and not 0 < self.slide.ms <= self.length.ms:
            raise FieldError("slide", "more than nothing, and at most length")


class Aggregate(TopicJob, tag="aggregate", frozen=True, kw_only=True):
    """Counts, sums and the like by keys and windows of event time."""

    time: Sql
    """The event time, an expression over the transform's result, such as: to_timestamp(time_hour)."""
    watermark: Duration
    """How late rows may come; later ones are dropped."""
    window: Window | None = None
    by: dict[str, Sql] = {}
    """Columns to group by: name and expression."""
    select: dict[str, Sql]
    """Columns to compute: name and aggregate expression, such as: count(*)."""
    emit: Literal["updates", "final"] = "final"
    """final: a window's row once, when the watermark has passed its end; updates: every change, at once."""
    to: Target

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window is None and not self.by:
            raise FieldError("window", "a window, columns to group by, or both are wanted")
        if not self.select:
            raise FieldError("select", "at least one column is wanted, such as: flights: count(*)")
        check_columns("by", list(self.by))
        check_columns("select", list(self.select))
        taken = {"window_start", "window_end"} & {*self.by, *self.select}
        if taken or set(self.by) & set(self.select):
            both = sorted(taken | set(self.by) & set(self.select))
            raise FieldError("select", f"a column of that name is there already: {', '.join(both)}")
        if self.emit == "final" and self.window is None:
            raise FieldError("emit", "without a window nothing is ever final: emit: updates")
        if self.emit == "updates" and isinstance(self.to, ParquetTarget):
            raise FieldError("emit", "a Parquet folder cannot take back rows: emit: final, or format: delta")
        if isinstance(self.to, TopicTarget):
            check_no_circle(self.source, self.to.brokers, self.to.topic, "to")


class Dedup(TopicJob, tag="dedup", frozen=True, kw_only=True):
    """The first record of each key, within a time."""

    by: dict[str, Sql]
    """What makes records the same: name and expression over the transform's result."""
    time: Sql = Sql("timestamp")
    within: Duration
    """A repetition is recognised within this time of event time after the first. It is the watermark too: what is later
    than the newest by more than that is dropped, as nobody knows any more whether it is a repetition."""
    to: Target

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.by:
            raise FieldError("by", "at least one expression is wanted, such as: id: value.id")
        check_columns("by", list(self.by))
        if self.within.ms < 1:
            raise FieldError("within", "more than nothing")
        if isinstance(self.to, TopicTarget):
            check_no_circle(self.source, self.to.brokers, self.to.topic, "to")


class Expectation(JobFileSpec, frozen=True, kw_only=True):
    """What must hold for every row. A row for which the expression is false or NULL is bad. A tombstone has no value,
    so expressions over `value` are NULL: `raw_value IS NULL OR ...` lets it through."""

    name: str
    sql: Sql

    def __post_init__(self) -> None:
        if not COLUMN.fullmatch(self.name):
            raise FieldError("name", f"{self.name!r}: letters, digits and '_', no digit first")


class DeadLetters(JobFileSpec, frozen=True, kw_only=True):
    """Where bad records go, as they were, with headers that say why and where they came from."""

    topic: str
    brokers: str | None = None
    """Default: those of the source."""
    create: NewTopicSpec | None = None
    options: Options = {}

    def __post_init__(self) -> None:
        check_topic("topic", self.topic)
        if self.brokers is not None:
            check_brokers(self.brokers)
        check_options(self.options, {"kafka.bootstrap.servers": "brokers", "topic": "topic"})


class Validate(TopicJob, tag="validate", frozen=True, kw_only=True):
    """Records that meet expectations go on; others go to a dead-letter topic with the reason."""

    expectations: list[Expectation]
    dead_letters: DeadLetters
    to: TopicTarget | DeltaTarget | ParquetTarget | None = None
    """Absent: good records go nowhere, only bad ones are kept."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.expectations:
            raise FieldError("expectations", "at least one expectation is wanted")
        names = [e.name for e in self.expectations]
        if len(set(names)) < len(names):
            raise FieldError("expectations", "two expectations have the same name")
        letters = self.dead_letters
        check_no_circle(self.source, letters.brokers or self.source.brokers, letters.topic, "dead_letters")
        if isinstance(self.to, TopicTarget):
            check_no_circle(self.source, self.to.brokers, self.to.topic, "to")


class DlqReplay(StreamJob, tag="dlq-replay", frozen=True, kw_only=True):
    """Dead letters back to the topics they came from; ends with what was there at the start."""

    source: SourceSpec
    brokers: str | None = None
    """Where the topics are; default: where the dead letters are."""
    reasons: list[str] = []
    """Only these reasons; none: all."""
    where: Sql | None = None
    """A further condition over key, value, headers, dlq (reason, topic, partition, offset, replays), timestamp."""
    to: str | None = None
    """One topic for all, instead of where they came from."""
    same_partition: bool = False
    max_replays: int = 3
    """A record that was replayed so often stays where it is: it would come back for ever."""
    options: Options = {}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.to is not None:
            check_topic("to", self.to)
        if self.brokers is not None:
            check_brokers(self.brokers)
        if self.max_replays < 1:
            raise FieldError("max_replays", "at least 1")
        check_count("max_replays", self.max_replays)
        check_options(self.options, {"kafka.bootstrap.servers": "brokers", "topic": "to"})


class CdcUpsert(TopicJob, tag="cdc-upsert", frozen=True, kw_only=True):
    """The latest row of each key in a Delta table; a record without value deletes its row. Records of a key are in one
    partition, as Kafka's producers see to it: the latest is the one with the highest offset."""

    keys: dict[str, Sql] = msgspec.field(default_factory=lambda: {"key": Sql("CAST(key AS STRING)")})
    """Columns that identify a row: name and expression; they must be there in deletions too, so made of `key`."""
    delete_when: Sql | None = None
    """What deletes a row beside a tombstone, where it is true: NULL is not."""
    tombstones: Literal["delete", "ignore"] = "delete"
    """What a record without a value does: it deletes its row, or changes nothing."""
    null_keys: Literal["fail", "skip"] = "fail"
    """What a record does of which a key is NULL: it fails the job, naming topic, partition and offset, or changes
    nothing and is counted."""
    select: dict[str, Sql] = {}
    """The other columns: name and expression; none: the fields of the JSON value, else value."""
    to: DeltaTarget

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.keys:
            raise FieldError("keys", "at least one key is wanted")
        check_columns("keys", list(self.keys))
        check_columns("select", list(self.select))
        if both := set(self.keys) & set(self.select):
            raise FieldError("select", f"{sorted(both)[0]} is a key already")
        if self.transform.sql is not None:
            raise FieldError("transform", "cdc-upsert has no sql: use select and delete_when")


class ArchiveColumns(JobFileSpec, frozen=True, kw_only=True):
    """The archive's columns that say which record a row is."""

    topic: str = "topic"
    partition: str = "partition"
    offset: str = "offset"
    timestamp: str = "timestamp"


class Audit(JobSpec, tag="audit", frozen=True, kw_only=True):
    """Compares topics with their archive: what lacks, what is double, counts by time; the exit code tells."""

    source: SourceSpec
    archive: FileTarget
    columns: ArchiveColumns = ArchiveColumns()
    bucket: Duration = Duration(86_400_000)
    until_checkpoint: str | None = None
    """The archive job's checkpoint: the audit ends where its last finished batch did. Default: the topics' ends."""
    report: str | None = None
    """A file that gets the whole result as JSON."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bucket.ms < 1:
            raise FieldError("bucket", "more than nothing")


class Mirror(StreamJob, tag="mirror", frozen=True, kw_only=True):
    """Topics to another cluster: partitions, order, keys, headers and times stay; offsets of groups are translated."""

    source: SourceSpec
    to: TopicTarget
    prefix: str = ""
    """Put before topics' names."""
    create_topics: bool = True
    """Topics that lack are created with as many partitions; partitions are added as the source gets more."""
    replication: int = -1
    groups: list[str] = []
    """Groups whose committed offsets are translated after each batch; a group that is active there is left alone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_replication(self.replication)
        if self.source.min_partitions is not None:
            message = "a mirror keeps order, so a partition is one task's: leave it away"
            raise FieldError("source", message, "min_partitions")
        for name in self.source.options:
            if name.lower() == "maxrecordsperpartition":
                message = "a mirror keeps order, so a partition is one task's: use max_records_per_batch"
                raise FieldError("source", message, "options", name)
        if self.to.topic is not None or self.to.key is not None or self.to.create is not None:
            raise FieldError("to", "a mirror's topics and keys are those of the source: no topic, key or create")
        if self.prefix:
            check_topic("prefix", self.prefix)


class Backfill(StreamJob, tag="backfill", frozen=True, kw_only=True):
    """Files (CSV, Parquet, JSON lines) into a topic, each row once; run again, it goes on with new files."""

    format: Literal["csv", "parquet", "json"]
    path: str
    schema: Sql
    read_options: Options = {}
    """Of Spark's reader of that format, such as header: true."""
    max_files_per_batch: int | None = None
    sql: Sql | None = None
    """A query over the view `source` of the files' rows; a column timestamp sets the records' times."""
    to: TopicTarget

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("max_files_per_batch", self.max_files_per_batch)


KINDS: dict[str, type[JobSpec]] = {
    "archive": Archive,
    "aggregate": Aggregate,
    "dedup": Dedup,
    "validate": Validate,
    "dlq-replay": DlqReplay,
    "cdc-upsert": CdcUpsert,
    "audit": Audit,
    "mirror": Mirror,
    "backfill": Backfill,
}
