"""Moves of coordinator shards between brokers: no commit is lost and no request is answered twice."""

from __future__ import annotations

import asyncio
from itertools import count
from uuid import uuid4

import pytest
from shards_kit import request, stable
from structlog.testing import capture_logs

from penstock.group.calls import SyncRequest
from penstock.group.coordinator_shard import LoadedKey
from penstock.group.offsets import OffsetCommit
from penstock.group.ownership import LocalShardOwnership
from penstock.runtime.unhandled_errors import UnhandledErrors
from penstock.state import keys, records
from penstock.state.embedded import EmbeddedStore
from penstock.state.store import PutOp, StoreError
from penstock.wire.errors import ErrorCode

E = ErrorCode


class FailingListener:
    """A listener that cannot load a shard with groups until it `is_fixed`."""

    prefixes = (keys.GROUPS,)

    def __init__(self):
        self.is_fixed = False
        self.loads = 0

    def on_acquired(self, shard, found):
        with LoadedKey() as loading:
            for entry in found[0]:
                loading.key = entry.key
                self.loads += 1
                assert self.is_fixed, "the invariant"

    def on_resigned(self, shard):
        """Do nothing."""


# --- shard ownership


def test_a_group_is_served_by_the_owner_of_its_shard_and_by_nobody_else(run_cluster):
    async def scene(cluster):
        t = await cluster.create_topic("t")
        owners = set()
        for n in range(20):
            group_id = f"g{n}"
            owner = cluster.owner(group_id)
            owners.add(owner.broker_id)
            assert await owner.commit(group_id, t, n) is E.NONE
            assert await owner.offset(group_id, t) == n
            for other in cluster.others(owner):
                assert other.groups.coordinator_of(group_id) == owner.broker_id
                assert await other.commit(group_id, t, 99) is E.NOT_COORDINATOR
                assert await other.offset(group_id, t) is E.NOT_COORDINATOR
                assert (await other.groups.join(group_id, request())).error is E.NOT_COORDINATOR
                assert other.groups.heartbeat(group_id, "m", None, 1) is E.NOT_COORDINATOR
                assert other.groups.leave(group_id, [("m", None)])[0] is E.NOT_COORDINATOR
        assert owners == {1, 2}

    run_cluster(scene)


def test_while_a_shard_has_no_living_owner_there_is_no_coordinator(run_cluster):
    async def scene(cluster):
        owner = cluster.owner("g")
        await owner.kill()
        await asyncio.sleep(0.1)
        (other,) = cluster.brokers.values()
        assert other.groups.coordinator_of("g") == -1
        await cluster.assign()
        assert other.groups.coordinator_of("g") == other.broker_id

    run_cluster(scene)


def test_a_new_incarnation_of_a_broker_does_not_own_what_the_last_one_did(run_cluster):
    async def scene(cluster):
        await cluster.brokers[1].kill()
        again = await cluster.add(1)
        assert again.groups.coordinator_of("g") == -1
        assert again.groups.heartbeat("g", "m", None, 1) is E.NOT_COORDINATOR
        await cluster.assign()
        assert again.groups.coordinator_of("g") == 1

    run_cluster(scene, brokers=1)


def test_until_a_shard_is_loaded_clients_wait_and_members_stay(run_cluster):
    async def scene(cluster):
        old = cluster.owner("g")
        member = await stable(old, "g")
        (new,) = cluster.others(old)
        new.line.is_cut = True
        await cluster.assign(draining={old.broker_id})
        assert new.groups.heartbeat("g", member.member_id, None, 1) is E.NONE
        assert new.groups.heartbeat("g", "stranger", None, 7) is E.NONE
        assert new.groups.heartbeat("", "stranger", None, 7) is E.INVALID_GROUP_ID
        assert (await new.groups.join("g", request())).error is E.COORDINATOR_LOAD_IN_PROGRESS
        assert new.groups.unavailable is E.COORDINATOR_LOAD_IN_PROGRESS
        new.line.is_cut = False
        await asyncio.sleep(2)
        assert new.groups.heartbeat("g", member.member_id, None, 1) is E.NONE
        assert new.groups.heartbeat("g", "stranger", None, 7) is E.UNKNOWN_MEMBER_ID
        assert new.groups.unavailable is E.NONE

    run_cluster(scene)


