"""The workloads of a simulated world: produce, consume in a group, read without a group, fetch committed offsets.

They use the project's own client. Each function is the main coroutine of one process; it writes events to the history,
which outlives all processes.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.client import (
    Admin,
    AlterConfig,
    BrokerError,
    ClientError,
    Consumer,
    Delivery,
    ErrorCode,
    NewTopic,
    OffsetAndMetadata,
    Producer,
    RebalanceListener,
    TopicPartition,
)
from penstock_simulation.filtering import headers_of, kind_of
from penstock_simulation.history import (
    Assigned,
    Commit,
    CommittedRead,
    Content,
    History,
    Outcome,
    Partition,
    Seen,
    Write,
)

if TYPE_CHECKING:
    from penstock.client.consumer import Isolation
    from penstock.client.membership import GroupProtocol
    from penstock.runtime.clock import Clock
    from penstock_simulation.world import World

TOPIC = "orders"
GROUP = "billing"
RETRY_S = 0.2
MOST = 3


@dataclass
class Plan:
    """The work to do and its state, shared by the processes of one world."""

    world: World
    history: History
    bootstrap: str
    partitions: int
    records: int
    """Number of records that each producer sends in total; up to `MOST` times as many until `enough`."""
    pause_s: float
    """Mean time between two records of a producer."""
    configs: dict[str, str] = field(default_factory=dict)
    """Topic settings."""
    more_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    """Further settings of single topics."""
    replication: int = 1
    others: list[tuple[str, int, bool]] = field(default_factory=list)
    """Topics in addition to `TOPIC`: name, partitions, and whether they are written in transactions."""
    groups: list[tuple[str, list[TopicPartition]]] = field(default_factory=list)
    """Groups in addition to `GROUP`, and the partitions whose offsets they commit."""
    last: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    """What else has to be done at the end, repeated after errors."""
    enough: Callable[[], bool] = bool
    """Whether enough events have occurred for producers to stop."""
    fewer: dict[str, int] = field(default_factory=dict)
    """Number of records by producer, for producers that do not send `records`."""
    protocols: tuple[GroupProtocol, ...] = ("classic",)
    """The group protocols of the members of `GROUP`; a group with both migrates between them."""
    keys: int = 0
    """Number of keys of the records in `TOPIC`; 0 for records without keys."""
    queue_settings: dict[str, str] = field(default_factory=dict)
    """The settings of the share group."""
    queue_group: str = "workers"
    queue_topics: list[str] = field(default_factory=lambda: [TOPIC])
    """The topics of the share group."""
    queue_choices: dict[int | None, float] = field(default_factory=dict)
    """What a member of the share group does with a record, and how often; see `queue_settings`."""
    letters: list[TopicPartition] = field(default_factory=list)
    """The partitions of the share group's dead-letter topic."""
    has_kinds: bool = False
    """Whether records have the header by which filters select."""
    filter: str = ""
    """The filter of the filtering reader."""
    read_apart: set[str] = field(default_factory=set)
    """Topics that `read_everything` leaves out, because `last` reads them."""
    lives: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    sent: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    working: set[str] = field(default_factory=set)
    """Clients that must finish."""
    finished: set[str] = field(default_factory=set)
    open_transactions: dict[str, str] = field(default_factory=dict)
    """By transactional id, the transaction that was begun and whose commit was not requested."""
    offsets: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """By partition, the last offset that a transaction committed or tried to commit."""
    sessions: int = 0
    ready: bool = False
    last_error: str = ""
    """Error of the last attempt to read everything."""

    def is_done(self, name: str) -> bool:
        """Whether a producer has sent all its records."""
        sent, wanted = self.sent[name], self.fewer.get(name, self.records)
        return sent >= wanted and (sent >= MOST * wanted or self.enough())

    @property
    def is_sent(self) -> bool:
        """Whether all clients that must finish have finished."""
        return self.working <= self.finished

    @property
    def all_partitions(self) -> list[TopicPartition]:
        return [TopicPartition(TOPIC, index) for index in range(self.partitions)]

    @property
    def queue_partitions(self) -> list[TopicPartition]:
        """The partitions of the share group's topics."""
        counts = [(name, count) for name, count, _ in self.topics if name in self.queue_topics]
        return [TopicPartition(name, index) for name, count in counts for index in range(count)]

    @property
    def topics(self) -> list[tuple[str, int, bool]]:
        return [(TOPIC, self.partitions, False), *self.others]

    @property
    def committers(self) -> list[tuple[str, list[TopicPartition]]]:
        return [(GROUP, self.all_partitions), *self.groups]

    def new_session(self) -> int:
        self.sessions += 1
        return self.sessions


