"""Counters kept in plain integers where requests pass; whoever exports metrics reads them when asked."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable

BUCKETS_S = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
"""Upper bounds of the histograms' buckets, in seconds; one more bucket takes what is beyond."""


class Histogram:
    """How often something took how long."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.sum_s = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.sum_s += seconds


class RequestStats:
    """Times from a request's arrival to its answer, by API key. A Fetch that waits for data counts its wait."""

    __slots__ = ("by_api", "fetched_bytes", "now_s")

    def __init__(self, now_s: Callable[[], float] = time.perf_counter) -> None:
        self.now_s = now_s
        """What durations are taken from: finer than the loop's clock, which some loops keep in milliseconds."""
        self.by_api: dict[int, Histogram] = {}
        self.fetched_bytes = 0

    def observe(self, api_key: int, seconds: float) -> None:
        histogram = self.by_api.get(api_key)
        if histogram is None:
            histogram = self.by_api[api_key] = Histogram()
        histogram.observe(seconds)
