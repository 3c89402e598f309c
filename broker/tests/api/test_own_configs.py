"""Penstock's extensions of DescribeConfigs: the resource's own settings, and the release."""

from __future__ import annotations

from penstock import __version__
from penstock.config.definition import SettingSource
from penstock.config.topic import NEW_IN_KAFKA_4_4, TOPIC_SETTINGS
from penstock.control.results import TopicRequest
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import alter_configs as replacing
from penstock.wire.messages import incremental_alter_configs as incremental
from penstock.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from penstock.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource

TOPIC, BROKER = 2, 4


async def described(broker, kind: int, *names: str, **more):
    resources = [DescribeConfigsResource(resource_type=kind, resource_name=n, configuration_keys=None) for n in names]
    return (await broker.ask(DescribeConfigsRequest(resources=resources, **more), 4)).results


async def test_only_what_is_set_for_a_topic_is_told_where_that_is_asked_for(broker) -> None:
    mine = {"retention.ms": "1000", "penstock.owner": "uid-1", "penstock.deletion.policy": "Delete"}
    await broker.admin.create([TopicRequest("t", 1, 1, settings=mine), TopicRequest("plain", 1, 1)])
    own, plain, absent = await described(broker, TOPIC, "t", "plain", "absent", only_own=True)
    assert {c.name: c.value for c in own.configs} == mine
    assert plain.configs == []
    assert absent.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    (everything,) = await described(broker, TOPIC, "t")
    assert {c.name for c in everything.configs} == set(TOPIC_SETTINGS)


async def test_the_timestamp_type_of_a_topic_with_a_delay_is_described_as_it_is(broker) -> None:
    await broker.admin.create([TopicRequest("t", 1, 1, settings={"delivery.delay.ms": "5"}), TopicRequest("u", 1, 1)])
    for topic, expected in (("t", "LogAppendTime"), ("u", "CreateTime")):
        (result,) = await described(broker, TOPIC, topic)
        found = {c.name: (c.value, c.config_source) for c in result.configs}["message.timestamp.type"]
        assert found == (expected, SettingSource.DEFAULT)


async def test_notes_of_an_owner_change_nothing_of_how_a_topic_is_kept(broker) -> None:
    notes = {"penstock.owner": "uid-1", "penstock.deletion.policy": "Delete"}
    await broker.admin.create([TopicRequest("t", 1, 1, settings=notes), TopicRequest("plain", 1, 1)])
    assert broker.view.topics["t"].overrides == notes
    assert broker.view.topics["t"].config is broker.view.topics["plain"].config


async def test_settings_that_kafka_does_not_have_are_described_as_read_only_so_that_mirror_maker_does_not_copy_them(
    broker,
) -> None:
    mine = {"retention.ms": "1000", "penstock.owner": "uid-1", "penstock.record.validation": "all"}
    creation = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    creation.configs = [CreatableTopicConfig(name=name, value=value) for name, value in mine.items()]
    (created,) = (await broker.ask(CreateTopicsRequest(topics=[creation]), 7)).topics
    own = {name for name in TOPIC_SETTINGS if name.startswith("penstock.")} | {
        "delivery.delay.ms",
        "delivery.schedule.enable",
    }
    assert {c.name for c in created.configs if c.read_only} == own | NEW_IN_KAFKA_4_4
    for more, expected in (({}, own | NEW_IN_KAFKA_4_4), ({"only_own": True}, own & mine.keys())):
        (result,) = await described(broker, TOPIC, "t", **more)
        assert {c.name for c in result.configs if c.read_only} == expected
    change = incremental.AlterableConfig(name="penstock.record.validation", config_operation=0, value="none")
    resource = incremental.AlterConfigsResource(resource_type=TOPIC, resource_name="t", configs=[change])
    answer = await broker.ask(incremental.IncrementalAlterConfigsRequest(resources=[resource]), 1)
    assert answer.responses[0].error_code == 0
    assert broker.view.topics["t"].overrides == {**mine, "penstock.record.validation": "none"}


async def test_replacing_all_settings_of_a_topic_leaves_those_that_kafka_does_not_have(broker) -> None:
    notes = {"penstock.owner": "uid-1", "penstock.record.validation": "all", "delivery.delay.ms": "5"}
    await broker.admin.create([TopicRequest("t", 1, 1, settings={"retention.ms": "1000", **notes})])
    for settings, expected in (
        ({"flush.ms": "5"}, {"flush.ms": "5", **notes}),
        ({"penstock.record.validation": "none"}, {**notes, "penstock.record.validation": "none"}),
    ):
        configs = [replacing.AlterableConfig(name=name, value=value) for name, value in settings.items()]
        resource = replacing.AlterConfigsResource(resource_type=TOPIC, resource_name="t", configs=configs)
        answer = await broker.ask(replacing.AlterConfigsRequest(resources=[resource]), 2)
        assert answer.responses[0].error_code == 0
        assert broker.view.topics["t"].overrides == expected


async def test_only_what_is_set_at_run_time_is_told_of_a_broker_where_that_is_asked_for(broker) -> None:
    assert (await described(broker, BROKER, "0", only_own=True))[0].configs == []
    change = incremental.AlterableConfig(name="broker.rack", config_operation=0, value="zone-a")
    resource = incremental.AlterConfigsResource(resource_type=BROKER, resource_name="0", configs=[change])
    await broker.ask(incremental.IncrementalAlterConfigsRequest(resources=[resource]), 1)
    (result,) = await described(broker, BROKER, "0", only_own=True)
    assert {c.name: (c.value, c.read_only) for c in result.configs} == {"broker.rack": ("zone-a", False)}


async def test_a_broker_tells_its_release_which_nobody_can_set(broker) -> None:
    (result,) = await described(broker, BROKER, "0")
    (release,) = [c for c in result.configs if c.name == "penstock.release"]
    assert (release.value, release.read_only) == (__version__, True)
    change = incremental.AlterableConfig(name="penstock.release", config_operation=0, value="9")
    resource = incremental.AlterConfigsResource(resource_type=BROKER, resource_name="0", configs=[change])
    answer = await broker.ask(incremental.IncrementalAlterConfigsRequest(resources=[resource]), 1)
    assert answer.responses[0].error_code == ErrorCode.INVALID_CONFIG


async def test_changes_of_many_topics_are_answered_in_their_order_each_for_itself(broker) -> None:
    names = [f"t{number:03d}" for number in range(150)]
    await broker.admin.create([TopicRequest(name, 1, 1) for name in names])
    resources = [
        incremental.AlterConfigsResource(
            resource_type=TOPIC,
            resource_name=name,
            configs=[incremental.AlterableConfig(name="retention.ms", config_operation=0, value=str(number - 1))],
        )
        for number, name in enumerate([*names, "absent"], -1)
    ]
    answer = await broker.ask(incremental.IncrementalAlterConfigsRequest(resources=resources), 1)
    assert [r.resource_name for r in answer.responses] == [*names, "absent"]
    assert [r.error_code for r in answer.responses] == [
        ErrorCode.INVALID_CONFIG,
        *[0] * (len(names) - 1),
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert broker.view.topics["t149"].config.retention_ms == 147
