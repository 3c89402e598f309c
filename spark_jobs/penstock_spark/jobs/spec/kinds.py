"""The fields of each kind of job. The module of the same name in `jobs.kinds` implements it."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.config.addresses import quoted
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
    check_no_loop,
    check_options,
    check_replication,
    check_topic,
)

UTC = ("UTC", "Etc/UTC", "GMT", "Z")


class Archive(TopicJob, tag="archive", frozen=True, kw_only=True):
    """Archive topics in a Parquet folder or a Delta table, each record exactly once."""

    to: FileTarget

    def is_direct(self, time_zone: str) -> bool:
        """Return whether records can be written without Spark expressions: binary or text, no query, folders by record
        timestamp. `time_zone` is the session's, in which Spark computes dates."""
        plain = {self.transform.key.format, self.transform.value.format} <= {"binary", "string"}
        time = self.to.time
        timely = time is None or (time.column == "timestamp" and time_zone in UTC)
        return plain and timely and self.transform.sql is None


class Window(JobFileSpec, frozen=True, kw_only=True):
    """Windows of event time of `length`, starting every `slide` (default: length, so that windows do not overlap)."""

    length: Duration
    slide: Duration | None = None

    def __post_init__(self) -> None:
        if self.length.ms < 1:
            raise FieldError("length", "must be greater than 0")
        if self.slide is not None and not 0 < self.slide.ms <= self.length.ms:
            raise FieldError("slide", "must be greater than 0 and at most length")


class Aggregate(TopicJob, tag="aggregate", frozen=True, kw_only=True):
    """Aggregate records (counts, sums) by keys and windows of event time."""

    time: Sql
    """Event time: an expression over the transform's result, such as to_timestamp(time_hour)."""
    watermark: Duration
    """Maximum delay of records; later records are dropped."""
    window: Window | None = None
    by: dict[str, Sql] = {}
    """Columns to group by: names and expressions."""
    select: dict[str, Sql]
    """Columns to compute: names and aggregate expressions, such as count(*)."""
    emit: Literal["updates", "final"] = "final"
    """final: the row of a window once, when the watermark passes its end; updates: every change immediately."""
    to: Target

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window is None and not self.by:
            raise FieldError("window", "no window and no columns to group by; set window, by, or both")
        if not self.select:
            raise FieldError("select", "no columns to compute; add at least one, such as: flights: count(*)")
        check_columns("by", list(self.by))
        check_columns("select", list(self.select))
        taken = {"window_start", "window_end"} & {*self.by, *self.select}
        if taken or set(self.by) & set(self.select):
            both = sorted(taken | set(self.by) & set(self.select))
            raise FieldError("select", f"duplicate column name: {', '.join(both)}; names of by and select must differ")
        if self.emit == "final" and self.window is None:
            raise FieldError("emit", "final needs a window; add a window, or set emit: updates")
        if self.emit == "updates" and isinstance(self.to, ParquetTarget):
            raise FieldError("emit", "a Parquet folder cannot update rows; set emit: final, or format: delta")
        if isinstance(self.to, TopicTarget):
            check_no_loop(self.source, self.to.brokers, self.to.topic, "to")


class Dedup(TopicJob, tag="dedup", frozen=True, kw_only=True):
    """Write the first record of each key within a time."""

    by: dict[str, Sql]
    """Columns that identify a record: names and expressions over the transform's result."""
    time: Sql = Sql("timestamp")
    within: Duration
    """Event time after the first record in which duplicates are recognised. It is also the watermark: a record that is
    older than the newest by more than this is dropped, because its duplicates can no longer be recognised."""
    to: Target

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.by:
            raise FieldError("by", "no expressions; add at least one, such as: id: value.id")
        check_columns("by", list(self.by))
        if self.within.ms < 1:
            raise FieldError("within", "must be greater than 0")
        if isinstance(self.to, TopicTarget):
            check_no_loop(self.source, self.to.brokers, self.to.topic, "to")


class Expectation(JobFileSpec, frozen=True, kw_only=True):
    """A condition that every row must meet. A row is bad if it is false or NULL. Expressions over `value` are NULL for
    a tombstone: `raw_value IS NULL OR ...` accepts it."""

    name: str
    sql: Sql

    def __post_init__(self) -> None:
        if not COLUMN.fullmatch(self.name):
            raise FieldError("name", f"invalid name {quoted(self.name)}; use letters, digits and '_', no digit first")


class DeadLetters(JobFileSpec, frozen=True, kw_only=True):
    """The topic for bad records, which are kept unchanged, with headers for reason and origin."""

    topic: str
    brokers: str | None = None
    """Bootstrap servers (default: those of the source)."""
    create: NewTopicSpec | None = None
    options: Options = {}

    def __post_init__(self) -> None:
        check_topic("topic", self.topic)
        if self.brokers is not None:
            check_brokers(self.brokers)
        check_options(self.options, {"kafka.bootstrap.servers": "brokers", "topic": "topic"})


