"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs at every version."""

from __future__ import annotations

import pytest

from penstock.config.broker import BROKER_SETTINGS
from penstock.config.definition import SettingSource, SettingType
from penstock.config.kafka_settings import KAFKA_BROKER_SETTINGS
from penstock.config.listeners import ListenerAddress
from penstock.config.security_settings import PROTOCOL_MAP
from penstock.config.topic import TOPIC_SETTINGS
from penstock.control.config_describe import record_identity
from penstock.control.results import TopicRequest
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import alter_configs as alter
from penstock.wire.messages import incremental_alter_configs as incremental
from penstock.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from penstock.wire.messages.list_config_resources import ListConfigResourcesRequest

DESCRIBE, ALTER, INCREMENTAL = range(1, 5), range(3), range(2)
TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32


@pytest.fixture(autouse=True)
async def topic(broker) -> None:
    await broker.admin.create([TopicRequest("t", 1, 1, settings={"retention.ms": "1000"})])


async def describe(broker, kind: int, name: str, version: int = 4, configuration_keys=None, **more):
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=configuration_keys)
    (result,) = (await broker.ask(DescribeConfigsRequest(resources=[resource], **more), version)).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


@pytest.mark.parametrize("version", DESCRIBE)
async def test_all_settings_of_a_topic_are_described(broker, version: int) -> None:
    result = await describe(broker, TOPIC, "t", version)
    found = {c.name: c for c in result.configs}
    assert set(found) == set(TOPIC_SETTINGS)
    assert (found["retention.ms"].value, found["retention.ms"].config_source) == ("1000", SettingSource.TOPIC)
    assert (found["segment.bytes"].value, found["segment.bytes"].config_source) == ("1073741824", SettingSource.DEFAULT)
    assert not any(c.is_sensitive or c.synonyms or c.documentation for c in result.configs)
    assert found["retention.ms"].config_type == (SettingType.LONG if version >= 3 else 0)


@pytest.mark.parametrize("version", DESCRIBE)
@pytest.mark.parametrize("settings", [{"num.partitions": "3", "log.retention.hours": "1"}])
async def test_all_settings_of_a_broker_are_described(broker, version: int) -> None:
    result = await describe(broker, BROKER, "0", version)
    found = {c.name: c for c in result.configs}
    assert set(found) == {*BROKER_SETTINGS, *KAFKA_BROKER_SETTINGS, "penstock.release"}
    assert (found["num.partitions"].value, found["num.partitions"].config_source) == ("3", SettingSource.STATIC)
    assert found["num.partitions"].read_only
    assert not found["log.retention.ms"].read_only
    assert found["broker.rack"].value is None


@pytest.mark.parametrize(
    "settings", [{"ssl.keystore.password": "hunter-1", "listener.name.a.ssl.key.password": "hunter-2"}]
)
async def test_a_password_is_described_without_its_value_and_a_setting_of_a_listener_by_its_name(broker) -> None:
    request = incremental.IncrementalAlterConfigsRequest(
        resources=[change("listener.name.b.ssl.key.password", 0, "hunter-3", BROKER, "")]
    )
    assert (await broker.ask(request, 1)).responses[0].error_code == 0
    names = ["ssl.keystore.password", "listener.name.a.ssl.key.password", "listener.name.b.ssl.key.password"]
    for resource in ("0", ""):
        result = await describe(broker, BROKER, resource, 4, include_synonyms=True)
        assert {c.name for c in result.configs if c.is_sensitive and c.synonyms} == set(
            names if resource else names[2:]
        )
        assert "hunter" not in repr(result)


async def test_cve_2024_31141_a_reference_in_a_setting_is_text_and_reads_neither_file_nor_variable(broker) -> None:
    references = ["${file:/etc/passwd:root}", "${env:HOME}", "${directory:/etc:hostname}"]
    for reference in references:
        resources = [change("listener.name.b.ssl.keystore.location", 0, reference, BROKER, "")]
        answer = await broker.ask(incremental.IncrementalAlterConfigsRequest(resources=resources), 1)
        assert answer.responses[0].error_code == 0
        shown = {c.name: c.value for c in (await describe(broker, BROKER, "")).configs}
        assert shown["listener.name.b.ssl.keystore.location"] == reference


ADDRESSES = [ListenerAddress("INSIDE", "0.0.0.0", 9092), ListenerAddress("OUTSIDE", "::1", 19092)]
ADVERTISED = [ListenerAddress("INSIDE", "10.0.0.1", 9092), ListenerAddress("OUTSIDE", "example.org", 443)]


