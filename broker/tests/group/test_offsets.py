"""Committed offsets: durable before the response, coalesced, bound to the topic id."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from penstock.group.offset_table import OffsetKey, OffsetTable
from penstock.group.offsets import OffsetCommit
from penstock.group.request_queue import RequestQueue
from penstock.group.shard_writer import LocalShardGuard, ShardWriter
from penstock.state import keys, records
from penstock.state.records import OffsetRecord
from penstock.state.store import MAX_TXN_OPERATIONS, PutOp, StoreUnavailable, TxnResult
from penstock.wire.errors import ErrorCode
from penstock.wire.offset_metadata import NO_POSITION


class PausedStore:
    """A store that holds transactions until released, and can reject them."""

    def __init__(self):
        self.txns = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.bad_keys = set()
        self.unavailable = False
        self.values = {}

    async def txn(self, compares, then, otherwise=()):
        self.txns.append([op.key for op in then])
        await self.gate.wait()
        if self.unavailable:
            raise StoreUnavailable("no answer")
        if self.bad_keys & {op.key for op in then}:
            raise ValueError("a bad key")
        assert len(then) <= MAX_TXN_OPERATIONS
        for op in then:
            self.values[op.key] = getattr(op, "value", None)
        return TxnResult(True, len(self.txns))


def writer_of(store, applied):
    return ShardWriter(RequestQueue(store), applied, LocalShardGuard(0), pytest.fail, pytest.fail)


def put(key, value=b"v"):
    return (PutOp(key, value), key)


async def test_writes_of_one_turn_share_a_transaction():
    store, applied = PausedStore(), []
    writer = writer_of(store, applied.extend)
    results = [writer.submit([put(f"k{i}")]) for i in range(100)]
    assert await asyncio.gather(*results) == [[]] * 100
    assert len(store.txns) == 1
    assert len(applied) == 100


async def test_while_a_transaction_is_in_flight_writes_collect_and_the_last_of_a_key_wins():
    store, applied = PausedStore(), []
    writer = writer_of(store, applied.extend)
    store.gate.clear()
    first = writer.submit([put("k", b"0")])
    await asyncio.sleep(0)
    later = [writer.submit([put("k", str(i).encode())]) for i in range(1, 1001)]
    await asyncio.sleep(0)
    assert len(store.txns) == 1, "one in flight"
    assert writer.outstanding_tokens() == ["k", "k"]
    store.gate.set()
    assert await asyncio.gather(first, *later) == [[]] * 1001
    assert store.txns == [["k"], ["k"]]
    assert store.values["k"] == b"1000"


async def test_nothing_is_applied_before_the_store_has_it():
    store, applied = PausedStore(), []
    writer = writer_of(store, applied.extend)
    store.gate.clear()
    done = writer.submit([put("k")])
    await asyncio.sleep(0.01)
    assert (applied, done.done()) == ([], False)
    store.gate.set()
    await done
    assert applied == ["k"]


async def test_a_large_write_is_split_into_transactions_that_the_store_takes():
    store, applied = PausedStore(), []
    writer = writer_of(store, applied.extend)
    assert await writer.submit([put(f"k{i}") for i in range(300)]) == []
    assert [len(txn) for txn in store.txns] == [128, 128, 44]
    assert len(applied) == 300


async def test_transactions_are_bounded_in_bytes_too():
    store = PausedStore()
    writer = writer_of(store, lambda tokens: None)
    await writer.submit([put(f"k{i}", b"x" * 400_000) for i in range(4)])
    assert [len(txn) for txn in store.txns] == [2, 2]


async def test_tied_writes_are_never_parted_by_a_split():
    store = PausedStore()
    writer = writer_of(store, lambda tokens: None)
    writes = [put(f"{side}{i}") for i in range(200) for side in "ab"]
    assert await writer.submit([put("odd"), *writes], [(f"a{i}", f"b{i}") for i in range(200)]) == []
    assert [len(txn) for txn in store.txns] == [127, 128, 128, 18]
    for txn in store.txns:
        assert all((f"a{i}" in txn) == (f"b{i}" in txn) for i in range(200))


async def test_a_tie_holds_where_one_of_the_two_was_waiting_already():
    store = PausedStore()
    writer = writer_of(store, lambda tokens: None)
    store.gate.clear()
    first = writer.submit([put("under way")])
    await asyncio.sleep(0)
    waiting = writer.submit([put("pending")])
    others = writer.submit([put(f"k{i}") for i in range(127)])
    tied = writer.submit([put("offset"), put("pending", b"")], [("offset", "pending")])
    store.gate.set()
    await asyncio.gather(first, waiting, others, tied)
    assert {"offset", "pending"} <= set(store.txns[1])
    assert store.values["pending"] == b""


async def test_more_tied_writes_than_a_transaction_takes_are_written_all_the_same():
    store = PausedStore()
    writer = writer_of(store, lambda tokens: None)
    names = [f"k{i}" for i in range(300)]
    assert await writer.submit([put(name) for name in names], [("k0", name) for name in names[1:]]) == []
    assert sorted(store.values) == sorted(names)


async def test_a_single_write_may_be_larger_than_what_is_put_together():
    store = PausedStore()
    writer = writer_of(store, lambda tokens: None)
    assert await writer.submit([put("a"), put("large", b"x" * (2 << 20)), put("b")]) == []
    assert store.txns == [["a"], ["large"], ["b"]]


async def test_one_bad_key_fails_alone():
    store, applied = PausedStore(), []
    writer = writer_of(store, applied.extend)
    store.bad_keys = {"k7"}
    bystander = writer.submit([put("other")])
    assert await writer.submit([put(f"k{i}") for i in range(20)]) == [7]
    assert await bystander == []
    assert len(applied) == 20
    assert len(store.values) == 20


async def test_where_the_store_does_not_answer_all_fail_and_the_next_may_succeed():
    store, applied = PausedStore(), []
    writer = writer_of(store, applied.extend)
    store.unavailable = True
    assert await writer.submit([put("a"), put("b")]) == [0, 1]
    assert len(store.txns) == 1, "what is not answered is not tried in halves"
    store.unavailable = False
    assert await writer.submit([put("a")]) == []
    assert applied == ["a"]


async def test_a_defect_while_applying_leaves_nobody_waiting():
    store = PausedStore()

    def applied(tokens):
        raise AssertionError("defect")

    writer = writer_of(store, applied)
    task_errors = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: task_errors.append(context))
    assert await writer.submit([put("a")]) == [0]
    assert writer.outstanding_tokens() == []


async def test_closing_waits_for_what_is_under_way():
    store, applied = PausedStore(), []
    writer = writer_of(store, applied.extend)
    writer.submit([put("a")])
    await writer.drain()
    assert applied == ["a"]


def test_groups_are_spread_over_the_shards():
    assert {keys.shard_of(f"group-{i}") for i in range(2000)} == set(range(64))
    assert keys.shard_of("flights") == 42, "every broker must find the same"


# --- embedded store


def test_a_commit_is_in_the_store_when_it_is_answered_and_survives_a_restart(run_world):
    async def scene(world):
        t = world.create_topic("t")
        begun_ms = world.clock.wall_ms()  # the clock advances during the write
        assert await world.groups.commit("g", [OffsetCommit(t, 1, 42, 7, "note")]) == []
        assert (await world.store.get(keys.offset("g", t, 1))) is not None
        await world.restart()
        record = world.groups.offsets.table.get(OffsetKey("g", t, 1))
        assert (record.offset, record.leader_epoch, record.metadata) == (42, 7, "note")
        assert record.commit_ms == begun_ms

    run_world(scene)


def test_thousands_of_commits_share_few_transactions(run_world):
    async def scene(world):
        t = world.create_topic("t", 100)
        commits = [world.groups.commit("g", [OffsetCommit(t, i % 100, i, -1, "")]) for i in range(10_000)]
        assert await asyncio.gather(*commits) == [[]] * 10_000
        assert world.groups.offsets.writers.transactions == 1
        assert {c.offset for c in world.groups.committed()} == set(range(9_900, 10_000))

    run_world(scene)


def test_an_offset_that_is_no_position_has_no_lag(run_world):
    async def scene(world):
        t = world.create_topic("t", 2)
        note = f"{NO_POSITION}query rows=5"
        await world.groups.commit("g", [OffsetCommit(t, 0, 7, -1, note), OffsetCommit(t, 1, 0, -1, "other")])
        assert [(c.partition, c.offset) for c in world.groups.committed()] == [(1, 0)]

    run_world(scene)


def test_a_negative_offset_is_no_committed_offset_for_the_metrics(run_world):
    async def scene(world):
        t = world.create_topic("t", 2)
        await world.groups.commit("g", [OffsetCommit(t, 0, -2, -1, ""), OffsetCommit(t, 1, 0, -1, "")])
        assert [(c.partition, c.offset) for c in world.groups.committed()] == [(1, 0)]

    run_world(scene)


def test_a_failed_commit_changes_nothing_in_memory(run_world):
    async def scene(world):
        t = world.create_topic("t")
        await world.groups.commit("g", [OffsetCommit(t, 0, 1, -1, "")])
        await world.store.close()
        assert await world.groups.commit("g", [OffsetCommit(t, 0, 2, -1, "")]) == [0]
        assert [c.offset for c in world.groups.committed()] == [1]

    run_world(scene)


def test_a_deleted_topic_takes_its_offsets_along(run_world):
    async def scene(world):
        t, u = world.create_topic("t"), world.create_topic("u")
        for group in ("g", "h"):
            await world.groups.commit(
                group, [OffsetCommit(t, 0, 1, -1, ""), OffsetCommit(t, 1, 1, -1, ""), OffsetCommit(u, 0, 1, -1, "")]
            )
        world.delete_topic("t")
        await asyncio.sleep(0.1)
        assert sorted((c.group_id, c.topic) for c in world.groups.committed()) == [("g", "u"), ("h", "u")]
        assert len((await world.store.range(keys.OFFSETS)).entries) == 2

    run_world(scene)


def test_a_topic_of_the_same_name_starts_without_offsets(run_world):
    async def scene(world):
        t = world.create_topic("t")
        await world.groups.commit("g", [OffsetCommit(t, 0, 1, -1, "")])
        world.delete_topic("t")
        again = world.create_topic("t")
        assert world.groups.offsets.table.get(OffsetKey("g", again, 0)) is None
        assert list(world.groups.committed()) == []

    run_world(scene)


def test_a_commit_that_becomes_durable_after_its_topic_went_is_taken_back(run_world):
    async def scene(world):
        t = world.create_topic("t")
        commit = world.groups.commit("g", [OffsetCommit(t, 0, 1, -1, "")])
        world.delete_topic("t")
        await commit
        await asyncio.sleep(0.1)
        assert (await world.store.range(keys.OFFSETS)).entries == []

    run_world(scene)


def test_offsets_of_a_topic_that_was_deleted_before_a_restart_go_afterwards(run_world):
    async def scene(world):
        t = world.create_topic("t")
        await world.groups.commit("g", [OffsetCommit(t, 0, 1, -1, "")])
        world.view.listeners.clear()
        world.delete_topic("t")
        await world.restart()
        assert list(world.groups.committed()) == []
        await world.groups.delete_topic_offsets(t)
        assert (await world.store.range(keys.OFFSETS)).entries == []

    run_world(scene)


def test_offsets_of_a_topic_that_is_missing_without_having_been_deleted_are_kept(run_world):
    async def scene(world):
        t = world.create_topic("t")
        await world.groups.commit("g", [OffsetCommit(t, 0, 1, -1, "")])
        topic = world.view.topics.pop("t")
        del world.view.topics_by_id[t]
        await world.restart()
        assert list(world.groups.committed()) == []
        world.view.topics["t"] = world.view.topics_by_id[t] = topic
        await world.restart()
        assert [c.offset for c in world.groups.committed()] == [1]

    run_world(scene)


def test_forgetting_a_topic_waits_for_commits_on_their_way_and_takes_them_along(run_world):
    async def scene(world):
        t = world.create_topic("t")
        commit = world.groups.commit("g", [OffsetCommit(t, 0, 1, -1, "")])
        await asyncio.sleep(0)
        pending = world.groups.commit("g", [OffsetCommit(t, 1, 1, -1, "")])
        world.view.listeners.clear()
        world.delete_topic("t")
        await world.groups.delete_topic_offsets(t)
        assert (await world.store.range(keys.OFFSETS)).entries == []
        assert commit.done()
        assert pending.done()

    run_world(scene)


def test_where_offsets_of_a_deleted_topic_cannot_be_deleted_that_is_said(run_world):
    async def scene(world):
        t = world.create_topic("t")
        await world.groups.commit("g", [OffsetCommit(t, 0, 1, -1, "")])
        world.delete_topic("t")
        await world.store.close()
        with pytest.raises(StoreUnavailable):
            await world.groups.delete_topic_offsets(t)

    run_world(scene)


def test_group_ids_of_any_kind_keep_apart(run_world):
    async def scene(world):
        t = world.create_topic("t")
        names = ["a", "a/b", "a%2Fb", "ä", "", " ", "a\x00b"]
        for offset, name in enumerate(names):
            assert await world.groups.commit(name, [OffsetCommit(t, 0, offset, -1, "")]) == []
        await world.restart()
        assert {c.group_id: c.offset for c in world.groups.committed()} == {n: i for i, n in enumerate(names)}

    run_world(scene)


def test_the_table_forgets_what_is_removed():
    table, topic_id = OffsetTable(), uuid4()
    key = OffsetKey("g", topic_id, 3)
    table.put(key, OffsetRecord(offset=1))
    assert list(table.topic_keys(topic_id)) == [key]
    table.remove(key._replace(partition=4))
    table.remove(key._replace(group_id="h"))
    assert "g" in table
    table.remove(key)
    table.remove(key)
    assert "g" not in table
    assert list(table.topic_keys(topic_id)) == []
    assert table.get(key) is None


def test_offsets_that_a_transaction_brings_to_a_group_that_was_asked_for_before_go_with_their_topic(run_world):
    async def scene(world):
        t = world.create_topic("t")
        assert await world.groups.reads.prepare(["g"]) == {"g": ErrorCode.NONE}
        key, record = OffsetKey("g", t, 0), OffsetRecord(offset=7, commit_ms=world.clock.wall_ms())
        writer = world.groups.offsets.writers.for_group("g")
        assert await writer.submit([(PutOp(keys.offset(*key), records.encode(record)), (key, record))]) == []
        await asyncio.sleep(1)
        assert [c.offset for c in world.groups.committed()] == [7]
        world.delete_topic("t")
        await world.groups.delete_topic_offsets(t)
        assert (await world.store.range(keys.OFFSETS)).entries == []

    run_world(scene)


async def test_a_shard_has_one_transaction_in_flight_whose_keys_complete_once():
    store = PausedStore()
    store.gate.clear()
    writer = writer_of(store, lambda tokens: None)
    writer.submit([put("a")])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert store.txns == [["a"]]
    writer.submit([put("b")])
    with pytest.raises(AssertionError, match="a transaction of 1 keys of the shard is in flight"):
        writer.pop_writes(10, 1000)
    ((write, index),) = writer.in_flight["a"].waiting
    store.gate.set()
    await writer.drain()
    with pytest.raises(AssertionError, match="key 0 of a write completes twice"):
        write.complete_key(index, ok=True)
