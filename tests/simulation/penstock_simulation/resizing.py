"""The workload of a topic whose number of partitions goes down and up again: no record may be lost, duplicated, or
written to a sealed partition's visible part, and what is relayed keeps its order.

`cluster` starts its clients. At the end all partitions are open again, and the topic is read as the others are.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from penstock.client import Admin, ClientError, Producer, TopicPartition
from penstock_simulation.history import Outcome, Seal, Write
from penstock_simulation.workload import RETRY_S, Plan, await_delivery, close

if TYPE_CHECKING:
    from penstock.runtime.clock import Clock

RESIZED, GROUP = "resized", "drainers"
PRODUCERS = ("z0", "z1")
MEMBERS = ("zc0", "zc1")
READER, ADMINISTRATOR, WATCHER = "zr", "resizer", "seals"
RECORDS = 120
"""Number of records that each producer sends."""
KEYS = 24
HIDDEN_S, LAST_S = 45.0, 3.0
"""Time before the last change in some worlds, in which partitions whose groups read on are hidden; and the time for
which producers send after the last change, at least."""
HIDDEN_SHARE = 0.3


class Size(NamedTuple):
    """The number of partitions, and the smaller numbers that are chosen from."""

    most: int
    fewer: tuple[int, ...]
    has_chains: bool = False


SIZES = (Size(2, (1,)), Size(3, (1, 2)), Size(4, (1, 2, 3)), Size(6, (2, 3), has_chains=True))


def draw_settings(plan: Plan, rng: random.Random) -> Size:
    """Add the topic and its group."""
    size = rng.choice(SIZES)
    plan.others.append((RESIZED, size.most, False))
    plan.groups.append((GROUP, [TopicPartition(RESIZED, index) for index in range(size.most)]))
    plan.history.resized.add(RESIZED)
    plan.history.has_relay_chains = size.has_chains
    return size


# Producing


async def produce(plan: Plan, name: str, clock: Clock, rng: random.Random) -> None:
    """Run one incarnation of a producer. It chooses the partition of a key by the number of partitions it knows."""
    while not is_done(plan, name):
        plan.lives[name] += 1
        producer = Producer(
            plan.bootstrap, linger_ms=rng.choice([0, 5, 50]), request_timeout_ms=3000, delivery_timeout_ms=600_000,
            metadata_max_age_ms=rng.choice([3_000, 30_000]), clock=clock, auto_create_topics=False,
        )  # fmt: skip
        pending: set[asyncio.Task[None]] = set()
        try:
            await producer.start()
            await send_all(plan, name, producer, rng, pending)
            while pending:
                await asyncio.wait(list(pending))
        except ClientError:
            pass
        await close(producer)
        await asyncio.sleep(RETRY_S)
    plan.finished.add(name)


async def send_all(
    plan: Plan, name: str, producer: Producer, rng: random.Random, pending: set[asyncio.Task[None]]
) -> None:
    """Send records in bursts until there are enough. Raises ClientError."""
    writer = f"{name}.{plan.lives[name]}"
    numbers: dict[int, int] = defaultdict(int)
    while not is_done(plan, name):
        for _ in range(rng.choice([1, 1, 4, 12])):
            key = rng.randrange(KEYS)
            partition = key % await producer.partitions(RESIZED)
            number = numbers[partition]
            value = b"%s/%d/%d" % (writer.encode(), partition, number) + b"." * rng.choice([0, 0, 30, 300])
            write = Write(writer, (RESIZED, partition), number, value, plan.world.now, key=b"%d" % key)
            plan.history.writes.append(write)
            numbers[partition] += 1
            plan.sent[name] += 1
            try:
                delivery = await producer.send(RESIZED, value, key=write.key, partition=partition)
            except ValueError:  # the partition was hidden meanwhile
                write.outcome = Outcome.FAILED
                continue
            except ClientError:
                write.outcome = Outcome.FAILED  # it was never added to a batch
                raise
            task = asyncio.create_task(await_delivery(plan, write, delivery))
            pending.add(task)
            task.add_done_callback(pending.discard)
        if rng.random() < 0.01:  # restart cleanly
            return
        await asyncio.sleep(rng.expovariate(1 / (3 * plan.pause_s)))


def is_done(plan: Plan, name: str) -> bool:
    """Whether a producer has sent enough records: it sends until the last change."""
    return plan.is_done(name) and ADMINISTRATOR in plan.finished


# Changing the number of partitions


async def resize(plan: Plan, size: Size, rng: random.Random) -> None:
    """Change the number of partitions several times. Most changes are taken back before the partitions are hidden."""
    pauses_s = [rng.uniform(0.2, 3.0)] + [rng.uniform(0.5, 9.0) for _ in range(rng.choice([0, 1, 3, 5]))]
    if rng.random() < HIDDEN_SHARE:
        pauses_s.append(HIDDEN_S)
    count = size.most
    for pause_s in pauses_s[plan.sent[ADMINISTRATOR] :]:
        await asyncio.sleep(pause_s)
        count = rng.choice([other for other in (*size.fewer, size.most) if other != count])
        try:
            async with Admin(plan.bootstrap, request_timeout_ms=3000) as admin:
                await admin.create_partitions({RESIZED: count}, may_shrink=True)
        except ClientError as e:
            plan.last_error = repr(e)
        plan.sent[ADMINISTRATOR] += 1
    await asyncio.sleep(LAST_S)
    plan.finished.add(ADMINISTRATOR)


async def watch_seals(plan: Plan, rng: random.Random) -> None:
    """Ask for the seals of the topic from time to time."""
    known: set[tuple[int, int]] = set()
    while True:
        try:
            async with Admin(plan.bootstrap, request_timeout_ms=3000) as admin:
                while True:
                    found = (await admin.shrinks([RESIZED]))[RESIZED]
                    for sealed in found.sealed if found is not None else ():
                        place = sealed.partition, sealed.seal_offset
                        if sealed.seal_offset >= 0 and place not in known:
                            known.add(place)
                            plan.history.seals.append(Seal((RESIZED, place[0]), place[1], plan.world.now))
                    await asyncio.sleep(rng.uniform(0.05, 0.5))
        except ClientError:
            await asyncio.sleep(RETRY_S)


async def open_all(plan: Plan, size: Size, clock: Clock) -> None:
    """Open all partitions, and write to each, so that readers move past what was relayed at its end. Raises
    ClientError."""
    async with Admin(plan.bootstrap, request_timeout_ms=5000) as admin:
        found = (await admin.shrinks([RESIZED]))[RESIZED]
        if found is not None:
            if found.remaining < size.most:
                await admin.create_partitions({RESIZED: size.most})
            raise ClientError(f"the topic is {found.state}")
    plan.lives["last"] += 1
    writer = f"last.{plan.lives['last']}"
    async with Producer(plan.bootstrap, request_timeout_ms=3000, clock=clock, auto_create_topics=False) as producer:
        for partition in range(size.most):
            write = Write(writer, (RESIZED, partition), 0, f"{writer}/{partition}/0".encode(), plan.world.now)
            plan.history.writes.append(write)
            metadata = await (await producer.send(RESIZED, write.value, partition=partition))
            write.outcome, write.offset, write.completed_s = Outcome.OK, metadata.offset, plan.world.now


def partitions_of(size: Size) -> list[TopicPartition]:
    """Return all partitions of the topic."""
    return [TopicPartition(RESIZED, index) for index in range(size.most)]
