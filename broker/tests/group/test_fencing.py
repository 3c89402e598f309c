"""The group's coordinator returns fatal errors; a deposed coordinator never does."""

from __future__ import annotations

import inspect
from uuid import uuid4

import pytest
from shards_kit import request, stable

from penstock.api.consumer_groups import ConsumerGroupsApi
from penstock.api.exchange import PeerInfo
from penstock.api.groups import GroupsApi
from penstock.api.offsets import OffsetsApi
from penstock.api.routes import RequestContext
from penstock.security.authorizer import AllowAll
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from penstock.wire.messages.heartbeat import HeartbeatRequest
from penstock.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from penstock.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.wire.messages.sync_group import SyncGroupRequest

E = ErrorCode
OLDEST_WITH_INSTANCES = {
    HeartbeatRequest: 3,
    JoinGroupRequest: 5,
    SyncGroupRequest: 3,
    OffsetCommitRequest: 7,
    ConsumerGroupHeartbeatRequest: 0,
}


class Waits:
    is_disconnected = False

    def on_disconnect(self, callback):
        pass


async def ask(broker, message):
    """Send a request as a client and return the response's error."""
    apis = [
        GroupsApi(broker.groups, broker.view, None),
        OffsetsApi(broker.groups, broker.view),
        ConsumerGroupsApi(broker.groups, broker.view, AllowAll()),
    ]
    route = next(r for api in apis for r in api.routes() if r.request is type(message))
    version = OLDEST_WITH_INSTANCES[type(message)]
    context = RequestContext(version, 1, "me", PeerInfo(1, "MAIN", "127.0.0.1", 5), Waits())
    response = route.handler(message, context)
    if inspect.isawaitable(response):
        response = await response
    if isinstance(message, OffsetCommitRequest):
        return response.topics[0].partitions[0].error_code
    return response.error_code


def heartbeat(member_id):
    return HeartbeatRequest(group_id="g", generation_id=1, member_id=member_id, group_instance_id="i")


def sync(member_id):
    return SyncGroupRequest(group_id="g", generation_id=1, member_id=member_id, group_instance_id="i")


def commit(member_id):
    parts = [OffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
    topics = [OffsetCommitRequestTopic(name="t", topic_id=uuid4(), partitions=parts)]
    return OffsetCommitRequest(
        group_id="g", generation_id_or_member_epoch=1, member_id=member_id, group_instance_id="i", topics=topics
    )


def join(member_id, protocol="range", instance_id="i"):
    return JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        member_id=member_id,
        group_instance_id=instance_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name=protocol)],
    )


def newcomer(member_id):
    return join("", instance_id=None)


def stranger(member_id):
    return join("", protocol="another", instance_id=None)


def consumer(member_id):
    return ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="new", rebalance_timeout_ms=1000, subscribed_topic_names=["t"], topic_partitions=[]
    )


FINAL_ANSWERS = [
    (heartbeat, E.FENCED_INSTANCE_ID),
    (sync, E.FENCED_INSTANCE_ID),
    (commit, E.FENCED_INSTANCE_ID),
    (join, E.FENCED_INSTANCE_ID),
    (newcomer, E.GROUP_MAX_SIZE_REACHED),
    (stranger, E.INCONSISTENT_GROUP_PROTOCOL),
    (consumer, E.GROUP_MAX_SIZE_REACHED),
]


async def full_group(broker):
    """Create a stable group with one static member and a maximum size of one."""
    broker.config.group_max_size = broker.config.group_consumer_max_size = 1
    return await stable(broker, "g", instance_id="i")


@pytest.mark.parametrize(("asking", "error"), FINAL_ANSWERS)
def test_the_coordinator_says_what_ends_a_client(run_cluster, asking, error):
    async def scene(cluster):
        await cluster.create_topic("t")
        owner = cluster.owner("g")
        await full_group(owner)
        assert await ask(owner, asking("predecessor")) == error
        assert owner.groups.ownership.revisions.read_count == 1

    run_cluster(scene)


@pytest.mark.parametrize("asking", [asking for asking, _ in FINAL_ANSWERS])
def test_a_coordinator_that_lost_its_shard_ends_no_client_that_has_gone_on_elsewhere(run_cluster, asking):
    async def scene(cluster):
        await cluster.create_topic("t")
        old = cluster.owner("g")
        member = await full_group(old)
        await old.freeze()
        (new,) = cluster.others(old)
        await cluster.assign(only=new.broker_id)
        again = await new.groups.join("g", request(instance_id="i"))
        assert not again.error
        assert again.member_id != member.member_id
        assert await ask(new, heartbeat(again.member_id)) == E.NONE
        assert old.groups.error("g") is E.NONE, "it does not know yet"
        assert await ask(old, asking(again.member_id)) == E.NOT_COORDINATOR
        assert old.groups.error("g") is E.NOT_COORDINATOR, "now it does"

    run_cluster(scene)


@pytest.mark.parametrize("asking", [asking for asking, _ in FINAL_ANSWERS])
def test_while_the_store_is_away_clients_are_told_to_ask_again_instead(run_cluster, asking):
    async def scene(cluster):
        await cluster.create_topic("t")
        owner = cluster.owner("g")
        await full_group(owner)
        owner.line.is_cut = True
        assert await ask(owner, asking("predecessor")) == E.COORDINATOR_NOT_AVAILABLE
        owner.line.is_cut = False

    run_cluster(scene)


def test_a_shard_that_came_back_while_the_store_was_asked_is_not_spoken_for(run_cluster):
    async def scene(cluster):
        await cluster.create_topic("t")
        owner = cluster.owner("g")
        await full_group(owner)
        real = owner.line.range

        async def going_and_coming(prefix, revision=0):
            owner.line.range = real
            await cluster.assign(draining={owner.broker_id})
            await cluster.assign(only=owner.broker_id)
            return await real(prefix, revision)

        owner.line.range = going_and_coming
        assert await ask(owner, heartbeat("predecessor")) == E.NOT_COORDINATOR
        assert await ask(owner, heartbeat("predecessor")) == E.FENCED_INSTANCE_ID

    run_cluster(scene)


def test_what_costs_a_rejoin_at_most_is_told_without_asking_the_store(run_cluster):
    async def scene(cluster):
        owner = cluster.owner("g")
        member = await full_group(owner)
        assert await ask(owner, heartbeat(member.member_id)) == E.NONE
        late = heartbeat(member.member_id)
        late.generation_id = 0
        assert await ask(owner, late) == E.ILLEGAL_GENERATION
        unknown = sync("unknown")
        unknown.group_instance_id = None
        assert await ask(owner, unknown) == E.UNKNOWN_MEMBER_ID
        assert owner.groups.ownership.revisions.read_count == 0

    run_cluster(scene)
