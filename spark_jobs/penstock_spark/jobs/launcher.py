"""Maps each kind of streaming job to the module that starts it. Called by the command line and by user code."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock_spark.jobs.kinds import aggregate, archive, backfill, cdc_upsert, dedup, dlq_replay, mirror, validate
from penstock_spark.jobs.run.supervisor import RunningQuery
from penstock_spark.jobs.spec.kinds import Aggregate, Archive, Backfill, CdcUpsert, Dedup, DlqReplay, Mirror, Validate
from penstock_spark.jobs.spec.specs import StreamJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STARTS: dict[type[StreamJob], Callable[[Any, Any], Any]] = {
    Archive: archive.start,
    Aggregate: aggregate.start,
    Dedup: dedup.start,
    Validate: validate.start,
    DlqReplay: dlq_replay.start,
    CdcUpsert: cdc_upsert.start,
    Mirror: mirror.start,
    Backfill: backfill.start,
}


def start(spark: SparkSession, job: StreamJob) -> RunningQuery:
    """Start the job's query. Raises Spark's errors and those of `penstock.client`."""
    query: RunningQuery = STARTS[type(job)](spark, job)
    return query