def test_a_shard_that_cannot_be_loaded_is_loaded_again_until_that_succeeds(run_cluster):
    async def scene(cluster):
        old = cluster.owner("g")
        member = await stable(old, "g")
        errors, loop = UnhandledErrors(), asyncio.get_running_loop()
        errors.install(loop)
        (new,) = cluster.others(old)
        bug = FailingListener()
        new.groups.ownership.add_listener(bug)
        with capture_logs() as logged:
            await cluster.assign(draining={old.broker_id})
            await asyncio.sleep(20)
        loop.set_exception_handler(None)
        assert 4 <= bug.loads <= 5, "1, 2, 4 and 8 s apart"
        assert errors.count == bug.loads
        reports = [event for event in logged if event["event"] == "cannot load coordinator shard: retrying"]
        assert {(event["shard"], event["key"]) for event in reports} == {(keys.shard_of("g"), keys.group("g"))}
        assert new.groups.heartbeat("g", member.member_id, None, 1) is E.COORDINATOR_NOT_AVAILABLE
        assert (await new.groups.join("g", request())).error is E.COORDINATOR_NOT_AVAILABLE
        assert new.groups.unavailable is E.COORDINATOR_NOT_AVAILABLE
        assert new.groups.ownership.failed == [keys.shard_of("g")]
        assert (await new.groups.join("other", request())).error is not E.COORDINATOR_NOT_AVAILABLE
        bug.is_fixed = True
        await asyncio.sleep(13)
        assert new.groups.heartbeat("g", member.member_id, None, 1) is E.NONE
        assert new.groups.unavailable is E.NONE
        assert new.groups.ownership.failed == []
        beside = next(name for name in map(str, count()) if keys.shard_of(name) == keys.shard_of("g"))
        assert await new.commit(beside, uuid4(), 5) is E.NONE

    run_cluster(scene)


def test_a_single_broker_serves_the_shards_beside_one_that_it_cannot_load(run_cluster):
    async def scene(cluster):
        store, bug = EmbeddedStore(":memory:"), FailingListener()
        await store.txn((), [PutOp(keys.group("g"), records.encode(records.GroupRecord()))])
        errors, loop = UnhandledErrors(), asyncio.get_running_loop()
        errors.install(loop)
        owned = LocalShardOwnership(store, 1)
        owned.add_listener(bug)
        await owned.start()
        assert owned.failed == [keys.shard_of("g")]
        assert owned.error(keys.shard_of("g")) is E.COORDINATOR_NOT_AVAILABLE
        bug.is_fixed = True
        await asyncio.sleep(2)
        loop.set_exception_handler(None)
        assert (owned.failed, errors.count, bug.loads) == ([], 1, 2)
        owned.close()
        await store.close()

    run_cluster(scene)


def test_a_shard_whose_reads_the_store_rejects_is_not_available(run_cluster):
    async def scene(cluster):
        old = cluster.owner("g")
        (new,) = cluster.others(old)
        new.line.error = StoreError("permission denied")
        await cluster.assign(draining={old.broker_id})
        await asyncio.sleep(1)
        assert (await new.groups.join("g", request())).error is E.COORDINATOR_NOT_AVAILABLE
        new.line.error = None
        await asyncio.sleep(8)
        assert new.groups.unavailable is E.NONE

    run_cluster(scene)


# --- failover


@pytest.mark.parametrize("instance_id", [None, "static"])
def test_a_group_survives_its_coordinators_kill_without_a_rebalance_or_a_lost_commit(run_cluster, instance_id):
    async def scene(cluster):
        t = await cluster.create_topic("t")
        old = cluster.owner("g")
        member = await stable(old, "g", instance_id=instance_id)
        assert not await old.groups.commit("g", [OffsetCommit(t, 0, 7, -1, "")])
        await old.kill()
        await cluster.assign()
        new = cluster.owner("g")
        assert new is not old
        for _ in range(10):  # longer than the session timeout
            assert new.groups.heartbeat("g", member.member_id, instance_id, member.generation) is E.NONE
            await asyncio.sleep(5)
        assert new.groups.check_commit("g", member.member_id, instance_id, member.generation, ()) is E.NONE
        synced = await new.groups.sync("g", SyncRequest(member.member_id, member.generation, instance_id))
        assert (synced.error, synced.assignment) == (E.NONE, b"mine")
        assert await new.offset("g", t) == 7
        assert new.groups.find("g").phases.generation == member.generation

    run_cluster(scene)


def test_members_that_died_with_their_coordinator_expire_under_the_new_one(run_cluster):
    async def scene(cluster):
        old = cluster.owner("g")
        await stable(old, "g")
        await old.kill()
        await cluster.assign()
        new = cluster.owner("g")
        assert len(new.groups.find("g").member_list) == 1
        await asyncio.sleep(11)
        assert len(new.groups.find("g").member_list) == 0

    run_cluster(scene)


def test_who_waits_at_a_coordinator_that_loses_the_shard_is_sent_away_and_its_timers_end(run_cluster):
    async def scene(cluster):
        old = cluster.owner("g")
        await stable(old, "g")
        waiting = old.groups.join("g", request())
        await asyncio.sleep(0.1)
        running = old.groups._groups.running("g")
        assert not waiting.done()
        await cluster.assign(draining={old.broker_id})
        assert waiting.result().error is E.NOT_COORDINATOR
        assert running.timer is None
        assert old.groups.group_ids() == []
        assert not old.groups.exists("g")
        assert cluster.owner("g").groups.find("g") is not None

    run_cluster(scene)


