"""backfill: writes files to a topic, each row once; a second run continues with new files.

Spark's readers ignore many errors silently. The options here read files as written, or fail the job.
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
"""Spark's file source silently skips files that are older than its newest file by more than this; Spark's default is a
week. Copies that keep times (rsync -a, tar) arrive late and look old, so this is a century. The cost: the driver keeps
the names of all files in memory."""
STRICT = {"mode": "FAILFAST", "enforceSchema": "false"}
"""A value that does not fit the schema, or a CSV header with other columns, fails the job. By default Spark reads such
a value as null, and assigns columns by position regardless of the header."""
RECURSIVE = "recursiveFileLookup"
RFC_4180 = {
    # A quote inside quotes is doubled (RFC 4180). Spark's default escape is the backslash.
    "quote": '"',
    "escape": '"',
    # Quoted text may contain line breaks. One task then reads the whole file.
    "multiLine": "true",
    # A row must have as many columns as the schema, even if the query does not use them all.
    "columnPruning": "false",
    # Nothing between two separators is NULL, and "" is empty text. Spark's default reads both as NULL.
    "nullValue": "\0",
}
COMPOSED = ("array", "map", "struct", "variant")
REPLACEMENT = "\ufffd"
"""Spark's replacement for bytes that are invalid in the encoding."""


def start(spark: SparkSession, job: Backfill) -> StreamingQuery:
    """Start the job's query."""
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
    """Return the options of Spark's reader. The user's options come last and win; Spark ignores the case of names."""
    options = {"maxFileAge": MAX_FILE_AGE, **STRICT, **(RFC_4180 if job.format == "csv" else {}), **given}
    if job.max_files_per_batch is not None:
        options["maxFilesPerTrigger"] = str(job.max_files_per_batch)
    return options


def has_partition_folders(spark: SparkSession, job: Backfill) -> bool:
    """Return whether folders such as `day=2024-01-01` hold a column of the schema. Spark reads such columns only if it
    does not look up files recursively."""
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
    """Return rows that fail the job if Spark decoded a file wrongly.

    The checks of text are off if the job sets the encoding, or whether there is a header.
    """
    from pyspark.sql import functions as F  # noqa: N812

    names = {name.lower() for name in given}
    texts = [f.name for f in rows.schema if f.dataType.typeName() == "string"]
    plain = [f.name for f in rows.schema if f.dataType.typeName() not in COMPOSED]
    if format_ in ("csv", "json") and plain:
        # Always true. Without it Spark converts only the columns in use, and misses invalid values in others.
        rows = rows.where(F.hash(*plain).bitwiseAND(F.lit(0)) == 0)
    if format_ in ("csv", "json") and texts and not names & {"encoding", "charset"}:
        is_lossy = any_of([F.col(name).contains(REPLACEMENT) for name in texts])
        rows = rows.where(fail_if(is_lossy, "the file is not UTF-8; set read_options.encoding, such as ISO-8859-1"))
    if format_ == "csv" and len(texts) == len(rows.columns) and "header" not in names:
        is_header = ~any_of([~F.col(name).eqNullSafe(name) for name in texts])
        rows = rows.where(fail_if(is_header, "a row equals the column names; set read_options.header"))
    return rows


def any_of(conditions: list[Column]) -> Column:
    """Return whether any condition is true; NULL counts as false."""
    from pyspark.sql import functions as F  # noqa: N812

    found = F.lit(False)
    for condition in conditions:
        found = found | F.coalesce(condition, F.lit(False))
    return found


def fail_if(is_bad: Column, why: str) -> Column:
    """Return true, but fail the job with the file's name where `is_bad`."""
    from pyspark.sql import functions as F  # noqa: N812

    error = F.raise_error(F.concat(F.col("_metadata.file_path"), F.lit(f": {why}"))).cast("boolean")
    return F.when(is_bad, error).otherwise(F.lit(True))
