"""An etcd that is restored from a backup under running brokers: memberships, controllers and logs, without requests.

`Etcd` replaces its embedded store by an older copy. Connections to it break, as with the real etcd. Tests append to the
logs in place of a leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from uuid import UUID, uuid4

from log_kit import append, batch_of

from penstock.config.broker import BrokerConfig
from penstock.config.topic import TopicConfig
from penstock.control.controller.controller import ControllerContext, ControllerTask
from penstock.control.controller.probes import Probe
from penstock.control.membership import FEATURE_LEVEL, Registration, ensure_cluster
from penstock.control.restored.guarded import GuardedStore
from penstock.control.restored.restored import RestoreGuard
from penstock.log.compaction.runner import ThreadRunner
from penstock.log.log_dir import LogDirectory
from penstock.log.partition_log import PartitionLog
from penstock.replica.producer_state import ProducerState
from penstock.runtime.clock import SystemClock
from penstock.runtime.disk import OsFiles
from penstock.state import keys
from penstock.state.contents import StoreContents
from penstock.state.embedded import EmbeddedStore
from penstock.state.history import History
from penstock.state.records import BrokerRecord, PartitionRecord, TopicNameRecord, TopicRecord, decode, encode
from penstock.state.store import (
    Compare,
    Operation,
    PutOp,
    StoreChanges,
    StoreEntry,
    StoreError,
    StoreListing,
    StoreUnavailable,
    TxnResult,
)
from penstock.state.view import BrokerView, ClusterView, PartitionView
from penstock.state.watcher import Watcher

DEADLINE_S = 60.0
LEASE_MS = 9_000
"""Longer than the pauses of a busy machine: the renewal shares its event loop with all other tasks."""


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.005)


@dataclass
class Backup:
    entries: list[StoreEntry]
    revision: int


class Etcd:
    """`store` has the current contents; a restore may change `cluster_id`."""

    def __init__(self) -> None:
        self.store = EmbeddedStore(":memory:")
        self.cluster_id = "e1"
        self.restored = asyncio.Event()
        self.connections: list[Connection] = []

    def connect(self) -> Connection:
        return Connection(self)

    def backup(self) -> Backup:
        contents = self.store._contents
        return Backup(list(contents.committed.values()), contents.committed_revision)

    async def restore(self, backup: Backup, cluster_id: str | None = None, bump: int = 0) -> None:
        """Break all connections and serve the backup, in which all leases have expired."""
        before, self.store = self.store, EmbeddedStore(":memory:")
        revision = backup.revision + bump
        entries = [e for e in backup.entries if not e.lease]
        self.store._contents = StoreContents(entries, revision)
        self.store._history = History(revision)
        self.cluster_id = cluster_id or self.cluster_id
        self.restored.set()
        self.restored = asyncio.Event()
        await before.close()


class Connection:
    """One broker's store client: rejects an etcd with another cluster id, and notifies listeners of new connections."""

    def __init__(self, etcd: Etcd) -> None:
        self.etcd = etcd
        self.cluster_id = ""
        self.on_connect: list[Callable[[], None]] = []
        self.connected_to: EmbeddedStore | None = None
        self.is_away = False

    def there(self) -> EmbeddedStore:
        if self.is_away:
            raise StoreUnavailable("no answer")
        if self.connected_to is not self.etcd.store:
            self.connected_to = self.etcd.store
            for listener in self.on_connect:
                listener()
        if self.cluster_id and self.cluster_id != self.etcd.cluster_id:
            raise StoreError(f"etcd is of the cluster {self.etcd.cluster_id}, but was of {self.cluster_id}")
        self.cluster_id = self.etcd.cluster_id
        return self.etcd.store

    async def get(self, key: str) -> StoreEntry | None:
        return await self.there().get(key)

    async def range(self, prefix: str, revision: int = 0) -> StoreListing:
        return await self.there().range(prefix, revision)

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TxnResult:
        return await self.there().txn(compares, then, otherwise)

    async def watch(self, prefix: str, from_revision: int) -> AsyncIterator[StoreChanges]:
        """Watch; after a restore, resume at the next revision, even if the new server has not reached it."""
        while True:
            store, broken = self.there(), asyncio.ensure_future(self.etcd.restored.wait())
            stream = store.watch(prefix, from_revision)
            step: asyncio.Future[StoreChanges] | None = None
            try:
                while not broken.done():
                    step = asyncio.ensure_future(anext(stream))
                    await asyncio.wait([step, broken], return_when=asyncio.FIRST_COMPLETED)
                    if broken.done():
                        break
                    changes = step.result()
                    from_revision = changes.revision + 1
                    yield changes
            finally:
                broken.cancel()
                if step is not None:
                    step.cancel()
                    await asyncio.gather(step, return_exceptions=True)

    async def grant_lease(self, ttl_s: float) -> int:
        return await self.there().grant_lease(ttl_s)

    async def keep_alive(self, lease: int) -> None:
        await self.there().keep_alive(lease)

    async def revoke_lease(self, lease: int) -> None:
        await self.there().revoke_lease(lease)

    async def compact(self, revision: int) -> None:
        await self.there().compact(revision)

    async def close(self) -> None:
        return


