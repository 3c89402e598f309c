"""Changes of settings at run time."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from penstock.config.definition import SettingSource
from penstock.config.topic import config_fields
from penstock.control.config_describe import describe_all_brokers, describe_broker, describe_explicit, describe_topic
from penstock.control.results import ConfigChange, ConfigOperation, ConfigResource, TopicRequest
from penstock.state import keys
from penstock.state.records import TopicRecord, decode, encode
from penstock.state.store import PutOp
from penstock.wire.errors import ErrorCode

SET, DELETE = ConfigOperation.SET, ConfigOperation.DELETE
APPEND, SUBTRACT = ConfigOperation.APPEND, ConfigOperation.SUBTRACT


@pytest.fixture
async def topic(cluster):
    await cluster.topics.create([TopicRequest("t", 1, 1, settings={"retention.ms": "1000", "segment.bytes": "2048"})])
    return lambda: cluster.view.topics["t"]


async def change(cluster, *changes, kind=ConfigResource.TOPIC, name="t", validate_only=False):
    return await cluster.configs.change(kind, name, [ConfigChange(*c) for c in changes], validate_only)


async def test_setting_and_deleting_leave_the_other_settings(cluster, topic) -> None:
    outcome = await change(cluster, ("retention.ms", SET, " 5 "), ("segment.bytes", DELETE, None))
    assert outcome.error is ErrorCode.NONE
    assert topic().overrides == {"retention.ms": "5"}
    assert topic().config.retention_ms == 5
    assert topic().config.segment_bytes == 1 << 30


async def test_replacing_drops_what_is_not_named(cluster, topic) -> None:
    outcome = await cluster.configs.replace(ConfigResource.TOPIC, "t", [("flush.messages", "7")])
    assert outcome.error is ErrorCode.NONE
    assert topic().overrides == {"flush.messages": "7"}


async def test_lists_are_appended_to_and_subtracted_from_default_included(cluster, topic) -> None:
    await change(cluster, ("cleanup.policy", APPEND, "compact"))
    assert topic().overrides["cleanup.policy"] == "delete,compact"
    assert topic().config.cleanup_compact
    await change(cluster, ("cleanup.policy", SUBTRACT, "delete"))
    assert topic().overrides["cleanup.policy"] == "compact"
    assert not topic().config.cleanup_delete
    assert (await change(cluster, ("cleanup.policy", SUBTRACT, "compact"))).error is ErrorCode.NONE
    assert topic().overrides["cleanup.policy"] == ""
    assert not topic().config.cleanup_delete
    assert not topic().config.cleanup_compact
    await change(cluster, ("cleanup.policy", APPEND, " compact , delete,compact"))
    assert topic().overrides["cleanup.policy"] == "compact,delete"
    assert (await change(cluster, ("cleanup.policy", APPEND, "burn"))).error is ErrorCode.INVALID_CONFIG
    assert topic().overrides["cleanup.policy"] == "compact,delete"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ([("retention.mss", SET, "1")], ErrorCode.INVALID_CONFIG),
        ([("retention.mss", DELETE, None), ("retention.ms", SET, "-2")], ErrorCode.INVALID_CONFIG),
        ([("retention.mss", APPEND, "1")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", SET, "-2")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", APPEND, "1")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", 4, "1")], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", SET, "1"), ("retention.ms", SET, "2")], ErrorCode.INVALID_REQUEST),
        ([("cleanup.policy", SET, "burn")], ErrorCode.INVALID_CONFIG),
        ([("flush.ms", SET, "1"), ("flush.messages", SET, "0")], ErrorCode.INVALID_CONFIG),
        ([("max.compaction.lag.ms", SET, "1"), ("min.compaction.lag.ms", SET, "2")], ErrorCode.INVALID_CONFIG),
    ],
    ids=str,
)
async def test_what_cannot_be_set_is_refused_and_nothing_of_it_is_done(cluster, topic, changes, error) -> None:
    before = topic()
    outcome = await change(cluster, *changes)
    assert outcome.error is error
    assert outcome.message
    assert topic() is before


async def test_an_unknown_name_is_refused_in_kafkas_words(cluster, topic) -> None:
    outcome = await change(cluster, ("retention.mss", SET, "1"))
    assert outcome.message == "Unknown topic config name: retention.mss"
    outcome = await change(cluster, ("retention.mss", SET, "1"), kind=ConfigResource.GROUP, name="g")
    assert outcome.message == "Unknown group config name: retention.mss"
    (created,) = await cluster.topics.create([TopicRequest("new", 1, 1, settings={"x": "1"})])
    assert (created.error, created.message) == (ErrorCode.INVALID_CONFIG, "Unknown topic config name: x")
    outcome = await change(cluster, ("retention.mss", SET, "1"), kind=ConfigResource.BROKER, name="0")
    assert outcome.error is ErrorCode.INVALID_CONFIG
    assert outcome.message.startswith('unknown broker setting "retention.mss"; did you mean')


@pytest.mark.parametrize(
    ("kind", "name", "setting"),
    [
        (ConfigResource.TOPIC, "t", "flush.ms"),
        (ConfigResource.BROKER, "", "log.flush.interval.ms"),
        (ConfigResource.BROKER, "0", "log.flush.interval.ms"),
        (ConfigResource.GROUP, "g", "penstock.owner"),
    ],
)
async def test_what_is_unknown_or_not_set_can_be_unset_beside_changes_that_apply(
    cluster, topic, kind, name, setting
) -> None:
    unset = [("no.such.setting", DELETE, None), ("remote.storage.enable", DELETE, ""), ("num.partitions", DELETE, None)]
    outcome = await change(cluster, *unset, (setting, SET, "5"), kind=kind, name=name)
    assert outcome.error is ErrorCode.NONE
    described = [*describe_topic(topic(), cluster.config), *describe_broker(cluster.config)]
    (group,) = (await cluster.configs.groups.describe(["g"])).values()
    found = {d.setting.name: d.value for d in [*described, *group]}
    assert found[setting] == "5"


@pytest.mark.parametrize(
    ("name", "given", "stored"),
    [
        ("cleanup.policy", " delete , compact ", "delete,compact"),
        ("cleanup.policy", "delete,delete", "delete"),
        ("cleanup.policy", "", ""),
        ("retention.ms", " +5 ", "5"),
        ("retention.ms", "007", "7"),
        ("min.cleanable.dirty.ratio", ".50", "0.5"),
        ("min.cleanable.dirty.ratio", "1", "1.0"),
        ("unclean.leader.election.enable", " TRUE ", "true"),
        ("message.timestamp.type", " CreateTime ", "CreateTime"),
        ("leader.replication.throttled.replicas", " 0:1 , 0:2 ", "0:1,0:2"),
        ("leader.replication.throttled.replicas", " * ", "*"),
        ("remote.storage.enable", "False", "false"),
    ],
)
async def test_values_are_stored_and_shown_as_kafka_does(cluster, topic, name, given, stored) -> None:
    """Expected values are those of Apache Kafka 4.3.1 for the same input."""
    assert (await change(cluster, (name, SET, given))).error is ErrorCode.NONE
    assert topic().overrides[name] == stored
    (created,) = await cluster.topics.create([TopicRequest("new", 1, 1, settings={name: given})])
    assert created.overrides == cluster.view.topics["new"].overrides == {name: stored}
    (described,) = [d for d in describe_topic(topic(), cluster.config) if d.setting.name == name]
    assert (described.value, described.synonyms[0].value) == (stored, stored)


async def test_a_topic_with_invalid_stored_settings_can_be_changed_and_shows_what_holds(cluster, topic) -> None:
    key = keys.topic(topic().topic_id)
    entry = await cluster.store.get(key)
    stored = {"retention.ms": "-7", "from.the.future": "1", "cleanup.policy": "burn", "segment.bytes": 4096}
    record = msgspec.structs.replace(decode(TopicRecord, key, entry.value), overrides=stored)
    result = await cluster.store.txn([], [PutOp(key, encode(record))])
    await cluster.watcher.applied(result.revision)
    assert describe_explicit(topic().overrides, cluster.config) == []
    assert {d.source for d in describe_topic(topic(), cluster.config)} == {SettingSource.DEFAULT, 3}
    assert (await change(cluster, ("flush.ms", SET, "5"), ("cleanup.policy", APPEND, "compact"))).message is None
    assert topic().overrides == {"flush.ms": "5", "cleanup.policy": "delete,compact"}
    entry = await cluster.store.get(key)
    changed = {"flush.ms": "5", "cleanup.policy": "delete,compact"}
    assert decode(TopicRecord, key, entry.value).overrides == {**stored, **changed}


async def test_a_list_that_was_stored_as_typed_is_shown_as_a_list(cluster, topic) -> None:
    (described,) = describe_explicit({"cleanup.policy": "compact , compact"}, cluster.config)
    assert described.value == "compact"


async def test_a_change_can_be_tried_without_doing_it(cluster, topic) -> None:
    before = topic()
    assert (await change(cluster, ("retention.ms", SET, "5"), validate_only=True)).error is ErrorCode.NONE
    assert (await change(cluster, ("retention.ms", SET, "x"), validate_only=True)).error is ErrorCode.INVALID_CONFIG
    assert topic() is before


async def test_racing_changes_of_different_settings_are_all_there(cluster, topic) -> None:
    names = ["flush.ms", "retention.bytes", "segment.ms", "index.interval.bytes", "delete.retention.ms"]
    outcomes = await asyncio.gather(*[change(cluster, (name, SET, "77")) for name in names])
    assert {o.error for o in outcomes} == {ErrorCode.NONE}
    assert {name: topic().overrides.get(name) for name in names} == dict.fromkeys(names, "77")


async def test_topics_and_kinds_that_are_not_there_are_refused(cluster) -> None:
    assert (await change(cluster, name="absent")).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await change(cluster, kind=3, name="0")).error is ErrorCode.INVALID_REQUEST
    assert (await change(cluster, kind=ConfigResource.BROKER, name="7")).error is ErrorCode.INVALID_REQUEST
    assert (await change(cluster, kind=ConfigResource.BROKER, name="x")).error is ErrorCode.INVALID_REQUEST


async def test_a_brokers_default_changes_all_topics_that_have_none_of_their_own(cluster, topic) -> None:
    await cluster.topics.create([TopicRequest("other", 1, 1)])
    seen = []
    cluster.view.subscribe(seen.extend)
    outcome = await change(cluster, ("log.retention.ms", SET, "42"), kind=ConfigResource.BROKER, name="")
    assert outcome.error is ErrorCode.NONE
    assert cluster.view.topics["other"].config.retention_ms == 42
    assert topic().config.retention_ms == 1000
    assert [c.new.name for c in seen if c.new.config.retention_ms == 42] == ["other"]
    await change(cluster, ("log.retention.ms", DELETE, None), kind=ConfigResource.BROKER, name="")
    assert cluster.view.topics["other"].config.retention_ms == 7 * 86_400_000


async def test_what_is_set_for_one_broker_counts_before_what_is_set_for_all(cluster) -> None:
    await change(cluster, ("message.max.bytes", SET, "1000"), kind=ConfigResource.BROKER, name="")
    await change(cluster, ("message.max.bytes", SET, "2000"), kind=ConfigResource.BROKER, name="0")
    assert cluster.config.topic_defaults.max_message_bytes == 2000
    (described,) = [d for d in describe_broker(cluster.config) if d.setting.name == "message.max.bytes"]
    assert (described.value, described.source) == ("2000", SettingSource.BROKER)
    assert [(s.value, s.source) for s in described.synonyms] == [
        ("2000", SettingSource.BROKER),
        ("1000", SettingSource.ALL_BROKERS),
        ("1048588", SettingSource.DEFAULT),
    ]
    assert {d.setting.name: d.value for d in describe_all_brokers(cluster.config)} == {
        "message.max.bytes": "1000",
        "min.insync.replicas": "1",
    }


async def test_settings_that_hold_from_the_start_cannot_be_changed(cluster) -> None:
    outcome = await change(cluster, ("num.partitions", SET, "2"), kind=ConfigResource.BROKER, name="0")
    assert outcome.error is ErrorCode.INVALID_REQUEST
    assert "Cannot update these configs dynamically: [num.partitions]" in outcome.message


async def test_broker_settings_last(opener) -> None:
    cluster = await opener()
    await change(cluster, ("max.partitions", SET, "5"), kind=ConfigResource.BROKER, name="0")
    await cluster.close()
    cluster = await opener()
    assert cluster.config.max_partitions == 5
    await cluster.close()


async def test_a_topics_value_is_shown_with_where_it_comes_from(opener) -> None:
    """Sources and synonyms are those of Apache Kafka 4.3.1: a value from a coarser unit is a topic's default."""
    static = {"log_retention_hours": "168", "log_cleanup_policy": " compact , delete ", "min_insync_replicas": "2"}
    cluster = await opener(**static)
    await cluster.topics.create([TopicRequest("t", 1, 1, settings={"segment.bytes": "2048"})])

    def described(name: str) -> tuple[str | None, SettingSource, list[tuple[str, str | None, SettingSource]]]:
        (d,) = [d for d in describe_topic(cluster.view.topics["t"], cluster.config) if d.setting.name == name]
        return d.value, d.source, [(s.name, s.value, s.source) for s in d.synonyms]

    assert described("segment.bytes") == (
        "2048",
        SettingSource.TOPIC,
        [("segment.bytes", "2048", SettingSource.TOPIC), ("log.segment.bytes", "1073741824", SettingSource.DEFAULT)],
    )
    assert described("retention.ms") == ("604800000", SettingSource.DEFAULT, [])
    assert described("segment.ms") == ("604800000", SettingSource.DEFAULT, [])
    assert described("remote.storage.enable") == ("false", SettingSource.DEFAULT, [])
    assert described("cleanup.policy") == (
        "compact,delete",
        SettingSource.STATIC,
        [
            ("log.cleanup.policy", "compact , delete", SettingSource.STATIC),
            ("log.cleanup.policy", "delete", SettingSource.DEFAULT),
        ],
    )
    name = "min.insync.replicas"
    assert described(name) == ("2", SettingSource.ALL_BROKERS, [(name, "2", 3), (name, "2", 4), (name, "1", 5)])

    await change(cluster, ("log.retention.ms", SET, "99000"), kind=ConfigResource.BROKER, name="")
    hours = [
        ("log.retention.hours", "168", SettingSource.STATIC),
        ("log.retention.hours", "168", SettingSource.DEFAULT),
    ]
    assert described("retention.ms") == ("99000", SettingSource.ALL_BROKERS, [("log.retention.ms", "99000", 3), *hours])
    (broker,) = [d for d in describe_broker(cluster.config) if d.setting.name == "log.retention.ms"]
    assert (broker.value, len(broker.synonyms)) == ("99000", 3)
    await cluster.close()


