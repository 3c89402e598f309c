"""A full disk of the Parquet folder: the job fails, names the folder, and later continues exactly once."""

from __future__ import annotations

import errno
import os
import random
import resource
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from penstock_spark_kit.broker import Broker
from penstock_spark_kit.jobs import run_once
from penstock_spark_kit.processes import descendants
from penstock_spark_kit.topics import produce
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from penstock_spark.jobs.run.failures import cause, may_pass

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("spark-jobs"), pytest.mark.timeout(600)]
SPACE_BYTES = 64 * 1024
COUNT = 400
JOB = """
kind: archive
name: full-disk
source: {{brokers: "{brokers}", topics: [{topic}], max_records_per_batch: 200}}
transform: {transform}
checkpoint: {home}/checkpoint
to: {{format: parquet, path: {home}/lake}}
"""


@contextmanager
def no_space_for_workers(spark: SparkSession) -> Iterator[None]:
    """Limit the file size of Spark's Python workers, with the effect of a full disk."""
    spark.range(1).mapInArrow(lambda batches: batches, "id long").collect()  # starts Python workers
    jvm = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    assert limit_workers(jvm, (SPACE_BYTES, usual[1])), "no workers"
    try:
        yield
    finally:
        limit_workers(jvm, usual)


def limit_workers(jvm: int, limit: tuple[int, int]) -> int:
    """Limit the daemon, whose new workers inherit the limit, and the existing workers. Return their number."""
    count = 0
    for pid, command in descendants(jvm).items():
        if "pyspark" in command:
            with suppress(ProcessLookupError):  # a worker whose task has failed ends
                resource.prlimit(pid, resource.RLIMIT_FSIZE, limit)
                count += 1
    return count


@pytest.mark.parametrize("transform", ['{sql: "SELECT offset, value FROM source"}', "{}"], ids=["query", "direct"])
def test_a_full_disk_ends_the_query_with_its_name_and_space_lets_it_go_on_exactly(
    spark: SparkSession, penstock: Broker, topic: Callable[..., str], tmp_path: Path, transform: str
) -> None:
    text = JOB.format(brokers=penstock.bootstrap, topic=(name := topic()), home=tmp_path, transform=transform)
    produce(penstock.bootstrap, name, [b"small"] * 200)
    run_once(spark, text)
    rng = random.Random(7)
    produce(penstock.bootstrap, name, [rng.randbytes(2_000) for _ in range(COUNT - 200)])
    with no_space_for_workers(spark), pytest.raises(StreamingQueryException) as caught:
        run_once(spark, text)
    said = cause(caught.value)
    assert f"{tmp_path}/lake" in said
    assert os.strerror(errno.EFBIG) in said
    assert may_pass(caught.value), "a job tries again: there may be space then"
    assert offsets(tmp_path) == Counter(range(200))
    run_once(spark, text)
    assert offsets(tmp_path) == Counter(range(COUNT))


def offsets(home: Path) -> Counter[int]:
    return Counter(ds.dataset(home / "lake", format="parquet", partitioning="hive").to_table()["offset"].to_pylist())
