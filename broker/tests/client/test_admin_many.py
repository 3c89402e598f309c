"""Batch calls of the admin client against a real broker: each item has its own result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest

from penstock import __version__
from penstock.client import (
    Admin,
    AlterConfig,
    BrokerError,
    BrokerVersion,
    ClientError,
    ConnectionFailed,
    Consumer,
    CreatedTopic,
    ErrorCode,
    GroupLag,
    NewTopic,
    PartitionLag,
    Producer,
    ShareOffset,
    TopicInfo,
    TopicPartition,
    UnknownTopic,
    UnsupportedByBroker,
)
from penstock.client.admin.lag import chunk_by_offsets
from penstock.client.admin.topics import MAX_CREATED_PARTITIONS, chunk_by_partitions
from penstock.client.backoff import Backoff
from penstock.client.cluster import ClusterConnections
from penstock.client.connection import ClientConnection
from penstock.client.many import all_or_raise, request_by_node, request_each

pytestmark = pytest.mark.integration

OWNER = "penstock.owner"
LIST_OFFSETS, OFFSET_FETCH, FIND_COORDINATOR, DELETE_TOPICS = 2, 9, 10, 20


def failed(answer: object) -> ErrorCode:
    assert isinstance(answer, BrokerError), answer
    return answer.code


# Chunks and retries


class Asked:
    """A request function that returns configured results and records its calls."""

    def __init__(self, *failures: Mapping[str, ClientError] | ClientError) -> None:
        self.failures = list(failures)
        self.parts: list[list[str]] = []

    async def __call__(self, part: list[str]) -> dict[str, int | ClientError]:
        self.parts.append(part)
        failure = self.failures.pop(0) if self.failures else {}
        if isinstance(failure, ClientError):
            raise failure
        return {key: failure.get(key, len(key)) for key in part}


def cluster_of(timeout_ms: float = 30_000) -> ClusterConnections:
    backoff = Backoff(base_ms=1, max_ms=1)
    return cast(
        ClusterConnections, SimpleNamespace(request_timeout_ms=timeout_ms, backoff=backoff, invalidate=lambda: None)
    )


LATE = BrokerError(ErrorCode.LEADER_NOT_AVAILABLE)
WRONG = BrokerError(ErrorCode.INVALID_CONFIG)


async def test_requests_are_of_bounded_size_and_answers_in_the_order_of_what_was_asked() -> None:
    asked = Asked()
    answers = await request_each(cluster_of(), ["cc", "a", "bbb", "a"], asked, chunk_size=2)
    assert asked.parts == [["cc", "a"], ["bbb"]]
    assert list(answers.items()) == [("cc", 2), ("a", 1), ("bbb", 3)]
    assert await request_each(cluster_of(), [], asked, chunk_size=2) == {}


async def test_only_what_failed_for_a_while_is_asked_for_again() -> None:
    asked = Asked({"a": LATE, "b": WRONG}, ConnectionFailed("gone"))
    answers = await request_each(cluster_of(), "abc", asked, chunk_size=3)
    assert asked.parts == [["a", "b", "c"], ["a"], ["a"]]
    assert answers == {"a": 1, "b": WRONG, "c": 1}


async def test_a_part_that_fails_as_a_whole_is_no_failure_of_the_others() -> None:
    gone = UnsupportedByBroker("old")
    asked = Asked(gone)
    assert await request_each(cluster_of(), "abc", asked, chunk_size=2) == {"a": gone, "b": gone, "c": 1}


async def test_what_does_not_pass_is_answered_with_its_last_error_once_time_is_over() -> None:
    asked = Asked(*[{"a": LATE}] * 1000)
    assert await request_each(cluster_of(timeout_ms=500), "a", asked, chunk_size=2) == {"a": LATE}
    assert len(asked.parts) > 1


async def test_where_nobody_answers_the_time_is_spent_once_and_not_for_each_part() -> None:
    gone = ConnectionFailed("no broker there")
    parts = []

    async def ask(part: list[int]) -> dict[int, int | ClientError]:
        parts.append(part)
        time.sleep(0.03)  # lets the loop's clock advance, as a wait would
        raise gone

    answers = await request_each(cluster_of(timeout_ms=20), range(100), ask, chunk_size=1)
    assert answers == dict.fromkeys(range(100), gone)
    assert len(parts) == 1


async def test_something_of_which_a_broker_says_nothing_is_an_error_of_its_own() -> None:
    async def ask(part: list[str]) -> dict[str, int | ClientError]:
        return {"a": 0}

    answers = await request_each(cluster_of(), "ab", ask, chunk_size=2)
    assert answers["a"] == 0
    assert failed(answers["b"]) is ErrorCode.UNKNOWN_SERVER_ERROR


async def test_a_broker_that_fails_fails_its_part_alone() -> None:
    gone = ConnectionFailed("gone")

    async def ask(node_id: int, part: list[str]) -> dict[str, int | ClientError]:
        if node_id == 1:
            raise gone
        return dict.fromkeys(part, node_id)

    assert await request_by_node({1: ["a"], 2: ["b", "c"]}, ask) == {"a": gone, "b": 2, "c": 2}


def test_the_first_error_is_raised_where_every_answer_is_needed() -> None:
    with pytest.raises(BrokerError) as raised:
        all_or_raise({"a": 1, "b": WRONG, "c": LATE})
    assert raised.value is WRONG
    assert all_or_raise({"a": None}) == {"a": None}


def test_topics_of_one_request_have_no_more_partitions_than_a_broker_takes() -> None:
    topics = [NewTopic("a", MAX_CREATED_PARTITIONS - 1), NewTopic("b"), NewTopic("c", 2), NewTopic("d", 9 * 10**6)]
    assert [list(part) for part in chunk_by_partitions(topics)] == [["a", "b"], ["c"], ["d"]]


def test_offsets_of_one_request_are_no_more_than_a_broker_looks_at() -> None:
    a, b, c = (TopicPartition(name, 0) for name in "abc")
    offsets = {a: range(3000), b: range(3000), c: range(9000)}
    parts = [{tp: len(those) for tp, those in part.items()} for part in chunk_by_offsets(offsets, offsets)]
    assert parts == [{a: 3000}, {b: 3000}, {c: 5000}]


# Topics


async def test_topics_are_created_described_grown_and_deleted_each_with_its_own_answer(admin: Admin, name: str) -> None:
    created = await admin.create_topics_many(
        [NewTopic(f"{name}-a", 2), NewTopic("not a name"), NewTopic(f"{name}-b", 1, configs={OWNER: "uid"})]
    )
    a, b = created[f"{name}-a"], created[f"{name}-b"]
    assert isinstance(a, CreatedTopic)
    assert isinstance(b, CreatedTopic)
    assert (a.partitions, b.partitions) == (2, 1)
    assert failed(created["not a name"]) is ErrorCode.INVALID_TOPIC_EXCEPTION
    grown = await admin.create_partitions_many({a.name: 3, b.name: 0, f"{name}-c": 2})
    assert grown[a.name] is None
    assert failed(grown[b.name]) is ErrorCode.INVALID_PARTITIONS
    assert failed(grown[f"{name}-c"]) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    found = await admin.describe_topics_many([a.name, b.name, f"{name}-c"])
    described = found[a.name]
    assert isinstance(described, TopicInfo)
    assert (described.topic_id, len(described.partitions)) == (a.topic_id, 3)
    assert isinstance(found[f"{name}-c"], UnknownTopic)
    deleted = await admin.delete_topics_many({a.name: None, f"{name}-c": None, b.name: b.topic_id})
    assert (deleted[a.name], deleted[b.name]) == (None, None)
    assert failed(deleted[f"{name}-c"]) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert not {a.name, b.name} & (await admin.list_topics()).keys()


async def test_a_topic_is_deleted_only_while_it_is_the_one_of_its_id(admin: Admin, topic: str, name: str) -> None:
    deleted = await admin.delete_topics_many({topic: uuid4()})
    assert failed(deleted[topic]) is ErrorCode.UNKNOWN_TOPIC_ID
    assert topic in await admin.list_topics()


async def test_a_topic_that_is_named_twice_is_created_by_neither(admin: Admin, name: str) -> None:
    created = await admin.create_topics_many([NewTopic(name, 1), NewTopic(name, 2)])
    assert failed(created[name]) is ErrorCode.INVALID_REQUEST
    assert name not in await admin.list_topics()


async def test_all_topics_are_described_page_by_page(admin: Admin, name: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("penstock.client.admin.topics.PAGE_PARTITIONS", 3)
    await admin.create_topics([NewTopic(f"{name}-{number}", 4) for number in range(3)])
    found = await admin.describe_topics_many()
    assert found == await admin.list_topics(internal=True)
    assert all(len(cast(TopicInfo, found[f"{name}-{number}"]).partitions) == 4 for number in range(3))
    await admin.delete_topics([f"{name}-{number}" for number in range(3)])


# Settings


async def test_settings_of_many_topics_are_changed_and_read_together(admin: Admin, topic: str, name: str) -> None:
    changes = {
        topic: [AlterConfig("retention.ms", "5000"), AlterConfig(OWNER, "uid")],
        f"{name}-absent": [AlterConfig("retention.ms", "5000")],
    }
    changed = await admin.alter_topic_configs_many(changes)
    assert changed[topic] is None
    assert isinstance(changed[f"{name}-absent"], UnknownTopic)
    found = await admin.describe_topic_configs([topic, f"{name}-absent"], only_own=True)
    own = found[topic]
    assert not isinstance(own, ClientError)
    assert {n: (e.value, e.source) for n, e in own.items()} == {
        OWNER: ("uid", "topic"),
        "retention.ms": ("5000", "topic"),
    }
    assert isinstance(found[f"{name}-absent"], UnknownTopic)
    wholly = (await admin.describe_topic_configs([topic]))[topic]
    assert not isinstance(wholly, ClientError)
    assert wholly.keys() == (await admin.topic_configs(topic)).keys() > own.keys()


async def test_groups_have_settings_which_go_with_them(admin: Admin, topic: str, name: str) -> None:
    changed = await admin.alter_group_configs(
        {name: [AlterConfig(OWNER, "uid")], f"{name}-2": [AlterConfig("no", "1")]}
    )
    assert changed[name] is None
    assert failed(changed[f"{name}-2"]) is ErrorCode.INVALID_CONFIG
    found = await admin.group_configs([name, f"{name}-2"])
    mine, other = found[name], found[f"{name}-2"]
    assert not isinstance(mine, ClientError)
    assert not isinstance(other, ClientError)
    assert (mine[OWNER].value, mine[OWNER].source, mine[OWNER].is_default) == ("uid", "group", False)
    assert (other[OWNER].value, other[OWNER].is_default) == ("", True)
    assert name not in {group.group_id for group in await admin.list_groups()}
    await admin.alter_offsets(name, {TopicPartition(topic, 0): 0})
    await admin.delete_groups([name])
    assert cast(dict[str, Any], (await admin.group_configs([name]))[name])[OWNER].is_default


async def test_brokers_tell_their_release_and_feature_levels(admin: Admin) -> None:
    versions = await admin.broker_versions()
    assert set(versions) == {node.node_id for node in (await admin.describe_cluster()).brokers}
    for version in versions.values():
        assert isinstance(version, BrokerVersion)
        assert version.release == __version__
        assert 0 < version.level <= version.highest_level


async def test_the_place_of_a_broker_is_changed_while_it_runs(admin: Admin) -> None:
    (node,) = (await admin.describe_cluster()).brokers
    await admin.alter_broker_configs(
        node.node_id, [AlterConfig("broker.rack", "zone-a"), AlterConfig("broker.failure.domain", "zone-a/node-1")]
    )
    try:
        async with asyncio.timeout(60):
            while (await admin.describe_cluster()).brokers[0].rack != "zone-a":
                await asyncio.sleep(0.01)
        found = await admin.broker_configs_many([node.node_id, 77], only_own=True)
        mine = found[node.node_id]
        assert isinstance(mine, dict)
        assert {n: e.value for n, e in mine.items() if n.startswith("broker.")} == {
            "broker.rack": "zone-a",
            "broker.failure.domain": "zone-a/node-1",
        }
        assert isinstance(found[77], ClientError)
    finally:
        names = ("broker.rack", "broker.failure.domain")
        await admin.alter_broker_configs(node.node_id, [AlterConfig(n, None, "delete") for n in names])


# Groups


async def test_groups_are_described_each_for_itself(admin: Admin, topic: str, name: str, bootstrap: str) -> None:
    await admin.alter_offsets(f"{name}-empty", {TopicPartition(topic, 0): 0})
    async with Consumer(bootstrap, group_id=name) as consumer:
        consumer.subscribe([topic])
        async with asyncio.timeout(60):
            while len(consumer.assignment) < 4:
                await consumer.getmany(timeout_ms=50)
        found = await admin.describe_groups([name, f"{name}-empty", f"{name}-absent"])
        states = {group: answer.state for group, answer in found.items() if not isinstance(answer, ClientError)}
        assert states == {name: "Stable", f"{name}-empty": "Empty", f"{name}-absent": "Dead"}
        assert found[name] == await admin.describe_group(name)
        deleted = await admin.delete_groups_many([name, f"{name}-empty", f"{name}-absent"])
    assert failed(deleted[name]) is ErrorCode.NON_EMPTY_GROUP
    assert deleted[f"{name}-empty"] is None
    assert failed(deleted[f"{name}-absent"]) is ErrorCode.GROUP_ID_NOT_FOUND


async def test_what_many_groups_have_committed_is_fetched_together(admin: Admin, topic: str, name: str) -> None:
    groups = [f"{name}-{number}" for number in range(5)]
    for number, group in enumerate(groups):
        await admin.alter_offsets(group, {TopicPartition(topic, number % 4): 0})
    found = await admin.committed_many([*groups, f"{name}-absent"])
    assert found == {group: await admin.committed(group) for group in groups} | {f"{name}-absent": {}}
    assert [len(cast(dict[Any, Any], found[group])) for group in groups] == [1] * 5
    await admin.delete_groups(groups)


async def test_lag_is_told_in_records_and_in_time_for_many_groups(
    admin: Admin, topic: str, name: str, bootstrap: str
) -> None:
    first, second, third = (TopicPartition(topic, number) for number in range(3))
    old_ms = int(time.time() * 1000) - 3_600_000
    async with Producer(bootstrap) as producer:
        await (await producer.send(topic, b"1", partition=0, timestamp_ms=old_ms))
        await (await producer.send(topic, b"2", partition=0, timestamp_ms=old_ms + 1_800_000))
        await (await producer.send(topic, b"3", partition=1))
    await admin.alter_offsets(f"{name}-a", {first: 0, second: 1, third: 0})
    await admin.alter_offsets(f"{name}-b", {first: 1})
    found = await admin.lag([f"{name}-a", f"{name}-b", f"{name}-absent"])
    a, b = found[f"{name}-a"], found[f"{name}-b"]
    assert isinstance(a, GroupLag)
    assert isinstance(b, GroupLag)
    assert found[f"{name}-absent"] == GroupLag({}, {})
    assert {tp: (p.lag, p.start_offset, p.end_offset) for tp, p in a.partitions.items()} == {
        first: (2, 0, 2),
        second: (0, 0, 1),
        third: (0, 0, 0),
    }
    assert (a.partitions[second].lag_ms, a.partitions[third].lag_ms) == (0, 0)
    assert 3_600_000 <= (a.partitions[first].lag_ms or 0) < 5_400_000
    assert b.partitions.keys() == {first}
    assert 1_800_000 <= (b.partitions[first].lag_ms or 0) < 3_600_000
    whole = await admin.group_lag(f"{name}-b", [topic])
    assert whole[first].lag_ms is not None
    assert whole[second] == PartitionLag(None, 0, 1, None)
    await admin.delete_groups([f"{name}-a", f"{name}-b"])


async def test_a_group_that_read_a_topic_which_is_gone_lags_nowhere(admin: Admin, name: str) -> None:
    await admin.create_topics([NewTopic(name, 1)])
    await admin.alter_offsets(name, {TopicPartition(name, 0): 0})
    assert len(cast(GroupLag, (await admin.lag([name]))[name]).partitions) == 1
    await admin.delete_topics([name])
    assert (await admin.lag([name]))[name] == GroupLag({}, {})


# Older brokers


@pytest.fixture
def older(monkeypatch: Any) -> dict[int, tuple[int, int]]:
    """Return API versions by key that override the broker's; tests fill it before the first connection."""
    versions: dict[int, tuple[int, int]] = {}
    negotiate = ClientConnection._negotiate

    async def less(connection: ClientConnection) -> None:
        await negotiate(connection)
        connection._versions |= versions

    monkeypatch.setattr(ClientConnection, "_negotiate", less)
    return versions


