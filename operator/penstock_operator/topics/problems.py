"""Clusters whose brokers do not answer: since when, and when they are asked again. Used by `controller` and `health`.

Without this each batch of topics would wait for the same time-outs, and a broker that is away for a moment would be a
write for each of its topics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

ClusterKey = tuple[str, str]
"""Namespace and name."""

GRACE_S = 15.0
"""For which a silence is not worth a status."""
PAUSE_S = 3.0
"""For which nobody asks again after a failure."""


@dataclass(slots=True)
class _TopicProblem:
    since: float
    last: float
    message: str


class TopicProblems:
    """`now` is a monotonic clock in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._by_cluster: dict[ClusterKey, _TopicProblem] = {}

    def failed(self, cluster: ClusterKey, message: str) -> None:
        now = self._now()
        known = self._by_cluster.get(cluster)
        self._by_cluster[cluster] = _TopicProblem(known.since if known else now, now, message)

    def answered(self, cluster: ClusterKey) -> bool:
        """Returns whether it had not before."""
        return self._by_cluster.pop(cluster, None) is not None

    def message(self, cluster: ClusterKey) -> str | None:
        """The last failure, where it is too early to ask again."""
        known = self._by_cluster.get(cluster)
        return known.message if known is not None and self._now() - known.last < PAUSE_S else None

    def is_lasting(self, cluster: ClusterKey) -> bool:
        known = self._by_cluster.get(cluster)
        return known is not None and self._now() - known.since >= GRACE_S
