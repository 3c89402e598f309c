"""Kafka settings that Penstock does not use, loggers, and client metrics subscriptions."""

from __future__ import annotations

import pytest

from penstock.config.definition import SettingSource, SettingType
from penstock.config.kafka_settings import KAFKA_BROKER_SETTINGS, KAFKA_GROUP_SETTINGS, UNUSED_BROKER_SETTINGS
from penstock.control.results import TopicRequest
from penstock.runtime import logging
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import alter_configs as alter
from penstock.wire.messages import incremental_alter_configs as incremental
from penstock.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource

FIXED = [name for name, known in KAFKA_BROKER_SETTINGS.items() if known.is_fixed]
TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND = 0, 1, 2


async def describe(broker, kind: int, name: str, *keys: str, **more):
    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=list(keys) if keys else None
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True, **more)
    (result,) = (await broker.ask(request, 4)).results
    return result


async def change(broker, kind: int, name: str, *changes: tuple[str, int, str | None]) -> tuple[int, str]:
    configs = [incremental.AlterableConfig(name=n, config_operation=o, value=v) for n, o, v in changes]
    resource = incremental.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    request = incremental.IncrementalAlterConfigsRequest(resources=[resource])
    (result,) = (await broker.ask(request, 1)).responses
    return result.error_code, result.error_message or ""


async def test_a_broker_describes_what_holds_for_settings_that_it_has_no_use_for(broker) -> None:
    """Dashboards and client test suites read these settings."""
    expected = {
        "log.dir.failure.timeout.ms": ("30000", SettingType.LONG),
        "offsets.topic.num.partitions": ("64", SettingType.INT),
        "offsets.topic.replication.factor": ("3", SettingType.SHORT),
        "num.io.threads": ("1", SettingType.INT),
        "group.coordinator.rebalance.protocols": ("classic,consumer", SettingType.LIST),
        "controller.quorum.voters": ("", SettingType.LIST),
        "remote.log.storage.system.enable": ("false", SettingType.BOOLEAN),
        "log.cleaner.io.buffer.load.factor": ("0.9", SettingType.DOUBLE),
        "create.topic.policy.class.name": (None, SettingType.CLASS),
        "delegation.token.secret.key": (None, SettingType.PASSWORD),
    }
    result = await describe(broker, BROKER, "0", *expected, include_documentation=True)
    assert {c.name: (c.value, c.config_type) for c in result.configs} == expected
    assert all(c.read_only and c.config_source == SettingSource.DEFAULT for c in result.configs)
    assert {c.name for c in result.configs if c.is_sensitive} == {"delegation.token.secret.key"}
    assert all(c.documentation.startswith("No effect: ") for c in result.configs)


@pytest.mark.parametrize("name", FIXED)
async def test_a_setting_without_effect_takes_the_value_that_holds_and_is_refused_any_other(broker, name: str) -> None:
    setting = KAFKA_BROKER_SETTINGS[name]
    held, other = setting.default, {SettingType.BOOLEAN: "true", SettingType.LIST: "a,b"}.get(setting.kind, "7")
    if other == held:
        other = "false"
    error, message = await change(broker, BROKER, "0", (name, SET, other))
    assert error == ErrorCode.INVALID_REQUEST
    assert name in message
    assert not setting.dynamic or setting.reason in message
    if held is not None:
        expected = 0 if setting.dynamic else ErrorCode.INVALID_REQUEST
        assert (await change(broker, BROKER, "0", (name, SET, f" {held} ")))[0] == expected
    assert (await change(broker, BROKER, "0", (name, DELETE, None)))[0] == 0


