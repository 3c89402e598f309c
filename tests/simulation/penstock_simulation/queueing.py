"""Members of a share group in a simulated cluster (KIP-932): they get records of `TOPIC` and acknowledge each one.

A member accepts most records, releases or rejects some, and keeps some until its connection or its lock ends. It sends
acknowledgements alone or with its next fetch.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, cast
from uuid import UUID

from penstock.client import Admin, AlterConfig, BrokerError, ClientError, ErrorCode
from penstock.client.cluster import ClusterConnections
from penstock.share.partition import AckType
from penstock.wire.messages import share_acknowledge as ack
from penstock.wire.messages import share_fetch as fetch
from penstock.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from penstock.wire.records import iterate_batches, iterate_records
from penstock_simulation.history import Outcome, ShareAck, ShareDelivery
from penstock_simulation.workload import RETRY_S, TOPIC, Plan

if TYPE_CHECKING:
    from penstock.wire.primitives import Buffer

WORKERS = "workers"
MEMBERS = 2
DELIVERY_LIMIT = 10
SETTINGS = {
    "share.auto.offset.reset": "earliest",
    "share.record.lock.duration.ms": "15000",
    "share.delivery.count.limit": str(DELIVERY_LIMIT),
}
ORDERED_SHARE = BACKOFF_SHARE = 0.4
"""Probability of order by key, and of a back-off, in worlds with a share group."""
KEYS = 20
BACKOFF = {
    "share.redelivery.backoff.ms": "400",
    "share.redelivery.backoff.multiplier": "2",
    "share.redelivery.backoff.max.ms": "1500",
}
BACKOFFS_S = [0.0, 0.4, 0.8, *([1.5] * DELIVERY_LIMIT)]
HEARTBEAT_S = 1.0
LEFT = -1
"""Member epoch of a member that leaves."""
WAIT_MS = 300
MUCH = 1 << 20
MAX_RECORDS = 20
CHOICES = {AckType.ACCEPT: 0.8, AckType.RELEASE: 0.1, AckType.REJECT: 0.05, None: 0.05}
"""What a member does with a record, and how often; None: it keeps the record."""
FINAL = frozenset({AckType.ACCEPT, AckType.REJECT})


def draw_settings(plan: Plan, rng: random.Random) -> None:
    """Choose the settings of the group."""
    plan.queue_settings = dict(SETTINGS)
    plan.history.delivery_limit = DELIVERY_LIMIT
    if rng.random() < ORDERED_SHARE:
        plan.queue_settings["share.order.by.key"] = "true"
        plan.history.is_ordered_by_key, plan.keys = True, KEYS
    if rng.random() < BACKOFF_SHARE:
        plan.queue_settings |= BACKOFF
        plan.history.backoffs_s = BACKOFFS_S


async def configure(plan: Plan) -> None:
    """Set the group's settings; retry until they are set."""
    changes = [AlterConfig(name, value) for name, value in plan.queue_settings.items()]
    while True:
        try:
            async with Admin(plan.bootstrap, request_timeout_ms=3000) as admin:
                if (await admin.alter_group_configs({WORKERS: changes}))[WORKERS] is None:
                    return
        except ClientError:
            pass
        await asyncio.sleep(RETRY_S)


async def work(plan: Plan, name: str, rng: random.Random) -> None:
    """Run a member; after an error or some time, its next incarnation."""
    await configure(plan)
    while True:
        plan.lives[name] += 1
        member = ShareMember(plan, f"{name}.{plan.lives[name]}", rng)
        with contextlib.suppress(ClientError):
            await member.run(rng.randrange(20, 200))
        await member.close()
        await asyncio.sleep(RETRY_S)


async def finish(plan: Plan) -> None:
    """Wait until the group is done with all records. Raises `ClientError` while it is not."""
    partitions = plan.all_partitions
    async with Admin(plan.bootstrap, request_timeout_ms=3000) as admin:
        starts = await admin.share_offsets(WORKERS)
    behind = [tp for tp in partitions if tp not in starts or starts[tp].lag != 0]
    if behind:
        raise ClientError(f"the share group is not done with {behind[0]}: {starts.get(behind[0])}")
    plan.history.queue_ends = {(tp.topic, tp.partition): starts[tp].start for tp in partitions}


class Leader(NamedTuple):
    """A broker, and the partitions that a member fetches from it."""

    node_id: int
    partitions: tuple[int, ...]


