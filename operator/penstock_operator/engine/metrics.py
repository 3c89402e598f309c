"""What the operator tells Prometheus, in a registry of its own. Served by `engine.health`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from penstock_operator.model.common import PLURALS, Kind
from penstock_operator.ports.kube import Object

MAX_GROUPS = 1_000
"""Of groups those with the most lag are told, so that a cluster with 50,000 groups does not fill a Prometheus."""
_SECONDS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 180)


class OperatorMetrics:
    """`penstock_operator_*`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        prefix, registry = "penstock_operator_", self.registry
        self._seconds = Histogram(
            f"{prefix}reconcile_seconds", "Time of one batch", ["kind"], buckets=_SECONDS, registry=registry
        )
        self._keys = Counter(f"{prefix}reconciled_objects", "Objects that were looked at", ["kind"], registry=registry)
        self._errors = Counter(f"{prefix}reconcile_errors", "Looks that failed", ["kind"], registry=registry)
        self._resyncs = Counter(f"{prefix}resync_errors", "Resyncs that failed", ["kind"], registry=registry)
        self._writes = Counter(
            f"{prefix}api_writes", "Writes that the API server took", ["method", "resource"], registry=registry
        )
        self._repairs = Counter(
            f"{prefix}watch_repairs", "Copies that a list put right, as no watch had", ["resource"], registry=registry
        )
        self._leader = Gauge(f"{prefix}leader", "1 where this replica acts", registry=registry)
        self._depth = Gauge(f"{prefix}queue_depth", "Objects that could be looked at now", ["kind"], registry=registry)
        self._failing = Gauge(f"{prefix}failing_objects", "Objects whose last look failed", ["kind"], registry=registry)
        for kind in PLURALS:
            for metric in (self._keys, self._errors, self._resyncs, self._seconds):
                metric.labels(kind)

    def looked(self, kind: Kind, keys: int, seconds: float, errors: int) -> None:
        self._seconds.labels(kind).observe(seconds)
        self._keys.labels(kind).inc(keys)
        self._errors.labels(kind).inc(errors)

    def resync_failed(self, kind: Kind) -> None:
        self._resyncs.labels(kind).inc()

    def wrote(self, method: str, plural: str) -> None:
        self._writes.labels(method, plural).inc()

    def repaired(self, plural: str, copies: int) -> None:
        self._repairs.labels(plural).inc(copies)

    def leads(self, is_leader: bool) -> None:
        self._leader.set(is_leader)

    def watch_queue(self, depth: Callable[[Kind], int], failing: Callable[[Kind], int]) -> None:
        for kind in PLURALS:
            self._depth.labels(kind).set_function(partial(depth, kind))
            self._failing.labels(kind).set_function(partial(failing, kind))

    def watch_groups(self, groups: Callable[[], Iterable[Object]]) -> None:
        """Lag by group, read from the resources' status when it is asked for."""
        self.registry.register(_Lag(groups))

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _Lag(Collector):
    def __init__(self, groups: Callable[[], Iterable[Object]]) -> None:
        self._groups = groups

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        labels = ["namespace", "cluster", "group"]
        lag = GaugeMetricFamily("penstock_operator_group_lag", "Records not yet read, by ConsumerGroup", labels=labels)
        seconds = GaugeMetricFamily(
            "penstock_operator_group_lag_seconds", "Age of the oldest record that is not yet read", labels=labels
        )
        shown = [body for body in self._groups() if (body.get("status") or {}).get("lag") is not None]
        shown.sort(key=lambda body: -int(body["status"]["lag"]))
        for body in shown[:MAX_GROUPS]:
            metadata, spec, status = body["metadata"], body["spec"], body["status"]
            values = [metadata["namespace"], spec["clusterRef"]["name"], spec.get("groupId") or metadata["name"]]
            lag.add_metric(values, status["lag"])
            if status.get("lagSeconds") is not None:
                seconds.add_metric(values, status["lagSeconds"])
        return lag, seconds
