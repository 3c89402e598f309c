"""backfill: files into a topic, each row once; when run again, files that are new.

Spark's readers pass over much in silence. The options here read files as those who write them mean them, or fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from penstock_spark.jobs.run import reading, writing
from penstock_spark.jobs.run.session import text
from penstock_spark.jobs.spec.kinds import Backfill
from penstock_spark.jobs.spec.specs import TriggerSpec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

MAX_FILE_AGE = "36500d"
"""Spark's file source passes over files that are older than the newest one it has seen by more than this, and does not
say so; its own default is a week. Copies that keep times (rsync -a, tar) come late and are old: a century takes them
all. The price is that the driver remembers the names of all files, for as long as it runs."""
STRICT = {"mode": "FAILFAST", "enforceSchema": "false"}
"""A value that is not of the schema, or a CSV header that names other columns, fails the job. Spark's own defaults make
a null of the one, and take columns in their order whatever the other says."""
RECURSIVE = "recursiveFileLookup"
RFC_4180 = {
    # A quote within quotes is doubled. Spark's own escape is the backslash.
    "quote": '"',
    "escape": '"',
    # Text in quotes may have line breaks; a file is read by one task then.
    "multiLine": "true",
    # A row must have as many columns as the schema, whichever of them the query uses.
    "columnPruning": "false",
    # Nothing between two separators is NULL, and "" is empty text. Spark's own value makes both NULL.
    "nullValue": "\0",
}
COMPOSED = ("array", "map", "struct", "variant")
REPLACEMENT = "\ufffd"
"""What Spark puts in place of bytes that are not of the encoding."""


def start(spark: SparkSession, job: Backfill) -> StreamingQuery:
    given = {name: text(value) for name, value in job.read_options.items()}
    options = options_of(job, given)
    if RECURSIVE.lower() not in {name.lower() for name in given} and not has_partition_folders(spark, job):
        options[RECURSIVE] = "true"
    rows = spark.readStream.format(job.format).schema(job.schema).options(**options).load(job.path)
    rows = checked(rows, job.format, given)
    if job.sql is not None:
        rows = reading.query(rows, job.sql)
    once = msgspec.structs.replace(job, trigger=TriggerSpec(once=True))
    return writing.start(rows, once, job.to, with_times=True)


def options_of(job: Backfill, given: Mapping[str, str]) -> dict[str, str]:
    """Options of Spark's reader. The job's own come last and win, however they are spelled: Spark takes names of any
    case."""
    options = {"maxFileAge": MAX_FILE_AGE, **STRICT, **(RFC_4180 if job.format == "csv" else {}), **given}
    if job.max_files_per_batch is not None:
        options["maxFilesPerTrigger"] = str(job.max_files_per_batch)
    return options


def has_partition_folders(spark: SparkSession, job: Backfill) -> bool:
    """Whether folders such as `day=2024-01-01` hold a column of the schema. Spark finds such columns only where it does
    not look into every folder."""
    from pyspark.sql.types import StructType

    jvm = spark._jvm
    assert jvm is not None, "jobs run in a session with a JVM"
    folders = jvm.org.apache.hadoop.fs.Path(f"{job.path}/*=*")
    files = folders.getFileSystem(spark._jsc.hadoopConfiguration())
    schema = StructType.fromDDL(job.schema)
    columns = {name.lower() for name in schema.names} if isinstance(schema, StructType) else set()
    found = files.globStatus(folders) or []
    return any(entry.getPath().getName().partition("=")[0].lower() in columns for entry in found)


def checked(rows: DataFrame, format_: str, given: Mapping[str, str]) -> DataFrame:
    """Rows that fail the job where Spark has read something else than the file says. The checks of text end where the
    job says what is meant: its encoding, and whether there is a header."""
    from pyspark.sql import functions as F  # noqa: N812

    names = {name.lower() for name in given}
    texts = [f.name for f in rows.schema if f.dataType.typeName() == "string"]
    plain = [f.name for f in rows.schema if f.dataType.typeName() not in COMPOSED]
    if format_ in ("csv", "json") and plain:
        # Always true. Spark converts no column that nothing needs, so that a value not of the schema would pass.
        rows = rows.where(F.hash(*plain).bitwiseAND(F.lit(0)) == 0)
    if format_ in ("csv", "json") and texts and not names & {"encoding", "charset"}:
        is_lossy = any_of([F.col(name).contains(REPLACEMENT) for name in texts])
        rows = rows.where(accepted(is_lossy, "the file is not UTF-8; set read_options.encoding, such as ISO-8859-1"))
    if format_ == "csv" and len(texts) == len(rows.columns) and "header" not in names:
        is_header = ~any_of([~F.col(name).eqNullSafe(name) for name in texts])
        rows = rows.where(accepted(is_header, "a row has the names of the columns; set read_options.header"))
    return rows


def any_of(conditions: list[Column]) -> Column:
    """Whether any of the conditions is true. NULL is not."""
    from pyspark.sql import functions as F  # noqa: N812

    found = F.lit(False)
    for condition in conditions:
        found = found | F.coalesce(condition, F.lit(False))
    return found


def accepted(is_bad: Column, why: str) -> Column:
    """True, or an error that names the file."""
    from pyspark.sql import functions as F  # noqa: N812

    error = F.raise_error(F.concat(F.col("_metadata.file_path"), F.lit(f": {why}"))).cast("boolean")
    return F.when(is_bad, error).otherwise(F.lit(True))
