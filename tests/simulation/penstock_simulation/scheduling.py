"""The workload of a topic with scheduled records: each must be delivered once, not before its time, and never after its
cancellation was acknowledged.

`cluster` starts its producer and its reader.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from penstock.client import (
    Admin,
    ClientError,
    Consumer,
    Delivery,
    Producer,
    TopicPartition,
    cancel_scheduled,
    deliver_after,
    deliver_at,
)
from penstock_simulation.clock import EPOCH_MS
from penstock_simulation.history import Outcome, ScheduledRead, ScheduledWrite
from penstock_simulation.machine import MAX_SKEW_MS
from penstock_simulation.workload import RETRY_S, Plan, close, plain

if TYPE_CHECKING:
    from penstock.client import ConsumerRecord
    from penstock.runtime.clock import Clock
    from penstock.wire.record import Header

REMINDERS = "reminders"
PRODUCER, READER, LAST = "s0", "sr", "last scheduled"
RECORDS = 150
"""Number of records and cancellations that the producer sends."""
KEYS = 25
ORIGIN = "penstock-scheduled-offset"
"""Name of the header with the offset that a delivered record had when it was scheduled."""
WITHOUT_TIME, SHORTLY, AFTER, AT, CANCELLATION = "without time", "shortly", "after", "at", "cancellation"
KINDS = {WITHOUT_TIME: 15, SHORTLY: 20, AFTER: 25, AT: 25, CANCELLATION: 15}
"""What the producer sends, and how often."""
SHORT_MS, MIN_DELAY_MS, MAX_DELAY_MS = 1_500, 5_500, 14_000
CANCELLED_SHARE = 0.5
"""Probability that a record with a short delay is cancelled about when it is delivered."""
MIN_ACK_S, MAX_ACK_S = 0.03, 0.13
"""Time from the append of a record to its acknowledgement, roughly."""
VALUE_BYTES = 12
MAX_DRIFT_S = 0.25
"""Bounds what the drift of clocks adds to their skew."""
AT_STEP_MS = 1_000
"""Times of delivery are multiples, so that several records have the same."""


def draw_settings(plan: Plan, rng: random.Random) -> None:
    """Add the topic."""
    plan.others.append((REMINDERS, rng.choice([1, 2]), False))
    plan.more_configs[REMINDERS] = {"delivery.schedule.enable": "true"}
    plan.read_apart.add(REMINDERS)
    plan.history.epoch_ms = EPOCH_MS
    plan.history.clock_error_s = MAX_SKEW_MS / 1000 + MAX_DRIFT_S


def partitions_of(plan: Plan) -> list[TopicPartition]:
    """Return the partitions of the topic."""
    (count,) = (count for name, count, _ in plan.topics if name == REMINDERS)
    return [TopicPartition(REMINDERS, index) for index in range(count)]


# Producing


async def schedule(plan: Plan, clock: Clock, rng: random.Random) -> None:
    """Run one incarnation of the producer."""
    while not plan.is_done(PRODUCER):
        plan.lives[PRODUCER] += 1
        producer = Producer(
            plan.bootstrap, linger_ms=rng.choice([0, 5, 50]), request_timeout_ms=3000, delivery_timeout_ms=600_000,
            metadata_max_age_ms=30_000, clock=clock, auto_create_topics=False,
        )  # fmt: skip
        pending: set[asyncio.Task[None]] = set()
        try:
            await producer.start()
            await send_all(plan, producer, clock, rng, pending)
            while pending:
                await asyncio.wait(list(pending))
        except ClientError:
            pass
        await close(producer)
        await asyncio.sleep(RETRY_S)
    plan.finished.add(PRODUCER)


async def send_all(
    plan: Plan, producer: Producer, clock: Clock, rng: random.Random, pending: set[asyncio.Task[None]]
) -> None:
    """Send records in bursts until there are enough. Raises ClientError."""
    partitions = partitions_of(plan)
    while not plan.is_done(PRODUCER):
        for _ in range(rng.choice([1, 1, 2, 8])):
            write, header = draw_record(plan, rng.choice(partitions), clock, rng)
            plan.history.scheduled.append(write)
            plan.sent[PRODUCER] += 1
            try:
                delivery = await producer.send(
                    REMINDERS, write.value, key=write.key, partition=write.partition[1], headers=header
                )
            except ClientError:
                write.outcome = Outcome.FAILED  # it was never added to a batch
                raise
            task = asyncio.create_task(follow(plan, producer, write, delivery, rng))
            pending.add(task)
            task.add_done_callback(pending.discard)
        if rng.random() < 0.01:  # restart cleanly
            return
        await asyncio.sleep(rng.expovariate(1 / (3 * plan.pause_s)))


async def follow(plan: Plan, producer: Producer, write: ScheduledWrite, delivery: Delivery, rng: random.Random) -> None:
    """Record the acknowledgement, and cancel some of the records."""
    await await_delivery(plan, write, delivery)
    is_short = write.delay_s is not None and write.delay_s * 1000 < SHORT_MS
    if is_short and write.outcome is Outcome.OK and rng.random() < CANCELLED_SHARE:
        await cancel_when_due(plan, producer, write, rng.uniform(MIN_ACK_S, MAX_ACK_S))


def draw_record(
    plan: Plan, partition: TopicPartition, clock: Clock, rng: random.Random
) -> tuple[ScheduledWrite, list[Header]]:
    """Return a record or cancellation to send, and its headers."""
    key, value = b"k%d" % rng.randrange(KEYS), b"%d" % plan.sent[PRODUCER]
    write = ScheduledWrite(plain(partition), key, value + b"." * rng.choice([0, 0, 30, 300]), plan.world.now)
    (kind,) = rng.choices(list(KINDS), list(KINDS.values()))
    if kind == WITHOUT_TIME:
        return write, []
    if kind == CANCELLATION:
        write.is_cancellation = True
        return write, [cancel_scheduled()]
    delay_ms = rng.randrange(1, SHORT_MS) if kind == SHORTLY else rng.randrange(MIN_DELAY_MS, MAX_DELAY_MS)
    if kind == AT:
        write.due_ms = (clock.wall_ms() + delay_ms) // AT_STEP_MS * AT_STEP_MS
        return write, [deliver_at(write.due_ms)]
    write.delay_s = delay_ms / 1000
    return write, [deliver_after(delay_ms)]


async def await_delivery(plan: Plan, write: ScheduledWrite, delivery: Delivery) -> None:
    """Record the acknowledgement."""
    try:
        metadata = await delivery
    except ClientError:
        return
    write.outcome, write.offset, write.completed_s = Outcome.OK, metadata.offset, plan.world.now


async def cancel_when_due(plan: Plan, producer: Producer, write: ScheduledWrite, before_s: float) -> None:
    """Cancel a record that waits for a short time about when the leader delivers it."""
    assert write.delay_s is not None, "a record with a delay"
    await asyncio.sleep(max(write.completed_s + write.delay_s - before_s - plan.world.now, 0.0))
    value = b"cancels " + write.value[:VALUE_BYTES]
    made = ScheduledWrite(write.partition, write.key, value, plan.world.now, is_cancellation=True)
    plan.history.scheduled.append(made)
    try:
        delivery = await producer.send(
            REMINDERS, value, key=made.key, partition=made.partition[1], headers=[cancel_scheduled()]
        )
    except ClientError:
        made.outcome = Outcome.FAILED  # it was never added to a batch
        return
    await await_delivery(plan, made, delivery)


# Reading


def read_of(plan: Plan, reader: str, partition: TopicPartition, record: ConsumerRecord) -> ScheduledRead:
    """Return the event of a received record."""
    last = record.headers[-1] if record.headers else ("", None)
    origin = int(last[1] or b"-1") if last[0] == ORIGIN else None
    return ScheduledRead(
        reader, plain(partition), record.offset, record.key, record.value or b"", origin, plan.world.now
    )


async def read(plan: Plan, rng: random.Random) -> None:
    """Run a reader without a group, restarting it after each error, from the beginning or its last position."""
    positions: dict[TopicPartition, int] = {}
    while True:
        plan.lives[READER] += 1
        reader = f"{READER}.{plan.lives[READER]}"
        consumer = Consumer(plan.bootstrap, request_timeout_ms=3000, fetch_max_wait_ms=200, **OPTIONS)
        try:
            await consumer.start()
            consumer.assign(partitions_of(plan))
            if rng.random() < 0.8:
                for partition, offset in positions.items():
                    consumer.seek(partition, offset)
            for _ in range(rng.randrange(20, 200)):
                for partition, records in (await consumer.getmany(timeout_ms=500)).items():
                    plan.history.scheduled_reads += [read_of(plan, reader, partition, record) for record in records]
                    positions[partition] = records[-1].offset + 1
        except ClientError:
            pass
        await close(consumer)
        await asyncio.sleep(RETRY_S)


async def check_delivered(plan: Plan) -> None:
    """Raise ClientError if records wait, or if that is not known."""
    partitions = partitions_of(plan)
    async with Admin(plan.bootstrap, request_timeout_ms=5000) as admin:
        waiting = await admin.undelivered(partitions)
    for partition in partitions:
        if partition not in waiting or waiting[partition].records:
            raise ClientError(f"records wait in {partition}: {waiting.get(partition)}")


async def write_last(plan: Plan) -> None:
    """Write a record without a time to each partition. The deliveries before it are committed with it. Raises
    ClientError."""
    async with Producer(plan.bootstrap, request_timeout_ms=3000, auto_create_topics=False) as producer:
        plan.lives[LAST] += 1
        for partition in partitions_of(plan):
            value = b"last %d/%d" % (plan.lives[LAST], partition.partition)
            write = ScheduledWrite(plain(partition), b"last", value, plan.world.now)
            plan.history.scheduled.append(write)
            now_ms = EPOCH_MS + int(plan.world.now * 1000)
            delivery = await producer.send(
                REMINDERS, write.value, key=write.key, partition=partition.partition, timestamp_ms=now_ms
            )
            write.offset = (await delivery).offset
            write.outcome, write.completed_s = Outcome.OK, plan.world.now


async def read_all(plan: Plan) -> None:
    """Read the topic once no record waits. Raises ClientError while records wait."""
    partitions = partitions_of(plan)
    await check_delivered(plan)
    await write_last(plan)
    await check_delivered(plan)
    async with Consumer(plan.bootstrap, request_timeout_ms=5000, **OPTIONS) as consumer:
        ends = await consumer.end_offsets(partitions)
        consumer.assign(partitions)
        contents: dict[TopicPartition, list[ScheduledRead]] = {partition: [] for partition in partitions}
        while any([await consumer.position(partition) < ends[partition] for partition in partitions]):
            for partition, records in (await consumer.getmany(timeout_ms=500)).items():
                contents[partition] += [read_of(plan, "the final read", partition, record) for record in records]
    plan.history.scheduled_contents = {plain(partition): found for partition, found in contents.items()}


OPTIONS: dict[str, Any] = {"offset_reset": "earliest", "auto_create_topics": False}