async def test_what_is_described_is_what_holds(cluster, topic) -> None:
    for described in describe_topic(topic(), cluster.config):
        name = described.setting.name
        for field, value in config_fields(name, described.setting.parse(described.value)).items():
            assert getattr(topic().config, field) == value, name


@pytest.mark.parametrize(
    ("name", "change_of", "error"),
    [
        ("", ("retention.ms", SET, "1"), ErrorCode.INVALID_REQUEST),
        ("a b", ("retention.ms", SET, "1"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("x" * 250, ("retention.mss", SET, "1"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("", ("retention.ms", APPEND, "1"), ErrorCode.INVALID_CONFIG),
        ("a b", ("retention.ms", SUBTRACT, "1"), ErrorCode.INVALID_CONFIG),
        ("a b", ("cleanup.policy", APPEND, "compact"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("unknown", ("retention.ms", SET, "-2"), ErrorCode.INVALID_CONFIG),
        ("unknown", ("segment.ms", SUBTRACT, "1"), ErrorCode.INVALID_CONFIG),
        ("unknown", ("retention.ms", SET, "1"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
async def test_of_a_topic_that_is_not_there_operations_name_and_settings_are_checked_first(
    cluster, name: str, change_of, error: ErrorCode
) -> None:
    assert (await change(cluster, change_of, name=name)).error is error
    if change_of[1] is SET:
        settings = [(change_of[0], change_of[2])]
        assert (await cluster.configs.replace(ConfigResource.TOPIC, name, settings)).error is error
