"""The controller of a cluster: every broker has one, and the one that is elected works. Put together by `node`.

`run` stands for election for as long as the broker is a member. Being elected makes a `Term`, which holds all that the
work needs and ends with the leadership; nothing is carried over but what is in the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from penstock.config.broker import BrokerConfig
from penstock.control.controller.compaction import EtcdUpkeep, maintenance_of
from penstock.control.controller.election import Election
from penstock.control.controller.housekeeping import Forget, Housekeeping
from penstock.control.controller.index import PartitionIndex
from penstock.control.controller.keeper import LogEnds, PartitionKeeper
from penstock.control.controller.leadership import Leadership
from penstock.control.controller.probes import BrokerProbes, Prober
from penstock.control.controller.registry import Registry
from penstock.control.controller.replacement import Replacement
from penstock.control.controller.shards import ShardKeeper
from penstock.control.controller.writer import ProposalWriter
from penstock.control.members import GoneRecord, LeavingRecord, gone_key, leaving_key
from penstock.control.membership import Registration
from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock.state.records import encode
from penstock.state.store import Compare, DeleteOp, Operation, PutOp, Store, StoreUnavailable
from penstock.state.view import BrokerView, ClusterView, TopicChange
from penstock.state.watcher import Watcher

log = get_logger("penstock.control")

LOOK_S = 0.05
"""Between two looks at whether a broker that is leaving leads nothing more."""
NOTE_S = 30.0
"""Between two looks at which of the brokers that are away have replicas, where no broker comes or goes."""
RETRY_S = 0.5


@dataclass
class ControllerContext:
    """What a controller is given."""

    store: Store
    view: ClusterView
    watcher: Watcher
    config: BrokerConfig
    clock: Clock
    registration: Registration
    prober: Prober
    log_ends: LogEnds
    forget: list[Forget] = field(default_factory=list)
    """What removes from the store what rooms keep of a deleted topic."""


class ControllerTask:
    """`term` is there while this broker is the elected one."""

    def __init__(self, given: ControllerContext) -> None:
        self.given = given
        self.term: Term | None = None
        self.election = Election(given.store, given.registration, self._lead, given.prober, self._find)
        given.view.subscribe(self._on_topics)

    def _find(self, broker_id: int) -> BrokerView | None:
        return self.given.view.brokers.get(broker_id)

    async def run(self) -> None:
        """Until cancelled, or until the registration is lost."""
        standing = asyncio.ensure_future(self.election.run())
        lost = asyncio.ensure_future(self.given.registration.lost.wait())
        try:
            await asyncio.wait([standing, lost], return_when=asyncio.FIRST_COMPLETED)
            if standing.done():
                standing.result()
        finally:
            for task in (standing, lost):
                task.cancel()
            await asyncio.gather(standing, lost, return_exceptions=True)

    async def _lead(self, leadership: Leadership) -> None:
        await self.given.watcher.applied(leadership.revision)
        self.term = Term(self.given, leadership)
        try:
            await self.term.run()
        finally:
            self.term = None

    def _on_topics(self, changes: Sequence[TopicChange]) -> None:
        if self.term is not None:
            self.term.index.take(changes)


class Term:
    """All work of one leadership."""

    def __init__(self, given: ControllerContext, leadership: Leadership) -> None:
        self.given, self.leadership = given, leadership
        self.index = PartitionIndex(given.view)
        self.registry = Registry(given.store, self._on_brokers)
        self.writer = ProposalWriter(given.store, leadership)
        self.keeper = PartitionKeeper(self.index, self.registry, self.writer, given.log_ends)
        self.index.on_change, self.index.on_gone = self.keeper.on_partition, self.keeper.on_gone
        lease_s = given.config.broker_session_timeout_ms / 1000
        own_id = given.registration.record.broker_id
        self.probes = BrokerProbes(given.store, leadership, self.registry, given.prober, own_id, lease_s)
        self.replacement = Replacement(
            given.view, self.index, self.registry, self.keeper, self.writer, given.clock, given.config
        )
        self.housekeeping = Housekeeping(given.store, leadership, given.view, given.watcher, given.forget, given.clock)
        self.shards = ShardKeeper(given.store, given.view, given.watcher, leadership, self.registry)
        etcd = maintenance_of(given.store)
        self.care: EtcdUpkeep | None = None
        if etcd is not None:
            self.care = EtcdUpkeep(given.store, etcd, leadership, given.clock, given.config.etcd_managed)
        self._brokers_changed = asyncio.Event()
        self._leaving = asyncio.Event()

    async def run(self) -> None:
        await self.registry.load()
        self.keeper.mark(self.index.all())
        self._brokers_changed.set()
        self.shards.wake()
        async with asyncio.TaskGroup() as tasks:
            for work in (
                self.registry.follow(),
                self.keeper.run(),
                self.probes.run(),
                self.replacement.run(),
                self.shards.run(),
                self.housekeeping.run(),
                self._note_gone(),
                self._release_leaving(),
                self._rebalance_leaders(),
            ):
                tasks.create_task(work)
            if self.care is not None:
                tasks.create_task(self.care.run())

    def _on_brokers(self, brokers: set[int]) -> None:
        self.keeper.on_brokers(brokers)
        self.probes.on_brokers()
        self.replacement.wake()
        self.shards.wake()
        self._brokers_changed.set()
        if any(member.is_leaving for member in self.registry.members.values()):
            self._leaving.set()

    async def _note_gone(self) -> None:
        """Notes in the store since when brokers are away, for whoever places replicas and for the next controller."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(NOTE_S):
                    await self._brokers_changed.wait()
            self._brokers_changed.clear()
            try:
                await self._write_gone()
            except StoreUnavailable:
                await asyncio.sleep(RETRY_S)
                self._brokers_changed.set()

    async def _write_gone(self) -> None:
        registry = self.registry
        now_ms = self.given.clock.wall_ms()
        note = encode(GoneRecord(since_ms=now_ms))
        noted = self.index.by_broker.keys() | registry.known
        away = noted - registry.members.keys() - registry.gone.keys()
        back = registry.gone.keys() & registry.members.keys()
        emptied = registry.gone.keys() - noted
        operations: list[Operation] = [PutOp(gone_key(broker), note) for broker in away]
        operations += [DeleteOp(gone_key(broker)) for broker in back | emptied]
        for start in range(0, len(operations), 100):
            await self.given.store.txn([self.leadership.condition], operations[start : start + 100])

    async def _release_leaving(self) -> None:
        """Tells brokers that are leaving when they lead and coordinate nothing that another broker could."""
        while True:
            await self._leaving.wait()
            waiting = [
                (broker, entry, record)
                for broker, (entry, record) in self.registry.leaving.items()
                if not record.is_done and (m := self.registry.members.get(broker)) is not None and m.is_leaving
            ]
            if not waiting:
                self._leaving.clear()
                continue
            for broker, entry, record in waiting:
                if not self.keeper.is_busy_with(broker) and not self.shards.is_busy_with(broker):
                    done = PutOp(
                        leaving_key(broker), encode(LeavingRecord(epoch=record.epoch, is_done=True)), entry.lease
                    )
                    try:
                        await self.given.store.txn([self.leadership.condition, Compare.unchanged(entry)], [done])
                    except StoreUnavailable as e:
                        log.warning("a leaving broker could not be told", broker=broker, reason=str(e))
            await asyncio.sleep(LOOK_S)

    async def _rebalance_leaders(self) -> None:
        """Gives leaderships back to preferred replicas, and evens coordinator shards out, now and then."""
        config = self.given.config
        while True:
            await asyncio.sleep(config.leader_imbalance_check_interval_seconds)
            self.shards.even_out()
            if config.auto_leader_rebalance_enable:
                self.keeper.prefer(list(self.index.unpreferred))
