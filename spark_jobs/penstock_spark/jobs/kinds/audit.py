"""audit: compares topics with their archive, record by record, by topic, partition and offset.

A batch job. Tasks read only the four archive columns that identify a record. The result is an `AuditReport`, which the
command line turns into an exit code. Transient failures are retried with the backoff of `JobSupervisor`; an audit
writes nothing, so a retry starts from the beginning.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds

from penstock_spark.jobs.run import reading
from penstock_spark.jobs.run.checkpoint import finished
from penstock_spark.jobs.run.data_files import NULL_PARTITION, filesystem
from penstock_spark.jobs.run.failures import cause, is_gone, may_pass
from penstock_spark.jobs.run.stopping import StopSignal
from penstock_spark.jobs.run.supervisor import backoff_s
from penstock_spark.jobs.spec.kinds import ArchiveColumns, Audit
from penstock_spark.jobs.spec.specs import DeltaTarget, SourceSpec
from penstock_spark.model.errors import InvalidOption, PenstockSparkError
from penstock_spark.options.source import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "topic string, partition int, offset long, timestamp timestamp"
ARROW = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)
FILES_PER_TASK = 16


class AuditRetriesExhausted(PenstockSparkError):
    """A transient failure lasted longer than the retries that the job's `restart` allows."""


@dataclass(frozen=True)
class Finding:
    """The result of one partition. `before` and `beyond` count archive rows of records that the topic no longer has
    (retention), or that were written after the audit started; neither is an error."""

    topic: str
    partition: int
    records: int
    rows: int
    missing: int
    duplicates: int
    unknown: int
    """Archive rows with offsets that the topic lacks, between offsets that it has."""
    before: int
    beyond: int
    first_missing: int | None = None
    first_duplicate: int | None = None


@dataclass(frozen=True)
class BucketCount:
    """Number of records and of archive rows in a time bucket."""

    begin: str
    records: int
    rows: int


@dataclass(frozen=True)
class AuditReport:
    """The result of an audit."""

    partitions: list[Finding]
    counts: list[BucketCount]

    @property
    def is_clean(self) -> bool:
        """Whether nothing is missing, duplicate or unknown."""
        return not any(f.missing or f.duplicates or f.unknown for f in self.partitions)

    def to_json(self) -> str:
        """Return the report as indented JSON."""
        return json.dumps({"clean": self.is_clean, **asdict(self)}, indent=2)


def run(
    spark: SparkSession,
    job: Audit,
    stop: StopSignal | None = None,
    on_failure: Callable[[str, float], None] = lambda text, again_in_s: None,
) -> AuditReport:
    """Compare, and retry transient failures; `on_failure` gets each failure and the seconds until the retry.

    Raises `AuditRetriesExhausted` after too many failures, and if `stop` ends the wait: a stopped audit must not look
    clean. Permanent errors are raised unchanged.
    """
    stop = stop or StopSignal()
    failures = 0
    while True:
        try:
            report = compare(spark, job)
            break
        except Exception as e:
            if not may_pass(e):
                raise
            failures += 1
            times = f" ({failures} times in a row)" if failures > 1 else ""
            if failures > job.restart.attempts or is_gone(e) or stop.is_set():
                raise AuditRetriesExhausted(f"{cause(e)}{times}") from e
            wait_s = backoff_s(job.restart, failures)
            on_failure(cause(e), wait_s)
            if stop.wait(wait_s):
                raise AuditRetriesExhausted(f"{cause(e)}{times}; stopped before the next attempt") from e
    if job.report is not None:
        Path(job.report).write_text(report.to_json() + "\n")
    return report


def compare(spark: SparkSession, job: Audit) -> AuditReport:
    """Compare once. Raises `InvalidOption` if the archive or the checkpoint does not match the job."""
    source, ending = job.source, "latest"
    if job.until_checkpoint is not None:
        source, ending = limit_source(source, committed_ends(spark, job.until_checkpoint), job.until_checkpoint)
    records = reading.batch(spark, source, ending).select("topic", "partition", "offset", "timestamp")
    rows = archived_rows(spark, job)
    joined = join(records, rows).persist()
    try:
        return AuditReport(findings(joined), counts(joined, job.bucket.sql))
    finally:
        joined.unpersist()


