"""Claims and writes of a leader whose group another broker coordinates, through the wire format of its requests."""

from __future__ import annotations

import asyncio
import inspect
from uuid import UUID

import pytest

from penstock.api.share.states import ShareStatesApi
from penstock.group.modern.group import GroupType
from penstock.group.modern.share import share_heartbeat
from penstock.share.partition import ShareSnapshot
from penstock.share.routing import MAX_BATCHED_STATES, RoutedStates
from penstock.share.state import ShareState, encode_state
from penstock.share.state_client import SharePartitionKey, StateWrite
from penstock.share.window import RecordState, StateRun
from penstock.wire import codec
from penstock.wire.errors import ErrorCode as E
from penstock.wire.messages import read_share_group_state as reading
from penstock.wire.messages import write_share_group_state as writing

TOPIC_ID = UUID(int=7)
KEYS = [SharePartitionKey("g", TOPIC_ID, index) for index in range(2 * MAX_BATCHED_STATES)]
KEY = KEYS[0]


class Wire:
    """The other brokers, called with encoded requests; counts the requests."""

    def __init__(self, cluster):
        self.cluster, self.is_cut, self.requests = cluster, False, 0

    async def read_share_states(self, broker_id, request):
        return await self.call(broker_id, request, 0, reading.ReadShareGroupStateResponse)

    async def write_share_states(self, broker_id, request):
        return await self.call(broker_id, request, 1, writing.WriteShareGroupStateResponse)

    async def call(self, broker_id, request, version, response):
        self.requests += 1
        if self.is_cut:
            raise ConnectionRefusedError("cut off")
        routes = {r.request: r for r in ShareStatesApi(self.cluster.brokers[broker_id].share_states).routes()}
        route = routes[type(request)]
        received = codec.decode(type(request), version, bytes(codec.encode(request, version)))
        answer = await route.handler(received, None)
        return codec.decode(response, version, bytes(codec.encode(answer, version)))


class Remote:
    """A broker that does not coordinate group "g", with its client of states."""

    def __init__(self, cluster):
        self.wire = Wire(cluster)
        (broker,) = cluster.others(cluster.owner("g"))
        self.client = RoutedStates(broker.share_states, broker.groups, broker.broker_id, self.wire)


@pytest.fixture
def run_remote(run_cluster):
    """Run a scene with a topic, a share group, and a broker that is not its coordinator."""

    def run(scene):
        async def prepared(cluster):
            await cluster.create_topic("t", TOPIC_ID)
            joined = cluster.owner("g").groups.modern.heartbeat(
                GroupType.SHARE, "g", share_heartbeat("a", 0, topic_names=["t"])
            )
            assert inspect.isawaitable(joined)
            assert not (await joined).error
            remote = Remote(cluster)
            await scene(cluster, remote)
            await remote.client.close()

        run_cluster(prepared)

    return run


def next_write(state: ShareState, key: SharePartitionKey = KEY) -> tuple[StateWrite, ShareState]:
    runs = [StateRun(50, 59, RecordState.ACKNOWLEDGED, 1), StateRun(60, 60, RecordState.AVAILABLE, 2)]
    state = ShareState(state.version.next_write(), ShareSnapshot(50, runs))
    return StateWrite(key, encode_state(state)), state


def test_a_leader_claims_and_writes_at_another_broker(run_remote):
    async def scene(cluster, remote):
        claimed = await remote.client.claim(KEY, 4, 50)
        assert (claimed.error, claimed.state.snapshot) == (E.NONE, ShareSnapshot(50, []))
        write, written = next_write(claimed.state)
        assert await remote.client.write(write) is E.NONE
        assert (await cluster.owner("g").share_states.claim(KEY, 4, 0)).state.snapshot == written.snapshot
        assert await remote.client.write(next_write(written)[0]) is E.FENCED_LEADER_EPOCH
        assert (await remote.client.claim(KEY, 3, 0)).error is E.FENCED_LEADER_EPOCH

    run_remote(scene)


