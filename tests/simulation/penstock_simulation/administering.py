"""The administrator of a simulated cluster: creates and deletes topics, reassigns partitions, drains brokers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from penstock.client import Admin, AlterConfig, BrokerError, ClientError, Consumer, ErrorCode, NewTopic, Producer
from penstock.client.cluster import ClusterConnections
from penstock.client.types import TopicPartition
from penstock.runtime.clock import Clock
from penstock.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from penstock_simulation.history import Content, Outcome, Write
from penstock_simulation.workload import RETRY_S, Plan

CHURN_S = 60.0
"""Time limit for creating, using and deleting one topic; then the next topic starts."""


async def churn(plan: Plan, clock: Clock, rng: random.Random) -> None:
    """Create, write, read and delete topics, one after the other, each with a new name."""
    while True:
        plan.lives["churn"] += 1
        topic = f"passing-{plan.lives['churn']}"
        try:
            async with asyncio.timeout(CHURN_S):
                await live(plan, topic, clock, rng)
        except (ClientError, TimeoutError):
            pass
        await asyncio.sleep(rng.expovariate(1 / 2.0))


async def live(plan: Plan, topic: str, clock: Clock, rng: random.Random) -> None:
    """Create one topic, use it and delete it."""
    partition = TopicPartition(topic, 0)
    async with Admin(plan.bootstrap, request_timeout_ms=3000) as admin:
        try:
            await admin.create_topics([NewTopic(topic, 1, plan.replication, plan.configs)])
        except BrokerError as e:
            if e.code != ErrorCode.TOPIC_ALREADY_EXISTS:  # an earlier attempt may have created it
                raise
        await write_some(plan, partition, clock, rng.randrange(1, 20))
        await read_all(plan, partition)
        await admin.delete_topics([topic])


async def write_some(plan: Plan, partition: TopicPartition, clock: Clock, count: int) -> None:
    async with Producer(plan.bootstrap, request_timeout_ms=3000, clock=clock, auto_create_topics=False) as producer:
        for number in range(count):
            value = f"{partition.topic}/{number}".encode()
            write = Write(partition.topic, (partition.topic, 0), number, value, plan.world.now)
            plan.history.writes.append(write)
            delivery = await producer.send(partition.topic, value, partition=0)
            write.offset = (await delivery).offset
            write.outcome, write.completed_s = Outcome.OK, plan.world.now


async def read_all(plan: Plan, partition: TopicPartition) -> None:
    """Read the whole topic and assert that it contains each record written before."""
    async with Consumer(
        plan.bootstrap, offset_reset="earliest", request_timeout_ms=3000, auto_create_topics=False
    ) as consumer:
        end = (await consumer.end_offsets([partition]))[partition]
        consumer.assign([partition])
        consumer.seek(partition, 0)
        records: list[tuple[int, bytes]] = []
        while await consumer.position(partition) < end:
            for polled in (await consumer.getmany(timeout_ms=500)).values():
                records += [(record.offset, record.value or b"") for record in polled]
    plan.history.contents.append(Content((partition.topic, 0), 0, end, records))


async def move(plan: Plan, brokers: Callable[[], list[int]], rng: random.Random) -> None:
    """Reassign a random partition from time to time, to other replicas or another order; sometimes cancel the move."""
    while True:
        await asyncio.sleep(rng.uniform(1.0, 6.0))
        topic, count, _ = rng.choice(plan.topics)
        known = brokers()
        replicas = rng.sample(known, min(rng.choice([2, 3, 3, 3]), len(known)))
        await reassign(plan, TopicPartition(topic, rng.randrange(count)), replicas if rng.random() < 0.85 else None)


async def reassign(plan: Plan, partition: TopicPartition, replicas: list[int] | None) -> None:
    cluster = ClusterConnections(plan.bootstrap, request_timeout_ms=3000)
    request = AlterPartitionReassignmentsRequest(
        timeout_ms=3000,
        topics=[
            ReassignableTopic(
                name=partition.topic,
                partitions=[ReassignablePartition(partition_index=partition.partition, replicas=replicas)],
            )
        ],
    )
    try:
        await cluster.start()
        await cluster.call_controller(request, AlterPartitionReassignmentsResponse)
    except ClientError:
        pass
    await cluster.close()


async def drain(plan: Plan, number: int, is_draining: bool) -> None:
    """Set or reset the broker's `broker.draining`; retry until it succeeds."""
    change = AlterConfig("broker.draining", "true" if is_draining else "false")
    while True:
        try:
            async with Admin(plan.bootstrap, request_timeout_ms=3000) as admin:
                await admin.alter_broker_configs(number, [change])
                break
        except ClientError:
            await asyncio.sleep(RETRY_S)
    plan.finished.add(f"drain{number}{is_draining}")
