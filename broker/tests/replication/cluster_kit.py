"""Brokers with replication only, each with its own directory and view, on one store.

Requests between them go through the codec; a link can be cut. Tests act as the controller by writing records. Brokers
are killed without flushing and restart as another incarnation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID, uuid4

import msgspec
from log_kit import HandClock, abandon, headers_in, settle
from replica_kit import GatedFiles, Waiter, batch_of, until

from penstock.api.exchange import Callback, PeerInfo, ResponsePart
from penstock.api.fetch import FetchApi, FetchLimits
from penstock.api.fetch_sessions import FetchSessions
from penstock.api.leaderships import Leaderships
from penstock.api.replica_fetch import ReplicaFetchApi
from penstock.config.broker import BrokerConfig
from penstock.control.membership import ensure_cluster
from penstock.log.compaction.runner import ThreadRunner
from penstock.log.log_dir import LogDirectory
from penstock.log.types import LogSlice
from penstock.replica.acceptance import Appended
from penstock.replica.fetchers import ReplicaFetchers
from penstock.replica.follower import Follower
from penstock.replica.isr_keeper import IsrKeeper
from penstock.replica.leader import Leader
from penstock.replica.lost_leaders import LostLeaders
from penstock.replica.manager import ReplicaManager
from penstock.replica.partition import Partition
from penstock.replica.producer_state import ProducerState
from penstock.runtime.stats import RequestStats
from penstock.state import keys
from penstock.state.embedded import EmbeddedStore
from penstock.state.records import BrokerRecord, PartitionRecord, TopicNameRecord, TopicRecord, decode, encode
from penstock.state.store import DeleteOp, Operation, PutOp
from penstock.state.view import ClusterView
from penstock.state.watcher import Watcher
from penstock.wire import codec
from penstock.wire.messages.fetch import FetchRequest, FetchResponse

VERSION = 17
PEER = PeerInfo(1, "PLAINTEXT", "127.0.0.1", 5)
LAG_MS = 30_000


class Answered:
    """A request's exchange, in memory. Implements `api.exchange.RequestExchange`."""

    throttle_ms = 0

    def __init__(self) -> None:
        self.frame: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.is_disconnected = False
        self.callbacks: list[Callback] = []

    def reply(self, parts: Sequence[ResponsePart]) -> None:
        content = b""
        for part in parts:
            if isinstance(part, LogSlice):
                content += part.file.read_at(part.position, part.size)
                part.release()
            else:
                content += bytes(part)
        if not self.frame.done():
            self.frame.set_result(content)

    def complete_without_response(self) -> None:
        raise AssertionError("a fetch is answered")

    def abort(self, reason: str) -> None:
        raise AssertionError(reason)

    def on_disconnect(self, callback: Callback) -> None:
        self.callbacks.append(callback)

    def lose(self) -> None:
        self.is_disconnected = True
        for callback in self.callbacks:
            callback()
        if not self.frame.done():
            self.frame.set_exception(ConnectionResetError("the link was cut"))


@dataclass
class Link:
    """The connection of a follower to a leader. Implements `fetcher.FetchChannel`."""

    cluster: Cluster
    follower: int
    leader: int
    under_way: list[Answered] = field(default_factory=list)
    requests: list[FetchRequest] = field(default_factory=list)

    async def fetch(self, request: FetchRequest) -> FetchResponse:
        target = self.cluster.brokers.get(self.leader)
        if target is None or (self.follower, self.leader) in self.cluster.cuts:
            raise ConnectionRefusedError(f"broker {self.leader} is not there")
        self.requests.append(request)
        received = codec.decode(FetchRequest, VERSION, codec.encode(request, VERSION))
        answered = Answered()
        self.under_way.append(answered)
        target.fetch.handle(received, VERSION, 1, answered, PEER)
        try:
            frame = await answered.frame
        finally:
            self.under_way.remove(answered)
        return codec.decode(FetchResponse, VERSION, memoryview(frame), 9)

    def cut(self) -> None:
        for answered in list(self.under_way):
            answered.lose()

    async def close(self) -> None:
        self.cut()