def plain(partition: TopicPartition) -> Partition:
    """Return the partition in the form of histories."""
    return partition.topic, partition.partition


async def create_topics(plan: Plan) -> None:
    """Create the topics; retry until they exist."""
    missing = {
        name: NewTopic(name, count, plan.replication, {**plan.configs, **plan.more_configs.get(name, {})})
        for name, count, _ in plan.topics
    }
    while missing:
        name, topic = next(iter(missing.items()))
        try:
            async with Admin(plan.bootstrap, request_timeout_ms=3000) as admin:
                await admin.create_topics([topic])
                del missing[name]
                continue
        except BrokerError as e:
            if e.code == ErrorCode.TOPIC_ALREADY_EXISTS:
                del missing[name]
            plan.last_error = repr(e)
        except ClientError as e:
            plan.last_error = repr(e)
        await asyncio.sleep(RETRY_S)
    plan.ready = True


# Producing


async def produce(plan: Plan, name: str, clock: Clock, rng: random.Random, topic: str = TOPIC) -> None:
    """Run one incarnation of a producer of `TOPIC`, or of a topic with one partition.

    The outcomes of an earlier incarnation's pending requests are unknown.
    """
    plan.lives[name] += 1
    writer = f"{name}.{plan.lives[name]}"
    linger_ms = rng.choice([0, 5, 50])
    pending: set[asyncio.Task[None]] = set()
    while not plan.is_done(name):
        try:
            producer = Producer(
                plan.bootstrap, linger_ms=linger_ms, request_timeout_ms=3000, delivery_timeout_ms=600_000,
                metadata_max_age_ms=30_000, clock=clock, auto_create_topics=False,
            )  # fmt: skip
            await producer.start()
        except ClientError:
            await asyncio.sleep(RETRY_S)
            continue
        writer = f"{name}.{plan.lives[name]}"
        try:
            await send_all(plan, name, writer, producer, rng, pending, topic)
            while pending:
                await asyncio.wait(list(pending))
        except ClientError:
            pass
        await close(producer)
        plan.lives[name] += 1
        await asyncio.sleep(RETRY_S)
    plan.finished.add(name)