async def test_a_broker_that_deletes_by_name_alone_is_not_asked_to_delete_by_id(
    older: dict[int, tuple[int, int]], bootstrap: str, admin: Admin, topic: str, name: str
) -> None:
    older[DELETE_TOPICS] = (1, 5)
    named = f"{name}-named"
    await admin.create_topics([NewTopic(named, 1)])
    async with Admin(bootstrap) as old:
        topic_id = (await old.list_topics())[topic].topic_id
        deleted = await old.delete_topics_many({topic: topic_id, named: None})
    assert isinstance(deleted[topic], UnsupportedByBroker)
    assert deleted[named] is None
    left = await admin.list_topics()
    assert topic in left
    assert named not in left


async def test_coordinators_that_take_one_group_at_a_time_are_asked_one_by_one(
    older: dict[int, tuple[int, int]], bootstrap: str, topic: str, name: str
) -> None:
    older.update({OFFSET_FETCH: (1, 7), FIND_COORDINATOR: (0, 3)})
    groups = [f"{name}-{number}" for number in range(3)]
    async with Admin(bootstrap) as old:
        for group in groups:
            await old.alter_offsets(group, {TopicPartition(topic, 0): 0})
        found = await old.committed_many([*groups, f"{name}-absent"])
        assert [len(cast(dict[Any, Any], found[group])) for group in [*groups, f"{name}-absent"]] == [1, 1, 1, 0]
        await old.delete_groups(groups)


