"""audit: compares topics with their archive, record by record, by topic, partition and offset.

A batch job. Only the four columns that say which record a row is are read of the archive, in tasks. The answer is a
`Report`; the command line makes an exit code of it. What may pass is tried again, as a stream's `Supervisor` does: an
audit writes nothing, so it begins anew.
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
FILES_A_TASK = 16


class GaveUp(PenstockSparkError):
    """What may pass did not, as often in a row as the job's `restart` lets it be tried."""


@dataclass(frozen=True)
class Finding:
    """What differs of one partition. `before` and `beyond`: rows of the archive whose records the topic no longer has
    (retention), or that came after the audit began; these are as they should be."""

    topic: str
    partition: int
    records: int
    rows: int
    missing: int
    duplicates: int
    unknown: int
    """Rows of offsets that the topic does not have, between offsets that it has."""
    before: int
    beyond: int
    first_missing: int | None = None
    first_duplicate: int | None = None


@dataclass(frozen=True)
class Count:
    """Records and rows by time."""

    begin: str
    records: int
    rows: int


@dataclass(frozen=True)
class Report:
    partitions: list[Finding]
    counts: list[Count]

    @property
    def is_clean(self) -> bool:
        return not any(f.missing or f.duplicates or f.unknown for f in self.partitions)

    def to_json(self) -> str:
        return json.dumps({"clean": self.is_clean, **asdict(self)}, indent=2)


def run(
    spark: SparkSession,
    job: Audit,
    stop: StopSignal | None = None,
    told: Callable[[str, float], None] = lambda text, again_in_s: None,
) -> Report:
    """Compares, and again while what fails may pass; `told` hears of each failure and of the seconds until the next
    try. Raises `GaveUp`, also where `stop` ends the wait: an audit that was stopped must not look like one that found
    nothing. What lasts is raised as it came."""
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
                raise GaveUp(f"{cause(e)}{times}") from e
            wait_s = backoff_s(job.restart, failures)
            told(cause(e), wait_s)
            if stop.wait(wait_s):
                raise GaveUp(f"{cause(e)}{times}; stopped before another try") from e
    if job.report is not None:
        Path(job.report).write_text(report.to_json() + "\n")
    return report


def compare(spark: SparkSession, job: Audit) -> Report:
    """One comparison. Raises `InvalidOption` where the archive or the checkpoint is not what the job says."""
    source, ending = job.source, "latest"
    if job.until_checkpoint is not None:
        source, ending = until(source, end_of(spark, job.until_checkpoint), job.until_checkpoint)
    records = reading.batch(spark, source, ending).select("topic", "partition", "offset", "timestamp")
    rows = archived(spark, job)
    joined = join(records, rows).persist()
    try:
        return Report(findings(joined), counts(joined, job.bucket.sql))
    finally:
        joined.unpersist()


Ends = dict[str, dict[str, int]]
"""Of partitions, by topic and number."""


def end_of(spark: SparkSession, checkpoint: str) -> Ends:
    """Where the last finished batch of a job ended."""
    found = finished(spark, checkpoint)
    if found is None:
        raise InvalidOption(f"until_checkpoint: {checkpoint} holds no finished batch: there is nothing to audit yet")
    return {t: p for t, p in found.items() if not t.startswith("@")}


def until(source: SourceSpec, ends: Ends, checkpoint: str) -> tuple[SourceSpec, str]:
    """The source as far as the checkpoint's job has come, and the option endingOffsets: of what the source chooses, the
    partitions that the job has read. Those that came since are not in the archive, nor are they to be."""
    read = SourceOptions.parse(reading.options(source), streaming=False).selection
    chosen = {
        topic: {number: end for number, end in partitions.items() if read.takes_partition(topic, int(number))}
        for topic, partitions in ends.items()
    }
    chosen = {topic: partitions for topic, partitions in chosen.items() if partitions}
    if not chosen:
        raise InvalidOption(
            f"until_checkpoint: the job of {checkpoint} has read topics {', '.join(sorted(ends))}, and none of those "
            "that the audit's source names"
        )
    assign = {topic: sorted(map(int, partitions)) for topic, partitions in chosen.items()}
    return msgspec.structs.replace(source, topics=[], pattern=None, assign=assign), json.dumps(chosen)


def archived(spark: SparkSession, job: Audit) -> DataFrame:
    """The archive's rows, read by tasks."""
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
        raise InvalidOption(f"archive.path: there is no archive at {archive.path}") from e
    if not files:
        return spark.createDataFrame([], SCHEMA)
    chunks = [files[i : i + FILES_A_TASK] for i in range(0, len(files), FILES_A_TASK)]
    names = spark.createDataFrame([(json.dumps(chunk),) for chunk in chunks], "files string")
    reader = FileReader(root, storage, job.columns)
    return names.repartition(len(chunks)).mapInArrow(reader, SCHEMA)