@pytest.mark.parametrize("resource", ["", "0"])
@pytest.mark.parametrize("name", [name for name, known in UNUSED_BROKER_SETTINGS.items() if known.dynamic])
async def test_a_setting_that_tunes_what_the_broker_never_does_takes_any_value_of_its_range(
    broker, name: str, resource: str
) -> None:
    value = "0.51" if UNUSED_BROKER_SETTINGS[name].kind is SettingType.DOUBLE else "59"
    if name == "sasl.login.refresh.window.jitter":
        value = "0.25"
    assert (await change(broker, BROKER, resource, (name, SET, value)))[0] == 0
    (described,) = (await describe(broker, BROKER, "0", name, include_documentation=True)).configs
    assert (described.value, described.read_only) == (value, False)
    assert described.config_source == (SettingSource.BROKER if resource else SettingSource.ALL_BROKERS)
    assert described.documentation.startswith("No effect: ")
    assert (await change(broker, BROKER, resource, (name, SET, "a")))[0] == ErrorCode.INVALID_REQUEST
    assert (await change(broker, BROKER, resource, (name, DELETE, None)))[0] == 0


@pytest.mark.parametrize(
    ("name", "value", "range_"),
    [
        ("log.cleaner.backoff.ms", "-1", "a whole number from 0 to 9223372036854775807"),
        ("sasl.login.refresh.buffer.seconds", "3601", "a whole number from 0 to 3600"),
        ("sasl.login.refresh.window.factor", "0.4", "a number from 0.5 to 1.0"),
    ],
)
async def test_a_setting_that_tunes_what_the_broker_never_does_has_kafkas_range(
    broker, name: str, value: str, range_: str
) -> None:
    error, message = await change(broker, BROKER, "0", (name, SET, value))
    assert error == ErrorCode.INVALID_REQUEST
    assert f"it must be {range_}" in message


@pytest.mark.parametrize("settings", [{"fetch.purgatory.purge.interval.requests": "7"}])
async def test_a_broker_starts_with_the_intervals_at_which_kafka_purges_what_waits(broker) -> None:
    (described,) = (await describe(broker, BROKER, "0", "fetch.purgatory.purge.interval.requests")).configs
    assert (described.value, described.config_source) == ("7", SettingSource.STATIC)
    assert described.read_only


async def test_a_topic_is_created_and_altered_with_what_kafkas_manifests_hold(broker) -> None:
    settings = {
        "remote.storage.enable": "false",
        "remote.log.copy.disable": "true",
        "remote.log.delete.on.disable": "false",
        "local.retention.ms": "-2",
        "local.retention.bytes": "1000",
        "segment.index.bytes": "10485760",
        "compression.gzip.level": "-1",
        "compression.lz4.level": "9",
        "compression.zstd.level": "3",
    }
    (created,) = await broker.admin.create([TopicRequest("t", 1, 1, settings=settings)])
    assert created.message is None
    (plain,) = await broker.admin.create([TopicRequest("u", 1, 1)])
    assert plain.message is None
    assert (await change(broker, TOPIC, "u", *[(n, SET, v) for n, v in settings.items()]))[0] == 0
    assert broker.view.topics["u"].overrides == broker.view.topics["t"].overrides == settings
    error, message = await change(broker, TOPIC, "u", ("remote.storage.enable", SET, "true"))
    assert error == ErrorCode.INVALID_CONFIG
    assert "tiered storage is not supported" in message
    (refused,) = await broker.admin.create([TopicRequest("v", 1, 1, settings={"remote.storage.enable": "true"})])
    assert (refused.error, refused.message) == (ErrorCode.INVALID_CONFIG, message)


