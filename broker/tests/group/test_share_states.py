"""The states of share-partitions: stored by the group's coordinator, fenced between leaders, and written by a leader
before it answers an acknowledgement."""

from __future__ import annotations

import asyncio
import inspect
from uuid import UUID

import pytest

from penstock.group.modern.group import GroupType
from penstock.group.modern.share import share_heartbeat
from penstock.share.acknowledgement import AckBatch, AckType
from penstock.share.acquisition import AcquireRequest
from penstock.share.leader import SharePartitionLeader
from penstock.share.partition import LogBatch, ShareLimits, ShareSnapshot
from penstock.share.redelivery import DeliveryLimit
from penstock.share.state import ShareState, encode_state
from penstock.share.state_client import SharePartitionKey, StateWrite
from penstock.share.window import RecordState, StateRun
from penstock.state import keys
from penstock.state.store import PutOp
from penstock.wire.errors import ErrorCode

E = ErrorCode
KEY = SharePartitionKey("g", UUID(int=7), 3)
TOPIC = "t"
LOCK_S = 30.0
RUNS = [StateRun(5, 6, RecordState.AVAILABLE, 2), StateRun(7, 9, RecordState.ACKNOWLEDGED, 1)]


@pytest.fixture
def run_cluster(run_cluster):
    """Run a scene with the topic and the share group of `KEY`."""

    def run(scene):
        async def prepared(cluster):
            await cluster.create_topic(TOPIC, KEY.topic_id)
            await beat(cluster.owner(KEY.group_id), 0)
            await scene(cluster)

        run_cluster(prepared)

    return run


async def beat(broker, epoch):
    """Send a heartbeat of the group's only member."""
    heartbeat = share_heartbeat("a", epoch, topic_names=[TOPIC])
    result = broker.groups.modern.heartbeat(GroupType.SHARE, KEY.group_id, heartbeat)
    result = await result if inspect.isawaitable(result) else result
    assert not result.error, result


async def claim(broker, leader_epoch, initial_offset=0):
    result = await broker.share_states.claim(KEY, leader_epoch, initial_offset)
    assert not result.error, result
    return result.state


async def write(broker, state, runs=RUNS):
    """Write the claimer's next state. Returns the error and the state."""
    state = ShareState(state.version.next_write(), ShareSnapshot(runs[0].first, runs))
    return await broker.share_states.write(StateWrite(KEY, encode_state(state))), state


# The coordinator


def test_a_claimed_state_starts_at_the_initial_offset_and_keeps_it(run_cluster):
    async def scene(cluster):
        broker = cluster.owner("g")
        assert (await claim(broker, 4, initial_offset=50)).snapshot == ShareSnapshot(50, [])
        assert (await claim(broker, 5, initial_offset=70)).snapshot == ShareSnapshot(50, [])

    run_cluster(scene)


def test_a_written_state_outlives_its_coordinator(run_cluster):
    async def scene(cluster):
        broker = cluster.owner("g")
        error, state = await write(broker, await claim(broker, 4))
        assert error is E.NONE
        await broker.kill()
        await cluster.assign()
        error, state = await write(cluster.owner("g"), state)
        assert error is E.NONE, "the leader continues with the next coordinator"
        assert (await claim(cluster.owner("g"), 5)).snapshot == state.snapshot

    run_cluster(scene)


def test_an_earlier_leader_is_fenced_even_by_the_next_coordinator(run_cluster):
    async def scene(cluster):
        broker = cluster.owner("g")
        old = await claim(broker, 4)
        await claim(broker, 5)
        assert (await write(broker, old))[0] is E.FENCED_LEADER_EPOCH
        await broker.kill()
        await cluster.assign()
        broker = cluster.owner("g")
        assert (await write(broker, old))[0] is E.FENCED_LEADER_EPOCH
        assert (await broker.share_states.claim(KEY, 4, 0)).error is E.FENCED_LEADER_EPOCH

    run_cluster(scene)


def test_an_earlier_claim_of_the_same_leader_is_fenced(run_cluster):
    async def scene(cluster):
        broker = cluster.owner("g")
        old = await claim(broker, 4)
        new = await claim(broker, 4)
        assert (await write(broker, old))[0] is E.FENCED_LEADER_EPOCH
        assert (await write(broker, new))[0] is E.NONE

    run_cluster(scene)


