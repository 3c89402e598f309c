"""Kafka settings that a resource can have, and the errors for others."""

from __future__ import annotations

import pytest

from penstock_operator.model.settings import (
    OWNED_BY_OPERATOR,
    TOPIC_OWNED_BY_OPERATOR,
    broker_config_problems,
    broker_settings,
    topic_config_problems,
    topic_settings,
)


def test_settings_that_brokers_take_are_no_problem() -> None:
    assert topic_config_problems({"retention.ms": "-1", "cleanup.policy": "delete, compact"}) == ()
    assert broker_config_problems({"log.retention.hours": "168", "num.partitions": "6"}) == ()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("retention.msec", "1", "did you mean retention.ms?"),
        ("retention.ms", "7d", "it must be a whole number from -1"),
        ("min.insync.replicas", "0", "it must be a whole number from 1"),
        ("penstock.owner", "me", "penstock.* is reserved for the operator"),
        ("leader.replication.throttled.replicas", "*", "use spec.moving.throttleBytesPerSecond"),
    ],
)
def test_others_are_each_named_with_the_cure(name: str, value: str, words: str) -> None:
    (problem,) = topic_config_problems({name: value, "segment.bytes": "1048576"})
    assert name in problem
    assert words in problem


@pytest.mark.parametrize("name", OWNED_BY_OPERATOR)
def test_what_the_operator_decides_is_refused_with_what_to_do_instead(name: str) -> None:
    (problem,) = broker_config_problems({name: "1"})
    assert problem == f"{name} cannot be set here: {OWNED_BY_OPERATOR[name]}"


def test_no_setting_of_the_operators_own_is_offered() -> None:
    offered = {*topic_settings(), *broker_settings()}
    assert not [name for name in offered if name.startswith("penstock.")]
    assert not offered & {*TOPIC_OWNED_BY_OPERATOR}
