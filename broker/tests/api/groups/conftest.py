"""The handlers of groups, offsets and producer ids, called through the codec as by a connection."""

from __future__ import annotations

import inspect
from uuid import UUID, uuid4

import pytest
from replica_kit import opened_data_path

from penstock.api.consumer_groups import ConsumerGroupsApi
from penstock.api.exchange import PeerInfo
from penstock.api.group_admin import GroupAdminApi
from penstock.api.groups import GroupsApi
from penstock.api.offsets import OffsetsApi
from penstock.api.producer_ids import ProducerIdsApi
from penstock.api.routes import RequestContext
from penstock.api.share.groups import ShareGroupsApi
from penstock.config.broker import BrokerConfig
from penstock.config.topic import TopicConfig
from penstock.group.coordinator import GroupCoordinator
from penstock.group.offset_loading import EagerOffsetLoader
from penstock.group.ownership import LocalShardOwnership
from penstock.node.single import NoPeers
from penstock.runtime.clock import SystemClock
from penstock.security.authorizer import AllowAll
from penstock.state.view import BrokerEndpoint, BrokerView, ClusterView, PartitionView, TopicView
from penstock.txn.producer_ids import ProducerIds
from penstock.txn.service import TransactionService
from penstock.wire import codec
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import join_group as jg
from penstock.wire.messages import leave_group as lg
from penstock.wire.messages import offset_commit as oc
from penstock.wire.messages import offset_fetch as of
from penstock.wire.messages import sync_group as sg

E = ErrorCode
UNKNOWN_ID = UUID(int=99)


class FakeExchange:
    def __init__(self):
        self.is_disconnected = self.is_followed = False
        self.callbacks = []

    def on_disconnect(self, callback):
        self.callbacks.append(callback)

    def lose(self):
        self.is_disconnected = True
        for callback in self.callbacks:
            callback()


