"""What every kind of job is made of: where records come from, what becomes of them, where they go.

A job's file is one YAML mapping; `kind` says which struct of `kinds` it is. `document` makes these structs from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal

import msgspec

from penstock.config.addresses import InvalidAddress, parse_bootstrap, parse_host
from penstock_spark.jobs.spec.problems import FieldError
from penstock_spark.jobs.spec.references import AsWritten, Resolved
from penstock_spark.jobs.spec.scalars import Duration, Size, Sql

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")

NUMBER = re.compile(r"[0-9]{1,10}")
MAX_PARTITION = 2**31 - 1
EARLIEST = -2
"""The least that stands for an offset; -1 is the latest."""
MAX_INT, MAX_LONG = 2**31 - 1, 2**63 - 1
"""What Spark and Kafka's protocol have room for."""
MAX_REPLICATION = 2**15 - 1

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
"""Options of the format `penstock` that are keys of a job's source."""

Scalar = str | bool | int | float
Options = dict[str, Resolved[Scalar]]
Isolation = Literal["read_committed", "read_uncommitted"]
Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]
ParquetCodec = Literal["none", "snappy", "zstd", "gzip", "lz4"]


class JobFileSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parent of all parts of a job's file."""


def check_topic(field: str, topic: str) -> None:
    if not TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise FieldError(field, f"{topic!r} is no topic's name: at most 249 letters, digits, '.', '_' and '-'")


def check_count(field: str, value: int | None, most: int = MAX_INT) -> None:
    """A number of things, where there is one."""
    if value is not None and value < 1:
        raise FieldError(field, f"{value} is less than 1")
    if value is not None and value > most:
        raise FieldError(field, f"{value} is more than {most}")


def check_replication(replication: int) -> None:
    if replication != -1 and not 1 <= replication <= MAX_REPLICATION:
        raise FieldError("replication", f"{replication} is no number of replicas: 1 to {MAX_REPLICATION}, or -1")


def check_columns(field: str, columns: list[str]) -> None:
    for column in columns:
        if not COLUMN.fullmatch(column):
            raise FieldError(field, f"{column!r} is no column's name: letters, digits and '_', no digit first")
    if len(set(columns)) < len(columns):
        raise FieldError(field, "a column is named twice")


def check_options(options: Options, keys: Mapping[str, str]) -> None:
    """`keys`: what says the same beside the options. Options are without regard to case, as Spark has them."""
    folded = {option.lower(): key for option, key in keys.items()}
    for name in options:
        if name.lower() in folded:
            raise FieldError("options", f"the key {folded[name.lower()]} says that: leave the option away", name)


class SourceSpec(JobFileSpec, frozen=True, kw_only=True):
    """Where records are read. Exactly one of topics, pattern and assign."""

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
    """Any option of the format `penstock`, such as kafka.security.protocol."""

    def __post_init__(self) -> None:
        check_brokers(self.brokers)
        if [bool(self.topics), self.pattern is not None, self.assign is not None].count(True) != 1:
            raise FieldError("topics", "exactly one of topics, pattern and assign says what to read")
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
            raise FieldError("pattern", "is empty; ^flights finds topics whose names begin so")
        try:
            re.compile(self.pattern.strip())
        except (re.error, RecursionError, OverflowError) as e:
            raise FieldError("pattern", f"{self.pattern!r} is no regular expression of Python: {e}") from None

    def _check_assign(self) -> None:
        if self.assign is None:
            return
        if not self.assign:
            raise FieldError("assign", "names no partition; write them by topic: {flights: [0, 1]}")
        for topic, partitions in self.assign.items():
            check_topic("assign", topic)
            if not partitions:
                raise FieldError("assign", "names no partition; write which, or leave the topic away", topic)
            for partition in partitions:
                if not 0 <= partition <= MAX_PARTITION:
                    raise FieldError("assign", f"{partition} is no partition: they count from 0", topic)
            if len(set(partitions)) < len(partitions):
                raise FieldError("assign", "a partition is named twice", topic)

    def _check_offsets(self) -> None:
        if isinstance(self.starting, str):
            return
        if not self.starting:
            raise FieldError("starting", "names no partition; write offsets as {flights: {0: 23}}, or earliest")
        for topic, offsets in self.starting.items():
            check_topic("starting", topic)
            for partition, offset in offsets.items():
                if not NUMBER.fullmatch(partition) or int(partition) > MAX_PARTITION:
                    message = f"{partition!r} is no partition: write offsets as {{flights: {{0: 23}}}}"
                    raise FieldError("starting", message, topic, partition)
                if not EARLIEST <= offset <= MAX_LONG:
                    message = f"{offset} is no offset: 0 to {MAX_LONG}, -1 for the latest, -2 for the earliest"
                    raise FieldError("starting", message, topic, partition)

    def takes(self, topic: str) -> bool:
        """Whether the topic is read, if it is there: the rule of `options.source.Selection`."""
        if self.pattern is not None:
            return re.search(self.pattern.strip(), topic) is not None
        return topic in (self.topics or self.assign or {})

    def starting_ms(self) -> int | None:
        """The time that `starting` says, in ms since 1970; None where it says something else."""
        if not isinstance(self.starting, str) or self.starting in ("earliest", "latest"):
            return None
        try:
            when = datetime.fromisoformat(self.starting)
        except ValueError:
            raise FieldError(
                "starting",
                f"{self.starting!r} is not earliest, latest, offsets by partition, or a time (2013-01-01T00:00:00Z)",
            ) from None
        return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)


