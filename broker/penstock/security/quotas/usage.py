"""What an entity has used of a quota. Used by `client_quotas`."""

from __future__ import annotations

from typing import Protocol

from penstock.security.quotas.rates import TokenBucket, WindowedRate
from penstock.security.quotas.resolution import QuotaKind

MAX_THROTTLE_S = 600.0
"""Upper bound of a throttle time: a connection that is not read does not notice that its peer has closed it."""


class QuotaUsage(Protocol):
    """The usage of one quota by one entity. Times are in seconds."""

    kind: QuotaKind
    quota: float
    """The present quota, which changes with its record."""

    def record(self, amount: float, now_s: float) -> None:
        """Add what was used."""

    def throttle_s(self, now_s: float) -> float:
        """Return how long the entity must pause; 0 within the quota."""

    def is_idle(self, now_s: float) -> bool:
        """Return whether forgetting the usage makes no difference."""


class RateUsage:
    """The usage of a rate, measured over windows."""

    __slots__ = ("_max_throttle_s", "_rate", "kind", "quota")

    def __init__(self, kind: QuotaKind, windows: int, window_s: float) -> None:
        self.kind, self.quota = kind, 0.0
        self._rate = WindowedRate(windows, window_s)
        # As in Kafka, a client over its share of the broker's time is slowed down, not stopped.
        self._max_throttle_s = window_s if kind is QuotaKind.REQUEST else MAX_THROTTLE_S

    def record(self, amount: float, now_s: float) -> None:
        """Add what was used."""
        self._rate.record(amount, now_s)

    def throttle_s(self, now_s: float) -> float:
        """Return how long the entity must pause; 0 within the quota."""
        return min(self._rate.excess_s(self.quota, now_s), self._max_throttle_s)

    def is_idle(self, now_s: float) -> bool:
        """Return whether nothing was used in all windows."""
        return self._rate.is_idle(now_s)


class BucketUsage:
    """The usage of a quota that allows bursts (KIP-599)."""

    __slots__ = ("_bucket", "kind", "quota")

    def __init__(self, kind: QuotaKind, burst_s: float) -> None:
        self.kind, self.quota = kind, 0.0
        self._bucket = TokenBucket(burst_s)

    def record(self, amount: float, now_s: float) -> None:
        """Take tokens."""
        self._bucket.record(amount, self.quota, now_s)

    def throttle_s(self, now_s: float) -> float:
        """Return the time until tokens are available."""
        return min(self._bucket.debt_s(self.quota, now_s), MAX_THROTTLE_S)

    def is_idle(self, now_s: float) -> bool:
        """Return whether all tokens are available."""
        return self._bucket.is_full(self.quota, now_s)
