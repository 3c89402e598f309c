"""Liveness check of the watches: objects that this process writes must come back as watch events.

A watch can hang without an error (for example, a proxy drops the connection), and an idle operator looks the same. In
the steady state the operator writes nothing and expects no events.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from penstock_operator.engine.metrics import OperatorMetrics
from penstock_operator.engine.object_cache import ObjectCache
from penstock_operator.engine.watching import WatchStreams
from penstock_operator.ports.kube import KubeResource, Object

STALE_S = 180.0
"""Longer than kopf's inactivity timeout plus a complete list."""


class Freshness:
    """Tracks own writes until the watches return them. `now` is a monotonic clock in seconds."""

    def __init__(
        self, now: Callable[[], float], cache: ObjectCache, metrics: OperatorMetrics, watched: Collection[KubeResource]
    ) -> None:
        self._now, self._copies, self._metrics, self._watched = now, cache, metrics, frozenset(watched)
        self._expected: dict[KubeResource, tuple[int, float]] = {}
        """By resource: the oldest written resource version that no watch has returned, and when it was written."""
        self.watching: WatchStreams | None = None

    def written(self, method: str, resource: KubeResource, body: Object | None) -> None:
        """Count a write and apply its result to the cache. Called by `kube.client` after each write."""
        self._metrics.record_write(method, resource.plural)
        if body is None or resource not in self._watched:
            return
        before = self._copies.get(resource, body["metadata"].get("namespace") or "", body["metadata"]["name"])
        self._copies.apply_event(resource, body)
        version = str(body["metadata"].get("resourceVersion") or "")
        if before is None or before["metadata"].get("resourceVersion") == version or not version.isdigit():
            return  # Nothing changed, or the object may lack the watched label.
        self._clear_if_observed(resource)
        self._expected.setdefault(resource, (int(version), self._now()))

    def why_stale(self) -> str | None:
        """Return which watch missed a write for more than `STALE_S`; None if all are fresh."""
        now = self._now()
        for resource in list(self._expected):
            self._clear_if_observed(resource)
            expected = self._expected.get(resource)
            if expected is not None and now - expected[1] > STALE_S:
                return f"the watch of {resource.plural} did not deliver a change made {now - expected[1]:.0f} s ago"
        return None

    def _clear_if_observed(self, resource: KubeResource) -> None:
        expected = self._expected.get(resource)
        if expected is not None and self.watching is not None and self.watching.newest.get(resource, 0) >= expected[0]:
            del self._expected[resource]