class NoProber:
    async def connect(self, broker: BrokerView) -> Probe:
        await asyncio.Event().wait()
        raise AssertionError


class Broker:
    """One run of a broker on its directory."""

    def __init__(self, cluster: Cluster, broker_id: int) -> None:
        self.cluster, self.broker_id, self.clock = cluster, broker_id, SystemClock()
        files = OsFiles()
        home = str(cluster.home / str(broker_id))
        self.log_dir = LogDirectory(
            files, home, self.clock, broker_id, random=Random(1), new_id=uuid4, compaction=ThreadRunner(files)
        )
        self.raw = cluster.etcd.connect()
        self.store = GuardedStore(self.raw)
        self.view = ClusterView()
        self.config = BrokerConfig.from_texts({"node.id": str(broker_id)})
        self.restored = RestoreGuard(self.store, cluster.etcd.connect, self.log_dir, self.view, self.clock)
        self.watcher = Watcher(self.store, self.view, self.config, self.restored.gate)
        self.registration: Registration | None = None
        self.controller: ControllerTask | None = None
        self.tasks: list[asyncio.Task[None]] = []
        self.aside: list[str] = []

    async def start(self) -> None:
        cluster = await ensure_cluster(self.store, uuid4)
        self.log_dir.claim(cluster.cluster_id)

        async def recover() -> None:
            self.log_dir.recover(ProducerState)

        await self.restored.start(recover)
        await self.watcher.start()
        await recover()
        self.aside = self.log_dir.quarantine_unknown(self.restored.retained(set(self.log_dir.stored)))
        await self.restored.on_data_set_aside()
        self.log_dir.start()
        await self.register()

    async def register(self) -> None:
        record = BrokerRecord(
            broker_id=self.broker_id,
            incarnation=uuid4(),
            endpoints=[],
            directory_id=self.log_dir.directory_id,
            feature_level=FEATURE_LEVEL,
        )
        self.registration = registration = Registration(self.store, self.clock, record, LEASE_MS)
        await registration.register()
        await self.watcher.applied(registration.epoch)
        self.run(registration.keep_alive().run())
        self.controller = ControllerTask(
            ControllerContext(
                self.store,
                self.view,
                self.watcher,
                self.config,
                self.clock,
                registration,
                NoProber(),
                self.cluster,
                uuid4,
                [],
            )
        )
        self.run(self.controller.run())

    def run(self, work) -> None:
        self.tasks.append(asyncio.ensure_future(work))

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.restored.close()
        await self.watcher.stop()
        if self.log_dir.opened is not None:
            await self.log_dir.close()

    @property
    def is_controller(self) -> bool:
        return self.controller is not None and self.controller.term is not None

    def log(self, topic: str, index: int = 0) -> PartitionLog:
        topic_id = self.cluster.topics[topic]
        known = self.log_dir.logs.get((topic_id, index))
        if known is not None:
            return known
        return self.log_dir.open_or_create(topic_id, topic, index, TopicConfig(), ProducerState())

    def append(self, topic: str, records: int, epoch: int, index: int = 0) -> None:
        append(self.log(topic, index), batch_of(records), epoch)

    def end(self, topic: str, index: int = 0) -> tuple[int, int]:
        log = self.log(topic, index)
        return log.latest_epoch, log.end_offset


