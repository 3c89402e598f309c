"""Counters as plain integers, updated on the request path; the metrics endpoint reads them on demand."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable

BUCKETS_S = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
"""Upper bounds of the histogram buckets in seconds; one more bucket holds larger values."""


class Histogram:
    """A histogram of durations."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.sum_s = 0.0

    @property
    def count(self) -> int:
        """Number of observations."""
        return sum(self.counts)

    def observe(self, seconds: float) -> None:
        """Add a duration in seconds."""
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.sum_s += seconds


class RequestStats:
    """Request latencies by API key, from arrival to response. A Fetch includes its wait for data."""

    __slots__ = ("by_api", "fetched_bytes", "now_s")

    def __init__(self, now_s: Callable[[], float] = time.perf_counter) -> None:
        self.now_s = now_s
        """The time source: finer than the loop's clock, which some loops keep in milliseconds."""
        self.by_api: dict[int, Histogram] = {}
        self.fetched_bytes = 0

    def observe(self, api_key: int, seconds: float) -> None:
        """Add a request's duration in seconds."""
        histogram = self.by_api.get(api_key)
        if histogram is None:
            histogram = self.by_api[api_key] = Histogram()
        histogram.observe(seconds)
