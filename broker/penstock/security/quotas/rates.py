"""Measures usage without a clock: times are arguments in seconds. Used by `usage`."""

from __future__ import annotations


class WindowedRate:
    """The rate of amounts over the last `windows` windows of `window_s` seconds, the current one included.

    As Kafka's `Rate`, an entity without earlier windows counts as one that used nothing in them.
    """

    __slots__ = ("_newest", "_total", "_totals", "window_s")

    def __init__(self, windows: int, window_s: float) -> None:
        self.window_s = window_s
        self._totals = [0.0] * windows
        self._total = 0.0
        self._newest = 0

    def record(self, amount: float, now_s: float) -> None:
        """Add an amount to the current window."""
        self._advance(now_s)
        self._totals[self._newest % len(self._totals)] += amount
        self._total += amount

    def excess_s(self, quota: float, now_s: float) -> float:
        """Return how much longer the usage should have taken at the rate `quota`; 0 if the rate is not above.

        This is Kafka's throttle time. It does not take into account that windows expire meanwhile.
        """
        self._advance(now_s)
        elapsed_s = self._elapsed_s(now_s)
        if self._total <= quota * elapsed_s:
            return 0.0
        return self._total / quota - elapsed_s if quota else float("inf")

    def is_idle(self, now_s: float) -> bool:
        """Return whether nothing was used in all windows."""
        self._advance(now_s)
        return not self._total

    def _elapsed_s(self, now_s: float) -> float:
        """Return the time that the windows cover: the complete ones before the current, and its part until now."""
        return (len(self._totals) - 1) * self.window_s + max(now_s - self._newest * self.window_s, 0.0)

    def _advance(self, now_s: float) -> None:
        """Clear the windows that have expired."""
        current = int(now_s // self.window_s)
        if current <= self._newest:
            return
        totals = self._totals
        for number in range(max(self._newest + 1, current - len(totals) + 1), current + 1):
            totals[number % len(totals)] = 0.0
        self._newest = current
        self._total = sum(totals)  # exact: repeated subtraction would leave rounding errors


class TokenBucket:
    """Tokens that a quota refills each second, up to those of `burst_s` seconds (KIP-599). It is full at first.

    Usage is admitted while there is no debt, and may then take more tokens than there are.
    """

    __slots__ = ("_burst_s", "_refilled_s", "_tokens")

    def __init__(self, burst_s: float) -> None:
        self._burst_s = burst_s
        self._tokens = float("inf")
        self._refilled_s = 0.0

    def record(self, amount: float, quota: float, now_s: float) -> None:
        """Take tokens."""
        self._refill(quota, now_s)
        self._tokens -= amount

    def debt_s(self, quota: float, now_s: float) -> float:
        """Return the seconds until the bucket has no debt; 0 if it has none."""
        self._refill(quota, now_s)
        if self._tokens >= 0:
            return 0.0
        return -self._tokens / quota if quota > 0 else float("inf")

    def is_full(self, quota: float, now_s: float) -> bool:
        """Return whether the bucket has all its tokens."""
        self._refill(quota, now_s)
        return self._tokens >= quota * self._burst_s

    def _refill(self, quota: float, now_s: float) -> None:
        elapsed_s = max(now_s - self._refilled_s, 0.0)
        self._tokens = min(self._tokens + quota * elapsed_s, quota * self._burst_s)
        self._refilled_s = now_s
