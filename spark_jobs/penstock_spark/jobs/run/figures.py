"""A job's metrics: batches, rows, rate, lag, for the terminal and for Prometheus. Called by `supervisor`."""

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
    """The result of a finished batch, from Spark's progress."""

    batch: int
    rows: int
    duration_ms: int
    observed: Mapping[str, int] = field(default_factory=dict)
    """Counts of the kind of job, such as bad or replayed rows; and `late`, rows dropped behind the watermark."""
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    """End offsets by partition, for jobs that read topics."""
    watermark: str | None = None

    @property
    def rate(self) -> float:
        """Rows per second."""
        return self.rows * 1000 / self.duration_ms if self.duration_ms else 0.0


def batch_of(document: Mapping[str, Any]) -> BatchDone | None:
    """Return the batch of a progress document; None if no batch was processed."""
    if "addBatch" not in (document.get("durationMs") or {}):
        return None
    observed = (document.get("observedMetrics") or {}).get("penstock") or {}
    # A Row if PySpark has parsed the progress, a mapping if it comes from JSON.
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
    """Return the offsets of a topic source; empty for other sources."""
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return {}
    if not isinstance(offset, dict):
        return {}
    found = {}
    for topic, partitions in offset.items():
        # Keys that start with @ are metadata of the source.
        if topic.startswith("@") or not isinstance(partitions, dict):
            continue
        for partition, end in partitions.items():
            if not partition.isdecimal() or not isinstance(end, int):
                return {}
            found[TopicPartition(topic, int(partition))] = end
    return found


def lag(ends: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]) -> int:
    """Return the number of records that are not processed yet."""
    return sum(max(0, end - ends.get(tp, 0)) for tp, end in latest.items())


class RunStatistics:
    """Totals of a run. `clock` returns seconds since the epoch."""

    def __init__(self, job: str, kind: str, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.registry = CollectorRegistry()
        labels = {"job": job, "kind": kind}
        self._rows = self._counter("rows", "Rows read.", labels)
        self._batches = self._counter("batches", "Finished batches.", labels)
        self._restarts = self._counter("restarts", "Restarts from the checkpoint after a failure.", labels)
        self._lag = self._gauge("lag_records", "Records that are not processed yet.", labels)
        self._seconds = self._gauge("batch_seconds", "Duration of the last batch.", labels)
        self._last = self._gauge("last_batch_timestamp_seconds", "End time of the last batch.", labels)
        self._batch = self._gauge("batch", "Number of the last batch.", labels)
        self._observed = Counter(
            "penstock_spark_observed",
            "Counts of the kind of job: bad rows of validate, outcomes of dlq-replay, late rows.",
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
        """Add a finished batch."""
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
        """Count a restart."""
        self.restarts += 1
        self._restarts.inc()

    def set_lag(self, records: int) -> None:
        """Set the lag in records."""
        self.lag = records
        self._lag.set(records)

    def serve(self, metrics: MetricsSpec) -> Callable[[], None]:
        """Start the HTTP server; return a function that stops it. Raises `OSError` if the port is in use."""
        server, thread = start_http_server(metrics.port, metrics.host, registry=self.registry)

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return stop
