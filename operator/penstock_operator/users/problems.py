"""Tracks clusters whose brokers do not answer requests about users. Used by `batch`."""

from __future__ import annotations

from collections.abc import Callable

from penstock_operator.users.observation import ClusterKey

GRACE_S = 15.0
"""Duration of an outage that is not written to statuses, in seconds."""


class UserOutages:
    """Outages by cluster. `now` is a monotonic clock in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since: dict[ClusterKey, float] = {}

    def record_failure(self, cluster: ClusterKey) -> bool:
        """Record a failed request. Return whether the outage has lasted for `GRACE_S`."""
        return self._now() - self._since.setdefault(cluster, self._now()) >= GRACE_S

    def record_answer(self, cluster: ClusterKey) -> None:
        """Record a successful request."""
        self._since.pop(cluster, None)
