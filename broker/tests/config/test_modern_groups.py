"""Settings of consumer groups: the broker's defaults and bounds, and what a group overrides."""

from __future__ import annotations

import pytest

from penstock.config.broker import BrokerConfig
from penstock.config.definition import InvalidSetting
from penstock.config.modern_groups import (
    CONSUMER_SETTINGS,
    ConsumerGroupConfig,
    check_bounds,
    consumer_group_config,
)


def test_a_group_without_settings_has_those_of_the_broker() -> None:
    config = BrokerConfig.from_texts({"group.consumer.heartbeat.interval.ms": "6000"})
    assert consumer_group_config(config, {}) == ConsumerGroupConfig(45_000, 6000, 1000)


def test_a_group_overrides_the_broker() -> None:
    settings = {"consumer.session.timeout.ms": "50000", "consumer.assignment.interval.ms": "0", "penstock.owner": "x"}
    assert consumer_group_config(BrokerConfig(), settings) == ConsumerGroupConfig(50_000, 5000, 0)


def test_a_stored_value_moves_to_the_bound_that_the_broker_has_now() -> None:
    config = BrokerConfig.from_texts({"group.consumer.max.session.timeout.ms": "48000"})
    assert consumer_group_config(config, {"consumer.session.timeout.ms": "60000"}).session_timeout_ms == 48_000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("consumer.session.timeout.ms", "44999"),
        ("consumer.session.timeout.ms", "60001"),
        ("consumer.heartbeat.interval.ms", "4999"),
        ("consumer.assignment.interval.ms", "15001"),
    ],
)
def test_a_value_out_of_the_brokers_bounds_is_rejected_with_both_names(name: str, value: str) -> None:
    with pytest.raises(
        InvalidSetting, match=rf"{name} must be from group\.{name.replace('consumer.', 'consumer.min.')}"
    ):
        check_bounds(BrokerConfig(), {name: value})


def test_values_at_the_bounds_and_removed_values_are_accepted() -> None:
    check_bounds(BrokerConfig(), {"consumer.session.timeout.ms": "45000", "consumer.heartbeat.interval.ms": "15000"})
    check_bounds(BrokerConfig(), {"consumer.session.timeout.ms": None})


def test_contradictory_defaults_stop_the_broker() -> None:
    with pytest.raises(InvalidSetting, match=r"group\.consumer\.session\.timeout\.ms \(1000\) must be from 45000"):
        BrokerConfig.from_texts({"group.consumer.session.timeout.ms": "1000"})


def test_each_group_setting_names_the_broker_setting_with_its_default() -> None:
    for name, known in CONSUMER_SETTINGS.items():
        assert [synonym.name for synonym in known.synonyms] == [f"group.{name}"]