PartitionEnds = dict[str, dict[str, int]]
"""End offsets by topic and partition number."""


def committed_ends(spark: SparkSession, checkpoint: str) -> PartitionEnds:
    """Return the end offsets of a job's last finished batch."""
    found = finished(spark, checkpoint)
    if found is None:
        raise InvalidOption(
            f'until_checkpoint: "{checkpoint}" has no finished batch; run the archive job before the audit'
        )
    return {t: p for t, p in found.items() if not t.startswith("@")}


def limit_source(source: SourceSpec, ends: PartitionEnds, checkpoint: str) -> tuple[SourceSpec, str]:
    """Return the source limited to what the checkpoint's job has read, and the option endingOffsets.

    Partitions that the job has not read yet are left out: they are not in the archive.
    """
    read = SourceOptions.parse(reading.options(source), streaming=False).selection
    chosen = {
        topic: {number: end for number, end in partitions.items() if read.selects_partition(topic, int(number))}
        for topic, partitions in ends.items()
    }
    chosen = {topic: partitions for topic, partitions in chosen.items() if partitions}
    if not chosen:
        raise InvalidOption(
            f'until_checkpoint: the job of "{checkpoint}" has read topics {", ".join(sorted(ends))}, none of which '
            "the audit's source selects; correct source or until_checkpoint"
        )
    assign = {topic: sorted(map(int, partitions)) for topic, partitions in chosen.items()}
    return msgspec.structs.replace(source, topics=[], pattern=None, assign=assign), json.dumps(chosen)


def archived_rows(spark: SparkSession, job: Audit) -> DataFrame:
    """Return the archive's rows, read by tasks. Raises `InvalidOption` if there is no archive."""
    from deltalake.exceptions import TableNotFoundError

    archive = job.archive
    try:
        if isinstance(archive, DeltaTarget):
            files = delta_files(archive)
            storage, root = dict(archive.storage), archive.path
        else:
            root = str(Path(archive.path.removeprefix("file://")).absolute())
            files, storage = parquet_files(root), {}
    except (FileNotFoundError, TableNotFoundError) as e:
        raise InvalidOption(f'archive.path: "{archive.path}" does not exist; correct the path or the format') from e
    if not files:
        return spark.createDataFrame([], SCHEMA)
    chunks = [files[i : i + FILES_PER_TASK] for i in range(0, len(files), FILES_PER_TASK)]
    names = spark.createDataFrame([(json.dumps(chunk),) for chunk in chunks], "files string")
    reader = FileReader(root, storage, job.columns)
    return names.repartition(len(chunks)).mapInArrow(reader, SCHEMA)


ArchiveFile = tuple[str, dict[str, str | None]]
"""A path below the root, and the values of its partition folders."""


def delta_files(archive: DeltaTarget) -> list[ArchiveFile]:
    """Return the files of a Delta table."""
    from deltalake import DeltaTable

    table = DeltaTable(archive.path, storage_options=dict(archive.storage) or None)
    actions = pa.table(table.get_add_actions(flatten=False)).to_pylist()
    return [(unquote(a["path"]), {k: text_of(v) for k, v in (a.get("partition") or {}).items()}) for a in actions]


def text_of(value: Any) -> str | None:
    """Return a value as text; None stays None."""
    return None if value is None else str(value)


def parquet_files(root: str) -> list[ArchiveFile]:
    """Return the files of a Parquet folder."""
    paths = [Path(file).relative_to(root) for file in ds.dataset(root, format="parquet").files]
    return [(str(path), values_of_folders(path)) for path in paths]


def values_of_folders(path: Path) -> dict[str, str | None]:
    """Return the values of partition folders as text, so that a topic 007 stays text."""
    pairs = [folder.partition("=") for folder in path.parts[:-1]]
    return {name: None if value == NULL_PARTITION else unquote(value) for name, equals, value in pairs if equals}