class Cluster:
    """Brokers on one etcd; reports log ends to the controller."""

    def __init__(self, home: Path) -> None:
        self.home, self.etcd = home, Etcd()
        self.brokers: dict[int, Broker] = {}
        self.topics: dict[str, UUID] = {}
        self.queried: list[int] = []

    def __getitem__(self, broker_id: int) -> Broker:
        return self.brokers[broker_id]

    def begin(self, broker_id: int) -> asyncio.Task[None]:
        """Start a broker in the background, for tests in which the start waits because the broker is frozen."""
        self.brokers[broker_id] = Broker(self, broker_id)
        return asyncio.ensure_future(self.brokers[broker_id].start())

    async def start(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            async with asyncio.timeout(DEADLINE_S):
                await self.begin(broker_id)

    async def stop(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            await self.brokers.pop(broker_id).stop()

    async def close(self) -> None:
        await self.stop(*self.brokers)
        await self.etcd.store.close()

    async def controlled(self) -> int:
        """Return the controller's id once there is a controller."""
        await until(lambda: any(b.is_controller for b in self.brokers.values()))
        return next(i for i, b in self.brokers.items() if b.is_controller)

    async def log_ends(self, broker_id: int, partitions):
        self.queried.append(broker_id)
        broker = self.brokers[broker_id]
        names = {topic_id: name for name, topic_id in self.topics.items()}
        return {(topic_id, index): broker.end(names[topic_id], index) for topic_id, index in partitions}

    async def topic(self, name: str, *replicas: list[int], overrides: dict[str, str] | None = None) -> UUID:
        """Create a topic with these replicas for each partition, all in sync; the first one leads."""
        topic_id = self.topics[name] = uuid4()
        puts: list[Operation] = []
        for index, brokers in enumerate(replicas):
            epochs = [self[b].registration.epoch for b in brokers]
            record = PartitionRecord(replicas=brokers, leader=brokers[0], isr=brokers, isr_epochs=epochs)
            puts.append(PutOp(keys.partition(topic_id, index), encode(record)))
        topic = TopicRecord(name=name, topic_id=topic_id, partition_count=len(replicas), overrides=overrides or {})
        puts.append(PutOp(keys.topic(topic_id), encode(topic)))
        puts.append(PutOp(keys.topic_name(name), encode(TopicNameRecord(topic_id=topic_id))))
        await self.write(*puts)
        return topic_id

    async def write(self, *puts: PutOp) -> None:
        """Write to the store directly; return once all brokers that are not frozen have applied the write."""
        result = await self.etcd.store.txn([], list(puts))
        for broker in self.brokers.values():
            if not broker.restored.is_frozen:
                await broker.watcher.applied(result.revision)

    async def record(self, name: str, index: int = 0) -> PartitionRecord:
        key = keys.partition(self.topics[name], index)
        entry = await self.etcd.store.get(key)
        assert entry is not None
        return decode(PartitionRecord, key, entry.value)

    def partition(self, broker_id: int, name: str, index: int = 0) -> PartitionView:
        found = self[broker_id].view.topic_partition(name, index)
        assert found is not None
        return found

    async def frozen(self, *broker_ids: int) -> None:
        """Return once these brokers are frozen and have reported."""
        for broker_id in broker_ids:
            await until(lambda broker_id=broker_id: self[broker_id].restored.is_frozen)
            async with asyncio.timeout(DEADLINE_S):
                while await self.etcd.store.get(keys.report(broker_id)) is None:
                    await asyncio.sleep(0.005)