class ShareMember:
    """One incarnation of a member. `pending` are the acknowledgements for its next request to each broker."""

    def __init__(self, plan: Plan, member_id: str, rng: random.Random) -> None:
        self.plan, self.member_id, self.rng = plan, member_id, rng
        self.cluster = ClusterConnections(plan.bootstrap, request_timeout_ms=3000)
        self.epoch = 0
        self.assigned: list[int] = []
        self.sessions: dict[int, tuple[int, Leader]] = {}
        """By broker, the epoch of the next request and what the session has."""
        self.pending: dict[int, list[ShareAck]] = {}
        self.types: dict[int, AckType] = {}
        self.topic_id = UUID(int=0)

    async def run(self, turns: int) -> None:
        """Join, and fetch and acknowledge for some turns. Raises `ClientError`."""
        await self.cluster.start()
        self.topic_id = (await self.cluster.topic(TOPIC)).topic_id
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
            await self.heartbeat(ShareGroupHeartbeatRequest(WORKERS, self.member_id, LEFT))
        await self.cluster.close()

    async def heartbeats(self) -> None:
        """Stay a member; join again when fenced."""
        while True:
            topics = [TOPIC] if self.epoch == 0 else None
            request = ShareGroupHeartbeatRequest(WORKERS, self.member_id, self.epoch, None, topics)
            response = await self.cluster.retrying(lambda sent=request: self.heartbeat(sent))
            if response.error_code:
                self.epoch, self.assigned = 0, []
            else:
                self.epoch = response.member_epoch
                if response.assignment is not None:
                    parts = [p for topic in response.assignment.topic_partitions for p in topic.partitions]
                    self.assigned = sorted(parts)
            await asyncio.sleep(HEARTBEAT_S)

    async def heartbeat(self, request: ShareGroupHeartbeatRequest) -> ShareGroupHeartbeatResponse:
        """Send one heartbeat. Raises `ClientError` for all errors but those that require to join again."""
        response = await self.cluster.call_coordinator(WORKERS, request, ShareGroupHeartbeatResponse)
        if response.error_code not in (0, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH):
            self.cluster.forget_coordinator(WORKERS)
            raise BrokerError(response.error_code, WORKERS, response.error_message)
        return response

    async def turn(self) -> None:
        """Fetch from each leader once; sometimes acknowledge before."""
        leaders: dict[int, list[int]] = {}
        for partition in self.assigned:
            leaders.setdefault(self.cluster.metadata.leader(TOPIC, partition), []).append(partition)
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
        topics = [
            ack.AcknowledgeTopic(
                self.topic_id,
                [
                    ack.AcknowledgePartition(
                        partition, [ack.AcknowledgementBatch(a.offset, a.offset, [self.types[id(a)]]) for a in group]
                    )
                    for partition, group in by_partition(acks)
                ],
            )
        ]
        request = ack.ShareAcknowledgeRequest(WORKERS, self.member_id, epoch, topics=topics)
        self.sessions[leader.node_id] = epoch + 1, opened
        response = await self.cluster.call(leader.node_id, request, ack.ShareAcknowledgeResponse)
        check(response.error_code)
        errors = {p.partition_index: p.error_code for topic in response.responses for p in topic.partitions}
        self.settle(acks, errors)
        check(max(errors.values(), default=0))

    async def fetch(self, leader: Leader) -> None:
        """Fetch once, with pending acknowledgements. Raises `ClientError`."""
        epoch, opened = self.sessions.get(leader.node_id, (0, leader))
        if opened != leader:
            epoch = 0
        acks = self.sent(self.pending.pop(leader.node_id, [])) if epoch else []
        named = dict(by_partition(acks)) if epoch else dict.fromkeys(leader.partitions, cast("list[ShareAck]", []))
        partitions = [
            fetch.FetchPartition(
                partition, [fetch.AcknowledgementBatch(a.offset, a.offset, [self.types[id(a)]]) for a in group]
            )
            for partition, group in named.items()
        ]
        request = fetch.ShareFetchRequest(
            WORKERS, self.member_id, epoch, WAIT_MS, 1, MUCH, MAX_RECORDS, MAX_RECORDS,
            share_acquire_mode=self.rng.choice([0, 1]), topics=[fetch.FetchTopic(self.topic_id, partitions)],
        )  # fmt: skip
        self.sessions[leader.node_id] = epoch + 1, leader
        sent_s = self.plan.world.now
        response = await self.cluster.call(leader.node_id, request, fetch.ShareFetchResponse)
        check(response.error_code)
        found = [p for topic in response.responses for p in topic.partitions]
        self.settle(acks, {p.partition_index: p.acknowledge_error_code for p in found})
        for partition in found:
            if not partition.error_code:
                self.deliver(leader.node_id, partition, sent_s)
        check(max((p.error_code for p in found), default=0))

    def sent(self, acks: list[ShareAck]) -> list[ShareAck]:
        """Record that acknowledgements are sent now."""
        for made in acks:
            made.sent_s = self.plan.world.now
        return acks

    def deliver(self, node_id: int, data: fetch.PartitionData, sent_s: float) -> None:
        """Record what was acquired, and decide what to do with each record."""
        counts = {
            offset: acquired.delivery_count
            for acquired in data.acquired_records
            for offset in range(acquired.first_offset, acquired.last_offset + 1)
        }
        place = TOPIC, data.partition_index
        for offset, value in records_of(data.records):
            if offset not in counts:
                continue
            count, now_s = counts[offset], self.plan.world.now
            delivery = ShareDelivery(self.member_id, place, offset, value, count, sent_s, now_s)
            self.plan.history.deliveries.append(delivery)
            (choice,) = self.rng.choices(list(CHOICES), list(CHOICES.values()))
            if choice is not None:
                made = ShareAck(self.member_id, place, offset, choice in FINAL, count=count)
                self.types[id(made)] = choice
                self.plan.history.acks.append(made)
                self.pending.setdefault(node_id, []).append(made)

    def settle(self, acks: Iterable[ShareAck], errors: dict[int, int]) -> None:
        """Record the outcome of acknowledgements by the error of their partition."""
        for made in acks:
            error = errors.get(made.partition[1])
            if error == 0:
                made.outcome, made.completed_s = Outcome.OK, self.plan.world.now
            elif error == ErrorCode.INVALID_RECORD_STATE:
                made.outcome = Outcome.FAILED


def check(error: int) -> None:
    """Raise `BrokerError` for an error."""
    if error:
        raise BrokerError(error, WORKERS)


def by_partition(acks: Iterable[ShareAck]) -> Iterable[tuple[int, list[ShareAck]]]:
    """Group acknowledgements by partition, in the order of offsets."""
    groups: dict[int, list[ShareAck]] = {}
    for made in sorted(acks, key=lambda a: a.offset):
        groups.setdefault(made.partition[1], []).append(made)
    return groups.items()


def records_of(data: Buffer) -> Iterable[tuple[int, bytes]]:
    """Yield (offset, value) of the records in a response."""
    for header, batch in iterate_batches(data):
        for record in iterate_records(batch, header, MUCH):
            yield record.offset, bytes(record.value or b"")