@dataclass(frozen=True)
class FileReader:
    """Run by tasks: takes file names, returns the columns that identify a record."""

    root: str
    storage: dict[str, str]
    columns: ArchiveColumns

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the columns that identify a record, of each file in `batches`."""
        files = filesystem(self.root, self.storage)
        for batch in batches:
            for chunk in batch.column(0).to_pylist():
                for path, values in json.loads(chunk):
                    yield from self._rows(files, path, values)

    def _rows(self, files: Any, path: str, values: dict[str, str | None]) -> Iterator[pa.RecordBatch]:
        names = {name: getattr(self.columns, name) for name in ARROW.names}
        source = path if "://" in self.root else f"{self.root}/{path}"
        fragment = ds.dataset(source, format="parquet", filesystem=files)
        lacking = [c for c in names.values() if c not in values and c not in fragment.schema.names]
        if lacking:
            raise InvalidOption(
                f"the archive has no column {', '.join(lacking)}, only {', '.join(fragment.schema.names)} ({path}); an "
                "audit needs topic, partition, offset and timestamp: set their names under columns"
            )
        read = [c for c in names.values() if c not in values]
        for batch in fragment.to_batches(columns=read):
            arrays = [
                pa.array([values[c]] * batch.num_rows, pa.string()).cast(ARROW.field(n).type)
                if c in values
                else batch.column(c).cast(ARROW.field(n).type)
                for n, c in names.items()
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=ARROW)


def join(records: DataFrame, rows: DataFrame) -> DataFrame:
    """Return a row for each offset of topic or archive: whether the topic has it, the archive's count, the time."""
    from pyspark.sql import functions as F  # noqa: N812

    keys = ["topic", "partition", "offset"]
    stored = rows.groupBy(*keys).agg(F.count(F.lit(1)).alias("times"), F.min("timestamp").alias("stored_at"))
    present = records.withColumn("in_topic", F.lit(True))
    joined = present.join(stored, keys, "full_outer")
    return joined.select(
        *keys,
        F.coalesce("in_topic", F.lit(False)).alias("in_topic"),
        F.coalesce("times", F.lit(0)).alias("times"),
        F.coalesce("timestamp", "stored_at").alias("timestamp"),
    )


def findings(joined: DataFrame) -> list[Finding]:
    """Return the results by partition."""
    from pyspark.sql import functions as F  # noqa: N812

    keys = ["topic", "partition"]
    ends = joined.where("in_topic").groupBy(*keys).agg(F.min("offset").alias("first"), F.max("offset").alias("last"))
    rows = joined.join(F.broadcast(ends), keys, "left")
    stray = ~F.col("in_topic")
    # A row with NULL as topic, partition or offset belongs to no record: it is neither before nor beyond.
    named = F.col("topic").isNotNull() & F.col("partition").isNotNull() & F.col("offset").isNotNull()
    before = stray & named & F.coalesce(F.col("offset") < F.col("first"), F.lit(False))
    # A topic without records was emptied by retention, so its rows count as beyond.
    beyond = stray & named & (F.col("last").isNull() | (F.col("offset") > F.col("last")))
    missing, double = F.col("in_topic") & (F.col("times") == 0), F.col("times") > 1
    found = (
        rows.groupBy(*keys)
        .agg(
            F.count_if("in_topic").alias("records"),
            F.sum("times").alias("rows"),
            F.count_if(missing).alias("missing"),
            F.sum(F.when(double, F.col("times") - 1).otherwise(0)).alias("duplicates"),
            F.count_if(stray & ~before & ~beyond).alias("unknown"),
            F.count_if(before).alias("before"),
            F.count_if(beyond).alias("beyond"),
            F.min(F.when(missing, F.col("offset"))).alias("first_missing"),
            F.min(F.when(double, F.col("offset"))).alias("first_duplicate"),
        )
        .orderBy(*keys)
        .collect()
    )
    return [Finding(**row.asDict()) for row in found]


def counts(joined: DataFrame, bucket: str) -> list[BucketCount]:
    """Return the counts by time bucket."""
    from pyspark.sql import functions as F  # noqa: N812

    found = (
        joined.groupBy(F.window("timestamp", bucket).alias("w"))
        .agg(F.count_if("in_topic").alias("records"), F.sum("times").alias("rows"))
        .orderBy("w.start")
        .select(F.date_format("w.start", "yyyy-MM-dd'T'HH:mm:ss'Z'").alias("begin"), "records", "rows")
        .collect()
    )
    return [BucketCount(row.begin, row.records, row["rows"]) for row in found]
