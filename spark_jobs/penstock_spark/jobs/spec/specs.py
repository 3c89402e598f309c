"""The fields that kinds of jobs share: sources, transforms, targets, triggers.

A job file is one YAML mapping; its `kind` selects the struct of `kinds`. `document` creates these structs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal

import msgspec

from penstock.config.addresses import InvalidAddress, parse_bootstrap, parse_host, quoted
from penstock_spark.jobs.spec.problems import FieldError
from penstock_spark.jobs.spec.references import AsWritten, Resolved
from penstock_spark.jobs.spec.scalars import Duration, Size, Sql

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")

NUMBER = re.compile(r"[0-9]{1,10}")
MAX_PARTITION = 2**31 - 1
EARLIEST = -2
"""The smallest number that stands for an offset, the log start; -1 is the log end."""
MAX_INT, MAX_LONG = 2**31 - 1, 2**63 - 1
"""Limits of Spark's and Kafka's integers."""
MAX_REPLICATION = 2**15 - 1

WITH_SECRETS = frozenset({"options", "storage"})
"""Fields that may have secrets once their references are resolved."""
SOURCE_KEYS = {
    "kafka.bootstrap.servers": "brokers",
    "subscribe": "topics",
    "subscribePattern": "pattern",
    "assign": "assign",
    "startingOffsets": "starting",
    "startingTimestamp": "starting",
    "kafka.isolation.level": "isolation",
    "failOnDataLoss": "fail_on_data_loss",
    "maxOffsetsPerTrigger": "max_records_per_batch",
    "minPartitions": "min_partitions (which a mirror cannot have)",
}
"""Options of the format `penstock` that a job file sets by keys of `source`."""

Scalar = str | bool | int | float
Options = dict[str, Resolved[Scalar]]
Isolation = Literal["read_committed", "read_uncommitted"]
Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]
ParquetCodec = Literal["none", "snappy", "zstd", "gzip", "lz4"]


class JobFileSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all structs of a job file. `repr` leaves out the fields whose references to secrets are resolved."""

    def __repr__(self) -> str:
        shown = (f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name not in WITH_SECRETS)
        return f"{type(self).__name__}({', '.join(shown)})"


def check_topic(field: str, topic: str) -> None:
    """Raise `FieldError` if `topic` is not a valid topic name."""
    if not TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise FieldError(
            field, f"invalid topic name {quoted(topic)}; use at most 249 letters, digits, '.', '_' and '-'"
        )


def check_count(field: str, value: int | None, most: int = MAX_INT) -> None:
    """Raise `FieldError` if a count is set and not from 1 to `most`."""
    if value is not None and value < 1:
        raise FieldError(field, f"{value} is less than 1")
    if value is not None and value > most:
        raise FieldError(field, f"{value} is more than {most}")


def check_replication(replication: int) -> None:
    """Raise `FieldError` if a replication factor is neither -1 nor valid."""
    if replication != -1 and not 1 <= replication <= MAX_REPLICATION:
        raise FieldError("replication", f"invalid replication factor {replication}; use 1 to {MAX_REPLICATION}, or -1")


def check_columns(field: str, columns: list[str]) -> None:
    """Raise `FieldError` for an invalid or duplicate column name."""
    for column in columns:
        if not COLUMN.fullmatch(column):
            message = f"invalid column name {quoted(column)}; use letters, digits and '_', no digit first"
            raise FieldError(field, message)
    if len(set(columns)) < len(columns):
        raise FieldError(field, "duplicate column name")


def check_options(options: Options, keys: Mapping[str, str]) -> None:
    """Raise `FieldError` for an option that a key of the job file sets. `keys` maps options to these keys."""
    folded = {option.lower(): key for option, key in keys.items()}
    for name in options:
        if name.lower() in folded:
            raise FieldError("options", f"the key {folded[name.lower()]} sets this option; remove the option", name)


