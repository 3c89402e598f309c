"""The view follows the store completely and in order, at a cost proportional to the change, with any content."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random
from uuid import UUID

import pytest
from watcher_kit import A, B, Followed, gone, partition, topic

from penstock.state import keys
from penstock.state.embedded import EmbeddedStore
from penstock.state.records import (
    BrokerConfigRecord,
    BrokerRecord,
    ClusterRecord,
    ControllerRecord,
    EndpointRecord,
    TopicRecord,
    encode,
)
from penstock.state.store import DeleteOp, Operation, PutOp, StoreError
from penstock.state.tables import Tables
from penstock.state.view import PartitionView, TopicChange


@pytest.fixture
async def store() -> AsyncIterator[EmbeddedStore]:
    opened = EmbeddedStore(":memory:", history_events=50)
    yield opened
    await opened.close()


@pytest.fixture
async def followed(store: EmbeddedStore) -> AsyncIterator[Followed]:
    made = Followed(store)
    await made.watcher.start()
    yield made
    await made.watcher.stop()


async def test_what_is_there_at_the_start_is_loaded(store: EmbeddedStore) -> None:
    await store.txn([], [*topic(A, "a", 3), *topic(B, "b")])
    broker = BrokerRecord(broker_id=4, incarnation=A, endpoints=[EndpointRecord(listener="L", host="h", port=1)])
    last = await store.txn(
        [],
        [
            PutOp(keys.CLUSTER, encode(ClusterRecord(cluster_id="c"))),
            PutOp(keys.CONTROLLER, encode(ControllerRecord(broker_id=4))),
            PutOp(keys.broker(4), encode(broker)),
        ],
    )
    followed = Followed(store)
    await followed.watcher.start()
    view = followed.view
    assert (view.cluster_id, view.controller_id, view.revision) == ("c", 4, last.revision)
    assert {name: len(t.partitions) for name, t in view.topics.items()} == {"a": 3, "b": 1}
    assert view.topics_by_id[B] is view.topics["b"]
    endpoint = view.brokers[4].endpoint("L")
    assert endpoint is not None
    assert (endpoint.host, endpoint.port) == ("h", 1)
    assert sorted(c.new.name for c in followed.changes if c.new) == ["a", "b"]
    await followed.watcher.stop()


async def test_applied_returns_when_the_view_has_the_change(followed: Followed) -> None:
    await followed.write(*topic(A, "a"))
    assert followed.view.topics["a"].topic_id == A
    await followed.watcher.applied(followed.view.revision)


async def test_changes_of_a_partition_replace_its_topic_in_the_view(followed: Followed) -> None:
    await followed.write(*topic(A, "a", 3))
    before = followed.view.topics["a"]
    await followed.write(PutOp(keys.partition(A, 1), partition(epoch=5)))
    after = followed.view.topics["a"]
    assert [p.leader_epoch for p in after.partitions] == [0, 5, 0]
    assert [p.leader_epoch for p in before.partitions] == [0, 0, 0], "what was handed out was changed in place"
    assert followed.changes[-1] == TopicChange(before, after, [1])
    assert list(followed.changes[-1].differences()) == [(before.partitions[1], after.partitions[1])]


@pytest.mark.parametrize("seed", range(8))
async def test_what_is_followed_step_by_step_is_what_is_loaded_at_once(followed: Followed, seed: int) -> None:
    random = Random(seed)
    seen: dict[tuple[UUID, int], PartitionView] = {}

    def follow(changes: list[TopicChange]) -> None:
        for change in changes:
            for before, after in change.differences():
                topic_id = (change.new or change.old).topic_id  # type: ignore[union-attr]
                if after is not None:
                    seen[topic_id, after.index] = after
                elif before is not None:
                    del seen[topic_id, before.index]

    followed.view.subscribe(follow)
    for _ in range(60):
        operations: list[Operation] = []
        for topic_id, name in random.sample([(A, "a"), (B, "b")], random.randint(1, 2)):
            count = random.randint(1, 4)
            kind = random.randrange(5)
            if kind == 0:
                operations += topic(topic_id, name, count)
            elif kind == 1 and name in followed.view.topics:
                operations += gone(topic_id, name)
            else:
                puts = {random.randrange(5): random.randrange(3) for _ in range(count)}
                operations += [PutOp(keys.partition(topic_id, i), partition(epoch=e)) for i, e in puts.items()]
        await followed.write(*operations)
        fresh = Followed(followed.store)
        await fresh.watcher.start()
        await fresh.watcher.stop()
        assert fresh.view.topics == followed.view.topics
        expected = {(t.topic_id, p.index): p for t in fresh.view.topics.values() for p in t.partitions}
        assert seen == expected


async def test_a_topic_is_seen_when_its_name_comes_and_not_before(followed: Followed) -> None:
    *children, name = topic(A, "a", 2)
    await followed.write(*children)
    assert not followed.view.topics
    assert followed.watcher.unnamed() == [A]
    await followed.write(name)
    assert len(followed.view.topics["a"].partitions) == 2
    assert followed.watcher.unnamed() == []


async def test_a_tombstone_ends_a_topic_and_says_that_its_data_may_go(followed: Followed) -> None:
    await followed.write(*topic(A, "a"))
    tombstone = TopicRecord(name="a", topic_id=A, partition_count=1, deleting=True)
    await followed.write(PutOp(keys.topic(A), encode(tombstone)), DeleteOp(keys.topic_name("a")))
    assert not followed.view.topics
    assert not followed.view.topics_by_id
    assert followed.view.deleting == {A}
    assert followed.changes[-1].new is None
    await followed.write(*gone(A, "a"))
    assert followed.view.deleting == set()


async def test_a_tombstone_keeps_no_partitions_in_memory(followed: Followed) -> None:
    await followed.write(*topic(A, "a", 3))
    await followed.write(*topic(A, "a", 3, deleting=True))
    await followed.write(PutOp(keys.partition(A, 0), partition(epoch=9)))
    table = followed.watcher._tables.topics[A]
    assert (table.partitions, table.projected) == ({}, None)
    await followed.write(*gone(A, "a"))
    assert not followed.watcher._tables.topics


async def test_the_tombstone_alone_ends_a_topic(followed: Followed) -> None:
    await followed.write(*topic(A, "a"))
    await followed.write(*topic(A, "a", deleting=True))
    assert not followed.view.topics


async def test_a_topic_that_vanishes_without_a_tombstone_is_no_reason_to_remove_data(followed: Followed) -> None:
    await followed.write(*topic(A, "a"))
    await followed.write(*gone(A, "a"))
    assert not followed.view.topics
    assert followed.view.deleting == set()


async def test_a_recreated_topic_is_one_that_goes_and_one_that_comes(followed: Followed) -> None:
    await followed.write(*topic(A, "t"))
    followed.changes.clear()
    await followed.write(*[op for op in gone(A, "t") if op.key != keys.topic_name("t")], *topic(B, "t"))
    assert [(c.old and c.old.topic_id, c.new and c.new.topic_id) for c in followed.changes] == [(A, None), (None, B)]
    assert followed.view.topics["t"].topic_id == B
    assert set(followed.view.topics_by_id) == {B}


async def test_listeners_are_told_after_the_view_has_changed(followed: Followed) -> None:
    seen: list[tuple[int, bool]] = []
    followed.view.subscribe(lambda _: seen.append((followed.view.revision, "a" in followed.view.topics)))
    await followed.write(*topic(A, "a"))
    assert seen == [(followed.view.revision, True)]


async def test_a_listener_that_fails_does_not_stop_the_others(followed: Followed) -> None:
    def fails(changes: list[TopicChange]) -> None:
        raise RuntimeError("planned")

    followed.view.listeners.insert(0, fails)
    await followed.write(*topic(A, "a"))
    await followed.write(*topic(B, "b"))
    assert [c.new.name for c in followed.changes if c.new] == ["a", "b"]


async def test_groups_and_offsets_do_not_wake_the_watcher(followed: Followed) -> None:
    before = followed.view.revision
    await followed.store.txn([], [PutOp(keys.group("g"), b"{}"), PutOp(keys.offset("g", A, 0), b"{}")])
    await followed.write(*topic(A, "a"))
    assert followed.view.revision == before + 2


async def test_revisions_are_applied_in_order(followed: Followed) -> None:
    await followed.write(*topic(A, "a"))
    writes = [followed.store.txn([], [PutOp(keys.partition(A, 0), partition(epoch=e))]) for e in range(1, 40)]
    results = await asyncio.gather(*writes)
    async with asyncio.timeout(60):
        await followed.watcher.applied(results[-1].revision)
    epochs = [c.new.partitions[0].leader_epoch for c in followed.changes if c.new]
    assert epochs == sorted(epochs)
    assert epochs[-1] == 39


async def test_a_watcher_that_missed_changes_reads_all_again_and_tells_the_difference(
    followed: Followed, store: EmbeddedStore
) -> None:
    await followed.write(*topic(A, "a"), *topic(UUID(int=12), "kept"))
    followed.changes.clear()
    kept = followed.view.topics["kept"]
    writes = [store.txn([], [PutOp(keys.partition(A, 0), partition(epoch=e))]) for e in range(1, 200)]
    writes += [store.txn([], topic(B, "b")), store.txn([], gone(A, "a"))]
    results = await asyncio.gather(*writes)
    async with asyncio.timeout(60):
        await followed.watcher.applied(results[-1].revision)
    assert followed.watcher.loads == 2
    assert set(followed.view.topics) == {"b", "kept"}
    assert followed.view.topics["kept"] is kept
    assert [(c.old and c.old.name, c.new and c.new.name) for c in followed.changes] == [("a", None), (None, "b")]


HOSTILE = [b"", b"not json", b"{}", b"[1]", b"\xff"]


@pytest.mark.parametrize("value", HOSTILE)
async def test_values_that_are_no_records_are_reported_by_key_and_change_nothing(
    followed: Followed, value: bytes
) -> None:
    await followed.write(*topic(A, "a", 2), PutOp(keys.CLUSTER, encode(ClusterRecord(cluster_id="c"))))
    before = followed.view.topics["a"]
    bad = [keys.topic(A), keys.partition(A, 1), keys.CLUSTER, keys.broker(9), keys.topic_name("x"), keys.CONTROLLER]
    await followed.write(*[PutOp(key, value) for key in [*bad, keys.broker_config(None)]])
    assert followed.view.topics["a"] is before
    assert followed.view.cluster_id == "c"
    assert set(followed.watcher.problems) == {*bad, keys.broker_config(None)}
    await followed.write(*topic(A, "a", 2), *topic(B, "b"))
    assert "b" in followed.view.topics
    assert not {keys.topic(A), keys.partition(A, 1)} & set(followed.watcher.problems)


@pytest.mark.parametrize(
    "key",
    [
        keys.TOPICS + "no-id",
        keys.PARTITIONS + "no-id/0",
        keys.partitions(A) + "x",
        keys.partitions(A) + "-1",
        keys.partitions(A) + "00",
        keys.partitions(A) + "9" * 5000,
        keys.PARTITIONS + "{" + str(A) + "}/0",
        keys.SHARDS + "9" * 5000,
        keys.PARTITIONS + str(A),
        keys.METADATA + "unheard/of",
    ],
)
async def test_keys_that_are_none_of_ours_disturb_nothing(followed: Followed, key: str) -> None:
    await followed.write(PutOp(key, partition()))
    await followed.write(*topic(A, "a"))
    assert "a" in followed.view.topics
    await followed.write(DeleteOp(key))
    await followed.write(*topic(B, "b"))
    assert "b" in followed.view.topics


@pytest.mark.parametrize("index", ["-1", "01"])
async def test_a_partition_under_a_second_key_does_not_replace_the_first(followed: Followed, index: str) -> None:
    await followed.write(*topic(A, "a", 2))
    await followed.write(PutOp(keys.partitions(A) + index, partition(leader=-1, epoch=5)))
    assert [p.leader_epoch for p in followed.view.topics["a"].partitions] == [0, 0]
    await followed.write(DeleteOp(keys.partitions(A) + index))
    assert len(followed.view.topics["a"].partitions) == 2


async def test_a_record_under_the_key_of_another_is_rejected(followed: Followed) -> None:
    await followed.write(*topic(A, "a"))
    other = encode(TopicRecord(name="a", topic_id=B, partition_count=1))
    broker = encode(BrokerRecord(broker_id=4, incarnation=A, endpoints=[]))
    await followed.write(PutOp(keys.topic(A), other), PutOp(keys.broker(5), broker))
    assert set(followed.watcher.problems) == {keys.topic(A), keys.broker(5)}
    assert followed.view.topics["a"].topic_id == A
    assert followed.view.brokers == {}


async def test_what_is_not_understood_when_all_is_read_again_stays_as_it_was(
    followed: Followed, store: EmbeddedStore
) -> None:
    await followed.write(*topic(A, "a", 2))
    writes = [store.txn([], [PutOp(keys.broker_config(7), b'{"settings":{}}')]) for _ in range(200)]
    writes += [store.txn([], [PutOp(keys.topic(A), b"broken"), PutOp(keys.partition(A, 1), b"broken")])]
    results = await asyncio.gather(*writes)
    async with asyncio.timeout(60):
        await followed.watcher.applied(results[-1].revision)
    assert followed.watcher.loads == 2
    assert len(followed.view.topics["a"].partitions) == 2
    assert set(followed.watcher.problems) == {keys.topic(A), keys.partition(A, 1)}


async def test_a_topic_whose_name_is_not_understood_stays_when_all_is_read_again(followed: Followed) -> None:
    await followed.write(*topic(A, "a"), *topic(B, "b"))
    await followed.write(PutOp(keys.topic_name("a"), b"broken"))
    await followed.watcher._reload()
    assert set(followed.view.topics) == {"a", "b"}
    assert followed.watcher.unnamed() == []
    await followed.write(DeleteOp(keys.topic_name("a")))
    assert followed.watcher.unnamed() == [A], "a topic whose name is deleted counts as unnamed"


@pytest.mark.parametrize("also_broken", [[], [keys.topic(A)], [keys.partition(A, 0)]])
async def test_a_topic_whose_name_was_never_understood_is_not_taken_for_one_without(
    store: EmbeddedStore, also_broken: list[str]
) -> None:
    await store.txn([], [*topic(A, "a", 2), *topic(B, "b")[:-1]])
    await store.txn([], [PutOp(key, b"broken") for key in [keys.topic_name("a"), *also_broken]])
    followed = Followed(store)
    await followed.watcher.start()
    assert followed.watcher.unnamed() == [B]
    await followed.watcher.stop()


async def test_a_topic_that_lacks_a_partition_is_reported_and_not_seen(store: EmbeddedStore) -> None:
    await store.txn([], [*topic(A, "a", 3), *topic(B, "b")])
    await store.txn([], [DeleteOp(keys.partition(A, 1))])
    followed = Followed(store)
    await followed.watcher.start()
    assert set(followed.view.topics) == {"b"}
    assert keys.partition(A, 1) in followed.watcher.problems
    await followed.write(PutOp(keys.partition(A, 1), partition()))
    assert set(followed.view.topics) == {"a", "b"}
    assert not followed.watcher.problems
    await followed.watcher.stop()


async def test_settings_of_topics_and_brokers_make_a_topics_configuration(followed: Followed) -> None:
    await followed.write(*topic(A, "a"), *topic(B, "b", overrides={"retention.ms": "5"}))
    settings = BrokerConfigRecord(settings={"log.retention.ms": "7", "log.segment.bytes": "4096"})
    await followed.write(PutOp(keys.broker_config(None), encode(settings)))
    assert followed.view.topics["a"].config.retention_ms == 7
    assert followed.view.topics["b"].config.retention_ms == 5
    assert followed.view.topics["b"].config.segment_bytes == 4096
    assert followed.config.topic_defaults.retention_ms == 7
    await followed.write(DeleteOp(keys.broker_config(None)))
    assert followed.view.topics["a"].config.retention_ms != 7


async def test_topics_without_settings_of_their_own_share_one_configuration(followed: Followed) -> None:
    await followed.write(*topic(A, "a"), *topic(B, "b"))
    assert followed.view.topics["a"].config is followed.view.topics["b"].config is followed.config.topic_defaults


async def test_a_broker_that_goes_leaves_the_view(followed: Followed) -> None:
    await followed.write(PutOp(keys.broker(1), encode(BrokerRecord(broker_id=1, incarnation=A, endpoints=[]))))
    assert set(followed.view.brokers) == {1}
    await followed.write(DeleteOp(keys.broker(1)))
    assert not followed.view.brokers


async def test_a_failure_while_applying_changes_is_survived(
    followed: Followed, advance: Callable[[float], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: object) -> None:
        raise RuntimeError("planned")

    monkeypatch.setattr(Tables, "project", fails)
    result = await followed.store.txn([], topic(A, "a"))
    waiting = asyncio.ensure_future(followed.watcher.applied(result.revision))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    monkeypatch.undo()
    async with asyncio.timeout(100):
        await advance(10)
        await waiting
    assert "a" in followed.view.topics


async def test_whoever_stops_a_watcher_can_be_cancelled(followed: Followed) -> None:
    stopping = asyncio.ensure_future(followed.watcher.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    await asyncio.wait([stopping])
    assert stopping.cancelled()


async def test_a_store_that_is_away_for_a_while_is_followed_again(store: EmbeddedStore) -> None:
    followed = Followed(store)
    await followed.watcher.start()
    store._failure = StoreError("planned")
    store._wake_watchers()
    await asyncio.sleep(0)
    store._failure = None
    await followed.write(*topic(A, "a"))
    assert "a" in followed.view.topics
    await followed.watcher.stop()