def check_brokers(brokers: str, field: str = "brokers") -> None:
    """Whether a prefix such as SSL:// fits the options is checked when the job starts. Raises `FieldError`."""
    try:
        addresses(brokers)
    except InvalidAddress as e:
        raise FieldError(field, str(e)) from None


def addresses(brokers: str) -> set[tuple[str, int]]:
    """Hosts in lower case, and ports. Raises `InvalidAddress`."""
    return {(host.lower(), port) for host, port in parse_bootstrap(brokers, has_tls=True, has_sasl=True)}


def check_no_circle(source: SourceSpec, brokers: str, topic: str | None, field: str) -> None:
    """`topic` is what the job writes, as `field` says. Brokers that are one cluster under other addresses are not known
    to be."""
    if topic is not None and source.takes(topic) and addresses(source.brokers) & addresses(brokers):
        cure = "write to another topic"
        if source.pattern is not None:
            cure += f", or read a pattern without it: ^(?!{re.escape(topic)}$).*(?:{source.pattern.strip()})"
        message = f"the job reads topic {topic} itself, and would read what it writes, for ever: {cure}"
        raise FieldError(field, message, "topic")


class DecodingSpec(JobFileSpec, frozen=True, kw_only=True):
    """What bytes are: left as they are, text in UTF-8, or JSON of a schema (`carrier STRING, delay INT`)."""

    format: Literal["binary", "string", "json"] = "binary"
    schema: Sql | None = None
    on_error: Literal["fail", "null"] = "fail"
    """What a value that is no such text or JSON does: it fails the job, naming topic and offset, or reads as null
    (raw_key and raw_value still have its bytes)."""

    def __post_init__(self) -> None:
        if self.format == "json" and self.schema is None:
            raise FieldError("schema", "JSON needs a schema, such as: carrier STRING, delay INT")
        if self.format != "json" and self.schema is not None:
            raise FieldError("schema", "only format json has a schema")


class TransformSpec(JobFileSpec, frozen=True, kw_only=True):
    """How records become rows."""

    key: DecodingSpec = DecodingSpec()
    value: DecodingSpec = DecodingSpec()
    sql: Sql | None = None
    """A query over the view `source`, without aggregation: projections and filters. Its columns are key and value
    (decoded), topic, partition, offset, timestamp, timestampType, headers, raw_key, raw_value."""


class TriggerSpec(JobFileSpec, frozen=True, kw_only=True):
    """When a batch begins: at once if there is data, or every so often; `once` ends with what is there at the start."""

    every: Duration | None = None
    once: bool = False


class RestartSpec(JobFileSpec, frozen=True, kw_only=True):
    """How often a job that failed of something that may pass starts again from its checkpoint."""

    attempts: int = 10
    """In a row, without a finished batch between them; 0: never."""
    backoff: Duration = Duration(1_000)
    max_backoff: Duration = Duration(60_000)

    def __post_init__(self) -> None:
        if not 0 <= self.attempts <= 1_000_000:
            raise FieldError("attempts", "0 to 1,000,000")
        if self.backoff.ms > self.max_backoff.ms:
            raise FieldError("backoff", "backoff is longer than max_backoff")


class MetricsSpec(JobFileSpec, frozen=True, kw_only=True):
    """Where Prometheus finds the job's figures."""

    port: int
    host: str = "127.0.0.1"

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65_536:
            raise FieldError("port", f"{self.port} is no port")
        try:
            parse_host(self.host)
        except InvalidAddress as e:
            raise FieldError("host", str(e)) from None


class ProgressSpec(JobFileSpec, frozen=True, kw_only=True):
    """The group whose committed offsets show the job's progress; its lag is the job's lag."""

    group: str | None = None
    """Default: `spark-` and the job's name."""


class TimePartition(JobFileSpec, frozen=True, kw_only=True):
    """Folders by time: date=2013-01-01, and hour=07 where by is hour."""

    column: str = "timestamp"
    by: Literal["month", "day", "hour"] = "day"