@pytest.mark.parametrize("version", DESCRIBE)
@pytest.mark.parametrize(
    "settings",
    [{"listeners": "INSIDE://:0,OUTSIDE://[::1]:0", PROTOCOL_MAP: "INSIDE:PLAINTEXT,OUTSIDE:SSL,UNUSED:SSL"}],
)
async def test_who_the_broker_is_and_where_it_listens_is_described_as_given_at_its_start(broker, version: int) -> None:
    record_identity(broker.config, ADDRESSES, ADVERTISED, "/data")
    expected = {
        "node.id": "0",
        "broker.id": "0",
        "log.dir": "/data",
        "log.dirs": "/data",
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:SSL",
        "listeners": "INSIDE://0.0.0.0:9092,OUTSIDE://[::1]:19092",
        "advertised.listeners": "INSIDE://10.0.0.1:9092,OUTSIDE://example.org:443",
    }
    result = await describe(broker, BROKER, "0", version, list(expected), include_synonyms=True)
    assert {c.name: c.value for c in result.configs} == expected
    assert all(c.read_only and c.config_source == SettingSource.STATIC for c in result.configs)
    synonyms = {c.name: [(s.value, s.source) for s in c.synonyms] for c in result.configs}
    assert synonyms["broker.id"] == [("0", SettingSource.STATIC), ("-1", SettingSource.DEFAULT)]
    assert synonyms["listeners"] == [(expected["listeners"], SettingSource.STATIC)]
    assert synonyms["log.dirs"] == [("/data", SettingSource.STATIC)]


@pytest.mark.parametrize("settings", [{PROTOCOL_MAP: "INSIDE:PLAINTEXT,OUTSIDE:SSL"}])
async def test_what_was_given_at_the_start_stays_when_settings_change_at_run_time(broker) -> None:
    record_identity(broker.config, ADDRESSES, ADVERTISED, "/data")
    before = broker.config.advertised_listeners
    request = incremental.IncrementalAlterConfigsRequest(resources=[change("log.retention.ms", 0, "5", BROKER, "")])
    assert (await broker.ask(request, 1)).responses[0].error_code == 0
    assert broker.config.topic_defaults.retention_ms == 5
    assert broker.config.advertised_listeners == before
    (config,) = (await describe(broker, BROKER, "0", configuration_keys=["advertised.listeners"])).configs
    assert (config.value, config.config_source) == (before, SettingSource.STATIC)


@pytest.mark.parametrize("version", DESCRIBE)
async def test_synonyms_and_documentation_come_when_asked_for(broker, version: int) -> None:
    more = {"include_synonyms": True, "include_documentation": version >= 3}
    result = await describe(broker, TOPIC, "t", version, ["retention.ms"], **more)
    (config,) = result.configs
    assert [(s.name, s.value, s.source) for s in config.synonyms] == [
        ("retention.ms", "1000", SettingSource.TOPIC),
    ]
    assert bool(config.documentation) == (version >= 3)


@pytest.mark.parametrize("version", DESCRIBE)
async def test_single_settings_can_be_asked_for(broker, version: int) -> None:
    result = await describe(broker, TOPIC, "t", version, ["segment.ms", "absent", "flush.ms"])
    assert {c.name for c in result.configs} == {"segment.ms", "flush.ms"}
    assert len((await describe(broker, TOPIC, "t", version, [])).configs) == len(TOPIC_SETTINGS)


@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [
        (TOPIC, "absent", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "a/b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "1", ErrorCode.INVALID_REQUEST),
        (BROKER, "zero", ErrorCode.INVALID_REQUEST),
        (8, "1", ErrorCode.INVALID_REQUEST),
        (8, "", ErrorCode.INVALID_REQUEST),
        (16, "", ErrorCode.INVALID_REQUEST),
        (0, "", ErrorCode.INVALID_REQUEST),
    ],
)
async def test_what_is_not_there_is_refused(broker, kind: int, name: str, error: ErrorCode) -> None:
    result = await describe(broker, kind, name)
    assert result.error_code == error
    assert result.error_message
    assert result.configs == []