class Validate(TopicJob, tag="validate", frozen=True, kw_only=True):
    """Write records that meet expectations, and send others to a dead-letter topic with the reason."""

    expectations: list[Expectation]
    dead_letters: DeadLetters
    to: TopicTarget | DeltaTarget | ParquetTarget | None = None
    """Target of good records. If absent, only bad records are written."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.expectations:
            raise FieldError("expectations", "no expectations; add at least one")
        names = [e.name for e in self.expectations]
        if len(set(names)) < len(names):
            raise FieldError("expectations", "two expectations have the same name; give each its own")
        letters = self.dead_letters
        check_no_loop(self.source, letters.brokers or self.source.brokers, letters.topic, "dead_letters")
        if isinstance(self.to, TopicTarget):
            check_no_loop(self.source, self.to.brokers, self.to.topic, "to")


class DlqReplay(StreamJob, tag="dlq-replay", frozen=True, kw_only=True):
    """Send dead letters back to their original topics, up to the topic's end at the start of the job."""

    source: SourceSpec
    brokers: str | None = None
    """Bootstrap servers of the target topics (default: those of the dead letters)."""
    reasons: list[str] = []
    """Reasons of the letters to replay (default: all)."""
    where: Sql | None = None
    """Condition over key, value, headers, dlq (reason, topic, partition, offset, replays), timestamp."""
    to: str | None = None
    """Target topic of all letters, instead of their original topics."""
    same_partition: bool = False
    max_replays: int = 3
    """A letter that was replayed this often stays in the dead-letter topic, so that it does not return forever."""
    options: Options = {}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.to is not None:
            check_topic("to", self.to)
        if self.brokers is not None:
            check_brokers(self.brokers)
        if self.max_replays < 1:
            raise FieldError("max_replays", "must be at least 1")
        check_count("max_replays", self.max_replays)
        check_options(self.options, {"kafka.bootstrap.servers": "brokers", "topic": "to"})


class CdcUpsert(TopicJob, tag="cdc-upsert", frozen=True, kw_only=True):
    """Keep the latest row of each key in a Delta table; a record without value deletes its row. Kafka's producers send
    records of a key to one partition, so the latest is the one with the highest offset."""

    keys: dict[str, Sql] = msgspec.field(default_factory=lambda: {"key": Sql("CAST(key AS STRING)")})
    """Columns that identify a row: names and expressions. Deletions need them too, so derive them from `key`."""
    delete_when: Sql | None = None
    """Further condition for deletion besides tombstones. NULL counts as false."""
    tombstones: Literal["delete", "ignore"] = "delete"
    """What a record without a value does: delete its row, or nothing."""
    null_keys: Literal["fail", "skip"] = "fail"
    """What a record with a NULL key does: fail the job, naming topic, partition and offset, or nothing (it is
    counted)."""
    select: dict[str, Sql] = {}
    """Other columns: names and expressions (default: the fields of the JSON value, else value)."""
    to: DeltaTarget

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.keys:
            raise FieldError("keys", "no keys; add at least one")
        check_columns("keys", list(self.keys))
        check_columns("select", list(self.select))
        if both := set(self.keys) & set(self.select):
            raise FieldError("select", f'"{sorted(both)[0]}" is a key too; remove it from select or keys')
        if self.transform.sql is not None:
            raise FieldError("transform", "cdc-upsert does not support sql; use select and delete_when")


class ArchiveColumns(JobFileSpec, frozen=True, kw_only=True):
    """Names of the archive's columns that identify a record."""

    topic: str = "topic"
    partition: str = "partition"
    offset: str = "offset"
    timestamp: str = "timestamp"


class Audit(JobSpec, tag="audit", frozen=True, kw_only=True):
    """Compare topics with their archive: missing and duplicate records, counts by time."""

    source: SourceSpec
    archive: FileTarget
    columns: ArchiveColumns = ArchiveColumns()
    bucket: Duration = Duration(86_400_000)
    until_checkpoint: str | None = None
    """Checkpoint of the archive job: the audit ends where its last finished batch ended (default: the topics' ends)."""
    report: str | None = None
    """File for the whole result as JSON."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bucket.ms < 1:
            raise FieldError("bucket", "must be greater than 0")


class Mirror(StreamJob, tag="mirror", frozen=True, kw_only=True):
    """Copy topics to another cluster with keys, order, partitions, timestamps and translated group offsets."""

    source: SourceSpec
    to: TopicTarget
    prefix: str = ""
    """Prefix for topic names in the target cluster."""
    create_topics: bool = True
    """Create missing topics with the source's partition count, and add partitions as the source gets more."""
    replication: int = -1
    groups: list[str] = []
    """Groups whose committed offsets are translated after each batch. Groups active in the target are skipped."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_replication(self.replication)
        if self.source.min_partitions is not None:
            message = "a mirror keeps order, so one task reads a partition; remove min_partitions"
            raise FieldError("source", message, "min_partitions")
        for name in self.source.options:
            if name.lower() == "maxrecordsperpartition":
                message = "a mirror keeps order, so one task reads a partition; use max_records_per_batch"
                raise FieldError("source", message, "options", name)
        if self.to.topic is not None or self.to.key is not None or self.to.create is not None:
            raise FieldError("to", "a mirror keeps topics and keys of the source; remove topic, key and create")
        if self.prefix:
            check_topic("prefix", self.prefix)


class Backfill(StreamJob, tag="backfill", frozen=True, kw_only=True):
    """Write files (CSV, Parquet, JSON lines) to a topic, each row once. A second run continues with new files."""

    format: Literal["csv", "parquet", "json"]
    path: str
    schema: Sql
    read_options: Options = {}
    """Options of Spark's reader of the format, such as header: true."""
    max_files_per_batch: int | None = None
    sql: Sql | None = None
    """Query over the view `source` of the files' rows; a column timestamp sets the record timestamps."""
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