class CompactionSpec(JobFileSpec, frozen=True, kw_only=True):
    """Small files of a partition become few large ones, between batches."""

    every_batches: int = 20
    min_files: int = 8
    """In a partition, of less than half of target."""
    target: Size = Size(128 << 20)

    def __post_init__(self) -> None:
        if self.every_batches < 1:
            raise FieldError("every_batches", "at least 1")
        if self.min_files < 2:
            raise FieldError("min_files", "at least 2")
        if self.target.bytes < 1 << 20:
            raise FieldError("target", "at least 1 MiB")


class FileTargetBase(JobFileSpec, frozen=True, kw_only=True):
    """What Parquet folders and Delta tables share."""

    path: str
    time: TimePartition | None = None
    partition_by: list[str] = []
    """Columns of the result; folders by time come before them."""
    compression: ParquetCodec = "zstd"
    file_size: Size = Size(128 << 20)
    """A task begins another file beyond that many bytes of rows in memory."""
    compact: CompactionSpec | None = CompactionSpec()

    def __post_init__(self) -> None:
        if not self.path.strip():
            raise FieldError("path", "a path is wanted")
        check_columns("partition_by", self.partition_by)
        if self.file_size.bytes < 64 << 10:
            raise FieldError("file_size", "at least 64 KiB")


class ParquetTarget(FileTargetBase, tag_field="format", tag="parquet", frozen=True, kw_only=True):
    """A folder of Parquet files on a POSIX file system."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if "://" in self.path and not self.path.startswith("file:///"):
            raise FieldError(
                "path",
                f"{self.path}: a Parquet folder is exact only where renaming is atomic, so on a file system; "
                "object stores take format: delta",
            )
        if hidden := [column for column in self.partition_by if column.startswith("_")]:
            raise FieldError(
                "partition_by",
                f"{hidden[0]}: who lists a folder passes over names that begin with '_'; give the column another name",
            )


class DeltaTarget(FileTargetBase, tag_field="format", tag="delta", frozen=True, kw_only=True):
    """A Delta table: a path, or the URL of an object store."""

    storage: dict[str, Resolved[str]] = {}
    """Options of the object store, as deltalake names them (AWS_REGION, ...)."""
    vacuum_after: Duration | None = None
    """Files that the table no longer names are deleted when older than that (at least 7 days are Delta's custom)."""


class NewTopicSpec(JobFileSpec, frozen=True, kw_only=True):
    """Topics that do not exist are created so."""

    partitions: int = 1
    replication: int = -1
    config: dict[str, str] = {}

    def __post_init__(self) -> None:
        if not 1 <= self.partitions <= 100_000:
            raise FieldError("partitions", "1 to 100,000")
        check_replication(self.replication)


class TopicTarget(JobFileSpec, tag_field="format", tag="topic", frozen=True, kw_only=True):
    """A topic. Where the query's result has no column value, all of its columns become a JSON value."""

    brokers: str
    topic: str | None = None
    """Absent: the result's column `topic` names it."""
    key: Sql | None = None
    """An expression over the result, such as: carrier."""
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
            raise FieldError("create", "create needs topic: it creates the topic that is named")


class ConsoleTarget(JobFileSpec, tag_field="format", tag="console", frozen=True, kw_only=True):
    """The terminal; for looking, with no guarantee."""

    rows: int = 20

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise FieldError("rows", "at least 1")
        check_count("rows", self.rows)


Target = ParquetTarget | DeltaTarget | TopicTarget | ConsoleTarget
FileTarget = ParquetTarget | DeltaTarget


class JobSpec(JobFileSpec, tag_field="kind", frozen=True, kw_only=True):
    """What every job has."""

    name: str
    """Stable: groups, transactional ids and metrics carry it."""
    spark: dict[str, AsWritten[Scalar]] = {}
    """Settings of the Spark session; spark.master is local[*] where nothing else says. References are Spark's affair,
    which has some of the same spelling; and its settings stand in its command line, where no secret belongs."""
    restart: RestartSpec = RestartSpec()
    metrics: MetricsSpec | None = None

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise FieldError("name", f"{self.name!r}: letters, digits, '.', '_' and '-', at most 128")


class StreamJob(JobSpec, frozen=True, kw_only=True):
    """What every job has that goes on from a checkpoint."""

    checkpoint: str
    """A folder that outlives the job; it is the job's memory of what was done."""
    trigger: TriggerSpec = TriggerSpec()
    progress: ProgressSpec = ProgressSpec()
    stop_timeout: Duration = Duration(60_000)
    """How long SIGTERM waits for the batch that runs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.checkpoint.strip():
            raise FieldError("checkpoint", "a path is wanted")


class TopicJob(StreamJob, frozen=True, kw_only=True):
    """What every job has that reads topics."""

    source: SourceSpec
    transform: TransformSpec = TransformSpec()