@pytest.mark.parametrize("version", ALTER)
async def test_altering_replaces_all_settings(broker, version: int) -> None:
    configs = [alter.AlterableConfig(name="flush.ms", value="5")]
    resources = [
        alter.AlterConfigsResource(resource_type=TOPIC, resource_name="t", configs=configs),
        alter.AlterConfigsResource(resource_type=TOPIC, resource_name="absent", configs=configs),
    ]
    response = await broker.ask(alter.AlterConfigsRequest(resources=resources), version)
    assert [(r.resource_name, r.error_code) for r in response.responses] == [
        ("t", 0),
        ("absent", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert broker.view.topics["t"].overrides == {"flush.ms": "5"}


@pytest.mark.parametrize("version", ALTER)
async def test_altering_can_be_tried(broker, version: int) -> None:
    configs = [alter.AlterableConfig(name="flush.ms", value="-5")]
    resources = [alter.AlterConfigsResource(resource_type=TOPIC, resource_name="t", configs=configs)]
    (result,) = (
        await broker.ask(alter.AlterConfigsRequest(resources=resources, validate_only=True), version)
    ).responses
    assert result.error_code == ErrorCode.INVALID_CONFIG
    configs[0].value = "5"
    (result,) = (
        await broker.ask(alter.AlterConfigsRequest(resources=resources, validate_only=True), version)
    ).responses
    assert result.error_code == 0
    assert broker.view.topics["t"].overrides == {"retention.ms": "1000"}


def change(name: str, operation: int, value: str | None, kind: int = TOPIC, resource: str = "t"):
    config = incremental.AlterableConfig(name=name, config_operation=operation, value=value)
    return incremental.AlterConfigsResource(resource_type=kind, resource_name=resource, configs=[config])


@pytest.mark.parametrize("version", INCREMENTAL)
async def test_altering_incrementally_leaves_other_settings(broker, version: int) -> None:
    resources = [
        change("cleanup.policy", 2, "compact"),
        change("log.retention.ms", 0, "5", BROKER, ""),
        change("num.partitions", 0, "5", BROKER, "0"),
        change("retention.ms", 0, "5", TOPIC, "absent"),
    ]
    response = await broker.ask(incremental.IncrementalAlterConfigsRequest(resources=resources), version)
    assert [r.error_code for r in response.responses] == [
        0,
        0,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert broker.view.topics["t"].overrides == {"retention.ms": "1000", "cleanup.policy": "delete,compact"}
    assert broker.config.topic_defaults.retention_ms == 5
    shown = await describe(broker, BROKER, "", configuration_keys=None)
    assert [(c.name, c.value, c.config_source) for c in shown.configs] == [
        ("min.insync.replicas", "1", SettingSource.ALL_BROKERS),
        ("log.retention.ms", "5", SettingSource.ALL_BROKERS),
    ]


@pytest.mark.parametrize("version", INCREMENTAL)
async def test_a_resource_named_twice_is_refused_both_times(broker, version: int) -> None:
    resources = [change("flush.ms", 0, "1"), change("flush.ms", 0, "2")]
    response = await broker.ask(incremental.IncrementalAlterConfigsRequest(resources=resources), version)
    assert [r.error_code for r in response.responses] == [ErrorCode.INVALID_REQUEST] * 2
    assert broker.view.topics["t"].overrides == {"retention.ms": "1000"}


async def listed(broker, *types: int) -> list[tuple[int, str]]:
    response = await broker.ask(ListConfigResourcesRequest(resource_types=list(types)), 1)
    assert response.error_code == 0
    return [(r.resource_type, r.resource_name) for r in response.config_resources]


async def test_all_topics_and_brokers_are_listed_as_what_has_settings(broker) -> None:
    await broker.admin.create([TopicRequest("a", 1, 1)])
    assert await listed(broker) == [(TOPIC, "a"), (TOPIC, "t"), (BROKER, "0"), (LOGGER, "0")]


async def test_resources_of_the_types_that_are_asked_for_are_listed_once(broker) -> None:
    assert await listed(broker, TOPIC) == [(TOPIC, "t")]
    assert await listed(broker, BROKER, BROKER) == [(BROKER, "0")]
    assert await listed(broker, LOGGER, 16, 32) == [(LOGGER, "0")]
    assert await listed(broker, 16, BROKER) == [(BROKER, "0")]


@pytest.mark.parametrize("types", [[3], [0], [-1], [2, 127]])
async def test_a_type_of_resource_that_nobody_knows_is_refused(broker, types: list[int]) -> None:
    response = await broker.ask(ListConfigResourcesRequest(resource_types=types), 1)
    assert (response.error_code, response.config_resources) == (ErrorCode.UNSUPPORTED_VERSION, [])


async def test_before_version_1_only_client_metrics_are_listed_and_there_are_none(broker) -> None:
    response = await broker.ask(ListConfigResourcesRequest(), 0)
    assert (response.error_code, response.config_resources) == (0, [])


def test_failures_are_told_for_each_resource(broker) -> None:
    described = DescribeConfigsRequest(resources=[DescribeConfigsResource(resource_type=2, resource_name="t")])
    assert [r.error_code for r in broker.ask.failed(described, 4, -1).results] == [-1]
    replaced = alter.AlterConfigsRequest(resources=[alter.AlterConfigsResource(resource_type=2, resource_name="t")])
    assert [r.error_code for r in broker.ask.failed(replaced, 2, -1).responses] == [-1]
    changed = incremental.IncrementalAlterConfigsRequest(resources=[change("a", 0, "b")])
    assert [r.error_code for r in broker.ask.failed(changed, 1, -1).responses] == [-1]
    assert broker.ask.failed(ListConfigResourcesRequest(), 1, -1).error_code == -1
