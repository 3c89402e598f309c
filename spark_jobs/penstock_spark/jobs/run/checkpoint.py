"""Reads Spark's checkpoint: offsets of batches, and which batches are finished.

Spark writes `offsets/<batch>` before a batch (a version, settings, then a line for each source) and `commits/<batch>`
after it. They are read with Spark's file systems, because a checkpoint may be on any of them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST_SOURCE = 2


def offsets(spark: SparkSession, checkpoint: str, batch: int) -> dict[str, Any]:
    """Return the end offsets of a batch of the job's only source."""
    lines = [row.value for row in spark.read.text(f"{checkpoint.rstrip('/')}/offsets/{batch}").collect()]
    found: dict[str, Any] = json.loads(lines[FIRST_SOURCE])
    return found


def finished(spark: SparkSession, checkpoint: str) -> dict[str, Any] | None:
    """Return the end offsets of the last finished batch; None if there is none."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None, "a checkpoint is read in the driver"
    path = jvm.org.apache.hadoop.fs.Path(f"{checkpoint.rstrip('/')}/commits")
    files = path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
    if not files.exists(path):
        return None
    names = [status.getPath().getName() for status in files.listStatus(path)]
    batches = [int(name) for name in names if name.isdecimal()]
    return offsets(spark, checkpoint, max(batches)) if batches else None