@dataclass
class Enrolled:
    """Implements `replica.membership.Membership`."""

    epoch: int = -1
    serves: bool = True
    discards: bool = True

    def may_serve(self) -> bool:
        return self.serves

    def may_discard(self) -> bool:
        return self.discards


class Broker:
    """One incarnation of a broker."""

    def __init__(self, cluster: Cluster, broker_id: int, home: Path, settings: dict[str, str]) -> None:
        self.cluster, self.broker_id = cluster, broker_id
        self.files, self.clock = GatedFiles(), cluster.clock
        self.view = ClusterView()
        given = {"node.id": str(broker_id), "replica.fetch.wait.max.ms": "200", **settings}
        self.config = BrokerConfig.from_texts(given)
        self.membership = Enrolled()
        self.watcher = Watcher(cluster.store, self.view, self.config)
        self.log_dir = LogDirectory(
            self.files,
            str(home),
            self.clock,
            broker_id,
            random=Random(1),
            new_id=uuid4,
            compaction=ThreadRunner(self.files),
        )
        self.links: dict[int, Link] = {}
        self.marks: dict[tuple[UUID, int], list[tuple[type[Partition], int, int]]] = {}

    async def start(self, cluster_id: str) -> None:
        self.log_dir.claim(cluster_id)
        self.log_dir.recover(ProducerState)
        self.log_dir.start()
        await self.watcher.start()
        revision = await self.cluster.register(self.broker_id)
        self.membership.epoch = revision
        await self.watcher.applied(revision)
        self.keeper = IsrKeeper(self.cluster.store, self.view, self.clock, self.config, self.membership)
        self.fetchers = ReplicaFetchers(self.connect, self.config, self.membership, LostLeaders(self.view))
        self.replicas = ReplicaManager(
            self.view,
            self.log_dir,
            self.clock,
            self.config,
            self.membership,
            self.keeper,
            self.fetchers,
            self.is_unassigned,
        )
        self.followers = ReplicaFetchApi(self.replicas, 10 << 20, Random(self.broker_id))
        sessions = FetchSessions(10, lambda: 0.0, Random(1))
        self.leaderships = Leaderships(self.cluster.store, self.replicas)
        self.fetch = FetchApi(
            self.replicas, sessions, FetchLimits(50 << 20), RequestStats(), self.followers, self.leaderships
        )
        self.replicas.start()

    def connect(self, leader: int, on_lost: Callable[[], None]) -> Link:
        self.links[leader] = Link(self.cluster, self.broker_id, leader)
        return self.links[leader]

    async def is_unassigned(self, topic_id: UUID, index: int) -> bool:
        entry = await self.cluster.store.get(keys.partition(topic_id, index))
        if entry is None:
            return False
        record = decode(PartitionRecord, entry.key, entry.value)
        return self.broker_id not in [*record.replicas, *record.adding]

    async def stop(self, *, clean: bool = False) -> None:
        self.files.let_go()
        await self.keeper.close()
        await self.fetchers.close()
        self.replicas.close()
        await self.watcher.stop()
        await (self.log_dir.close() if clean else abandon(self.log_dir))

    # Inspection

    def leader(self, name: str = "t", index: int = 0) -> Leader:
        found = self.replicas.find(name, index)
        assert found is not None, f"broker {self.broker_id} does not lead {name}-{index}"
        return found

    def follower(self, name: str = "t", index: int = 0) -> Follower:
        found = self.replicas.find_follower(name, index)
        assert found is not None, f"broker {self.broker_id} does not follow {name}-{index}"
        return found

    def role(self, name: str = "t", index: int = 0) -> Partition | None:
        return self.replicas.role((self.view.topics[name].topic_id, index))

    def end(self, name: str = "t", index: int = 0) -> int:
        """Return the log end offset, or -1 if the broker has no replica."""
        role = self.role(name, index)
        return -1 if role is None else role.log.end_offset

    def content(self, name: str = "t", index: int = 0) -> list[tuple[int, int, int]]:
        """Return (base offset, last offset, leader epoch) of all batches."""
        role = self.role(name, index)
        assert role is not None
        data = b"".join(Path(segment.path).read_bytes()[: segment.size] for segment in role.log.segments)
        return [(h.base_offset, h.last_offset, h.leader_epoch) for h in headers_in(data)]

    def bytes(self, name: str = "t", index: int = 0) -> bytes:
        role = self.role(name, index)
        assert role is not None
        return b"".join(Path(segment.path).read_bytes()[: segment.size] for segment in role.log.segments)


