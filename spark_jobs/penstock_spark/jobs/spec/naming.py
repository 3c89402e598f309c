"""Names that a job has with brokers: of groups and headers. Called by every kind."""

from __future__ import annotations

from penstock_spark.jobs.spec.specs import StreamJob

DLQ = "penstock.dlq."
"""Headers of dead letters begin so."""
REASON, TOPIC, PARTITION, OFFSET = f"{DLQ}reason", f"{DLQ}topic", f"{DLQ}partition", f"{DLQ}offset"
TIMESTAMP, JOB, REPLAYS = f"{DLQ}timestamp", f"{DLQ}job", f"{DLQ}replays"


def group(job: StreamJob) -> str:
    """The group whose committed offsets show how far the job is."""
    return job.progress.group or f"spark-{job.name}"
