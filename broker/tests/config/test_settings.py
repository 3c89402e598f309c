"""Every setting accepts valid values, rejects invalid ones, and sets its field of the typed configuration."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from penstock.config.addresses import quoted
from penstock.config.broker import BROKER_SETTINGS, BrokerConfig, broker_setting
from penstock.config.definition import InvalidSetting, Setting, SettingType
from penstock.config.security_settings import MAX_PEM_CHARS, SECURITY_SETTINGS
from penstock.config.topic import (
    DAY_MS,
    FOREVER,
    TOPIC_SETTINGS,
    TopicConfig,
    config_fields,
    names_replica,
    resolve,
    resolve_leniently,
    topic_setting,
)

LONG = 1 << 63
TOPIC_SETTING_OF = {s.name: (name, s.factor) for name, known in TOPIC_SETTINGS.items() for s in known.synonyms}
TOPIC_EXAMPLES: dict[str, tuple[str, list[str]]] = {
    "cleanup.policy": ("compact, delete", ["burn", "delete,", ",", "delete,burn", "Delete"]),
    "compression.gzip.level": ("9", ["0", "10", "-2", "", "best"]),
    "compression.lz4.level": ("17", ["0", "18"]),
    "compression.type": ("zstd", ["ZSTD", "brotli", "none", ""]),
    "compression.zstd.level": ("-131072", ["-131073", "23"]),
    "delete.retention.ms": ("0", ["-1"]),
    "delivery.delay.ms": ("2592000000", ["-1", "2592000001", "1.5", ""]),
    "delivery.schedule.enable": ("true", ["1", "yes", ""]),
    "errors.deadletterqueue.group.enable": ("true", ["1", "yes", ""]),
    "file.delete.delay.ms": ("0", ["-1"]),
    "flush.messages": ("9223372036854775807", ["0", "-1", "9223372036854775808"]),
    "flush.ms": ("0", ["-1"]),
    "follower.replication.throttled.replicas": ("*", ["*,0:1", "0", "0:", "a:b", "0:-1", "1:²"]),
    "index.interval.bytes": ("0", ["-1", "2147483648"]),
    "leader.replication.throttled.replicas": (" 0:1, 12:3", ["0:1,*", ":1", "0:1:2"]),
    "local.retention.bytes": ("-2", ["-3"]),
    "local.retention.ms": ("1000", ["-3"]),
    "max.compaction.lag.ms": ("1", ["0"]),
    "max.message.bytes": ("0", ["-1", "1073741825"]),
    "message.timestamp.after.max.ms": ("0", ["-1"]),
    "message.timestamp.before.max.ms": ("0", ["-1"]),
    "message.timestamp.type": ("LogAppendTime", ["logappendtime", "", "Now"]),
    "min.cleanable.dirty.ratio": ("0.25", ["-0.1", "1.1", "nan", "inf", "half", "0_0.5"]),
    "min.compaction.lag.ms": ("0", ["-1"]),
    "min.insync.replicas": ("2", ["0", "-1"]),
    "penstock.deletion.policy": ("Delete", ["", "delete", "Keep"]),
    "penstock.owner": ("5d4c7b54-8d7e-4c6e-9d0f-0c7a1f3b2a10", ["a\nb", "\x00", "\u202e"]),
    "penstock.record.validation": ("all", ["", "ALL", "sample"]),
    "preallocate": ("FALSE", ["true", "yes", "0"]),
    "remote.log.copy.disable": ("true", ["1", ""]),
    "remote.log.delete.on.disable": ("true", ["no"]),
    "remote.storage.enable": ("False", ["true", ""]),
    "retention.bytes": ("-1", ["-2"]),
    "retention.ms": (" 5 ", ["-2", "1.5", "1e3", "five", "", "0x10", "1_000", "١"]),
    "segment.bytes": ("1024", ["1023", "2147483648"]),
    "segment.index.bytes": ("4", ["3"]),
    "segment.jitter.ms": ("0", ["-1"]),
    "segment.ms": ("1", ["0"]),
    "unclean.leader.election.enable": ("True", ["1", "on", ""]),
}


def test_a_text_that_is_too_long_is_refused_by_its_length() -> None:
    resolve({"penstock.owner": "x" * 100}, TopicConfig())
    with pytest.raises(InvalidSetting, match=r"penstock\.owner is too long: 101 characters; use at most 100"):
        resolve({"penstock.owner": "x" * 101}, TopicConfig())


def test_the_examples_cover_every_topic_setting() -> None:
    assert set(TOPIC_EXAMPLES) == set(TOPIC_SETTINGS)


@pytest.mark.parametrize("name", TOPIC_SETTINGS)
def test_a_topic_setting_takes_a_good_value(name: str) -> None:
    good, _ = TOPIC_EXAMPLES[name]
    resolve({name: good}, TopicConfig())


@pytest.mark.parametrize(("name", "bad"), [(name, bad) for name, (_, bads) in TOPIC_EXAMPLES.items() for bad in bads])
def test_a_topic_setting_refuses_a_bad_value_by_name_value_and_what_is_allowed(name: str, bad: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        topic_setting(name).parse(bad)
    assert name in str(refused.value)
    assert quoted(bad) in str(refused.value)
    assert "must be" in str(refused.value)


@pytest.mark.parametrize("name", TOPIC_SETTINGS)
def test_a_topic_settings_default_is_valid_and_is_that_of_the_typed_configuration(name: str) -> None:
    default = topic_setting(name).default
    assert default is not None
    for field, value in config_fields(name, topic_setting(name).parse(default)).items():
        assert getattr(TopicConfig(), field) == value


def test_every_field_of_the_typed_configuration_has_its_setting() -> None:
    covered = {
        f for name, (good, _) in TOPIC_EXAMPLES.items() for f in config_fields(name, topic_setting(name).parse(good))
    }
    assert covered == {f.name for f in fields(TopicConfig)}


def good_and_bad(setting: Setting) -> tuple[list[str], list[str]]:
    """Return valid and invalid values of a broker setting, including those at its bounds."""
    if setting.name in TOPIC_SETTING_OF and TOPIC_SETTING_OF[setting.name][1] == 1:
        good, bad = TOPIC_EXAMPLES[TOPIC_SETTING_OF[setting.name][0]]
        return [good], bad
    if setting.kind is SettingType.BOOLEAN:
        return ["true", "FALSE"], ["", "yes", "1"]
    if setting.kind in (SettingType.INT, SettingType.LONG):
        low, high = map(int, setting.bounds)
        return [str(low), str(high)], [str(low - 1), str(high + 1), "x", "", "1.0"]
    if setting.name.endswith("listeners"):
        return ["A://h:1,B://[::1]:2"], ["h:1", "A://h", "A://h:70000", "A://h:1,A://h:2", ""]
    if setting.name == "super.users":
        return ["", "User:CN=a,O=b;", "User:a; User:b"], ["a", "User:", ":a", "User:a;b"]
    if setting.name == "sasl.jaas.config":
        return ['m.PlainLoginModule required user_a="b";'], ["", "anything", "m.PlainLoginModule required a=b"]
    if setting.name == "listener.security.protocol.map":
        return ["IN:SASL_SSL, out:plaintext,"], ["IN", "IN:TLS", "a.b:SSL", "IN:SSL,in:SSL"]
    if setting.allowed:
        return list(setting.allowed), ["anything"] if {setting.default, *setting.allowed} & {"", "TLSv1.2"} else [
            "anything",
            "",
        ]
    return ["anything"], ["x" * (MAX_PEM_CHARS + 1)] if setting.name != "inter.broker.listener.name" else ["a.b"]


@pytest.mark.parametrize("setting", BROKER_SETTINGS.values(), ids=lambda s: s.name)
def test_a_broker_setting_takes_good_values_and_refuses_bad_ones(setting: Setting) -> None:
    good, bad = good_and_bad(setting)
    for text in good:
        broker_setting(setting.name).parse(text)
    for text in bad:
        with pytest.raises(InvalidSetting, match=setting.name.split(".")[0]):
            broker_setting(setting.name).parse(text)


@pytest.mark.parametrize("setting", BROKER_SETTINGS.values(), ids=lambda s: s.name)
def test_a_setting_has_a_valid_default_and_a_sentence_that_explains_it(setting: Setting) -> None:
    assert setting.documentation.endswith(".")
    if setting.default is not None:
        broker_setting(setting.name).parse(setting.default)


@pytest.mark.parametrize(
    "setting",
    [s for n, s in BROKER_SETTINGS.items() if n not in TOPIC_SETTING_OF and n not in SECURITY_SETTINGS],
    ids=lambda s: s.name,
)
def test_a_given_broker_setting_arrives_in_its_typed_field(setting: Setting) -> None:
    text = good_and_bad(setting)[0][-1]
    others = {"group.max.session.timeout.ms": str(2**31 - 1)} if "session" in setting.name else {}
    bounded = re.fullmatch(r"group\.(consumer|share)\.(?:min\.|max\.)?(.*)", setting.name)
    for known in BROKER_SETTINGS.values() if bounded else ():
        if bounded and known.name in {f"group.{bounded[1]}.{bound}{bounded[2]}" for bound in ("min.", "", "max.")}:
            low, high = known.bounds
            others[known.name] = str(int(max(low, min(int(text), high)))) if text.isdecimal() else text
    config = BrokerConfig.from_texts({**others, setting.name: text})
    is_text = setting.kind is SettingType.LIST and not setting.allowed
    expected: object = text if is_text else setting.parse(text)
    if setting.name == "super.users":
        expected = {"User:a", "User:b"}
    assert getattr(config, setting.name.replace(".", "_")) == expected


def test_defaults_are_those_that_are_promised() -> None:
    config = BrokerConfig()
    assert config.topic_defaults == BrokerConfig.from_texts({}).topic_defaults == TopicConfig()
    assert config.topic_defaults.retention_ms == 7 * DAY_MS
    assert config.topic_defaults.retention_bytes == -1
    assert config.topic_defaults.flush_messages == 1
    assert config.offsets_retention_minutes * 60_000 > config.topic_defaults.retention_ms
    assert config.auto_create_topics_enable


@pytest.mark.parametrize(
    ("given", "retention_ms"),
    [
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.minutes": "3", "log.retention.hours": "2"}, 180_000),
        ({"log.retention.ms": "4", "log.retention.minutes": "3", "log.retention.hours": "2"}, 4),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.minutes": "-1", "log.retention.hours": "2"}, -1),
    ],
)
def test_milliseconds_count_before_minutes_before_hours(given: dict[str, str], retention_ms: int) -> None:
    assert BrokerConfig.from_texts(given).topic_defaults.retention_ms == retention_ms


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("message.max.bytes", "5000", "max_message_bytes", 5000),
        ("log.flush.interval.messages", "10", "flush_messages", 10),
        ("log.flush.interval.ms", "10", "flush_ms", 10),
        ("log.roll.hours", "1", "segment_ms", 3_600_000),
        ("log.cleanup.policy", "compact", "cleanup_delete", False),
        ("log.message.timestamp.type", "LogAppendTime", "message_timestamp_log_append", True),
        ("min.insync.replicas", "2", "min_insync_replicas", 2),
        ("log.segment.bytes", "2048", "segment_bytes", 2048),
        ("log.cleaner.min.cleanable.ratio", "0.1", "min_cleanable_dirty_ratio", 0.1),
    ],
)
def test_broker_settings_give_topics_their_defaults(name: str, text: str, field: str, value: object) -> None:
    assert getattr(BrokerConfig.from_texts({name: text}).topic_defaults, field) == value


def test_a_topics_own_setting_counts_before_the_brokers() -> None:
    defaults = BrokerConfig.from_texts({"log.retention.ms": "7"}).topic_defaults
    assert resolve({"retention.ms": "8"}, defaults).retention_ms == 8
    assert resolve({"segment.bytes": "2048"}, defaults).retention_ms == 7
    assert resolve({}, defaults) is defaults


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidSetting, match=r"min\.compaction\.lag\.ms"):
        resolve({"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"}, TopicConfig())
    with pytest.raises(InvalidSetting, match=r"group\.min\.session"):
        BrokerConfig.from_texts({"group.min.session.timeout.ms": "10", "group.max.session.timeout.ms": "9"})
    with pytest.raises(InvalidSetting, match=r"min\.compaction\.lag\.ms \(2\) must not be greater"):
        BrokerConfig.from_texts({"log.cleaner.min.compaction.lag.ms": "2", "log.cleaner.max.compaction.lag.ms": "1"})


def test_a_topic_with_a_delay_has_the_time_of_the_append() -> None:
    config = resolve({"delivery.delay.ms": "1000"}, TopicConfig())
    assert (config.delivery_delay_ms, config.message_timestamp_log_append) == (1000, True)
    assert resolve({"delivery.delay.ms": "0"}, TopicConfig()) == TopicConfig()
    explicit = resolve({"delivery.delay.ms": "1000", "message.timestamp.type": "LogAppendTime"}, TopicConfig())
    assert explicit == config


def test_settings_that_do_not_work_with_a_delay_are_refused_with_the_remedy() -> None:
    with pytest.raises(InvalidSetting, match=r"delivery\.delay\.ms \(5\).*set message\.timestamp\.type=LogAppendTime"):
        resolve({"delivery.delay.ms": "5", "message.timestamp.type": "CreateTime"}, TopicConfig())
    for policy in ("compact", "compact,delete"):
        with pytest.raises(InvalidSetting, match=r"delivery\.delay\.ms \(5\).*set cleanup\.policy=delete"):
            resolve({"delivery.delay.ms": "5", "cleanup.policy": policy}, TopicConfig())
    with pytest.raises(InvalidSetting, match=r"set cleanup\.policy=delete"):
        resolve({"delivery.delay.ms": "5"}, TopicConfig(cleanup_delete=False, cleanup_compact=True))


def test_a_compacted_topic_takes_no_dead_letters() -> None:
    letters = {"errors.deadletterqueue.group.enable": "true"}
    compacting = TopicConfig(cleanup_delete=False, cleanup_compact=True)
    for policy in ("compact", "compact,delete"):
        with pytest.raises(InvalidSetting, match=r"errors\.deadletterqueue.*set cleanup\.policy=delete"):
            resolve({**letters, "cleanup.policy": policy}, TopicConfig())
        config, contradiction = resolve_leniently({**letters, "cleanup.policy": policy}, TopicConfig())
        assert (config.cleanup_compact, config.errors_deadletterqueue_group_enable) == (True, False)
        assert contradiction is not None
    with pytest.raises(InvalidSetting, match=r"set cleanup\.policy=delete"):
        resolve(letters, compacting)
    assert resolve_leniently(letters, compacting)[0] == compacting
    assert resolve({**letters, "cleanup.policy": "delete"}, compacting).errors_deadletterqueue_group_enable


def test_a_stored_flag_for_dead_letters_outlasts_another_contradiction() -> None:
    lags = {"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"}
    config, _ = resolve_leniently({"errors.deadletterqueue.group.enable": "true", **lags}, TopicConfig())
    assert config.errors_deadletterqueue_group_enable


def test_a_delay_that_is_stored_applies_whatever_it_contradicts() -> None:
    compacting = TopicConfig(cleanup_delete=False, cleanup_compact=True)
    for overrides, defaults in (
        ({}, compacting),
        ({"cleanup.policy": "compact"}, TopicConfig()),
        ({"message.timestamp.type": "CreateTime"}, TopicConfig()),
    ):
        config, contradiction = resolve_leniently({"delivery.delay.ms": " 5", **overrides}, defaults)
        assert contradiction is not None
        found = (config.delivery_delay_ms, config.message_timestamp_log_append, config.cleanup_compact)
        assert found == (5, True, False)
        assert config.cleanup_delete


def test_lags_that_contradict_each_other_do_not_change_the_policy_of_a_topic() -> None:
    lags = {"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"}
    config, contradiction = resolve_leniently({"cleanup.policy": "compact", **lags}, TopicConfig())
    assert contradiction is not None
    assert (config.cleanup_compact, config.cleanup_delete) == (True, False)


def test_changes_at_run_time_are_taken_in_and_told() -> None:
    config = BrokerConfig.from_texts({"log.retention.ms": "1"})
    told: list[int] = []
    config.subscribe(lambda: told.append(config.topic_defaults.retention_ms))
    assert config.apply_dynamic({"log.retention.ms": "2"}, {}) == []
    assert config.apply_dynamic({"log.retention.ms": "2"}, {"log.retention.ms": "3"}) == []
    assert config.apply_dynamic({}, {}) == []
    assert told == [2, 3, 1]


def test_forever_fits() -> None:
    assert topic_setting("flush.ms").parse(str(FOREVER)) == LONG - 1


def test_a_list_of_replicas_names_partitions_on_brokers_or_all() -> None:
    name = "leader.replication.throttled.replicas"
    assert resolve({name: "0:1, 12:3"}, TopicConfig()).leader_replication_throttled_replicas == {(0, 1), (12, 3)}
    assert resolve({name: ""}, TopicConfig()).leader_replication_throttled_replicas == frozenset()
    assert resolve({name: "0:1,"}, TopicConfig()).leader_replication_throttled_replicas == {(0, 1)}
    every = resolve({name: "*"}, TopicConfig()).leader_replication_throttled_replicas
    assert names_replica(every, 7, 7)
    assert names_replica({(0, 1)}, 0, 1)
    assert not names_replica({(0, 1)}, 1, 0)