def test_a_repeated_or_delayed_write_does_not_undo_a_later_one(run_cluster):
    async def scene(cluster):
        broker = cluster.owner("g")
        first = await claim(broker, 4)
        _, second = await write(broker, first)
        assert (await write(broker, first, RUNS[:1]))[0] is E.FENCED_LEADER_EPOCH
        assert (await claim(broker, 4)).snapshot == second.snapshot

    run_cluster(scene)


def test_a_new_start_offset_fences_the_leader_until_it_claims_again(run_cluster):
    async def scene(cluster):
        broker = cluster.owner("g")
        state = await claim(broker, 4)
        assert await broker.share_states.reset(KEY, 1000) is E.NONE
        assert (await write(broker, state))[0] is E.FENCED_STATE_EPOCH
        state = await claim(broker, 4)
        assert (state.version.state_epoch, state.snapshot) == (1, ShareSnapshot(1000, []))
        assert (await write(broker, state))[0] is E.NONE

    run_cluster(scene)


def test_a_start_offset_may_be_set_before_the_first_claim(run_cluster):
    async def scene(cluster):
        broker = cluster.owner("g")
        assert await broker.share_states.reset(KEY, 1000) is E.NONE
        assert (await claim(broker, 0, initial_offset=5)).snapshot == ShareSnapshot(1000, [])

    run_cluster(scene)


def test_a_write_without_a_response_is_read_again_and_cannot_undo_later_ones(run_cluster):
    async def scene(cluster):
        broker = cluster.owner("g")
        state = await claim(broker, 4)
        broker.line.delays = True
        assert (await write(broker, state, RUNS[:1]))[0] is E.COORDINATOR_NOT_AVAILABLE
        broker.line.delays = False
        error, state = await write(broker, ShareState(state.version.next_write(), state.snapshot))
        assert error is E.NONE
        assert await broker.line.deliver() == [False]
        assert (await claim(broker, 4)).snapshot == state.snapshot

    run_cluster(scene)


def test_a_write_whose_response_was_lost_is_not_fenced_out_of_the_next(run_cluster):
    async def scene(cluster):
        broker = cluster.owner("g")
        state = await claim(broker, 4)
        broker.line.delays = True
        error, lost = await write(broker, state)
        assert error is E.COORDINATOR_NOT_AVAILABLE
        broker.line.delays = False
        assert await broker.line.deliver() == [True]
        assert (await write(broker, lost))[0] is E.NONE

    run_cluster(scene)


def test_a_write_that_took_effect_without_a_response_is_known_to_the_next_leader(run_cluster):
    async def scene(cluster):
        broker = cluster.owner("g")
        state = await claim(broker, 4)
        broker.line.delays = True
        _, lost = await write(broker, state)
        broker.line.delays = False
        assert await broker.line.deliver() == [True]
        assert (await claim(broker, 5)).snapshot == lost.snapshot

    run_cluster(scene)


def test_a_deposed_coordinator_neither_claims_nor_writes(run_cluster):
    async def scene(cluster):
        old = cluster.owner("g")
        state = await claim(old, 4)
        await old.freeze()
        (other,) = cluster.others(old)
        await cluster.assign(only=other.broker_id)
        assert (await old.share_states.claim(KEY, 5, 0)).error is E.NOT_COORDINATOR
        assert (await write(other, state))[0] is E.NONE
        assert (await write(old, state))[0] is E.NOT_COORDINATOR

    run_cluster(scene)


def test_only_the_coordinator_serves_a_state(run_cluster):
    async def scene(cluster):
        (other,) = cluster.others(cluster.owner("g"))
        assert (await other.share_states.claim(KEY, 5, 0)).error is E.NOT_COORDINATOR
        assert await other.share_states.reset(KEY, 5) is E.NOT_COORDINATOR

    run_cluster(scene)


def test_malformed_and_unclaimed_writes_are_refused(run_cluster):
    async def scene(cluster):
        broker = cluster.owner("g")
        assert await broker.share_states.write(StateWrite(KEY, b"nonsense")) is E.INVALID_REQUEST
        state = await claim(broker, 4)
        unknown = SharePartitionKey("g", UUID(int=8), 0)
        written = StateWrite(unknown, encode_state(ShareState(state.version.next_write(), state.snapshot)))
        assert await broker.share_states.write(written) is E.FENCED_STATE_EPOCH

    run_cluster(scene)


