"""Prometheus metrics of the operator, in their own registry. Served by `engine.health`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from penstock_operator.model.common import PLURALS, Kind
from penstock_operator.model.snapshots import Snapshots
from penstock_operator.ports.kube import Object

MAX_GROUPS = 1_000
"""Maximum number of groups with lag metrics, those with the highest lag; bounds the cardinality."""
_SECONDS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 180)


class OperatorMetrics:
    """`penstock_operator_*`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        prefix, registry = "penstock_operator_", self.registry
        self._seconds = Histogram(
            f"{prefix}reconcile_seconds", "Duration of one batch", ["kind"], buckets=_SECONDS, registry=registry
        )
        self._keys = Counter(f"{prefix}reconciled_objects", "Objects reconciled", ["kind"], registry=registry)
        self._errors = Counter(f"{prefix}reconcile_errors", "Reconciliations that failed", ["kind"], registry=registry)
        self._resyncs = Counter(f"{prefix}resync_errors", "Resyncs that failed", ["kind"], registry=registry)
        self._writes = Counter(
            f"{prefix}api_writes", "Writes accepted by the API server", ["method", "resource"], registry=registry
        )
        self._repairs = Counter(
            f"{prefix}watch_repairs",
            "Cached objects corrected by a list after a missed watch event",
            ["resource"],
            registry=registry,
        )
        self._leader = Gauge(f"{prefix}leader", "1 if this replica is the leader", registry=registry)
        self._depth = Gauge(f"{prefix}queue_depth", "Objects ready to be reconciled", ["kind"], registry=registry)
        self._failing = Gauge(
            f"{prefix}failing_objects", "Objects whose last reconciliation failed", ["kind"], registry=registry
        )
        for kind in PLURALS:
            for metric in (self._keys, self._errors, self._resyncs, self._seconds):
                metric.labels(kind)

    def record_batch(self, kind: Kind, keys: int, seconds: float, errors: int) -> None:
        """Record one batch: number of keys, duration, number of failed keys."""
        self._seconds.labels(kind).observe(seconds)
        self._keys.labels(kind).inc(keys)
        self._errors.labels(kind).inc(errors)

    def record_resync_error(self, kind: Kind) -> None:
        """Count a failed resync."""
        self._resyncs.labels(kind).inc()

    def record_write(self, method: str, plural: str) -> None:
        """Count a write to the API server."""
        self._writes.labels(method, plural).inc()

    def record_repairs(self, plural: str, count: int) -> None:
        """Count cached objects that a list corrected."""
        self._repairs.labels(plural).inc(count)

    def set_leader(self, is_leader: bool) -> None:
        """Set whether this replica is the leader."""
        self._leader.set(is_leader)

    def watch_queue(self, depth: Callable[[Kind], int], failing: Callable[[Kind], int]) -> None:
        """Register callbacks for the queue depth and the number of failing objects."""
        for kind in PLURALS:
            self._depth.labels(kind).set_function(partial(depth, kind))
            self._failing.labels(kind).set_function(partial(failing, kind))

    def watch_unhandled_errors(self, count: Callable[[], int]) -> None:
        """Register the number of exceptions that no code handled."""
        self.registry.register(_UnhandledErrors(count))

    def watch_groups(self, groups: Callable[[], Iterable[Object]]) -> None:
        """Register the lag metrics, which read the status of ConsumerGroups at scrape time."""
        self.registry.register(_Lag(groups))

    def watch_clusters(self, clusters: Callable[[], Iterable[Object]]) -> None:
        """Register the conditions and snapshots of Clusters, which are read from their status at scrape time."""
        self.registry.register(_Conditions(clusters))

    def text(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self.registry)


class _UnhandledErrors(Collector):
    def __init__(self, count: Callable[[], int]) -> None:
        self._count = count

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        name, text = "penstock_operator_unhandled_errors", "Exceptions that no code handled. Each is a bug."
        return (CounterMetricFamily(name, text, value=self._count()),)


class _Lag(Collector):
    def __init__(self, groups: Callable[[], Iterable[Object]]) -> None:
        self._groups = groups

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        labels = ["namespace", "cluster", "group"]
        lag = GaugeMetricFamily(
            "penstock_operator_group_lag", "Records not yet consumed, by ConsumerGroup", labels=labels
        )
        seconds = GaugeMetricFamily(
            "penstock_operator_group_lag_seconds", "Age of the oldest record not yet consumed", labels=labels
        )
        shown = [body for body in self._groups() if (body.get("status") or {}).get("lag") is not None]
        shown.sort(key=lambda body: -int(body["status"]["lag"]))
        # For a moment, a discovered object and the user's have the same group. Prometheus rejects equal series.
        by_labels = {_labels(body): body["status"] for body in reversed(shown[:MAX_GROUPS])}
        for values, status in reversed(by_labels.items()):
            lag.add_metric(values, status["lag"])
            if status.get("lagSeconds") is not None:
                seconds.add_metric(values, status["lagSeconds"])
        return lag, seconds


class _Conditions(Collector):
    def __init__(self, clusters: Callable[[], Iterable[Object]]) -> None:
        self._clusters = clusters

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        labels = ["namespace", "cluster", "condition", "status", "reason"]
        found = GaugeMetricFamily(
            "penstock_operator_cluster_condition", "1 for each condition of a Cluster", labels=labels
        )
        for body in self._clusters():
            metadata = body["metadata"]
            for condition in (body.get("status") or {}).get("conditions") or ():
                values = [str(condition.get(name) or "") for name in ("type", "status", "reason")]
                found.add_metric([metadata["namespace"], metadata["name"], *values], 1)
        return (found, *_snapshots(self._clusters()))


def _snapshots(clusters: Iterable[Object]) -> tuple[Metric, ...]:
    labels = ["namespace", "cluster"]
    at = GaugeMetricFamily(
        "penstock_operator_last_snapshot_timestamp_seconds", "Time of the last snapshot of etcd", labels=labels
    )
    size = GaugeMetricFamily(
        "penstock_operator_last_snapshot_bytes", "Size of the last snapshot of etcd", labels=labels
    )
    interval = GaugeMetricFamily(
        "penstock_operator_snapshot_interval_seconds", "Interval of the snapshots of etcd", labels=labels
    )
    for body in clusters:
        values = [body["metadata"]["namespace"], body["metadata"]["name"]]
        wanted = ((body.get("spec") or {}).get("etcd") or {}).get("snapshots")
        last = (body.get("status") or {}).get("snapshots") or {}
        if wanted is None or not last.get("lastTime"):
            continue
        at.add_metric(values, datetime.fromisoformat(last["lastTime"]).timestamp())
        size.add_metric(values, last.get("lastSizeBytes") or 0)
        interval.add_metric(values, 60 * (wanted.get("intervalMinutes") or Snapshots().interval_minutes))
    return at, size, interval


def _labels(body: Object) -> tuple[str, str, str]:
    metadata, spec = body["metadata"], body["spec"]
    return metadata["namespace"], spec["clusterRef"]["name"], spec.get("groupId") or metadata["name"]