class Cluster:
    """The store and the running brokers."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.store = EmbeddedStore(":memory:")
        self.clock = HandClock()
        self.brokers: dict[int, Broker] = {}
        self.cuts: set[tuple[int, int]] = set()
        """Cut links, as (follower, leader)."""
        self.deaf: set[int] = set()
        """Brokers with a frozen view."""
        self.racks: dict[int, str] = {}
        self.settings: dict[str, str] = {}

    def __getitem__(self, broker_id: int) -> Broker:
        return self.brokers[broker_id]

    async def start(self, broker_id: int) -> Broker:
        """Start a broker, or restart it as another incarnation."""
        cluster = await ensure_cluster(self.store, uuid4)
        broker = Broker(self, broker_id, self.home / str(broker_id), self.settings)
        await broker.start(cluster.cluster_id)
        self.brokers[broker_id] = broker
        return broker

    async def restart_all(self, **settings: str) -> None:
        """Restart the brokers with further settings, whose names have underscores instead of dots."""
        self.settings |= {name.replace("_", "."): text for name, text in settings.items()}
        for broker_id in list(self.brokers):
            await self.kill(broker_id)
            await self.start(broker_id)

    async def register(self, broker_id: int, *, draining: bool = False) -> int:
        record = BrokerRecord(
            broker_id=broker_id,
            incarnation=uuid4(),
            endpoints=[],
            rack=self.racks.get(broker_id),
            draining=draining,
        )
        await self.store.txn([], [DeleteOp(keys.broker(broker_id))])
        return (await self.store.txn([], [PutOp(keys.broker(broker_id), encode(record))])).revision

    async def kill(self, broker_id: int, *, fence: bool = True) -> None:
        """Kill a broker; with `fence`, remove its registration too."""
        broker = self.brokers.pop(broker_id)
        for other in self.brokers.values():
            if link := other.links.get(broker_id):
                link.cut()
        await broker.stop()
        if fence:
            await self.store.txn([], [DeleteOp(keys.broker(broker_id))])

    def cut(self, follower: int, leader: int) -> None:
        self.cuts.add((follower, leader))
        if link := self[follower].links.get(leader):
            link.cut()

    def heal(self) -> None:
        self.cuts.clear()

    async def close(self) -> None:
        for broker in list(self.brokers.values()):
            await broker.stop(clean=True)
        await self.store.close()

    # Controller actions

    async def create(
        self, name: str = "t", replicas: Sequence[int] = (1, 2, 3), partitions: int = 1, **settings: str
    ) -> UUID:
        """Create a topic. The first replica leads, and all are in sync."""
        topic_id = uuid4()
        overrides = {key.replace("_", "."): text for key, text in settings.items()}
        topic = TopicRecord(name=name, topic_id=topic_id, partition_count=partitions, overrides=overrides)
        epochs = [self.epoch_of(broker_id) for broker_id in replicas]
        record = PartitionRecord(
            replicas=list(replicas), leader=replicas[0], isr=list(replicas), isr_epochs=epochs, leader_epoch=0
        )
        puts: list[Operation] = [PutOp(keys.partition(topic_id, i), encode(record)) for i in range(partitions)]
        puts.append(PutOp(keys.topic(topic_id), encode(topic)))
        puts.append(PutOp(keys.topic_name(name), encode(TopicNameRecord(topic_id=topic_id))))
        await self.applied((await self.store.txn([], puts)).revision)
        return topic_id

    async def configure(self, topic_id: UUID, **overrides: str) -> None:
        """Replace the settings of a topic."""
        entry = await self.store.get(keys.topic(topic_id))
        assert entry is not None
        record = msgspec.structs.replace(decode(TopicRecord, entry.key, entry.value), overrides=overrides)
        await self.applied((await self.store.txn([], [PutOp(keys.topic(topic_id), encode(record))])).revision)

    def epoch_of(self, broker_id: int) -> int:
        broker = self.brokers.get(broker_id)
        return broker.membership.epoch if broker is not None else -1

    async def record(self, name: str = "t", index: int = 0) -> PartitionRecord:
        entry = await self.store.get(self.key(name, index))
        assert entry is not None
        return decode(PartitionRecord, entry.key, entry.value)

    def key(self, name: str, index: int) -> str:
        view = next(iter(self.brokers.values())).view
        return keys.partition(view.topics[name].topic_id, index)

    async def change(self, name: str = "t", index: int = 0, **changes: Any) -> None:
        """Change a partition's record unconditionally."""
        record = msgspec.structs.replace(await self.record(name, index), **changes)
        await self.applied((await self.store.txn([], [PutOp(self.key(name, index), encode(record))])).revision)

    async def elect(self, leader: int, isr: Sequence[int] | None = None, name: str = "t", index: int = 0) -> None:
        """Elect a leader in a new epoch. The ISR is unchanged or given, with the current incarnations."""
        record = await self.record(name, index)
        chosen = record.isr if isr is None else list(isr)
        known = dict(zip(record.isr, record.isr_epochs, strict=True))
        epochs = [known.get(i, -1) if self.epoch_of(i) < 0 else self.epoch_of(i) for i in chosen]
        await self.change(
            name, index, leader=leader, leader_epoch=record.leader_epoch + 1, isr=chosen, isr_epochs=epochs
        )

    async def deafen(self, broker_id: int) -> None:
        """Freeze a broker's view."""
        await self[broker_id].watcher.stop()
        self.deaf.add(broker_id)

    async def applied(self, revision: int) -> None:
        for broker in self.brokers.values():
            if broker.broker_id not in self.deaf:
                await broker.watcher.applied(revision)

    # Client requests, and waiting

    def produce(self, broker_id: int, count: int = 3, name: str = "t", **more: Any) -> tuple[Appended, Waiter]:
        """Append with acks=all. The waiter receives the result."""
        leader = self[broker_id].leader(name)
        done = leader.append(batch_of(count, **more), True)
        waiter = Waiter()
        if not done.error:
            leader.when_committed(done.required_offset, waiter)
            if leader.high_watermark >= done.required_offset and not waiter.answers:
                waiter(0)
        return done, waiter

    async def acknowledged(self, broker_id: int, count: int = 3, name: str = "t", **more: Any) -> Appended:
        done, waiter = self.produce(broker_id, count, name, **more)
        assert not done.error, done
        await until(lambda: waiter.answers)
        assert waiter.answers == [0]
        return done

    async def in_sync(self, *isr: int, name: str = "t", index: int = 0) -> None:
        """Wait until the store and all views have this ISR."""

        def seen() -> bool:
            views = [b.view.topic_partition(name, index) for b in self.brokers.values()]
            return all(v is not None and sorted(v.isr) == sorted(isr) for v in views)

        await until(seen)

    async def caught_up(self, leader: int, *followers: int, name: str = "t", index: int = 0) -> None:
        """Wait until the followers have flushed the leader's whole log and the leader knows it."""
        source = self[leader]

        def equal() -> bool:
            end = source.end(name, index)
            roles = [self[i].role(name, index) for i in followers]
            role = source.role(name, index)
            if isinstance(role, Leader) and role.isr is not None:
                known = [role.isr.progress[i].flushed_offset for i in followers]
                if any(offset < end for offset in known):
                    return False
            return all(r is not None and r.log.end_offset == r.log.flushed_offset == end for r in roles)

        await until(equal)

    async def lag(self, by_ms: int = LAG_MS + 1) -> None:
        """Advance the clock and let leaders check for lagging followers."""
        self.clock.advance(by_ms)
        for broker in self.brokers.values():
            broker.keeper.check_leaders()

    async def settled(self) -> None:
        for broker in self.brokers.values():
            await settle(broker.log_dir)