class SourceSpec(JobFileSpec, frozen=True, kw_only=True):
    """Where records are read. Set exactly one of topics, pattern and assign."""

    brokers: str
    topics: list[str] = []
    pattern: str | None = None
    assign: dict[str, list[int]] | None = None
    starting: str | dict[str, dict[str, int]] = "earliest"
    """earliest, latest, offsets by topic and partition, or a time (2013-01-01T00:00:00Z)."""
    isolation: Isolation = "read_committed"
    fail_on_data_loss: bool = True
    max_records_per_batch: int | None = None
    min_partitions: int | None = None
    options: Options = {}
    """Options of the format `penstock`, such as kafka.security.protocol."""

    def __post_init__(self) -> None:
        check_brokers(self.brokers)
        if [bool(self.topics), self.pattern is not None, self.assign is not None].count(True) != 1:
            raise FieldError("topics", "set exactly one of topics, pattern and assign")
        for topic in self.topics:
            check_topic("topics", topic)
        self._check_pattern()
        self._check_assign()
        self.starting_ms()
        self._check_offsets()
        for field, most in (("max_records_per_batch", MAX_LONG), ("min_partitions", MAX_INT)):
            check_count(field, getattr(self, field), most)
        check_options(self.options, SOURCE_KEYS)

    def _check_pattern(self) -> None:
        if self.pattern is None:
            return
        if not self.pattern.strip():
            raise FieldError("pattern", "the pattern is empty; ^flights selects topics whose names start with flights")
        try:
            re.compile(self.pattern.strip())
        except (re.error, RecursionError, OverflowError) as e:
            message = f"invalid regular expression {quoted(self.pattern)}: {e}; use Python's syntax"
            raise FieldError("pattern", message) from None

    def _check_assign(self) -> None:
        if self.assign is None:
            return
        if not self.assign:
            raise FieldError("assign", "no partitions; write them by topic, such as {flights: [0, 1]}")
        for topic, partitions in self.assign.items():
            check_topic("assign", topic)
            if not partitions:
                raise FieldError("assign", "no partitions; list them, or remove the topic", topic)
            for partition in partitions:
                if not 0 <= partition <= MAX_PARTITION:
                    raise FieldError("assign", f"invalid partition {partition}; partitions count from 0", topic)
            if len(set(partitions)) < len(partitions):
                raise FieldError("assign", "duplicate partition", topic)

    def _check_offsets(self) -> None:
        if isinstance(self.starting, str):
            return
        if not self.starting:
            raise FieldError("starting", "no partitions; write offsets as {flights: {0: 23}}, or earliest")
        for topic, offsets in self.starting.items():
            check_topic("starting", topic)
            for partition, offset in offsets.items():
                if not NUMBER.fullmatch(partition) or int(partition) > MAX_PARTITION:
                    message = f"invalid partition {quoted(partition)}; write offsets as {{flights: {{0: 23}}}}"
                    raise FieldError("starting", message, topic, partition)
                if not EARLIEST <= offset <= MAX_LONG:
                    message = f"invalid offset {offset}; use 0 to {MAX_LONG}, -1 for the latest, -2 for the earliest"
                    raise FieldError("starting", message, topic, partition)

    def selects(self, topic: str) -> bool:
        """Return whether a topic of this name is read; the same rule as `options.source.TopicSelection`."""
        if self.pattern is not None:
            return re.search(self.pattern.strip(), topic) is not None
        return topic in (self.topics or self.assign or {})

    def starting_ms(self) -> int | None:
        """Return `starting` in ms since the epoch; None if it is not a time."""
        if not isinstance(self.starting, str) or self.starting in ("earliest", "latest"):
            return None
        try:
            when = datetime.fromisoformat(self.starting)
        except ValueError:
            raise FieldError(
                "starting",
                f"invalid start {quoted(self.starting)}; use earliest, latest, offsets by partition, or a time "
                "(2013-01-01T00:00:00Z)",
            ) from None
        return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)


def check_brokers(brokers: str, field: str = "brokers") -> None:
    """Raise `FieldError` for invalid addresses. A prefix such as SSL:// is compared with the options at job start."""
    try:
        addresses(brokers)
    except InvalidAddress as e:
        raise FieldError(field, str(e)) from None


def addresses(brokers: str) -> set[tuple[str, int]]:
    """Return hosts in lower case with ports. Raises `InvalidAddress`."""
    return {(host.lower(), port) for host, port in parse_bootstrap(brokers, has_tls=True, has_sasl=True)}


