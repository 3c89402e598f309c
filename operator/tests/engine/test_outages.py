"""Outages of the brokers of clusters."""

from __future__ import annotations

from penstock_operator.engine.outages import GRACE_S, RETRY_INTERVAL_S, ClusterOutages

ONE, TWO = ("queue", "one"), ("queue", "two")


def test_an_outage_is_lasting_after_the_grace_period_whenever_its_failures_were() -> None:
    now = 100.0
    outages = ClusterOutages(lambda: now)
    outages.record_failure(ONE, "no answer")
    now += GRACE_S - 1
    outages.record_failure(ONE, "no answer")
    assert not outages.is_lasting(ONE)
    now += 1
    assert outages.is_lasting(ONE)
    assert not outages.is_lasting(TWO)


def test_an_answer_ends_an_outage_and_the_next_one_starts_anew() -> None:
    now = 0.0
    outages = ClusterOutages(lambda: now)
    assert not outages.record_answer(ONE)
    outages.record_failure(ONE, "no answer")
    assert outages.record_answer(ONE)
    now += GRACE_S
    outages.record_failure(ONE, "no answer")
    assert not outages.is_lasting(ONE)


def test_the_last_error_is_known_until_the_next_request_is_due() -> None:
    now = 0.0
    outages = ClusterOutages(lambda: now)
    outages.record_failure(ONE, "first")
    now += RETRY_INTERVAL_S - 1
    outages.record_failure(ONE, "second")
    now += RETRY_INTERVAL_S - 1
    assert outages.message(ONE) == "second"
    now += 1
    assert outages.message(ONE) is None