def test_generations_of_an_empty_group_go_on_under_the_new_coordinator(run_cluster):
    async def scene(cluster):
        old = cluster.owner("g")
        member = await stable(old, "g")
        old.groups.leave("g", [(member.member_id, None)])
        await asyncio.sleep(0.1)
        await old.kill()
        await cluster.assign()
        joined = await cluster.owner("g").groups.join("g", request())
        assert joined.generation == 3

    run_cluster(scene)


# --- deposed coordinators


def test_a_coordinator_that_lost_its_shard_cannot_commit(run_cluster):
    async def scene(cluster):
        t = await cluster.create_topic("t")
        old = cluster.owner("g")
        await old.commit("g", t, 1)
        await old.freeze()
        await cluster.assign(only=cluster.others(old)[0].broker_id)
        (new,) = cluster.others(old)
        assert await new.commit("g", t, 5) is E.NONE
        assert old.groups.error("g") is E.NONE, "it does not know yet"
        assert await old.commit("g", t, 3) is E.NOT_COORDINATOR
        assert old.groups.error("g") is E.NOT_COORDINATOR, "now it does"
        assert await cluster.stored_offset("g", t) == 5

    run_cluster(scene)


def test_a_coordinator_that_lost_its_shard_hands_out_no_assignment(run_cluster):
    async def scene(cluster):
        old = cluster.owner("g")
        await old.freeze()
        await cluster.assign(only=cluster.others(old)[0].broker_id)
        joined = await old.groups.join("g", request())
        plan = {joined.member_id: b"mine"}
        synced = await old.groups.sync("g", SyncRequest(joined.member_id, joined.generation, assignments=plan))
        assert synced.error in (E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE)
        assert synced.assignment == b""
        assert await cluster.store.get(keys.group("g")) is None

    run_cluster(scene)


def test_a_coordinator_that_lost_its_shard_tells_no_offsets(run_cluster):
    async def scene(cluster):
        t = await cluster.create_topic("t")
        old = cluster.owner("g")
        await old.commit("g", t, 1)
        await old.freeze()
        (new,) = cluster.others(old)
        await cluster.assign(only=new.broker_id)
        await new.commit("g", t, 5)
        assert await old.offset("g", t) is E.NOT_COORDINATOR
        assert await new.offset("g", t) == 5

    run_cluster(scene)


def test_a_lost_shard_takes_no_other_down_with_it(run_cluster):
    async def scene(cluster):
        t = await cluster.create_topic("t")
        (broker,) = cluster.brokers.values()
        await broker.freeze()
        shard = broker.view.shards[keys.shard_of("g")]
        record = records.ShardRecord(broker_id=9, broker_epoch=1, epoch=shard.epoch + 1)
        await cluster.store.txn((), [PutOp(keys.shard(keys.shard_of("g")), records.encode(record))])
        names = ["g", *(f"h{n}" for n in range(300) if keys.shard_of(f"h{n}") != keys.shard_of("g"))]
        errors = await asyncio.gather(*[broker.commit(name, t, 1) for name in names])
        assert errors[0] is E.NOT_COORDINATOR
        assert set(errors[1:]) == {E.NONE}

    run_cluster(scene, brokers=1)


def test_many_who_ask_for_offsets_share_a_read_that_begins_after_they_asked(run_cluster):
    async def scene(cluster):
        t = await cluster.create_topic("t")
        (broker,) = cluster.brokers.values()
        for n in range(50):
            await broker.commit(f"g{n}", t, n)
        await asyncio.sleep(1)  # until the cache contains all of them
        first = asyncio.ensure_future(broker.offset("g0", t))
        while broker.groups.ownership.revisions.read_count == 0:
            await asyncio.sleep(0)
        answers = await asyncio.gather(*[broker.offset(f"g{n}", t) for n in range(50)])
        assert answers == list(range(50))
        assert await first == 0
        assert broker.groups.ownership.revisions.read_count == 2

    run_cluster(scene, brokers=1)


def test_without_its_lease_a_coordinator_answers_nothing_but_counts_who_is_alive(run_cluster):
    async def scene(cluster):
        (broker,) = cluster.brokers.values()
        member = await stable(broker, "g")
        broker.membership.has_lease = False
        for _ in range(6):
            await asyncio.sleep(5)
            assert broker.groups.heartbeat("g", member.member_id, None, 1) is E.NOT_COORDINATOR
        assert await broker.offset("g", uuid4()) is E.NOT_COORDINATOR
        broker.membership.has_lease = True
        assert broker.groups.heartbeat("g", member.member_id, None, 1) is E.NONE

    run_cluster(scene, brokers=1)
