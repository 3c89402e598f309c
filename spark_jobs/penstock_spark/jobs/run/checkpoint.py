"""What Spark wrote into a checkpoint: offsets of batches, and which of them have ended. Read-only.

Spark's files: `offsets/<batch>` is written before a batch runs (a version, settings, then one line for each source),
`commits/<batch>` after it. Read with Spark's own file systems, as a checkpoint may be on any.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST_SOURCE = 2


def offsets(spark: SparkSession, checkpoint: str, batch: int) -> dict[str, Any]:
    """Where a batch ends, as the job's one source wrote it."""
    lines = [row.value for row in spark.read.text(f"{checkpoint.rstrip('/')}/offsets/{batch}").collect()]
    found: dict[str, Any] = json.loads(lines[FIRST_SOURCE])
    return found


def finished(spark: SparkSession, checkpoint: str) -> dict[str, Any] | None:
    """Where the last batch that has ended ends; None where none has."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None, "a checkpoint is read in the driver"
    path = jvm.org.apache.hadoop.fs.Path(f"{checkpoint.rstrip('/')}/commits")
    files = path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
    if not files.exists(path):
        return None
    names = [status.getPath().getName() for status in files.listStatus(path)]
    batches = [int(name) for name in names if name.isdecimal()]
    return offsets(spark, checkpoint, max(batches)) if batches else None