async def send_all(
    plan: Plan,
    name: str,
    writer: str,
    producer: Producer,
    rng: random.Random,
    pending: set[asyncio.Task[None]],
    topic: str,
) -> None:
    partitions = plan.partitions if topic == TOPIC else 1
    numbers: dict[int, int] = defaultdict(int)
    while not plan.is_done(name):
        for _ in range(rng.choice([1, 1, 1, 4, 12])):
            partition = rng.randrange(partitions)
            number = numbers[partition]
            value = b"%s/%d/%d" % (writer.encode(), partition, number) + b"." * rng.choice([0, 0, 30, 300])
            key = b"%d" % (number // 2 % plan.keys) if plan.keys else None
            write = Write(writer, (topic, partition), number, value, plan.world.now, key=key)
            headers = headers_of(value) if plan.has_kinds else []
            write.kind = kind_of(value) if plan.has_kinds else None
            plan.history.writes.append(write)
            numbers[partition] += 1
            plan.sent[name] += 1
            try:
                delivery = await producer.send(topic, value, key=key, partition=partition, headers=headers)
            except ClientError:
                write.outcome = Outcome.FAILED  # it was never added to a batch
                raise
            task = asyncio.create_task(await_delivery(plan, write, delivery))
            pending.add(task)
            task.add_done_callback(pending.discard)
        if rng.random() < 0.005:  # restart cleanly
            return
        await asyncio.sleep(rng.expovariate(1 / plan.pause_s))


async def await_delivery(plan: Plan, write: Write, delivery: Delivery) -> None:
    try:
        metadata = await delivery
    except ClientError:
        return
    write.outcome, write.offset, write.completed_s = Outcome.OK, metadata.offset, plan.world.now


async def close(client: Producer | Consumer) -> None:
    try:
        if isinstance(client, Producer):
            await client.close(flush=False)
        else:
            await client.close()
    except ClientError:
        pass


# Consuming


class Sessions(RebalanceListener):
    """Starts a new session for a partition with each assignment."""

    def __init__(self, plan: Plan, group: str) -> None:
        self.plan, self.group = plan, group
        self.current: dict[TopicPartition, int] = {}

    async def on_partitions_assigned(self, partitions: set[TopicPartition]) -> None:
        for partition in sorted(partitions):
            session = self.current[partition] = self.plan.new_session()
            self.plan.history.assignments.append(Assigned(self.group, plain(partition), session, self.plan.world.now))


async def consume(plan: Plan, name: str, rng: random.Random, group: str = GROUP, topic: str = TOPIC) -> None:
    """Run a member of a group, restarting it after each error: it reads, and commits the offsets it has read.

    Each incarnation uses one of the group protocols of the plan.
    """
    while True:
        plan.lives[name] += 1
        reader = f"{name}.{plan.lives[name]}"
        protocol = rng.choice(plan.protocols) if len(plan.protocols) > 1 else plan.protocols[0]
        consumer = Consumer(
            plan.bootstrap, group_id=group, group_protocol=protocol, offset_reset="earliest",
            request_timeout_ms=5000, fetch_max_wait_ms=300, metadata_max_age_ms=30_000, auto_create_topics=False,
            **protocol_options(protocol, rng),
        )  # fmt: skip
        try:
            await consumer.start()
            sessions = Sessions(plan, group)
            consumer.subscribe([topic], listener=sessions)
            await poll_and_commit(plan, consumer, reader, sessions, rng)
        except ClientError:
            pass
        await close(consumer)
        await asyncio.sleep(RETRY_S)


def protocol_options(protocol: GroupProtocol, rng: random.Random) -> dict[str, Any]:
    """Return the options of a consumer that its group protocol has."""
    if protocol == "consumer":
        return {"remote_assignor": rng.choice(["uniform", "range"])}
    assignors = rng.choice(["range", "cooperative-sticky"]), "roundrobin"
    return {"assignors": assignors, "session_timeout_ms": 6000, "heartbeat_interval_ms": 1000}


async def configure_group(plan: Plan, group: str, settings: Mapping[str, str]) -> None:
    """Set the settings of a group; retry until they are set."""
    changes = [AlterConfig(name, value) for name, value in settings.items()]
    while True:
        try:
            async with Admin(plan.bootstrap, request_timeout_ms=3000) as admin:
                if (await admin.alter_group_configs({group: changes}))[group] is None:
                    return
        except ClientError:
            pass
        await asyncio.sleep(RETRY_S)


async def poll_and_commit(plan: Plan, consumer: Consumer, reader: str, sessions: Sessions, rng: random.Random) -> None:
    reached: dict[TopicPartition, tuple[int, int]] = {}
    life = rng.randrange(50, 400)
    for _ in range(life):
        polled = await consumer.getmany(timeout_ms=500, max_records=rng.choice([1, 5, 50, 500]))
        now_s = plan.world.now
        for partition, records in polled.items():
            session = sessions.current.get(partition, 0)
            for record in records:
                plan.history.seen.append(
                    Seen(reader, session, plain(partition), record.offset, record.value or b"", now_s, sessions.group)
                )
                reached[partition] = session, record.offset + 1
        if rng.random() < 0.3:
            assigned, current = consumer.assignment, sessions.current
            offsets = {
                tp: offset
                for tp, (session, offset) in sorted(reached.items())
                if tp in assigned and session == current[tp]
            }
            reached.clear()
            if offsets:
                await commit(plan, consumer, offsets, sessions)


async def commit(plan: Plan, consumer: Consumer, offsets: dict[TopicPartition, int], sessions: Sessions) -> None:
    group, current, now_s = sessions.group, sessions.current, plan.world.now
    commits = [Commit(group, plain(tp), offset, now_s, session=current[tp]) for tp, offset in offsets.items()]
    plan.history.commits += commits
    await consumer.commit(offsets, timeout_ms=5000)
    for one in commits:
        one.outcome, one.completed_s = Outcome.OK, plan.world.now


async def audit_commits(plan: Plan, rng: random.Random) -> None:
    """Fetch the committed offsets of random groups from time to time."""
    while True:
        group, partitions = rng.choice(plan.committers)
        consumer = Consumer(plan.bootstrap, group_id=group, request_timeout_ms=3000, auto_create_topics=False)
        try:
            await consumer.start()
            for _ in range(rng.choice([3, 30])):
                invoked_s = plan.world.now
                found = await consumer.committed(*partitions)
                note_committed(plan, group, partitions, found, invoked_s)
                await asyncio.sleep(rng.uniform(0.1, 1.0))
        except ClientError:
            pass
        await close(consumer)
        await asyncio.sleep(RETRY_S)


def note_committed(
    plan: Plan,
    group: str,
    partitions: list[TopicPartition],
    found: Mapping[TopicPartition, OffsetAndMetadata],
    invoked_s: float,
) -> None:
    for tp in partitions:
        committed = found.get(tp)
        offset = -1 if committed is None else committed.offset
        read = CommittedRead(group, plain(tp), offset, invoked_s, plan.world.now)
        plan.history.committed_reads.append(read)


async def read_alone(
    plan: Plan,
    name: str,
    rng: random.Random,
    partitions: list[TopicPartition] | None = None,
    isolation: Isolation = "read_uncommitted",
    record_filter: str = "",
) -> None:
    """Run a reader without a group, restarting it after each error, from the beginning or its last position."""
    position: dict[TopicPartition, int] = {}
    is_committed = isolation == "read_committed"
    while True:
        plan.lives[name] += 1
        reader = f"{name}.{plan.lives[name]}"
        consumer = Consumer(
            plan.bootstrap, offset_reset="earliest", request_timeout_ms=3000, fetch_max_wait_ms=200,
            isolation=isolation, auto_create_topics=False, filter=record_filter or None,
        )  # fmt: skip
        try:
            await consumer.start()
            consumer.assign(partitions or plan.all_partitions)
            if rng.random() < 0.7:
                for tp, offset in position.items():
                    consumer.seek(tp, offset)
            session = plan.new_session()
            for _ in range(rng.randrange(20, 200)):
                polled = await consumer.getmany(timeout_ms=500)
                for partition, records in polled.items():
                    place, now = plain(partition), plan.world.now
                    for record in records:
                        value = record.value or b""
                        plan.history.seen.append(
                            Seen(reader, session, place, record.offset, value, now, "", is_committed, record_filter)
                        )
                        position[partition] = record.offset + 1
        except ClientError:
            pass
        await close(consumer)
        await asyncio.sleep(RETRY_S)


# Final contents


async def read_everything(plan: Plan) -> None:
    """Read the final contents of all partitions and committed offsets of all groups."""
    for group, partitions in plan.committers:
        await insist(plan, partial(read_committed_offsets, plan, group, partitions))
    for work in plan.last:
        await insist(plan, work)
    for topic, count, is_transactional in plan.topics:
        if topic not in plan.read_apart:
            partitions = [TopicPartition(topic, index) for index in range(count)]
            await insist(plan, partial(read_topic, plan, partitions, is_transactional))


async def insist(plan: Plan, work: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await work()
            return
        except ClientError as e:
            plan.last_error = repr(e)
            await asyncio.sleep(RETRY_S)


async def read_committed_offsets(plan: Plan, group: str, partitions: list[TopicPartition]) -> None:
    async with Consumer(plan.bootstrap, group_id=group, request_timeout_ms=5000, auto_create_topics=False) as consumer:
        invoked_s = plan.world.now
        note_committed(plan, group, partitions, await consumer.committed(*partitions), invoked_s)


async def read_topic(plan: Plan, partitions: list[TopicPartition], is_transactional: bool) -> None:
    """Read all partitions of the topic from the beginning to the current end, after all transactions have ended."""
    isolation: Isolation = "read_committed" if is_transactional else "read_uncommitted"
    async with Consumer(
        plan.bootstrap, offset_reset="earliest", request_timeout_ms=5000, auto_create_topics=False
    ) as consumer:
        starts, ends = await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)
    plan.last_error = f"{partitions[0].topic} ends at {list(ends.values())}"
    options = {
        "offset_reset": "earliest",
        "request_timeout_ms": 5000,
        "isolation": isolation,
        "auto_create_topics": False,
    }
    async with Consumer(plan.bootstrap, **options) as consumer:  # type: ignore[arg-type]
        consumer.assign(partitions)
        for tp in partitions:
            consumer.seek(tp, starts[tp])
        records: dict[TopicPartition, list[tuple[int, bytes]]] = {tp: [] for tp in partitions}
        while any([await consumer.position(tp) < ends[tp] for tp in partitions]):
            for tp, polled in (await consumer.getmany(timeout_ms=500)).items():
                records[tp] += [(record.offset, record.value or b"") for record in polled]
    plan.history.contents += [
        Content(plain(tp), starts[tp], ends[tp], records[tp], is_transactional) for tp in partitions
    ]
