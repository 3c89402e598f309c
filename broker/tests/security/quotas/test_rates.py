"""Windows and token buckets, compared with naive models on random histories."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.security.quotas.rates import TokenBucket, WindowedRate

HISTORIES = st.lists(st.tuples(st.floats(0, 30), st.integers(0, 10_000)), max_size=30)
"""Pairs of (seconds since the previous amount, amount)."""


class RememberingRate:
    """A model that keeps each amount with its window."""

    def __init__(self, windows: int, window_s: float) -> None:
        self.windows, self.window_s = windows, window_s
        self.amounts: list[tuple[int, float]] = []

    def measure(self, now_s: float) -> tuple[float, float]:
        """Return the amount in the windows, and how long they are."""
        current = math.floor(now_s / self.window_s)
        total = sum(amount for window, amount in self.amounts if window > current - self.windows)
        return total, now_s - (current - self.windows + 1) * self.window_s


@given(HISTORIES, st.integers(1, 12), st.sampled_from([0.5, 1.0, 3.0]), st.floats(1, 5000))
def test_the_throttle_time_is_how_much_longer_the_amount_of_the_windows_should_have_taken(
    history: list[tuple[float, int]], windows: int, window_s: float, quota: float
) -> None:
    now_s, rate, model = 1000.0, WindowedRate(windows, window_s), RememberingRate(windows, window_s)
    for pause_s, amount in history:
        now_s += pause_s
        rate.record(amount, now_s)
        model.amounts.append((math.floor(now_s / window_s), amount))
        total, elapsed_s = model.measure(now_s)
        assert rate.excess_s(quota, now_s) == pytest.approx(max(total / quota - elapsed_s, 0), abs=1e-6)
        assert rate.is_idle(now_s) == (total == 0)


def test_a_burst_is_throttled_as_in_kafka() -> None:
    rate = WindowedRate(11, 1.0)
    rate.record(30_000, 100.0)
    # 10 complete windows: the rate is 3,000, twice the quota, so it takes as long again
    assert rate.excess_s(1_500, 100.0) == pytest.approx(10.0)
    assert rate.excess_s(3_000, 100.0) == 0
    assert rate.excess_s(0, 100.0) == math.inf


def test_a_single_window_is_forgotten_as_a_whole() -> None:
    rate = WindowedRate(1, 2.0)
    rate.record(10, 100.0)
    assert rate.excess_s(5, 100.0) == 2
    assert rate.excess_s(5, 101.9) == pytest.approx(0.1)
    assert rate.excess_s(5, 102.0) == 0


def test_a_clock_that_steps_back_loses_nothing() -> None:
    rate = WindowedRate(3, 1.0)
    rate.record(5, 100.5)
    rate.record(5, 99.0)
    assert rate.excess_s(1, 100.5) == pytest.approx(10 - 2.5)


@given(HISTORIES, st.floats(0.5, 5000))
def test_a_bucket_refills_by_its_quota_up_to_the_burst(history: list[tuple[float, int]], quota: float) -> None:
    now_s, bucket, tokens = 1000.0, TokenBucket(11.0), 11.0 * quota
    for pause_s, amount in history:
        now_s += pause_s
        tokens = min(tokens + pause_s * quota, 11.0 * quota)
        assert bucket.debt_s(quota, now_s) == pytest.approx(max(-tokens / quota, 0.0), abs=1e-6)
        bucket.record(amount, quota, now_s)
        tokens -= amount
    debt_s = bucket.debt_s(quota, now_s)
    assert bucket.debt_s(quota, now_s + debt_s + 1e-6) == 0
    assert bucket.is_full(quota, now_s + debt_s + 11.001)


def test_a_burst_of_eleven_seconds_is_free_and_its_debt_is_paid_by_time() -> None:
    bucket = TokenBucket(11.0)
    bucket.record(110, 10.0, 50.0)
    assert bucket.debt_s(10.0, 50.0) == 0
    bucket.record(20, 10.0, 50.0)
    assert bucket.debt_s(10.0, 50.0) == pytest.approx(2.0)
    assert bucket.debt_s(10.0, 51.5) == pytest.approx(0.5)
    assert bucket.debt_s(0.0, 51.5) == math.inf
