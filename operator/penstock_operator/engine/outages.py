"""Tracks clusters whose brokers do not answer. Used by `topics` and `users`.

Without it, each batch of topics would wait for the same timeouts, and a short outage would cause a status write per
object.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

ClusterKey = tuple[str, str]
"""Namespace and name."""

GRACE_S = 15.0
"""Duration of an outage that is not written to statuses, in seconds."""
RETRY_INTERVAL_S = 3.0
"""Minimum time between a failure and the next request, in seconds."""


@dataclass(slots=True)
class _Outage:
    since: float
    last: float
    message: str


class ClusterOutages:
    """Outages by cluster. `now` is a monotonic clock in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._by_cluster: dict[ClusterKey, _Outage] = {}

    def record_failure(self, cluster: ClusterKey, message: str) -> None:
        """Record a failed request."""
        now = self._now()
        known = self._by_cluster.get(cluster)
        self._by_cluster[cluster] = _Outage(known.since if known else now, now, message)

    def record_answer(self, cluster: ClusterKey) -> bool:
        """Record a successful request. Return whether it ended an outage."""
        return self._by_cluster.pop(cluster, None) is not None

    def message(self, cluster: ClusterKey) -> str | None:
        """Return the last error if it is too early for another request, otherwise None."""
        known = self._by_cluster.get(cluster)
        return known.message if known is not None and self._now() - known.last < RETRY_INTERVAL_S else None

    def is_lasting(self, cluster: ClusterKey) -> bool:
        """Whether the outage has lasted for `GRACE_S`."""
        known = self._by_cluster.get(cluster)
        return known is not None and self._now() - known.since >= GRACE_S
