"""Settings of groups: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources of type 32."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from penstock.config.group import GROUP_SETTINGS
from penstock.config.kafka_settings import KAFKA_GROUP_SETTINGS
from penstock.config.modern_groups import CONSUMER_SETTINGS, SHARE_SETTINGS
from penstock.control.group_settings import SHARD_SCAN_THRESHOLD
from penstock.state import keys
from penstock.state.records import ClusterRecord, GroupSettingsRecord, decode, encode
from penstock.state.store import DeleteOp, PutOp, StoreUnavailable
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import alter_configs as alter
from penstock.wire.messages import incremental_alter_configs as incremental
from penstock.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from penstock.wire.messages.list_config_resources import ListConfigResourcesRequest

GROUP, SET, DELETE, APPEND = 32, 0, 1, 2
OWNER, POLICY = "penstock.owner", "penstock.deletion.policy"
RESET, REPLAY = "penstock.reset.id", "penstock.replay.id"
FILTER = "share.filter"
OF_GROUP, DEFAULT = 8, 5
LIMIT_S = 60.0


async def change(broker, group: str, *changes: tuple[str, int, str | None], validate_only: bool = False):
    configs = [incremental.AlterableConfig(name=n, config_operation=o, value=v) for n, o, v in changes]
    resource = incremental.AlterConfigsResource(resource_type=GROUP, resource_name=group, configs=configs)
    request = incremental.IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    (response,) = (await broker.ask(request, 1)).responses
    assert (response.resource_type, response.resource_name) == (GROUP, group)
    return response


async def replace(broker, group: str, settings: dict[str, str]):
    configs = [alter.AlterableConfig(name=name, value=value) for name, value in settings.items()]
    resource = alter.AlterConfigsResource(resource_type=GROUP, resource_name=group, configs=configs)
    return (await broker.ask(alter.AlterConfigsRequest(resources=[resource]), 2)).responses[0]


async def described(broker, *groups: str, version: int = 4, **more):
    resources = [DescribeConfigsResource(resource_type=GROUP, resource_name=g, configuration_keys=None) for g in groups]
    results = (await broker.ask(DescribeConfigsRequest(resources=resources, **more), version)).results
    assert [r.resource_name for r in results] == list(groups)
    return results


async def settings_of(broker, group: str) -> dict[str, str]:
    (result,) = await described(broker, group, only_own=True)
    assert not result.error_code
    return {c.name: c.value for c in result.configs}


@pytest.mark.parametrize("version", range(1, 5))
async def test_a_group_has_settings_before_anybody_has_joined_it(broker, version: int) -> None:
    (before,) = await described(broker, "g", version=version)
    ours = {c.name: (c.value, c.config_source) for c in before.configs if c.name in GROUP_SETTINGS}
    modern = {name: (known.default, DEFAULT) for name, known in (CONSUMER_SETTINGS | SHARE_SETTINGS).items()}
    ids = {RESET: ("", DEFAULT), REPLAY: ("", DEFAULT)}
    assert ours == {OWNER: ("", DEFAULT), POLICY: ("Retain", DEFAULT), **ids, **modern}
    assert not (await change(broker, "g", (OWNER, SET, "uid-1"), (POLICY, SET, "Delete"))).error_code
    (after,) = await described(broker, "g", version=version, include_synonyms=True)
    found = {c.name: c for c in after.configs}
    assert found.keys() == GROUP_SETTINGS.keys() | KAFKA_GROUP_SETTINGS.keys()
    assert (found[OWNER].value, found[OWNER].config_source) == ("uid-1", OF_GROUP)
    assert [(s.value, s.source) for s in found[OWNER].synonyms] == [("uid-1", OF_GROUP), ("", DEFAULT)]
    assert not any(c.read_only for c in after.configs)
    assert await settings_of(broker, "other") == {}


async def test_single_settings_are_changed_and_the_last_one_taken_back_leaves_nothing_behind(broker) -> None:
    await change(broker, "g", (OWNER, SET, "uid-1"), (RESET, SET, "r-1"))
    await change(broker, "g", (RESET, SET, "r-2"), (OWNER, DELETE, None))
    assert await settings_of(broker, "g") == {RESET: "r-2"}
    await change(broker, "g", (RESET, DELETE, None))
    assert await broker.store.get(keys.group_settings("g")) is None


async def test_replacing_drops_what_is_not_named(broker) -> None:
    await change(broker, "g", (OWNER, SET, "uid-1"), (RESET, SET, "r-1"))
    assert not (await replace(broker, "g", {POLICY: "Delete"})).error_code
    assert await settings_of(broker, "g") == {POLICY: "Delete"}
    assert not (await replace(broker, "g", {})).error_code
    assert await settings_of(broker, "g") == {}


@pytest.mark.parametrize(
    ("group", "change_of", "error"),
    [
        ("g", ("penstock.ownr", SET, "x"), ErrorCode.INVALID_CONFIG),
        ("g", ("retention.ms", SET, "1"), ErrorCode.INVALID_CONFIG),
        ("g", (POLICY, SET, "Burn"), ErrorCode.INVALID_CONFIG),
        ("g", (OWNER, SET, "x" * 101), ErrorCode.INVALID_CONFIG),
        ("g", (RESET, SET, "x" * 201), ErrorCode.INVALID_CONFIG),
        ("g", (RESET, SET, "a\nb"), ErrorCode.INVALID_CONFIG),
        ("g", (FILTER, SET, "type = order"), ErrorCode.INVALID_CONFIG),
        ("g", (OWNER, APPEND, "x"), ErrorCode.INVALID_CONFIG),
        ("g", (OWNER, SET, None), ErrorCode.INVALID_REQUEST),
        ("", (OWNER, SET, "x"), ErrorCode.INVALID_REQUEST),
        ("g" * 1025, (OWNER, SET, "x"), ErrorCode.INVALID_GROUP_ID),
    ],
    ids=str,
)
async def test_what_cannot_be_set_is_refused_and_nothing_of_it_is_done(broker, group, change_of, error) -> None:
    response = (
        await change(broker, group, (POLICY, SET, "Delete"), change_of)
        if change_of[0] != POLICY
        else (await change(broker, group, change_of))
    )
    assert response.error_code == error
    assert response.error_message
    assert (await broker.store.range(keys.GROUP_SETTINGS)).entries == []


async def test_validating_sets_nothing(broker) -> None:
    assert not (await change(broker, "g", (OWNER, SET, "uid-1"), validate_only=True)).error_code
    assert await settings_of(broker, "g") == {}
    response = await change(broker, "g", (POLICY, SET, "Burn"), validate_only=True)
    assert response.error_code == ErrorCode.INVALID_CONFIG


async def test_what_is_set_already_is_not_written_again(broker) -> None:
    record = GroupSettingsRecord(settings={OWNER: "uid-1"}, changed_ms=5)
    await broker.store.txn((), [PutOp(keys.group_settings("g"), encode(record))])
    before = await broker.store.get(keys.group_settings("g"))
    await change(broker, "g", (OWNER, SET, "uid-1"))
    assert await broker.store.get(keys.group_settings("g")) == before


async def test_a_bad_name_is_answered_for_itself_alone(broker) -> None:
    bad, good = await described(broker, "", "g")
    assert bad.error_code == ErrorCode.INVALID_REQUEST
    assert bad.error_message
    assert not good.error_code
    assert len(good.configs) == len(GROUP_SETTINGS) + len(KAFKA_GROUP_SETTINGS)


async def test_many_groups_of_a_shard_are_read_together_and_each_gets_its_own(broker) -> None:
    shard = keys.shard_of("g")
    groups = [f"g{i}/ü" for i in range(5000) if keys.shard_of(f"g{i}/ü") == shard][: SHARD_SCAN_THRESHOLD + 3]
    assert len(groups) > SHARD_SCAN_THRESHOLD
    for group in groups[1:]:
        await change(broker, group, (OWNER, SET, f"uid of {group}"))
    reads = []

    async def record(key: str) -> None:
        reads.append(key)

    broker.store.on_get = record
    results = await described(broker, *groups, only_own=True)
    assert [[c.value for c in r.configs] for r in results] == [[], *([f"uid of {group}"] for group in groups[1:])]
    assert reads == []


async def test_while_the_store_is_away_clients_are_told_to_come_again(broker) -> None:
    async def fail(key: str) -> None:
        raise StoreUnavailable("away")

    broker.store.on_get = fail
    (result,) = await described(broker, "g")
    assert result.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert (await change(broker, "g", (OWNER, SET, "x"))).error_code == ErrorCode.REQUEST_TIMED_OUT


async def test_unreadable_settings_are_none_until_they_are_replaced(broker) -> None:
    await broker.store.txn((), [PutOp(keys.group_settings("g"), b"nonsense")])
    assert await settings_of(broker, "g") == {}
    assert (await change(broker, "g", (OWNER, SET, "x"))).error_code == ErrorCode.INVALID_CONFIG
    assert not (await replace(broker, "g", {OWNER: "x"})).error_code
    assert await settings_of(broker, "g") == {OWNER: "x"}


async def test_an_invalid_setting_of_a_group_is_logged_once_and_its_default_is_described(broker, capsys) -> None:
    stored = {OWNER: 5, POLICY: "Burn", RESET: "r-1", "from.the.future": "x"}
    await broker.store.txn((), [PutOp(keys.group_settings("g"), encode(GroupSettingsRecord(settings=stored)))])
    for _ in range(2):
        assert await settings_of(broker, "g") == {RESET: "r-1"}
        (result,) = await described(broker, "g")
        assert {(c.name, c.value) for c in result.configs} >= {(OWNER, ""), (POLICY, "Retain"), (RESET, "r-1")}
    lines = [line for line in capsys.readouterr().out.splitlines() if "invalid setting" in line]
    assert len(lines) == 3
    for name, value in [(OWNER, "int"), (POLICY, "Burn"), ("from.the.future", "x")]:
        assert any(f"name={name} " in line and value in line and "group" in line for line in lines)
    assert not (await change(broker, "g", (POLICY, SET, "Delete"))).error_code
    entry = await broker.store.get(keys.group_settings("g"))
    assert decode(GroupSettingsRecord, entry.key, entry.value).settings == {**stored, POLICY: "Delete"}


async def test_a_change_that_somebody_else_overtook_is_made_on_top_of_theirs(broker) -> None:
    await change(broker, "g", (OWNER, SET, "mine"))
    others = iter(["theirs"])

    async def overtake(key: str) -> None:
        for value in others:
            await change(broker, "g", (RESET, SET, value))

    broker.store.on_get = overtake
    assert not (await change(broker, "g", (POLICY, SET, "Delete"))).error_code
    assert await settings_of(broker, "g") == {OWNER: "mine", RESET: "theirs", POLICY: "Delete"}


async def test_groups_with_settings_are_listed(broker) -> None:
    await change(broker, "b/1", (OWNER, SET, "x"))
    await change(broker, "a", (OWNER, SET, "x"))
    answer = await broker.ask(ListConfigResourcesRequest(resource_types=[GROUP]), 1)
    assert [(r.resource_name, r.resource_type) for r in answer.config_resources] == [("a", GROUP), ("b/1", GROUP)]
    await broker.store.txn((), [DeleteOp(keys.group_settings("a"))])
    everything = await broker.ask(ListConfigResourcesRequest(resource_types=[]), 1)
    assert [r.resource_name for r in everything.config_resources if r.resource_type == GROUP] == ["b/1"]


async def test_the_time_of_a_change_is_kept_with_it(broker) -> None:
    await change(broker, "g", (OWNER, SET, "x"))
    entry = await broker.store.get(keys.group_settings("g"))
    record = decode(GroupSettingsRecord, entry.key, entry.value)
    assert record.settings == {OWNER: "x"}
    assert record.changed_ms > 0


async def test_a_value_out_of_the_brokers_bounds_is_refused(broker) -> None:
    refused = await change(broker, "g", ("consumer.session.timeout.ms", SET, "1000"))
    assert refused.error_code == ErrorCode.INVALID_CONFIG
    assert "group.consumer.min.session.timeout.ms (45000)" in refused.error_message
    assert not (await change(broker, "g", ("consumer.session.timeout.ms", SET, "50000"))).error_code
    assert await settings_of(broker, "g") == {"consumer.session.timeout.ms": "50000"}


async def test_an_invalid_filter_is_refused_with_the_position_of_the_error(broker) -> None:
    response = await change(broker, "g", (FILTER, SET, "type = order"))
    assert response.error_code == ErrorCode.INVALID_CONFIG
    assert 'found "order" at character 8; expected a number, or a text in single quotes' in response.error_message
    assert not (await change(broker, "g", (FILTER, SET, "type = 'order'"))).error_code
    assert await settings_of(broker, "g") == {FILTER: "type = 'order'"}


async def set_level(broker, record: ClusterRecord, level: int) -> None:
    """Store the feature level, and wait until the view has it."""
    await broker.store.txn([], [PutOp(keys.CLUSTER, encode(msgspec.structs.replace(record, feature_level=level)))])
    async with asyncio.timeout(LIMIT_S):
        while broker.view.feature_level != level:
            await asyncio.sleep(0.01)


async def test_a_dead_letter_topic_is_named_once_all_brokers_can_read_the_states_of_its_group(broker) -> None:
    entry = await broker.store.get(keys.CLUSTER)
    record = decode(ClusterRecord, entry.key, entry.value)
    await set_level(broker, record, 2)
    refused = await change(broker, "g", ("errors.deadletterqueue.topic.name", SET, "dlq.g"))
    assert refused.error_code == ErrorCode.INVALID_CONFIG
    assert 'requires level 3 of "penstock.version", which is 2' in refused.error_message
    assert await settings_of(broker, "g") == {}
    await set_level(broker, record, 3)
    assert not (await change(broker, "g", ("errors.deadletterqueue.topic.name", SET, "dlq.g"))).error_code
    assert await settings_of(broker, "g") == {"errors.deadletterqueue.topic.name": "dlq.g"}
