"""A job's figures: batches, rows, rate, lag. Shown on the terminal, and to Prometheus. Called by `running`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from penstock.client import TopicPartition
from penstock_spark.jobs.spec.specs import MetricsSpec


@dataclass(frozen=True, slots=True)
class BatchDone:
    """What Spark tells of a batch that has ended."""

    batch: int
    rows: int
    duration_ms: int
    observed: Mapping[str, int] = field(default_factory=dict)
    """Counts that the job's kind asked for: bad rows, replayed ones; and `late`, of those behind the watermark."""
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Where it ended in each partition, where it reads topics."""
    watermark: str | None = None

    @property
    def rate(self) -> float:
        """Rows per second."""
        return self.rows * 1000 / self.duration_ms if self.duration_ms else 0.0


def batch_of(document: Mapping[str, Any]) -> BatchDone | None:
    """From the progress that Spark tells of a query; None where it tells that nothing happened."""
    if "addBatch" not in (document.get("durationMs") or {}):
        return None
    observed = (document.get("observedMetrics") or {}).get("penstock") or {}
    # A Row where Python has parsed the progress, a mapping where it is JSON.
    observed = observed.asDict() if hasattr(observed, "asDict") else observed
    counts = {name: int(value) for name, value in observed.items() if value is not None}
    if late := sum(int(o.get("numRowsDroppedByWatermark") or 0) for o in document.get("stateOperators") or ()):
        counts["late"] = late
    ends: dict[TopicPartition, int] = {}
    for source in document.get("sources") or ():
        ends |= ends_of(source.get("endOffset"))
    durations = document.get("durationMs") or {}
    return BatchDone(
        batch=int(document["batchId"]),
        rows=int(document.get("numInputRows") or 0),
        duration_ms=int(durations.get("triggerExecution") or document.get("batchDuration") or 0),
        observed=counts,
        ends=ends,
        watermark=(document.get("eventTime") or {}).get("watermark"),
    )


def ends_of(offset: object) -> dict[TopicPartition, int]:
    """The offsets of a source of topics; nothing for other sources."""
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return {}
    if not isinstance(offset, dict):
        return {}
    found = {}
    for topic, partitions in offset.items():
        # Beside the topics stand notes of the source's own, which begin with @.
        if topic.startswith("@") or not isinstance(partitions, dict):
            continue
        for partition, end in partitions.items():
            if not partition.isdecimal() or not isinstance(end, int):
                return {}
            found[TopicPartition(topic, int(partition))] = end
    return found


def lag(ends: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]) -> int:
    """Records that are there and not yet processed."""
    return sum(max(0, end - ends.get(tp, 0)) for tp, end in latest.items())


class Figures:
    """Adds up what batches tell. `clock`: seconds since 1970."""

    def __init__(self, job: str, kind: str, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.registry = CollectorRegistry()
        labels = {"job": job, "kind": kind}
        self._rows = self._counter("rows", "Rows read.", labels)
        self._batches = self._counter("batches", "Batches that have ended.", labels)
        self._restarts = self._counter("restarts", "Starts from the checkpoint after a failure.", labels)
        self._lag = self._gauge("lag_records", "Records that are there and not yet processed.", labels)
        self._seconds = self._gauge("batch_seconds", "Duration of the last batch.", labels)
        self._last = self._gauge("last_batch_timestamp_seconds", "When the last batch ended.", labels)
        self._batch = self._gauge("batch", "Number of the last batch.", labels)
        self._observed = Counter(
            "penstock_spark_observed",
            "What the job's kind counts: bad rows of validate, outcomes of dlq-replay, rows that came too late.",
            [*labels, "what"],
            registry=self.registry,
        )
        self._labels = labels
        self.rows = 0
        self.batches = 0
        self.restarts = 0
        self.lag: int | None = None
        self.totals: dict[str, int] = {}
        self.last: BatchDone | None = None

    def _counter(self, name: str, text: str, labels: Mapping[str, str]) -> Counter:
        return Counter(f"penstock_spark_{name}", text, list(labels), registry=self.registry).labels(**labels)

    def _gauge(self, name: str, text: str, labels: Mapping[str, str]) -> Gauge:
        return Gauge(f"penstock_spark_{name}", text, list(labels), registry=self.registry).labels(**labels)

    def batch_done(self, done: BatchDone) -> None:
        self.last = done
        self.rows += done.rows
        self.batches += 1
        self._rows.inc(done.rows)
        self._batches.inc()
        self._batch.set(done.batch)
        self._seconds.set(done.duration_ms / 1000)
        self._last.set(self._clock())
        for what, count in done.observed.items():
            self.totals[what] = self.totals.get(what, 0) + count
            self._observed.labels(**self._labels, what=what).inc(count)

    def restarted(self) -> None:
        self.restarts += 1
        self._restarts.inc()

    def lag_is(self, records: int) -> None:
        self.lag = records
        self._lag.set(records)

    def serve(self, metrics: MetricsSpec) -> Callable[[], None]:
        """Begins to answer HTTP; returns what ends that. Raises `OSError` where the port is taken."""
        server, thread = start_http_server(metrics.port, metrics.host, registry=self.registry)

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return stop