@pytest.mark.parametrize("resource", ["", "0"])
@pytest.mark.parametrize(
    "rate",
    [
        "leader.replication.throttled.rate",
        "follower.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    ],
)
async def test_the_throttles_of_kafkas_tools_are_set_and_removed(broker, resource: str, rate: str) -> None:
    assert (await change(broker, BROKER, resource, (rate, SET, "1000")))[0] == 0
    (described,) = (await describe(broker, BROKER, "0", rate)).configs
    assert (described.value, described.read_only) == ("1000", False)
    assert described.config_source == (SettingSource.BROKER if resource else SettingSource.ALL_BROKERS)
    assert (await change(broker, BROKER, resource, (rate, DELETE, None)))[0] == 0
    (described,) = (await describe(broker, BROKER, "0", rate)).configs
    assert described.config_source == SettingSource.DEFAULT
    assert (await change(broker, BROKER, resource, (rate, SET, "-1")))[0] == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("name", KAFKA_GROUP_SETTINGS)
async def test_a_group_takes_the_value_that_holds_of_settings_without_effect(broker, name: str) -> None:
    known = KAFKA_GROUP_SETTINGS[name]
    (before,) = (await describe(broker, GROUP, "g", name)).configs
    assert (before.value, before.config_source) == (known.default, SettingSource.DEFAULT)
    default_name = known.synonyms[0].name if known.synonyms else name
    assert [(s.name, s.source) for s in before.synonyms] == [(default_name, SettingSource.DEFAULT)]
    assert (await change(broker, GROUP, "g", (name, SET, known.default)))[0] == 0
    (after,) = (await describe(broker, GROUP, "g", name)).configs
    assert (after.value, after.config_source) == (known.default, SettingSource.GROUP)
    other = "false" if known.kind is SettingType.BOOLEAN else "7"
    error, message = await change(broker, GROUP, "g", (name, SET, other))
    assert error == ErrorCode.INVALID_CONFIG
    assert known.reason in message


async def test_only_what_is_set_is_told_where_only_that_is_asked_for(broker) -> None:
    for name in ("", "0"):
        assert (await describe(broker, BROKER, name, only_own=True)).configs == []
    await change(broker, BROKER, "", ("min.insync.replicas", SET, "1"))
    for name in ("", "0"):
        (config,) = (await describe(broker, BROKER, name, only_own=True)).configs
        assert (config.name, config.config_source) == ("min.insync.replicas", SettingSource.ALL_BROKERS)


@pytest.fixture
def level():
    before = logging.current_level()
    logging.set_level("info")
    yield logging.current_level
    logging.set_level(before)


async def test_the_level_of_the_log_is_described_and_changed(broker, level) -> None:
    for name, own in [("DEBUG", "debug"), ("WARN", "warning"), ("FATAL", "critical"), ("INFO", "info")]:
        assert (await change(broker, LOGGER, "0", ("root", SET, name)))[0] == 0
        assert level() == own
        (config,) = (await describe(broker, LOGGER, "0")).configs
        assert (config.name, config.value, config.config_source) == ("root", name, SettingSource.BROKER_LOGGER)
        assert not config.read_only


@pytest.mark.parametrize(
    ("name", "changes", "error"),
    [
        ("0", [("root", SET, "debug")], ErrorCode.INVALID_CONFIG),
        ("0", [("root", SET, "OFF")], ErrorCode.INVALID_CONFIG),
        ("0", [("root", SET, "DEBUG"), ("nosuch", SET, "DEBUG")], ErrorCode.INVALID_CONFIG),
        ("0", [("root", DELETE, None)], ErrorCode.INVALID_REQUEST),
        ("0", [("nosuch", DELETE, None)], ErrorCode.INVALID_CONFIG),
        ("0", [("root", APPEND, "DEBUG")], ErrorCode.INVALID_REQUEST),
        ("7", [("root", SET, "DEBUG")], ErrorCode.INVALID_REQUEST),
        ("", [("root", SET, "DEBUG")], ErrorCode.INVALID_REQUEST),
    ],
    ids=str,
)
async def test_what_the_log_cannot_do_is_refused_with_kafkas_codes(broker, level, name, changes, error) -> None:
    assert (await change(broker, LOGGER, name, *changes))[0] == error
    assert level() == "info"


async def test_levels_are_not_replaced_as_a_whole(broker, level) -> None:
    config = alter.AlterableConfig(name="root", value="DEBUG")
    resource = alter.AlterConfigsResource(resource_type=LOGGER, resource_name="0", configs=[config])
    (result,) = (await broker.ask(alter.AlterConfigsRequest(resources=[resource]), 2)).responses
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert level() == "info"


async def test_subscriptions_to_clients_metrics_are_described_as_empty_and_refused(broker) -> None:
    result = await describe(broker, METRICS, "m")
    assert {c.name: c.value for c in result.configs} == {"interval.ms": "300000", "match": "", "metrics": ""}
    assert (await change(broker, METRICS, "m", ("interval.ms", DELETE, None)))[0] == 0
    error, message = await change(broker, METRICS, "m", ("interval.ms", SET, "100"))
    assert error == ErrorCode.INVALID_REQUEST
    assert "are not collected" in message