def test_the_coordinator_itself_needs_no_request(run_remote):
    async def scene(cluster, remote):
        owner = cluster.owner("g")
        local = RoutedStates(owner.share_states, owner.groups, owner.broker_id, remote.wire)
        assert not (await local.claim(KEY, 4, 0)).error
        assert not remote.wire.requests

    run_remote(scene)


def test_concurrent_requests_of_a_group_share_batches(run_remote):
    async def scene(cluster, remote):
        claims = await asyncio.gather(*(remote.client.claim(key, 4, 0) for key in KEYS))
        assert {claim.error for claim in claims} == {E.NONE}
        assert remote.wire.requests == 2
        writes = [next_write(c.state, key)[0] for key, c in zip(KEYS, claims, strict=True)]
        assert set(await asyncio.gather(*map(remote.client.write, writes))) == {E.NONE}
        assert remote.wire.requests == 4

    run_remote(scene)


def test_two_claims_of_a_partition_are_answered_one_after_the_other(run_remote):
    async def scene(cluster, remote):
        first, second = await asyncio.gather(remote.client.claim(KEY, 4, 0), remote.client.claim(KEY, 4, 0))
        assert first.state.version.write < second.state.version.write
        assert await remote.client.write(next_write(first.state)[0]) is E.FENCED_LEADER_EPOCH
        assert await remote.client.write(next_write(second.state)[0]) is E.NONE

    run_remote(scene)


def test_an_unreachable_coordinator_is_an_error_that_leaders_repeat(run_remote):
    async def scene(cluster, remote):
        claimed = await remote.client.claim(KEY, 4, 0)
        remote.wire.is_cut = True
        assert (await remote.client.claim(KEY, 4, 0)).error is E.COORDINATOR_NOT_AVAILABLE
        assert await remote.client.write(next_write(claimed.state)[0]) is E.COORDINATOR_NOT_AVAILABLE
        remote.wire.is_cut = False
        assert await remote.client.write(next_write(claimed.state)[0]) is E.NONE

    run_remote(scene)


def test_closing_answers_those_who_wait(run_remote):
    async def scene(cluster, remote):
        waiting = asyncio.ensure_future(remote.client.claim(KEY, 4, 0))
        await asyncio.sleep(0)
        await remote.client.close()
        assert (await waiting).error is E.COORDINATOR_NOT_AVAILABLE

    run_remote(scene)


def test_requests_of_no_leader_are_refused(run_remote):
    async def scene(cluster, remote):
        owner = cluster.owner("g").broker_id

        async def read(*partitions):
            topic = reading.ReadStateData(topic_id=TOPIC_ID, partitions=list(partitions))
            request = reading.ReadShareGroupStateRequest(group_id="g", topics=[topic])
            (result,) = (await remote.wire.read_share_states(owner, request)).results
            return {each.error_code for each in result.partitions}

        assert await read(reading.PartitionData(partition=0, leader_epoch=4)) == {E.INVALID_REQUEST}
        asked = [reading.PartitionData(partition=p, initial_offset=0) for p in range(MAX_BATCHED_STATES + 1)]
        assert await read(*asked) == {E.INVALID_REQUEST}
        write = writing.WriteStateData(topic_id=TOPIC_ID, partitions=[writing.PartitionData(partition=0)])
        request = writing.WriteShareGroupStateRequest(group_id="g", topics=[write])
        (result,) = (await remote.wire.write_share_states(owner, request)).results
        assert result.partitions[0].error_code == E.INVALID_REQUEST

    run_remote(scene)


def test_a_state_whose_runs_another_broker_has_damaged_is_refused(run_remote):
    async def scene(cluster, remote):
        claimed = await remote.client.claim(KEY, 4, 50)
        write, written = next_write(claimed.state)
        assert await remote.client.write(StateWrite(KEY, write.data[:-1])) is E.INVALID_REQUEST
        assert await remote.client.write(write) is E.NONE
        assert (await cluster.owner("g").share_states.claim(KEY, 4, 0)).state.snapshot == written.snapshot

    run_remote(scene)