def check_no_loop(source: SourceSpec, brokers: str, topic: str | None, field: str) -> None:
    """Raise `FieldError` if the job would read `topic`, which it writes as `field` says. One cluster under two
    different addresses is not recognised."""
    if topic is not None and source.selects(topic) and addresses(source.brokers) & addresses(brokers):
        cure = "write to another topic"
        if source.pattern is not None:
            cure += f", or read a pattern without it: ^(?!{re.escape(topic)}$).*(?:{source.pattern.strip()})"
        message = f'the job also reads topic "{topic}" and would read its own output forever; {cure}'
        raise FieldError(field, message, "topic")


class DecodingSpec(JobFileSpec, frozen=True, kw_only=True):
    """How bytes are decoded: not at all, as UTF-8 text, or as JSON with a schema (`carrier STRING, delay INT`)."""

    format: Literal["binary", "string", "json"] = "binary"
    schema: Sql | None = None
    on_error: Literal["fail", "null"] = "fail"
    """What a value does that cannot be decoded: fail the job, naming topic and offset, or read as null (raw_key and
    raw_value keep its bytes)."""

    def __post_init__(self) -> None:
        if self.format == "json" and self.schema is None:
            raise FieldError("schema", "format json needs a schema, such as: carrier STRING, delay INT")
        if self.format != "json" and self.schema is not None:
            raise FieldError("schema", "a schema needs format: json")


class TransformSpec(JobFileSpec, frozen=True, kw_only=True):
    """How records become rows."""

    key: DecodingSpec = DecodingSpec()
    value: DecodingSpec = DecodingSpec()
    sql: Sql | None = None
    """Query over the view `source`, with projections and filters, without aggregation. Columns: key and value
    (decoded), topic, partition, offset, timestamp, timestampType, headers, raw_key, raw_value."""


class TriggerSpec(JobFileSpec, frozen=True, kw_only=True):
    """When a batch starts: as soon as there is data, or at an interval; `once`: process what exists at the start."""

    every: Duration | None = None
    once: bool = False


class RestartSpec(JobFileSpec, frozen=True, kw_only=True):
    """How often a job restarts from its checkpoint after transient failures."""

    attempts: int = 10
    """Restarts in a row without a finished batch; 0: none."""
    backoff: Duration = Duration(1_000)
    max_backoff: Duration = Duration(60_000)

    def __post_init__(self) -> None:
        if not 0 <= self.attempts <= 1_000_000:
            raise FieldError("attempts", f"{self.attempts} is out of range; use 0 to 1,000,000")
        if self.backoff.ms > self.max_backoff.ms:
            raise FieldError("backoff", "longer than max_backoff")


class MetricsSpec(JobFileSpec, frozen=True, kw_only=True):
    """Address of the job's Prometheus metrics."""

    port: int
    host: str = "127.0.0.1"

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65_536:
            raise FieldError("port", f"invalid port {self.port}; use 0 to 65535")
        try:
            parse_host(self.host)
        except InvalidAddress as e:
            raise FieldError("host", str(e)) from None


class ProgressSpec(JobFileSpec, frozen=True, kw_only=True):
    """The group whose committed offsets show the job's progress; its lag is the job's lag."""

    group: str | None = None
    """Group name (default: `spark-` and the job's name)."""


class TimePartition(JobFileSpec, frozen=True, kw_only=True):
    """Folders by time: date=2013-01-01, and hour=07 for `by: hour`."""

    column: str = "timestamp"
    by: Literal["month", "day", "hour"] = "day"


class CompactionSpec(JobFileSpec, frozen=True, kw_only=True):
    """Compaction of small files of a partition into large ones, between batches."""

    every_batches: int = 20
    min_files: int = 8
    """Minimum number of files in a partition that are smaller than half of target."""
    target: Size = Size(128 << 20)

    def __post_init__(self) -> None:
        if self.every_batches < 1:
            raise FieldError("every_batches", "must be at least 1")
        if self.min_files < 2:
            raise FieldError("min_files", "must be at least 2")
        if self.target.bytes < 1 << 20:
            raise FieldError("target", "must be at least 1 MiB")


class FileTargetBase(JobFileSpec, frozen=True, kw_only=True):
    """Common fields of Parquet folders and Delta tables."""

    path: str
    time: TimePartition | None = None
    partition_by: list[str] = []
    """Columns of the result that become folders, below those by time."""
    compression: ParquetCodec = "zstd"
    file_size: Size = Size(128 << 20)
    """A task starts another file after this many bytes of rows in memory."""
    compact: CompactionSpec | None = CompactionSpec()

    def __post_init__(self) -> None:
        if not self.path.strip():
            raise FieldError("path", "the path is empty; set it")
        check_columns("partition_by", self.partition_by)
        if self.file_size.bytes < 64 << 10:
            raise FieldError("file_size", "must be at least 64 KiB")


