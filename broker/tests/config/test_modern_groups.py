"""Settings of consumer groups and share groups: the broker's defaults and bounds, and what a group overrides."""

from __future__ import annotations

import pytest

from penstock.config.broker import BrokerConfig
from penstock.config.definition import InvalidSetting
from penstock.config.modern_groups import (
    CONSUMER_SETTINGS,
    COPY_DEAD_LETTERS,
    DEAD_LETTER_TOPIC,
    SHARE_FILTER,
    SHARE_SETTINGS,
    ConsumerGroupConfig,
    ShareGroupConfig,
    check_bounds,
    consumer_group_config,
    share_group_config,
)
from penstock.config.share_groups import ShareOffsetReset, ShareResetStrategy
from penstock.filter import RecordFilter

GROUP_ONLY = {
    "share.auto.offset.reset",
    "share.isolation.level",
    "share.renew.acknowledge.enable",
    "share.redelivery.backoff.ms",
    "share.redelivery.backoff.multiplier",
    "share.redelivery.backoff.max.ms",
    "share.order.by.key",
    SHARE_FILTER,
    DEAD_LETTER_TOPIC,
    COPY_DEAD_LETTERS,
}
"""Settings that the broker has no default for."""


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
        ("share.record.lock.duration.ms", "14999"),
        ("share.delivery.count.limit", "11"),
        ("share.partition.max.record.locks", "4001"),
    ],
)
def test_a_value_out_of_the_brokers_bounds_is_rejected_with_both_names(name: str, value: str) -> None:
    with pytest.raises(
        InvalidSetting, match=rf"{name} must be from group\.{name.split('.')[0]}\.min\.{name.split('.', 1)[1]}"
    ):
        check_bounds(BrokerConfig(), {name: value})


def test_values_at_the_bounds_and_removed_values_are_accepted() -> None:
    check_bounds(BrokerConfig(), {"consumer.session.timeout.ms": "45000", "consumer.heartbeat.interval.ms": "15000"})
    check_bounds(BrokerConfig(), {"consumer.session.timeout.ms": None})


def test_contradictory_defaults_stop_the_broker() -> None:
    with pytest.raises(InvalidSetting, match=r"group\.consumer\.session\.timeout\.ms \(1000\) must be from 45000"):
        BrokerConfig.from_texts({"group.consumer.session.timeout.ms": "1000"})


def test_each_group_setting_names_the_broker_setting_with_its_default() -> None:
    for name, known in (CONSUMER_SETTINGS | SHARE_SETTINGS).items():
        if name in GROUP_ONLY:
            continue
        assert [synonym.name for synonym in known.synonyms] == [f"group.{name}"]


def test_a_share_group_without_settings_has_those_of_the_broker() -> None:
    config = BrokerConfig.from_texts({"group.share.record.lock.duration.ms": "20000"})
    latest = ShareOffsetReset(ShareResetStrategy.LATEST)
    assert share_group_config(config, {}) == ShareGroupConfig(
        45_000, 5000, 1000, 20_000, 5, 2000, latest, False, True, 0, 2.0, 300_000, False
    )


def test_a_share_group_overrides_the_broker_within_its_bounds() -> None:
    settings = {
        "share.session.timeout.ms": "50000",
        "share.delivery.count.limit": "25",
        "share.auto.offset.reset": "earliest",
        "share.isolation.level": "read_committed",
        "share.renew.acknowledge.enable": "false",
        "share.redelivery.backoff.ms": "1000",
        "share.redelivery.backoff.multiplier": "1.5",
        "share.redelivery.backoff.max.ms": "5000",
        "share.order.by.key": "true",
    }
    found = share_group_config(BrokerConfig(), settings)
    earliest = ShareOffsetReset(ShareResetStrategy.EARLIEST)
    assert found == ShareGroupConfig(50_000, 5000, 1000, 30_000, 10, 2000, earliest, True, False, 1000, 1.5, 5000, True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("share.redelivery.backoff.ms", "-1"),
        ("share.redelivery.backoff.ms", str(30 * 86_400_000 + 1)),
        ("share.redelivery.backoff.multiplier", "0.9"),
        ("share.redelivery.backoff.multiplier", "101"),
        ("share.redelivery.backoff.multiplier", "nan"),
        ("share.redelivery.backoff.max.ms", str(30 * 86_400_000 + 1)),
        ("share.order.by.key", "yes"),
    ],
)
def test_settings_of_redelivery_have_bounds(name: str, value: str) -> None:
    with pytest.raises(InvalidSetting, match=f"for {name}: it must be"):
        SHARE_SETTINGS[name].parse(value)


def test_the_filter_of_a_share_group_is_compiled() -> None:
    assert share_group_config(BrokerConfig(), {SHARE_FILTER: ""}).filter is None
    found = share_group_config(BrokerConfig(), {SHARE_FILTER: " type = 'order' "})
    assert found.filter == RecordFilter("type = 'order'")


@pytest.mark.parametrize("value", ["type = order", "type =\n'order'", "a = 1 " * 400])
def test_a_filter_that_cannot_be_parsed_is_refused(value: str) -> None:
    with pytest.raises(InvalidSetting, match=r"share\.filter"):
        SHARE_SETTINGS[SHARE_FILTER].parse(value)


def test_contradictory_defaults_of_share_groups_stop_the_broker() -> None:
    with pytest.raises(InvalidSetting, match=r"group\.share\.delivery\.count\.limit \(10\) must be from 2 to 6"):
        BrokerConfig.from_texts({"group.share.delivery.count.limit": "10", "group.share.max.delivery.count.limit": "6"})
