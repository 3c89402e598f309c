"""Names that a job uses in Kafka: its progress group and the headers of dead letters. Called by every kind of job."""

from __future__ import annotations

from penstock_spark.jobs.spec.specs import StreamJob

DLQ = "penstock.dlq."
"""Prefix of the headers of dead letters."""
REASON, TOPIC, PARTITION, OFFSET = f"{DLQ}reason", f"{DLQ}topic", f"{DLQ}partition", f"{DLQ}offset"
TIMESTAMP, JOB, REPLAYS = f"{DLQ}timestamp", f"{DLQ}job", f"{DLQ}replays"


def group(job: StreamJob) -> str:
    """Return the group whose committed offsets show the job's progress."""
    return job.progress.group or f"spark-{job.name}"