class ParquetTarget(FileTargetBase, tag_field="format", tag="parquet", frozen=True, kw_only=True):
    """A folder of Parquet files on a POSIX file system."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if "://" in self.path and not self.path.startswith("file:///"):
            raise FieldError(
                "path",
                f"{quoted(self.path)} is not on a file system: it needs atomic renames; use format: delta "
                "for object stores",
            )
        if hidden := [column for column in self.partition_by if column.startswith("_")]:
            raise FieldError(
                "partition_by",
                f"{quoted(hidden[0])} starts with '_': readers skip such folders; rename the column",
            )


class DeltaTarget(FileTargetBase, tag_field="format", tag="delta", frozen=True, kw_only=True):
    """A Delta table at a path or the URL of an object store."""

    storage: dict[str, Resolved[str]] = {}
    """Options of the object store with deltalake's names (AWS_REGION, ...)."""
    vacuum_after: Duration | None = None
    """Age at which files that the table no longer references are deleted (Delta's usual minimum: 7 days)."""


class NewTopicSpec(JobFileSpec, frozen=True, kw_only=True):
    """Settings for topics that the job creates."""

    partitions: int = 1
    replication: int = -1
    config: dict[str, str] = {}

    def __post_init__(self) -> None:
        if not 1 <= self.partitions <= 100_000:
            raise FieldError("partitions", f"{self.partitions} is out of range; use 1 to 100,000")
        check_replication(self.replication)


class TopicTarget(JobFileSpec, tag_field="format", tag="topic", frozen=True, kw_only=True):
    """A topic. If the query's result has no column value, all its columns become a JSON value."""

    brokers: str
    topic: str | None = None
    """Topic name. If absent, the result's column `topic` has it."""
    key: Sql | None = None
    """Key: an expression over the result, such as carrier."""
    delivery: Literal["exactly-once", "at-least-once"] = "exactly-once"
    compression: Codec = "none"
    create: NewTopicSpec | None = None
    options: Options = {}

    def __post_init__(self) -> None:
        check_brokers(self.brokers)
        if self.topic is not None:
            check_topic("topic", self.topic)
        check_options(self.options, {"kafka.bootstrap.servers": "brokers", "topic": "topic"})
        if self.create is not None and self.topic is None:
            raise FieldError("create", "create needs topic, the name of the topic to create")


class ConsoleTarget(JobFileSpec, tag_field="format", tag="console", frozen=True, kw_only=True):
    """The terminal, for inspection, without delivery guarantee."""

    rows: int = 20

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise FieldError("rows", "must be at least 1")
        check_count("rows", self.rows)


Target = ParquetTarget | DeltaTarget | TopicTarget | ConsoleTarget
FileTarget = ParquetTarget | DeltaTarget


class JobSpec(JobFileSpec, tag_field="kind", frozen=True, kw_only=True):
    """Fields of every job."""

    name: str
    """Job name. Keep it stable: groups, transactional ids and metrics use it."""
    spark: dict[str, AsWritten[Scalar]] = {}
    """Settings of the Spark session; spark.master defaults to local[*]. References are passed to Spark, which has a
    similar syntax. Do not put secrets here: Spark shows its settings on its command line."""
    restart: RestartSpec = RestartSpec()
    metrics: MetricsSpec | None = None

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise FieldError(
                "name", f"invalid name {quoted(self.name)}; use at most 128 letters, digits, '.', '_' and '-'"
            )


class StreamJob(JobSpec, frozen=True, kw_only=True):
    """Fields of jobs that run from a checkpoint."""

    checkpoint: str
    """Folder for the job's state. It must outlive the job."""
    trigger: TriggerSpec = TriggerSpec()
    progress: ProgressSpec = ProgressSpec()
    stop_timeout: Duration = Duration(60_000)
    """Time that SIGTERM waits for the running batch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.checkpoint.strip():
            raise FieldError("checkpoint", "the path is empty; set it")


class TopicJob(StreamJob, frozen=True, kw_only=True):
    """Fields of jobs that read topics."""

    source: SourceSpec
    transform: TransformSpec = TransformSpec()