async def test_leaders_that_know_no_ages_tell_the_lag_in_records(
    older: dict[int, tuple[int, int]], bootstrap: str, topic: str, name: str
) -> None:
    older[LIST_OFFSETS] = (1, 5)
    async with Producer(bootstrap) as producer:
        await (await producer.send(topic, b"1", partition=0))
    async with Admin(bootstrap) as old:
        await old.alter_offsets(name, {TopicPartition(topic, 0): 0})
        found = (await old.lag([name]))[name]
        assert isinstance(found, GroupLag)
        lag = found.partitions[TopicPartition(topic, 0)]
        assert (lag.lag, lag.start_offset, lag.end_offset, lag.lag_ms) == (1, 0, 1, None)
        await old.delete_groups([name])


async def test_groups_of_each_type_are_described_together(admin: Admin, topic: str, name: str, bootstrap: str) -> None:
    tp = TopicPartition(topic, 0)
    await admin.alter_offsets(f"{name}-classic", {tp: 0})
    await admin.alter_share_offsets(f"{name}-share", {tp: 0})
    await admin.alter_share_offsets(f"{name}-share-2", {tp: 0})
    async with Consumer(bootstrap, group_id=name, group_protocol="consumer", client_id="me") as consumer:
        consumer.subscribe([topic])
        while len(consumer.assignment) < 4:
            await consumer.getmany(timeout_ms=50)
        described = all_or_raise(
            await admin.describe_groups([f"{name}-classic", name, f"{name}-share", f"{name}-share-2", f"{name}-absent"])
        )
    assert {group: (found.group_type, found.state) for group, found in described.items()} == {
        f"{name}-classic": ("classic", "Empty"),
        name: ("consumer", "Stable"),
        f"{name}-share": ("share", "Empty"),
        f"{name}-share-2": ("share", "Empty"),
        f"{name}-absent": ("classic", "Dead"),
    }
    (member,) = described[name].members
    assert (member.client_id, len(member.partitions)) == ("me", 4)
    offsets = await admin.share_offsets_many([f"{name}-share", f"{name}-share-2"])
    assert offsets == {key: {tp: ShareOffset(0, 0)} for key in offsets}