File = tuple[str, dict[str, str | None]]
"""A path under the root, and the values that its folder stands for."""


def delta_files(archive: DeltaTarget) -> list[File]:
    from deltalake import DeltaTable

    table = DeltaTable(archive.path, storage_options=dict(archive.storage) or None)
    actions = pa.table(table.get_add_actions(flatten=False)).to_pylist()
    return [(unquote(a["path"]), {k: text_of(v) for k, v in (a.get("partition") or {}).items()}) for a in actions]


def text_of(value: Any) -> str | None:
    return None if value is None else str(value)


def parquet_files(root: str) -> list[File]:
    paths = [Path(file).relative_to(root) for file in ds.dataset(root, format="parquet").files]
    return [(str(path), values_of_folders(path)) for path in paths]


def values_of_folders(path: Path) -> dict[str, str | None]:
    """What folders stand for, as text: a topic 007 is no number."""
    pairs = [folder.partition("=") for folder in path.parts[:-1]]
    return {name: None if value == NULL_PARTITION else unquote(value) for name, equals, value in pairs if equals}


@dataclass(frozen=True)
class FileReader:
    """What a task runs: names of files in, the columns that say which record a row is out."""

    root: str
    storage: dict[str, str]
    columns: ArchiveColumns

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = filesystem(self.root, self.storage)
        for batch in batches:
            for chunk in batch.column(0).to_pylist():
                for path, values in json.loads(chunk):
                    yield from self._rows(files, path, values)

    def _rows(self, files: Any, path: str, values: dict[str, str | None]) -> Iterator[pa.RecordBatch]:
        wanted = {name: getattr(self.columns, name) for name in ARROW.names}
        source = path if "://" in self.root else f"{self.root}/{path}"
        fragment = ds.dataset(source, format="parquet", filesystem=files)
        lacking = [c for c in wanted.values() if c not in values and c not in fragment.schema.names]
        if lacking:
            raise InvalidOption(
                f"the archive has no column {', '.join(lacking)} ({path} has {', '.join(fragment.schema.names)}): an "
                "audit needs topic, partition, offset and timestamp; say under columns what they are called"
            )
        read = [c for c in wanted.values() if c not in values]
        for batch in fragment.to_batches(columns=read):
            arrays = [
                pa.array([values[c]] * batch.num_rows, pa.string()).cast(ARROW.field(n).type)
                if c in values
                else batch.column(c).cast(ARROW.field(n).type)
                for n, c in wanted.items()
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=ARROW)


def join(records: DataFrame, rows: DataFrame) -> DataFrame:
    """One row for each offset that is in either: in the topic, how often in the archive, when."""
    from pyspark.sql import functions as F  # noqa: N812

    keys = ["topic", "partition", "offset"]
    stored = rows.groupBy(*keys).agg(F.count(F.lit(1)).alias("times"), F.min("timestamp").alias("stored_at"))
    there = records.withColumn("there", F.lit(True))
    joined = there.join(stored, keys, "full_outer")
    return joined.select(
        *keys,
        F.coalesce("there", F.lit(False)).alias("there"),
        F.coalesce("times", F.lit(0)).alias("times"),
        F.coalesce("timestamp", "stored_at").alias("timestamp"),
    )


def findings(joined: DataFrame) -> list[Finding]:
    from pyspark.sql import functions as F  # noqa: N812

    keys = ["topic", "partition"]
    ends = joined.where("there").groupBy(*keys).agg(F.min("offset").alias("first"), F.max("offset").alias("last"))
    rows = joined.join(F.broadcast(ends), keys, "left")
    stray = ~F.col("there")
    # A row whose topic, partition or offset is NULL is of no record; compared with anything it is neither.
    named = F.col("topic").isNotNull() & F.col("partition").isNotNull() & F.col("offset").isNotNull()
    before = stray & named & F.coalesce(F.col("offset") < F.col("first"), F.lit(False))
    # Without a record in the topic there is no saying what came before or after: retention took everything.
    beyond = stray & named & (F.col("last").isNull() | (F.col("offset") > F.col("last")))
    missing, double = F.col("there") & (F.col("times") == 0), F.col("times") > 1
    found = (
        rows.groupBy(*keys)
        .agg(
            F.count_if("there").alias("records"),
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


def counts(joined: DataFrame, bucket: str) -> list[Count]:
    from pyspark.sql import functions as F  # noqa: N812

    found = (
        joined.groupBy(F.window("timestamp", bucket).alias("w"))
        .agg(F.count_if("there").alias("records"), F.sum("times").alias("rows"))
        .orderBy("w.start")
        .select(F.date_format("w.start", "yyyy-MM-dd'T'HH:mm:ss'Z'").alias("begin"), "records", "rows")
        .collect()
    )
    return [Count(row.begin, row.records, row["rows"]) for row in found]
