"""Whether the watches bring what happens: what this process wrote itself has to come back through them.

A watch can hang without an error (a proxy that forgot the connection), and an operator that hears nothing looks just
like one that has nothing to do. In the steady state nothing is written and nothing is expected.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from penstock_operator.engine.copies import Copies
from penstock_operator.engine.metrics import OperatorMetrics
from penstock_operator.engine.watching import Watching
from penstock_operator.ports.kube import KubeResource, Object

STALE_S = 180.0
"""Longer than kopf's own inactivity timeout and a list of everything."""


class Freshness:
    """`written` is what `kube.client` is given. `now` counts seconds and does not leap."""

    def __init__(
        self, now: Callable[[], float], copies: Copies, metrics: OperatorMetrics, watched: Collection[KubeResource]
    ) -> None:
        self._now, self._copies, self._metrics, self._watched = now, copies, metrics, frozenset(watched)
        self._expected: dict[KubeResource, tuple[int, float]] = {}
        """By resource the oldest version written that has not come back, and when it was written."""
        self.watching: Watching | None = None

    def written(self, method: str, resource: KubeResource, body: Object | None) -> None:
        """Counts a write, and takes its result in as if the watch had brought it."""
        self._metrics.wrote(method, resource.plural)
        if body is None or resource not in self._watched:
            return
        before = self._copies.get(resource, body["metadata"].get("namespace") or "", body["metadata"]["name"])
        self._copies.saw(resource, body)
        version = str(body["metadata"].get("resourceVersion") or "")
        if before is None or before["metadata"].get("resourceVersion") == version or not version.isdigit():
            return  # Nothing changed, or it may not carry the label that is watched.
        self._settle(resource)
        self._expected.setdefault(resource, (int(version), self._now()))

    def why_stale(self) -> str | None:
        now = self._now()
        for resource in list(self._expected):
            self._settle(resource)
            expected = self._expected.get(resource)
            if expected is not None and now - expected[1] > STALE_S:
                return f"the watch of {resource.plural} did not bring a change of {now - expected[1]:.0f} s ago"
        return None

    def _settle(self, resource: KubeResource) -> None:
        expected = self._expected.get(resource)
        if expected is not None and self.watching is not None and self.watching.newest.get(resource, 0) >= expected[0]:
            del self._expected[resource]