def test_an_unreadable_state_is_kept_and_not_served(run_cluster):
    async def scene(cluster):
        broker = cluster.owner("g")
        await cluster.store.txn((), [PutOp(keys.share_state(*KEY), b"damaged")])
        await broker.kill()
        await cluster.assign()
        broker = cluster.owner("g")
        assert (await broker.share_states.claim(KEY, 4, 0)).error is E.UNKNOWN_SERVER_ERROR
        assert (await cluster.store.get(keys.share_state(*KEY))).value == b"damaged"

    run_cluster(scene)


def test_nothing_is_stored_for_a_group_or_a_topic_that_does_not_exist(run_cluster):
    async def scene(cluster):
        broker = cluster.owner("g")
        for key, error in (
            (KEY._replace(topic_id=UUID(int=8)), E.UNKNOWN_TOPIC_OR_PARTITION),
            (KEY._replace(group_id="other"), E.GROUP_ID_NOT_FOUND),
        ):
            owner = cluster.owner(key.group_id)
            assert (await owner.share_states.claim(key, 4, 0)).error is error
            assert await owner.share_states.reset(key, 4) is error
        assert (await cluster.store.range(keys.SHARE_STATES)).entries == []
        assert (await broker.share_states.claim(KEY, 4, 0)).error is E.NONE

    run_cluster(scene)


async def stored_states(cluster):
    return [keys.parse_share_state(entry.key) for entry in (await cluster.store.range(keys.SHARE_STATES)).entries]


def test_states_are_deleted_with_their_group_and_the_next_group_of_the_name_starts_again(run_cluster):
    async def scene(cluster):
        broker = cluster.owner("g")
        _, state = await write(broker, await claim(broker, 4))
        await beat(broker, -1)
        assert await broker.groups.delete("g") is E.NONE
        assert await stored_states(cluster) == []
        assert (await write(broker, state))[0] is E.FENCED_STATE_EPOCH
        assert (await broker.share_states.claim(KEY, 4, 0)).error is E.GROUP_ID_NOT_FOUND
        await beat(broker, 0)
        assert (await claim(broker, 4, initial_offset=70)).snapshot == ShareSnapshot(70, [])

    run_cluster(scene)


def test_a_group_whose_deletion_failed_keeps_its_states(run_cluster):
    async def scene(cluster):
        broker = cluster.owner("g")
        _, state = await write(broker, await claim(broker, 4))
        await beat(broker, -1)
        broker.line.delays = True
        assert await broker.groups.delete("g") is E.COORDINATOR_NOT_AVAILABLE
        broker.line.delays = False
        assert (await claim(broker, 5)).snapshot == state.snapshot

    run_cluster(scene)


def test_an_unreadable_state_is_deleted_with_its_group(run_cluster):
    async def scene(cluster):
        await cluster.store.txn((), [PutOp(keys.share_state(*KEY), b"damaged")])
        await beat(cluster.owner("g"), -1)
        await cluster.owner("g").kill()
        await cluster.assign()
        assert await cluster.owner("g").groups.delete("g") is E.NONE
        assert await stored_states(cluster) == []

    run_cluster(scene)


def test_states_are_deleted_with_their_topic(run_cluster):
    async def scene(cluster):
        broker = cluster.owner("g")
        other = SharePartitionKey("g", await cluster.create_topic("other"), 0)
        assert not (await broker.share_states.claim(other, 4, 0)).error
        _, state = await write(broker, await claim(broker, 4))
        await cluster.delete_topic(TOPIC, KEY.topic_id)
        assert (await write(broker, state))[0] is E.UNKNOWN_TOPIC_OR_PARTITION
        await asyncio.sleep(5)
        assert await stored_states(cluster) == [other]
        await broker.groups.delete_topic_offsets(KEY.topic_id)

    run_cluster(scene)


# The leader


class Leading:
    """A leader of `KEY` on a log of ten records."""

    def __init__(self, broker, state):
        self.available = asyncio.Event()
        limits = ShareLimits(LOCK_S * 1000, 100, DeliveryLimit(5))
        self.leader = SharePartitionLeader(KEY, state, limits, broker.share_states, self.available.set)

    def acquire(self, member="a"):
        offset = self.leader.partition.next_fetch_offset()
        return self.leader.acquire(AcquireRequest(member, 500), offset, [LogBatch(0, 9)] if offset < 10 else [])

    async def ack(self, first, last, ack_type=AckType.ACCEPT, member="a"):
        return await self.start(member, [AckBatch(first, last, [ack_type])])

    def start(self, member, batches):
        """Start an acknowledgement. Returns a future of its outcome."""
        done = asyncio.get_running_loop().create_future()
        self.leader.acknowledge(member, batches, done.set_result)
        return done