class Broker:
    def __init__(self, store, replicas):
        self.config = BrokerConfig()
        self.config.group_initial_rebalance_delay_ms = 0
        self.view = ClusterView(cluster_id="c", controller_id=0, revision=1)
        self.view.brokers[0] = BrokerView(
            0, [BrokerEndpoint("MAIN", "main.example", 1), BrokerEndpoint("OTHER", "other.example", 2)]
        )
        self.topic_ids = {name: self.create_topic(name) for name in ("t", "u")}
        clock, peers, ids = SystemClock(), NoPeers(), ProducerIds(store)
        self.owned = LocalShardOwnership(store, 0)
        self.groups = GroupCoordinator(
            store, self.view, clock, self.config, lambda: str(uuid4()), self.owned, EagerOffsetLoader
        )
        self.transactions = TransactionService(
            store, self.view, clock, self.config, ids, replicas, self.groups, peers, peers
        )
        apis = [
            GroupsApi(self.groups, self.view, self.transactions.coordinator),
            GroupAdminApi(self.groups, self.view),
            ConsumerGroupsApi(self.groups, self.view, AllowAll()),
            ShareGroupsApi(self.groups, self.view),
            OffsetsApi(self.groups, self.view),
            ProducerIdsApi(ids, self.transactions.coordinator),
        ]
        self.routes = {route.request: route for api in apis for route in api.routes()}
        self.exchange = FakeExchange()

    def create_topic(self, name):
        topic = TopicView(name, uuid4(), [PartitionView(i, [0], 0, 0, [0]) for i in range(3)], {}, TopicConfig())
        self.view.topics[name] = self.view.topics_by_id[topic.topic_id] = topic
        return topic.topic_id

    def start(self, version, request, listener="MAIN", client_id="me"):
        """Call the handler; returns an awaitable of the response."""
        route = self.routes[type(request)]
        assert route.first <= version <= route.last
        read = codec.decode(type(request), version, bytes(codec.encode(request, version)))
        self.exchange = FakeExchange()
        context = RequestContext(version, 1, client_id, PeerInfo(1, listener, "10.1.1.1", 5), self.exchange)
        return self.finish(version, route, route.handler(read, context))

    async def finish(self, version, route, response):
        if inspect.isawaitable(response):
            response = await response
        return codec.decode(route.response, version, bytes(codec.encode(response, version)))

    async def call(self, version, request, listener="MAIN", client_id="me"):
        return await self.start(version, request, listener, client_id)

    async def join(self, version, member_id="", **more):
        request = jg.JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=20_000,
            member_id=member_id,
            protocol_type="consumer",
            protocols=[jg.JoinGroupRequestProtocol(name="range", metadata=b"\0\0\0\0\0\1\0\1t\0\0\0\0")],
            **more,
        )
        response = await self.call(version, request)
        if response.error_code == E.MEMBER_ID_REQUIRED:
            return await self.join(version, response.member_id, **more)
        return response

    async def stable(self, version=5, **more):
        joined = await self.join(version, **more)
        assert not joined.error_code
        plan = [sg.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"mine")]
        request = sg.SyncGroupRequest(
            group_id="g", generation_id=joined.generation_id, member_id=joined.member_id, assignments=plan
        )
        assert (await self.call(3, request)).assignment == b"mine"
        return joined

    async def leave(self, member_id):
        assert not (await self.call(0, lg.LeaveGroupRequest(group_id="g", member_id=member_id))).error_code

    async def commit(self, version, topic="t", partition=0, offset=7, group_id="g", **more):
        """Commit one offset; return the partition's error code."""
        part = oc.OffsetCommitRequestPartition(
            partition_index=partition,
            committed_offset=offset,
            committed_metadata=more.pop("metadata", "note"),
            committed_leader_epoch=3,
        )
        topic_id = self.topic_ids.get(topic, UNKNOWN_ID)
        request = oc.OffsetCommitRequest(
            group_id=group_id,
            topics=[oc.OffsetCommitRequestTopic(name=topic, topic_id=topic_id, partitions=[part])],
            **more,
        )
        response = await self.call(version, request)
        (answer,) = response.topics
        assert (answer.name if version < 10 else answer.topic_id) == (topic if version < 10 else topic_id)
        assert answer.partitions[0].partition_index == partition
        return answer.partitions[0].error_code

    async def fetch(self, version, topics, group_id="g"):
        """Fetch offsets; return {topic: {partition: (offset, epoch, metadata, error)}} and the group's error code."""
        if version < 8:
            asked = (
                None
                if topics is None
                else [of.OffsetFetchRequestTopic(name=t, partition_indexes=p) for t, p in topics.items()]
            )
            answer = await self.call(version, of.OffsetFetchRequest(group_id=group_id, topics=asked))
        else:
            asked = (
                None
                if topics is None
                else [
                    of.OffsetFetchRequestTopics(name=t, topic_id=self.topic_ids.get(t, UNKNOWN_ID), partition_indexes=p)
                    for t, p in topics.items()
                ]
            )
            group = of.OffsetFetchRequestGroup(group_id=group_id, topics=asked)
            answer = (await self.call(version, of.OffsetFetchRequest(groups=[group], require_stable=True))).groups[0]
            assert answer.group_id == group_id
        names = {topic_id: name for name, topic_id in self.topic_ids.items()}
        found = {}
        for topic in answer.topics:
            name = names.get(topic.topic_id, "?") if version >= 10 else topic.name
            found[name] = {
                p.partition_index: (p.committed_offset, p.committed_leader_epoch, p.metadata, p.error_code)
                for p in topic.partitions
            }
        return found, answer.error_code


@pytest.fixture
async def broker(tmp_path):
    async with opened_data_path(tmp_path, state=":memory:") as path:
        made = Broker(path.topics.store, path.replicas)
        await made.groups.start()
        yield made
        await made.transactions.close()
        await made.groups.close()
