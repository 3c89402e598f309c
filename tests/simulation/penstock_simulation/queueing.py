"""Members of a share group in a simulated cluster (KIP-932): they get records of some topics and acknowledge each one.

A member accepts most records, releases or rejects some, and keeps some until its connection or its lock ends. It sends
acknowledgements alone or with its next fetch. `queue_settings` draws the settings of the group.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from penstock.client import Admin, BrokerError, ClientError, Consumer, ErrorCode
from penstock.client.cluster import ClusterConnections
from penstock.share.acknowledgement import AckType
from penstock.wire.messages import share_acknowledge as ack
from penstock.wire.messages import share_fetch as fetch
from penstock.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from penstock.wire.records import iterate_batches, iterate_records
from penstock_simulation.history import Outcome, Partition, ShareAck, ShareDelivery
from penstock_simulation.workload import RETRY_S, Plan, configure_group

if TYPE_CHECKING:
    from penstock.wire.primitives import Buffer

MEMBERS = 2
HEARTBEAT_S = 1.0
LEFT = -1
"""Member epoch of a member that leaves."""
WAIT_MS = 300
MUCH = 1 << 20
MAX_RECORDS = 20
FINAL = frozenset({AckType.ACCEPT, AckType.REJECT})


async def work(plan: Plan, name: str, rng: random.Random) -> None:
    """Run a member; after an error or some time, its next incarnation."""
    await configure_group(plan, plan.queue_group, plan.queue_settings)
    while True:
        plan.lives[name] += 1
        member = ShareMember(plan, f"{name}.{plan.lives[name]}", rng)
        with contextlib.suppress(ClientError):
            await member.run(rng.randrange(20, 200))
        await member.close()
        await asyncio.sleep(RETRY_S)


async def finish(plan: Plan) -> None:
    """Wait until the group is done with all records, and has written its dead letters, which do not count as lag.

    Raises `ClientError` while it is not.
    """
    partitions = plan.queue_partitions
    async with Admin(plan.bootstrap, request_timeout_ms=3000) as admin:
        starts = await admin.share_offsets(plan.queue_group)
    async with Consumer(plan.bootstrap, request_timeout_ms=3000, auto_create_topics=False) as consumer:
        ends = await consumer.end_offsets(partitions)
    behind = [tp for tp in partitions if tp not in starts or starts[tp].lag != 0 or starts[tp].start < ends[tp]]
    if behind:
        raise ClientError(f"the share group is not done with {behind[0]}: {starts.get(behind[0])}")
    plan.history.queue_ends = {(tp.topic, tp.partition): starts[tp].start for tp in partitions}


class Leader(NamedTuple):
    """A broker, and the partitions that a member fetches from it."""

    node_id: int
    partitions: tuple[Partition, ...]


class ShareMember:
    """One incarnation of a member. `pending` are the acknowledgements for its next request to each broker."""

    def __init__(self, plan: Plan, member_id: str, rng: random.Random) -> None:
        self.plan, self.member_id, self.rng = plan, member_id, rng
        self.cluster = ClusterConnections(plan.bootstrap, request_timeout_ms=3000)
        self.group = plan.queue_group
        self.epoch = 0
        self.assigned: list[Partition] = []
        self.sessions: dict[int, tuple[int, Leader]] = {}
        """By broker, the epoch of the next request and what the session has."""
        self.pending: dict[int, list[ShareAck]] = {}
        self.types: dict[int, AckType] = {}
        self.topic_ids: dict[str, UUID] = {}

    async def run(self, turns: int) -> None:
        """Join, and fetch and acknowledge for some turns. Raises `ClientError`."""
        await self.cluster.start()
        for name in self.plan.queue_topics:
            self.topic_ids[name] = (await self.cluster.topic(name)).topic_id
        heartbeats = asyncio.create_task(self.heartbeats())
        try:
            for _ in range(turns):
                await self.turn()
                if heartbeats.done():
                    heartbeats.result()
        finally:
            heartbeats.cancel()
            await asyncio.gather(heartbeats, return_exceptions=True)

    async def close(self) -> None:
        """Leave the group; a member that is killed does not, and keeps its partitions until its session ends."""
        with contextlib.suppress(ClientError):
            await self.heartbeat(ShareGroupHeartbeatRequest(self.group, self.member_id, LEFT))
        await self.cluster.close()

    async def heartbeats(self) -> None:
        """Stay a member; join again when fenced."""
        while True:
            topics = self.plan.queue_topics if self.epoch == 0 else None
            request = ShareGroupHeartbeatRequest(self.group, self.member_id, self.epoch, None, topics)
            response = await self.cluster.retrying(lambda sent=request: self.heartbeat(sent))
            if response.error_code:
                self.epoch, self.assigned = 0, []
            else:
                self.epoch = response.member_epoch
                if response.assignment is not None:
                    names = {topic_id: name for name, topic_id in self.topic_ids.items()}
                    found = response.assignment.topic_partitions
                    self.assigned = sorted((names[topic.topic_id], p) for topic in found for p in topic.partitions)
            await asyncio.sleep(HEARTBEAT_S)

    async def heartbeat(self, request: ShareGroupHeartbeatRequest) -> ShareGroupHeartbeatResponse:
        """Send one heartbeat. Raises `ClientError` for all errors but those that require to join again."""
        response = await self.cluster.call_coordinator(self.group, request, ShareGroupHeartbeatResponse)
        if response.error_code not in (0, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH):
            self.cluster.forget_coordinator(self.group)
            raise BrokerError(response.error_code, self.group, response.error_message)
        return response

    async def turn(self) -> None:
        """Fetch from each leader once; sometimes acknowledge before."""
        leaders: dict[int, list[Partition]] = {}
        for partition in self.assigned:
            leaders.setdefault(self.cluster.metadata.leader(*partition), []).append(partition)
        leaders.pop(-1, None)
        for node_id, partitions in leaders.items():
            leader = Leader(node_id, tuple(partitions))
            try:
                if self.pending.get(node_id) and node_id in self.sessions and self.rng.random() < 0.5:
                    await self.acknowledge(leader)
                await self.fetch(leader)
            except ClientError:
                self.drop_session(node_id)
                self.cluster.invalidate()
                await asyncio.sleep(RETRY_S)
        if not leaders:
            self.cluster.invalidate()
            await asyncio.sleep(RETRY_S)

    def drop_session(self, node_id: int) -> None:
        """Open a new session with the next fetch. Acknowledgements that were not answered have an unknown outcome."""
        self.sessions.pop(node_id, None)
        self.pending.pop(node_id, None)

    async def acknowledge(self, leader: Leader) -> None:
        """Acknowledge what is pending. Raises `ClientError`."""
        epoch, opened = self.sessions[leader.node_id]
        acks = self.sent(self.pending.pop(leader.node_id))
        named = by_partition(acks)
        topics = [
            ack.AcknowledgeTopic(
                self.topic_ids[name],
                [
                    ack.AcknowledgePartition(
                        partition[1], [ack.AcknowledgementBatch(a.offset, a.offset, [self.types[id(a)]]) for a in group]
                    )
                    for partition, group in named.items()
                    if partition[0] == name
                ],
            )
            for name in topics_of(named)
        ]
        request = ack.ShareAcknowledgeRequest(self.group, self.member_id, epoch, topics=topics)
        self.sessions[leader.node_id] = epoch + 1, opened
        response = await self.cluster.call(leader.node_id, request, ack.ShareAcknowledgeResponse)
        check(response.error_code)
        errors = {
            (self.name(topic.topic_id), p.partition_index): p.error_code
            for topic in response.responses
            for p in topic.partitions
        }
        self.settle(acks, errors)
        check(max(errors.values(), default=0))

    async def fetch(self, leader: Leader) -> None:
        """Fetch once, with pending acknowledgements. Raises `ClientError`."""
        epoch, opened = self.sessions.get(leader.node_id, (0, leader))
        if opened != leader:
            epoch = 0
        acks = self.sent(self.pending.pop(leader.node_id, [])) if epoch else []
        named = by_partition(acks) if epoch else {partition: [] for partition in leader.partitions}
        topics = [
            fetch.FetchTopic(
                self.topic_ids[name],
                [
                    fetch.FetchPartition(
                        partition[1],
                        [fetch.AcknowledgementBatch(a.offset, a.offset, [self.types[id(a)]]) for a in group],
                    )
                    for partition, group in named.items()
                    if partition[0] == name
                ],
            )
            for name in topics_of(named)
        ]
        request = fetch.ShareFetchRequest(
            self.group, self.member_id, epoch, WAIT_MS, 1, MUCH, MAX_RECORDS, MAX_RECORDS,
            share_acquire_mode=self.rng.choice([0, 1]), topics=topics,
        )  # fmt: skip
        self.sessions[leader.node_id] = epoch + 1, leader
        sent_s = self.plan.world.now
        response = await self.cluster.call(leader.node_id, request, fetch.ShareFetchResponse)
        check(response.error_code)
        found = {
            (self.name(topic.topic_id), data.partition_index): data
            for topic in response.responses
            for data in topic.partitions
        }
        self.settle(acks, {place: data.acknowledge_error_code for place, data in found.items()})
        for place, data in found.items():
            if not data.error_code:
                self.deliver(leader.node_id, place, data, sent_s)
        check(max((data.error_code for data in found.values()), default=0))

    def name(self, topic_id: UUID) -> str:
        """Return the name of a topic."""
        return next(name for name, known in self.topic_ids.items() if known == topic_id)

    def sent(self, acks: list[ShareAck]) -> list[ShareAck]:
        """Record that acknowledgements are sent now."""
        for made in acks:
            made.sent_s = self.plan.world.now
        return acks

    def deliver(self, node_id: int, place: Partition, data: fetch.PartitionData, sent_s: float) -> None:
        """Record what was acquired, and decide what to do with each record."""
        counts = {
            offset: acquired.delivery_count
            for acquired in data.acquired_records
            for offset in range(acquired.first_offset, acquired.last_offset + 1)
        }
        choices = self.plan.queue_choices
        for offset, value in records_of(data.records):
            if offset not in counts:
                continue
            count, now_s = counts[offset], self.plan.world.now
            delivery = ShareDelivery(self.member_id, place, offset, value, count, sent_s, now_s)
            self.plan.history.deliveries.append(delivery)
            (choice,) = self.rng.choices(list(choices), list(choices.values()))
            if choice is None and self.plan.is_sent:
                choice = AckType.ACCEPT  # with order by key, the locks of one key would end one after the other
            if choice is not None:
                made = ShareAck(self.member_id, place, offset, choice in FINAL, count=count)
                self.types[id(made)] = AckType(choice)
                made.is_rejected = choice == AckType.REJECT
                self.plan.history.acks.append(made)
                self.pending.setdefault(node_id, []).append(made)

    def settle(self, acks: Iterable[ShareAck], errors: dict[Partition, int]) -> None:
        """Record the outcome of acknowledgements by the error of their partition."""
        for made in acks:
            error = errors.get(made.partition)
            if error == 0:
                made.outcome, made.completed_s = Outcome.OK, self.plan.world.now
            elif error == ErrorCode.INVALID_RECORD_STATE:
                made.outcome = Outcome.FAILED


def check(error: int) -> None:
    """Raise `BrokerError` for an error."""
    if error:
        raise BrokerError(error, "share group")


def by_partition(acks: Iterable[ShareAck]) -> dict[Partition, list[ShareAck]]:
    """Group acknowledgements by partition, in the order of offsets."""
    groups: dict[Partition, list[ShareAck]] = {}
    for made in sorted(acks, key=lambda a: a.offset):
        groups.setdefault(made.partition, []).append(made)
    return groups


def topics_of(partitions: Iterable[Partition]) -> list[str]:
    """Return the topics of partitions, each once."""
    return list(dict.fromkeys(topic for topic, _ in partitions))


def records_of(data: Buffer) -> Iterable[tuple[int, bytes]]:
    """Yield (offset, value) of the records in a response."""
    for header, batch in iterate_batches(data):
        for record in iterate_records(batch, header, MUCH):
            yield record.offset, bytes(record.value or b"")