async def lead(broker, leader_epoch=4):
    return Leading(broker, await claim(broker, leader_epoch))


def test_an_acknowledgement_is_answered_once_the_next_leader_knows_it(run_cluster):
    async def scene(cluster):
        broker = cluster.owner("g")
        old = await lead(broker)
        assert old.acquire() == [(0, 9, 1)]
        assert await old.ack(0, 6) is E.NONE
        new = await lead(broker, leader_epoch=5)
        assert new.acquire("b") == [(7, 9, 2)]

    run_cluster(scene)


def test_a_fenced_leader_refuses_acknowledgements(run_cluster):
    async def scene(cluster):
        broker = cluster.owner("g")
        old = await lead(broker)
        old.acquire()
        new = await lead(broker, leader_epoch=5)
        assert new.acquire("b") == [(0, 9, 1)], "the acquisition was not stored"
        assert await old.ack(0, 9) is E.NOT_LEADER_OR_FOLLOWER
        assert old.leader.is_fenced
        assert await old.ack(0, 9) is E.NOT_LEADER_OR_FOLLOWER
        assert old.acquire() == ()
        assert await new.ack(0, 9, member="b") is E.NONE

    run_cluster(scene)


def test_an_acknowledgement_that_cannot_be_stored_fails_and_may_be_repeated(run_cluster):
    async def scene(cluster):
        broker = cluster.owner("g")
        leading = await lead(broker)
        leading.acquire()
        broker.line.is_cut = True
        assert await leading.ack(0, 9) is E.COORDINATOR_NOT_AVAILABLE
        assert leading.leader.partition.locked == 10, "the member holds the records again"
        broker.line.is_cut = False
        assert await leading.ack(0, 9) is E.NONE
        assert leading.leader.partition.start_offset == 10

    run_cluster(scene)


def test_locks_time_out_and_wake_those_who_wait(run_cluster):
    async def scene(cluster):
        leading = await lead(cluster.owner("g"))
        leading.acquire("a")
        started = asyncio.get_running_loop().time()
        await leading.available.wait()
        assert round(asyncio.get_running_loop().time() - started, 3) == LOCK_S
        assert leading.acquire("b") == [(0, 9, 2)]

    run_cluster(scene)


def test_a_renewed_lock_outlasts_the_first_timeout(run_cluster):
    async def scene(cluster):
        leading = await lead(cluster.owner("g"))
        leading.acquire("a")
        await asyncio.sleep(LOCK_S - 1)
        assert await leading.ack(0, 9, AckType.RENEW) is E.NONE
        await asyncio.sleep(LOCK_S - 1)
        assert leading.acquire("b") == []
        assert await leading.ack(0, 9) is E.NONE

    run_cluster(scene)


def test_the_end_of_a_session_releases_its_records_at_once(run_cluster):
    async def scene(cluster):
        leading = await lead(cluster.owner("g"))
        leading.acquire("a")
        leading.leader.release_member("a")
        assert leading.available.is_set()
        assert leading.acquire("b") == [(0, 9, 2)]

    run_cluster(scene)


def test_closing_a_leader_answers_those_who_wait(run_cluster):
    async def scene(cluster):
        broker = cluster.owner("g")
        leading = await lead(broker)
        leading.acquire()
        waiting = leading.start("a", [AckBatch(0, 9, [AckType.ACCEPT])])
        await leading.leader.close()
        assert await waiting is E.NOT_LEADER_OR_FOLLOWER

    run_cluster(scene)


def test_acknowledgements_of_many_members_share_writes(run_cluster):
    async def scene(cluster):
        broker = cluster.owner("g")
        leading = await lead(broker)
        leading.acquire()
        before = broker.groups.offsets.writers.transactions
        assert await asyncio.gather(*(leading.ack(offset, offset) for offset in range(10))) == [E.NONE] * 10
        assert broker.groups.offsets.writers.transactions - before <= 2

    run_cluster(scene)
