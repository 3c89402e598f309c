"""An invalid value in the store has no effect, is reported with a reason, and does not affect other settings."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.config.broker import BROKER_FIELDS, BROKER_SETTINGS, BrokerConfig, broker_setting
from penstock.config.definition import (
    HIDDEN,
    NUMBER_TYPES,
    InvalidSetting,
    Setting,
    SettingSource,
    SettingType,
    accept_stored,
)
from penstock.config.group import GROUP_SETTINGS, group_setting
from penstock.config.kafka_settings import CLIENT_METRICS_SETTINGS, KAFKA_BROKER_SETTINGS, KAFKA_GROUP_SETTINGS
from penstock.config.topic import TOPIC_SETTINGS, TopicConfig, config_fields, resolve_leniently, topic_setting

TABLES = (
    TOPIC_SETTINGS,
    BROKER_SETTINGS,
    GROUP_SETTINGS,
    KAFKA_BROKER_SETTINGS,
    KAFKA_GROUP_SETTINGS,
    CLIENT_METRICS_SETTINGS,
)
SETTINGS = [known for table in TABLES for known in table.values()]
texts = (
    st.text()
    | st.integers(-(1 << 70), 1 << 70).map(str)
    | st.floats().map(str)
    | st.sampled_from(["true", "FALSE", "*", "0:1", "delete,compact", "A://h:1", " +5 ", "1_0", "\u0661", "9" * 5000])
    | st.sampled_from([known.default or "" for known in SETTINGS])
    | st.sampled_from([word for known in SETTINGS for word in known.allowed])
)
values = texts | st.none() | st.booleans() | st.integers() | st.floats() | st.lists(st.text()) | st.just({"a": 1})


def is_in_range(setting: Setting, value: Any) -> bool:
    """Return whether the definition allows a parsed value, independently of the parser."""
    if setting.kind in NUMBER_TYPES:
        low, high = setting.bounds
        return low <= value <= high and value not in setting.excluded
    if setting.kind is SettingType.BOOLEAN:
        return str(value).lower() in (setting.allowed or ("true", "false"))
    words = value if setting.kind is SettingType.LIST else (value,)
    return all(word in setting.allowed for word in words) if setting.allowed else len(value) <= setting.max_chars


@given(text=texts)
def test_any_text_is_a_value_in_range_or_refused(text: str) -> None:
    for setting in SETTINGS:
        try:
            value = setting.parse(text)
        except InvalidSetting:
            continue
        assert is_in_range(setting, value)
        assert setting.parse(setting.normalise(text)) == value
        assert not setting.is_fixed or setting.normalise(text) == setting.default


@given(
    all_brokers=st.dictionaries(st.sampled_from([*BROKER_SETTINGS, *KAFKA_BROKER_SETTINGS]) | st.text(), values),
    this_broker=st.dictionaries(st.sampled_from([*BROKER_SETTINGS, *KAFKA_BROKER_SETTINGS]) | st.text(), values),
)
@example({"log.cleaner.min.compaction.lag.ms": "2"}, {"log.cleaner.max.compaction.lag.ms": "1"})
def test_whatever_is_stored_for_brokers_each_setting_has_the_first_valid_value(
    all_brokers: dict[str, object], this_broker: dict[str, object]
) -> None:
    static = {"log.retention.hours": "2", "max.partitions": "7"}
    config = BrokerConfig.from_texts(static)
    rejected = {(each.resource, each.name[:249]) for each in config.apply_dynamic(all_brokers, this_broker)}
    for name, known in BROKER_SETTINGS.items():
        candidates = [("broker 0", this_broker.get(name)), ("all brokers", all_brokers.get(name))]
        expected = static.get(name)
        for resource, value in reversed(candidates):
            if value is not None and (resource, name) not in rejected:
                assert isinstance(value, str)
                assert known.dynamic
                known.parse(value)
                expected = value
        assert config.text(name) == expected
    for each in BROKER_FIELDS:
        text = config.text(each.setting.name)
        assert getattr(config, each.name) == (each.default if text is None else each.convert(each.setting.parse(text)))
    assert config.topic_defaults.contradiction() is None


@given(overrides=st.dictionaries(st.sampled_from(list(TOPIC_SETTINGS)) | st.text(), values))
@example({"delivery.delay.ms": "5", "cleanup.policy": "compact", "message.timestamp.type": "CreateTime"})
@example({"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1", "retention.ms": "5"})
def test_whatever_is_stored_for_a_topic_each_setting_has_its_valid_value_or_the_default(
    overrides: dict[str, object],
) -> None:
    accepted, rejected = accept_stored(overrides, topic_setting, "topic t")
    assert {*accepted, *(each.name for each in rejected)} == {name[:249] for name in overrides}
    config, contradiction = resolve_leniently(accepted, TopicConfig())
    expected = {f.name: getattr(TopicConfig(), f.name) for f in fields(TopicConfig)}
    for name, text in accepted.items():
        if contradiction is None or not name.endswith(".compaction.lag.ms"):
            expected.update(config_fields(name, topic_setting(name).parse(text)))
    if config.delivery_delay_ms:
        assert (config.message_timestamp_log_append, config.cleanup_compact, config.cleanup_delete) == (
            True,
            False,
            True,
        )
        for changed in ("message_timestamp_log_append", "cleanup_compact", "cleanup_delete"):
            expected[changed] = getattr(config, changed)
    assert {f.name: getattr(config, f.name) for f in fields(TopicConfig)} == expected


@pytest.mark.parametrize(
    ("find", "stored", "shown", "reason"),
    [
        (topic_setting, {"segment.ms": "x"}, '"x"', 'invalid value "x" for segment.ms: it must be a whole number'),
        (topic_setting, {"retention.ms": "-2"}, '"-2"', 'invalid value "-2" for retention.ms'),
        (topic_setting, {"retention.ms": 5}, "int", "invalid value of type int for retention.ms: it must be a string"),
        (topic_setting, {"preallocate": None}, "NoneType", "invalid value of type NoneType for preallocate"),
        (topic_setting, {"from.the.future": "1"}, '"1"', "Unknown topic config name: from.the.future"),
        (broker_setting, {"num.partition": "1"}, '"1"', 'unknown broker setting "num.partition"; did you mean'),
        (
            broker_setting,
            {"delegation.token.secret.key": "secret"},
            HIDDEN,
            "cannot set delegation.token.secret.key to [hidden]",
        ),
        (group_setting, {"penstock.owner": "a\nb"}, '"a\\nb"', "invalid value"),
        (group_setting, {"penstock.reset.id": ["a"]}, "list", "invalid value of type list for penstock.reset.id"),
    ],
    ids=lambda value: "" if callable(value) else str(value),
)
def test_a_rejected_setting_has_resource_name_value_and_reason(find, stored, shown: str, reason: str) -> None:
    accepted, (rejected,) = accept_stored(stored, find, "resource r")
    assert accepted == {}
    assert (rejected.resource, [rejected.name], rejected.value) == ("resource r", list(stored), shown)
    assert rejected.reason.startswith(reason)


def test_the_next_source_applies_where_a_value_in_the_store_is_invalid() -> None:
    config = BrokerConfig.from_texts({"log.retention.ms": "3", "max.partitions": "3"})
    rejected = config.apply_dynamic({"log.retention.ms": "2", "max.partitions": "x"}, {"log.retention.ms": "-7"})
    assert config.topic_defaults.retention_ms == 2
    assert config.max_partitions == 3
    assert [(each.resource, each.name, each.value) for each in rejected] == [
        ("all brokers", "max.partitions", '"x"'),
        ("broker 0", "log.retention.ms", '"-7"'),
    ]
    assert config.source_texts[SettingSource.BROKER] == {}
    assert config.apply_dynamic({}, {}) == []
    assert config.topic_defaults.retention_ms == 3


@pytest.mark.parametrize("name", [n for n, s in BROKER_SETTINGS.items() if s.documentation.startswith("Same as")])
@pytest.mark.parametrize("text", ["abc", "1.5", "", "9" * 30, "-2", "0x10", "\udcff"])
def test_a_topic_default_in_another_unit_that_makes_no_sense_is_rejected(name: str, text: str) -> None:
    config = BrokerConfig()
    (rejected,) = config.apply_dynamic({name: text, "max.partitions": "5"}, {})
    assert rejected.name == name
    assert config.max_partitions == 5
    assert config.topic_defaults == BrokerConfig().topic_defaults


def test_a_setting_in_the_store_that_is_read_at_the_start_only_changes_nothing() -> None:
    config = BrokerConfig()
    rejected = config.apply_dynamic({"num.partitions": "9"}, {"node.id": "4"})
    assert (config.num_partitions, config.node_id) == (1, 0)
    assert [(each.resource, each.name) for each in rejected] == [
        ("all brokers", "num.partitions"),
        ("broker 0", "node.id"),
    ]


def test_of_topic_defaults_that_contradict_each_other_the_one_with_the_highest_precedence_is_rejected() -> None:
    low, high = "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"
    config = BrokerConfig.from_texts({high: "100"})
    (rejected,) = config.apply_dynamic({low: "50"}, {high: "20"})
    assert (rejected.resource, rejected.name) == ("broker 0", high)
    assert rejected.reason == "min.compaction.lag.ms (50) must not be greater than max.compaction.lag.ms (20)"
    assert (config.topic_defaults.min_compaction_lag_ms, config.topic_defaults.max_compaction_lag_ms) == (50, 100)
    with pytest.raises(InvalidSetting, match="must not be greater"):
        config.check_dynamic(SettingSource.ALL_BROKERS, {low: "200"})
