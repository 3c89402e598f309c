"""Describes a job without Spark: what it reads and writes, its state, its guarantees.

Called by `penstock-spark explain`. The guarantees equal those of the guide's table; tests check that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.config.addresses import join_host_port
from penstock_spark.jobs.run.session import TIME_ZONE, settings
from penstock_spark.jobs.spec import references
from penstock_spark.jobs.spec.kinds import (
    Aggregate,
    Archive,
    Audit,
    Backfill,
    CdcUpsert,
    Dedup,
    DlqReplay,
    Mirror,
    Validate,
)
from penstock_spark.jobs.spec.naming import group
from penstock_spark.jobs.spec.specs import (
    ConsoleTarget,
    DeltaTarget,
    FileTargetBase,
    JobSpec,
    ParquetTarget,
    SourceSpec,
    StreamJob,
    Target,
    TopicJob,
    TopicTarget,
    TransformSpec,
)

EXACTLY, AT_LEAST, NONE = "exactly once", "at least once", "none"


@dataclass(frozen=True, slots=True)
class PlanText:
    """The description of a job: (label, text) lines in display order."""

    name: str
    kind: str
    lines: tuple[tuple[str, str], ...]


def plan(job: JobSpec) -> PlanText:
    """Describe a job."""
    lines: list[tuple[str, str]] = []
    source = getattr(job, "source", None)
    if isinstance(source, SourceSpec):
        lines.append(("reads", reads(source)))
    if isinstance(job, TopicJob):
        lines += shapes(job.transform, "makes a bad record" if isinstance(job, Validate) else None)
    lines += KINDS[type(job)](job)
    if isinstance(job, StreamJob):
        lines += running(job)
    if needed := references.job_references(job):
        lines.append(("secrets", ", ".join(needed)))
    return PlanText(job.name, str(type(job).__struct_config__.tag), tuple(lines))


def reads(source: SourceSpec) -> str:
    """Describe the topics, the starting position and the options of a source."""
    if source.topics:
        what = f"topic{'s' if len(source.topics) > 1 else ''} {', '.join(source.topics)}"
    elif source.pattern is not None:
        what = f"topics that match {source.pattern}"
    else:
        parts = [f"{t}-{p}" for t, partitions in (source.assign or {}).items() for p in partitions]
        what = f"partitions {', '.join(parts)}"
    begin = source.starting if isinstance(source.starting, str) else "the offsets given"
    isolation = "" if source.isolation == "read_committed" else ", including uncommitted records"
    loss = "" if source.fail_on_data_loss else "; continues after data loss"
    return f"{what} at {source.brokers}, from {begin}{isolation}{loss}"


def shapes(transform: TransformSpec, unreadable: str | None) -> list[tuple[str, str]]:
    """Describe how keys and values are decoded. `unreadable`: the effect of undecodable values, if the kind sets it."""
    found = []
    for name in ("key", "value"):
        decoding = getattr(transform, name)
        if decoding.format == "binary":
            continue
        otherwise = "fails the job" if decoding.on_error == "fail" else "reads as null"
        if name == "value" and unreadable is not None:
            otherwise = unreadable
        what = f"JSON of {decoding.schema}" if decoding.format == "json" else "text"
        found.append((name, f"{what}; an undecodable {name} {otherwise}"))
    if transform.sql is not None:
        found.append(("query", " ".join(transform.sql.split())))
    return found


def writes(target: Target) -> str:
    """Describe a target."""
    if isinstance(target, TopicTarget):
        where = f"topic {target.topic}" if target.topic is not None else "the topic that each row names"
        made = f", created with {target.create.partitions} partitions if missing" if target.create else ""
        return f"{where} at {target.brokers}{made}"
    if isinstance(target, ConsoleTarget):
        return "the terminal"
    kind = "Delta table" if isinstance(target, DeltaTarget) else "Parquet files in"
    return f"{kind} {target.path}{layout(target)}"


def layout(target: FileTargetBase) -> str:
    """Describe the partition folders and the compaction of a target."""
    columns = [*([f"{target.time.by} of {target.time.column}"] if target.time else []), *target.partition_by]
    compacted = f"; small files compacted every {target.compact.every_batches} batches" if target.compact else ""
    return (f", by {', '.join(columns)}" if columns else "") + compacted


def delivery(target: Target) -> str:
    """Describe the delivery guarantee of a target."""
    if isinstance(target, TopicTarget):
        return f"{EXACTLY}: one transaction per batch" if target.delivery == "exactly-once" else AT_LEAST
    if isinstance(target, DeltaTarget):
        return f"{EXACTLY}: one table version per batch, which records the batch number"
    if isinstance(target, ParquetTarget):
        return f"{EXACTLY}: files of a batch appear once to readers that list the folder between batches"
    return f"{NONE}: a repeated batch is shown again"


def archive(job: Archive) -> list[tuple[str, str]]:
    """Describe an archive job."""
    direct = job.is_direct(settings(job)[TIME_ZONE])
    way = "tasks write the records that they fetch" if direct else "through Spark, which decodes and queries"
    return [("writes", writes(job.to)), ("way", way), ("guarantee", delivery(job.to))]


def aggregate(job: Aggregate) -> list[tuple[str, str]]:
    """Describe an aggregate job."""
    window = f"windows of {job.window.length}" if job.window else ""
    if job.window is not None and job.window.slide is not None:
        window += f" every {job.window.slide}"
    by = f"by {', '.join(job.by)}" if job.by else ""
    computed = ", ".join(f"{name} = {sql}" for name, sql in job.select.items())
    when = {"final": "when the watermark passes the window's end", "updates": "at each change"}[job.emit]
    return [
        ("computes", f"{computed}; {' '.join(x for x in (by, window) if x)} of {job.time}"),
        ("late rows", f"dropped when more than {job.watermark} behind"),
        ("when", when),
        ("writes", writes(job.to)),
        ("guarantee", delivery(job.to)),
    ]


def dedup(job: Dedup) -> list[tuple[str, str]]:
    """Describe a dedup job."""
    return [
        ("keeps", f"the first of each {', '.join(job.by)}; recognises duplicates for {job.within} of {job.time}"),
        ("late rows", f"dropped when more than {job.within} behind, including rows that are not duplicates"),
        ("writes", writes(job.to)),
        ("guarantee", delivery(job.to)),
    ]


def validate(job: Validate) -> list[tuple[str, str]]:
    """Describe a validate job."""
    where = job.dead_letters.brokers or job.source.brokers
    lines = [("expects", f"{e.name}: {e.sql}") for e in job.expectations]
    lines.append(("bad records", f"to topic {job.dead_letters.topic} at {where}, with the reason in headers"))
    lines.append(("good records", f"to {writes(job.to)}" if job.to is not None else "not written"))
    good = delivery(job.to) if job.to is not None else "not written"
    lines.append(("guarantee", f"bad records {EXACTLY}; good records {good}"))
    return lines


def dlq_replay(job: DlqReplay) -> list[tuple[str, str]]:
    """Describe a dlq-replay job."""
    where = job.brokers or job.source.brokers
    which = f"of reason {', '.join(job.reasons)}" if job.reasons else "of every reason"
    if job.where is not None:
        which += f", where {job.where}"
    return [
        ("replays", f"dead letters {which}, replayed fewer than {job.max_replays} times"),
        ("writes", f"{f'topic {job.to}' if job.to else 'the original topics'} at {where}"),
        (
            "skips",
            "letters that cannot be replayed: logged and counted, exit code 6; they stay in their topic",
        ),
        ("ends", "at the end of the topics at the start"),
        ("guarantee", f"{EXACTLY}: one transaction per batch"),
    ]


def cdc_upsert(job: CdcUpsert) -> list[tuple[str, str]]:
    """Describe a cdc-upsert job."""
    deletions = ["a record has no value"] if job.tombstones == "delete" else []
    deletions += [str(job.delete_when)] if job.delete_when is not None else []
    deleted = f"deleted where {' or '.join(deletions)}" if deletions else "never deleted"
    return [
        ("keeps", f"the latest row of each {', '.join(job.keys)}; {deleted}"),
        ("writes", writes(job.to)),
        ("guarantee", delivery(job.to)),
    ]


def audit(job: Audit) -> list[tuple[str, str]]:
    """Describe an audit job."""
    until = f"the last batch of {job.until_checkpoint}" if job.until_checkpoint else "the topics' ends"
    return [
        ("compares", f"with {writes(job.archive).split(';')[0]}, up to {until}"),
        ("reports", f"missing, duplicate and unknown rows, counts for each {job.bucket}"),
        ("guarantee", "changes nothing; exit code 4 if there are differences"),
    ]


def mirror(job: Mirror) -> list[tuple[str, str]]:
    """Describe a mirror job."""
    named = f'topics of the same name with prefix "{job.prefix}"' if job.prefix else "topics of the same name"
    made = "created if missing" if job.create_topics else "which must exist"
    groups = f"offsets of {', '.join(job.groups)}, after each batch" if job.groups else "no group offsets"
    return [
        ("writes", f"{named} at {job.to.brokers}, {made}; same partitions, order, keys, headers, timestamps"),
        ("translates", groups),
        ("guarantee", delivery(job.to)),
    ]


def backfill(job: Backfill) -> list[tuple[str, str]]:
    """Describe a backfill job."""
    lines = [("reads", f"{job.format} files of {job.path} and its subfolders, as {job.schema}")]
    if job.sql is not None:
        lines.append(("query", " ".join(job.sql.split())))
    lines += [("writes", writes(job.to)), ("ends", "after the files that exist at the start")]
    return [*lines, ("guarantee", delivery(job.to))]


def running(job: StreamJob) -> list[tuple[str, str]]:
    """Describe trigger, state, restarts, progress group and metrics."""
    if job.trigger.once or isinstance(job, DlqReplay | Backfill):
        when = "once: processes the data that exists at the start, then ends"
    elif job.trigger.every is not None and job.trigger.every.ms:
        when = f"every {job.trigger.every}, until stopped"
    else:
        when = "as records arrive, until stopped"
    restart = (
        f"up to {job.restart.attempts} times in a row, after {job.restart.backoff} to {job.restart.max_backoff}"
        if job.restart.attempts
        else "never"
    )
    lines = [("runs", when), ("state", f"in {job.checkpoint}"), ("restarts", restart)]
    if not isinstance(job, Backfill):
        lines.append(("progress", f"committed offsets of group {group(job)}"))
    if job.metrics is not None:
        lines.append(("metrics", f"http://{join_host_port(job.metrics.host, job.metrics.port)}/metrics"))
    return lines


KINDS: dict[type[JobSpec], Callable[[Any], list[tuple[str, str]]]] = {
    Archive: archive,
    Aggregate: aggregate,
    Dedup: dedup,
    Validate: validate,
    DlqReplay: dlq_replay,
    CdcUpsert: cdc_upsert,
    Audit: audit,
    Mirror: mirror,
    Backfill: backfill,
}
