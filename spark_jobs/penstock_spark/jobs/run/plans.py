"""What a job will do, in words, without Spark: what it reads and writes, its state, what it guarantees.

Called by `penstock-spark explain`. The guarantees here are those of the guide's table, and the tests hold them.
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
    """Lines for people, in the order in which they are shown: (label, text)."""

    name: str
    kind: str
    lines: tuple[tuple[str, str], ...]


def plan(job: JobSpec) -> PlanText:
    lines: list[tuple[str, str]] = []
    source = getattr(job, "source", None)
    if isinstance(source, SourceSpec):
        lines.append(("reads", reads(source)))
    if isinstance(job, TopicJob):
        lines += shapes(job.transform, "is a bad record" if isinstance(job, Validate) else None)
    lines += KINDS[type(job)](job)
    if isinstance(job, StreamJob):
        lines += running(job)
    if needed := references.of_job(job):
        lines.append(("secrets", ", ".join(needed)))
    return PlanText(job.name, str(type(job).__struct_config__.tag), tuple(lines))


def reads(source: SourceSpec) -> str:
    if source.topics:
        what = f"topic{'s' if len(source.topics) > 1 else ''} {', '.join(source.topics)}"
    elif source.pattern is not None:
        what = f"topics that match {source.pattern}"
    else:
        parts = [f"{t}-{p}" for t, partitions in (source.assign or {}).items() for p in partitions]
        what = f"partitions {', '.join(parts)}"
    begin = source.starting if isinstance(source.starting, str) else "the offsets given"
    isolation = "" if source.isolation == "read_committed" else ", uncommitted records too"
    loss = "" if source.fail_on_data_loss else "; goes on where records are gone"
    return f"{what} at {source.brokers}, from {begin}{isolation}{loss}"


def shapes(transform: TransformSpec, unreadable: str | None) -> list[tuple[str, str]]:
    """`unreadable`: what becomes of a value that cannot be read, where the kind decides that."""
    found = []
    for name in ("key", "value"):
        decoding = getattr(transform, name)
        if decoding.format == "binary":
            continue
        otherwise = "fails the job" if decoding.on_error == "fail" else "reads as null"
        if name == "value" and unreadable is not None:
            otherwise = unreadable
        what = f"JSON of {decoding.schema}" if decoding.format == "json" else "text"
        found.append((name, f"{what}; what is none {otherwise}"))
    if transform.sql is not None:
        found.append(("query", " ".join(transform.sql.split())))
    return found


def writes(target: Target) -> str:
    if isinstance(target, TopicTarget):
        where = f"topic {target.topic}" if target.topic is not None else "the topic that each row names"
        made = f", made with {target.create.partitions} partitions if it is not there" if target.create else ""
        return f"{where} at {target.brokers}{made}"
    if isinstance(target, ConsoleTarget):
        return "the terminal"
    kind = "Delta table" if isinstance(target, DeltaTarget) else "Parquet files in"
    return f"{kind} {target.path}{layout(target)}"


def layout(target: FileTargetBase) -> str:
    columns = [*([f"{target.time.by} of {target.time.column}"] if target.time else []), *target.partition_by]
    compacted = f"; small files compacted every {target.compact.every_batches} batches" if target.compact else ""
    return (f", by {', '.join(columns)}" if columns else "") + compacted


def delivery(target: Target) -> str:
    """What a target makes of rows that come from a checkpoint."""
    if isinstance(target, TopicTarget):
        return f"{EXACTLY}: a transaction for each batch" if target.delivery == "exactly-once" else AT_LEAST
    if isinstance(target, DeltaTarget):
        return f"{EXACTLY}: a version of the table for each batch, which names it"
    if isinstance(target, ParquetTarget):
        return f"{EXACTLY}: files of a batch count once, for whoever lists the folder between batches"
    return f"{NONE}: a batch that runs again is shown again"


def archive(job: Archive) -> list[tuple[str, str]]:
    direct = job.is_direct(settings(job)[TIME_ZONE])
    way = "each task writes what it fetches" if direct else "through Spark, which decodes or queries"
    return [("writes", writes(job.to)), ("way", way), ("guarantee", delivery(job.to))]


def aggregate(job: Aggregate) -> list[tuple[str, str]]:
    window = f"windows of {job.window.length}" if job.window else ""
    if job.window is not None and job.window.slide is not None:
        window += f" every {job.window.slide}"
    by = f"by {', '.join(job.by)}" if job.by else ""
    computed = ", ".join(f"{name} = {sql}" for name, sql in job.select.items())
    when = {"final": "when the watermark has passed", "updates": "at each change"}[job.emit]
    return [
        ("computes", f"{computed}; {' '.join(x for x in (by, window) if x)} of {job.time}"),
        ("late rows", f"dropped when more than {job.watermark} behind"),
        ("when", when),
        ("writes", writes(job.to)),
        ("guarantee", delivery(job.to)),
    ]


def dedup(job: Dedup) -> list[tuple[str, str]]:
    return [
        ("keeps", f"the first of each {', '.join(job.by)}; repetitions are known for {job.within} of {job.time}"),
        ("late rows", f"dropped when more than {job.within} behind, whether they are repetitions or not"),
        ("writes", writes(job.to)),
        ("guarantee", delivery(job.to)),
    ]


def validate(job: Validate) -> list[tuple[str, str]]:
    where = job.dead_letters.brokers or job.source.brokers
    lines = [("expects", f"{e.name}: {e.sql}") for e in job.expectations]
    lines.append(("bad records", f"to topic {job.dead_letters.topic} at {where}, with the reason in headers"))
    lines.append(("good records", f"to {writes(job.to)}" if job.to is not None else "go nowhere"))
    good = delivery(job.to) if job.to is not None else "not written"
    lines.append(("guarantee", f"bad records {EXACTLY}; good records {good}"))
    return lines


def dlq_replay(job: DlqReplay) -> list[tuple[str, str]]:
    where = job.brokers or job.source.brokers
    which = f"of reason {', '.join(job.reasons)}" if job.reasons else "of every reason"
    if job.where is not None:
        which += f", where {job.where}"
    return [
        ("replays", f"dead letters {which}, replayed fewer than {job.max_replays} times"),
        ("writes", f"{f'topic {job.to}' if job.to else 'the topics they came from'} at {where}"),
        (
            "skips",
            "letters that cannot be replayed: named in the log, counted, exit code 6; they remain where they are",
        ),
        ("ends", "with what is there at the start"),
        ("guarantee", f"{EXACTLY}: a transaction for each batch"),
    ]


def cdc_upsert(job: CdcUpsert) -> list[tuple[str, str]]:
    deletions = ["a record has no value"] if job.tombstones == "delete" else []
    deletions += [str(job.delete_when)] if job.delete_when is not None else []
    deleted = f"deleted where {' or '.join(deletions)}" if deletions else "never deleted"
    return [
        ("keeps", f"the latest row of each {', '.join(job.keys)}; {deleted}"),
        ("writes", writes(job.to)),
        ("guarantee", delivery(job.to)),
    ]


def audit(job: Audit) -> list[tuple[str, str]]:
    until = f"the last batch of {job.until_checkpoint}" if job.until_checkpoint else "the topics' ends"
    return [
        ("compares", f"with {writes(job.archive).split(';')[0]}, up to {until}"),
        ("tells", f"records that lack, rows that are double or unknown, counts for each {job.bucket}"),
        ("guarantee", "changes nothing; exit code 4 where something differs"),
    ]


def mirror(job: Mirror) -> list[tuple[str, str]]:
    named = f"topics of the same name with {job.prefix} before it" if job.prefix else "topics of the same name"
    made = "made where they lack" if job.create_topics else "which must be there"
    groups = f"offsets of {', '.join(job.groups)}, after each batch" if job.groups else "no offsets of groups"
    return [
        ("writes", f"{named} at {job.to.brokers}, {made}; same partitions, order, keys, headers, timestamps"),
        ("translates", groups),
        ("guarantee", delivery(job.to)),
    ]


def backfill(job: Backfill) -> list[tuple[str, str]]:
    lines = [("reads", f"{job.format} files of {job.path} and folders below, as {job.schema}")]
    if job.sql is not None:
        lines.append(("query", " ".join(job.sql.split())))
    lines += [("writes", writes(job.to)), ("ends", "with the files that are there at the start")]
    return [*lines, ("guarantee", delivery(job.to))]


def running(job: StreamJob) -> list[tuple[str, str]]:
    if job.trigger.once or isinstance(job, DlqReplay | Backfill):
        when = "once: what is there at the start, then ends"
    elif job.trigger.every is not None and job.trigger.every.ms:
        when = f"every {job.trigger.every}, until stopped"
    else:
        when = "as records come, until stopped"
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
