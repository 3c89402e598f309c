"""The controller of a cluster. Every broker runs a `ControllerTask`; the elected one does the work. Assembled by
`node`.

`run` is a candidate for as long as the broker is a member. Winning an election creates a `ControllerTerm`, which holds
all in-memory state of the work and ends with the leadership.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from penstock.config.broker import BrokerConfig
from penstock.control.controller.election import Election
from penstock.control.controller.etcd_upkeep import EtcdUpkeep, maintenance_client
from penstock.control.controller.evacuation import BrokerEvacuation
from penstock.control.controller.housekeeping import Housekeeping
from penstock.control.controller.index import PartitionIndex
from penstock.control.controller.keeper import LogEnds, PartitionKeeper
from penstock.control.controller.leadership import Leadership
from penstock.control.controller.probes import BrokerProbes, Prober
from penstock.control.controller.registry import Registry
from penstock.control.controller.shards import ShardKeeper
from penstock.control.controller.writer import ProposalWriter
from penstock.control.members import AbsenceRecord, LeavingRecord, absence_key, leaving_key
from penstock.control.membership import Registration
from penstock.control.topic_removal import TopicCleaner
from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock.runtime.tasks import spawn
from penstock.state.records import encode
from penstock.state.store import Compare, DeleteOp, Operation, PutOp, Store, StoreUnavailable
from penstock.state.view import BrokerView, ClusterView, TopicChange
from penstock.state.watcher import Watcher

log = get_logger("penstock.control")

LEAVING_POLL_S = 0.05
"""Interval between checks whether a leaving broker still leads partitions."""
ABSENCE_INTERVAL_S = 30.0
"""Interval between checks which absent brokers have replicas, if no broker joins or leaves."""
RETRY_S = 0.5


@dataclass
class ControllerContext:
    """The dependencies of a controller."""

    store: Store
    view: ClusterView
    watcher: Watcher
    config: BrokerConfig
    clock: Clock
    registration: Registration
    prober: Prober
    log_ends: LogEnds
    new_id: Callable[[], UUID]
    topic_cleaners: Sequence[TopicCleaner]
    """Remove what other packages keep in the store of a deleted topic."""


class ControllerTask:
    """A broker's candidacy; `term` is set while it is the controller."""

    def __init__(self, context: ControllerContext) -> None:
        self.context = context
        self.term: ControllerTerm | None = None
        self.election = Election(
            context.store, context.registration, self._lead, context.prober, self._find_broker, context.new_id
        )
        context.view.subscribe(self._on_topics)

    def _find_broker(self, broker_id: int) -> BrokerView | None:
        return self.context.view.brokers.get(broker_id)

    async def run(self) -> None:
        """Run until cancelled or until the registration is lost.

        A candidacy that fails is reported and starts again: without candidates, no broker replaces failed leaders.
        """
        lost = asyncio.ensure_future(self.context.registration.lost.wait())
        try:
            while not lost.done():
                await self._run_candidacy(lost)
        finally:
            lost.cancel()
            await asyncio.gather(lost, return_exceptions=True)

    async def _run_candidacy(self, lost: asyncio.Future[Any]) -> None:
        candidacy: asyncio.Future[Any] = spawn(self.election.run(), "candidate for controller")
        try:
            await asyncio.wait([candidacy, lost], return_when=asyncio.FIRST_COMPLETED)
            if not lost.done():
                await asyncio.wait([lost], timeout=RETRY_S)
        finally:
            candidacy.cancel()
            await asyncio.gather(candidacy, return_exceptions=True)

    async def _lead(self, leadership: Leadership) -> None:
        await self.context.watcher.applied(leadership.revision)
        self.term = ControllerTerm(self.context, leadership, self.election.suspected_broker)
        try:
            await self.term.run()
        finally:
            self.term = None

    def _on_topics(self, changes: Sequence[TopicChange]) -> None:
        if self.term is not None:
            self.term.index.apply_changes(changes)


class ControllerTerm:
    """All work of the controller between its election and its end."""

    def __init__(
        self, context: ControllerContext, leadership: Leadership, deposed: tuple[int, int] | None = None
    ) -> None:
        """`deposed` is the (broker, epoch) of the last controller if it was suspected."""
        self.context, self.leadership = context, leadership
        self.index = PartitionIndex(context.view)
        self.registry = Registry(context.store, self._on_brokers)
        self.writer = ProposalWriter(context.store, leadership)
        self.keeper = PartitionKeeper(self.index, self.registry, self.writer, context.log_ends)
        self.index.on_change, self.index.on_removed = self.keeper.on_partition, self.keeper.on_removed
        lease_s = context.config.broker_session_timeout_ms / 1000
        own_id = context.registration.record.broker_id
        self.probes = BrokerProbes(context.store, leadership, self.registry, context.prober, own_id, lease_s, deposed)
        self.evacuation = BrokerEvacuation(
            context.view, self.index, self.registry, self.keeper, self.writer, context.clock, context.config
        )
        self.housekeeping = Housekeeping(
            context.store, leadership, context.view, context.watcher, context.topic_cleaners, context.clock
        )
        self.shards = ShardKeeper(context.store, context.view, context.watcher, leadership, self.registry)
        etcd = maintenance_client(context.store)
        self.etcd_upkeep: EtcdUpkeep | None = None
        if etcd is not None:
            self.etcd_upkeep = EtcdUpkeep(context.store, etcd, leadership, context.clock, context.config.etcd_managed)
        self._brokers_changed = asyncio.Event()
        self._leaving = asyncio.Event()

    async def run(self) -> None:
        """Run all tasks until cancelled."""
        await self.registry.load()
        self.keeper.mark(self.index.all())
        self._brokers_changed.set()
        self.shards.wake()
        async with asyncio.TaskGroup() as tasks:
            for work in (
                self.registry.follow(),
                self.keeper.run(),
                self.probes.run(),
                self.evacuation.run(),
                self.shards.run(),
                self.housekeeping.run(),
                self._record_absences(),
                self._release_leaving(),
                self._rebalance_leaders(),
            ):
                tasks.create_task(work)
            if self.etcd_upkeep is not None:
                tasks.create_task(self.etcd_upkeep.run())

    def _on_brokers(self, brokers: set[int]) -> None:
        self.keeper.on_brokers(brokers)
        self.probes.on_brokers()
        self.evacuation.wake()
        self.shards.wake()
        self._brokers_changed.set()
        if any(member.is_leaving for member in self.registry.members.values()):
            self._leaving.set()

    async def _record_absences(self) -> None:
        """Record in the store since when brokers are absent, for replica placement and the next controller."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(ABSENCE_INTERVAL_S):
                    await self._brokers_changed.wait()
            self._brokers_changed.clear()
            try:
                await self._write_absences()
            except StoreUnavailable:
                await asyncio.sleep(RETRY_S)
                self._brokers_changed.set()

    async def _write_absences(self) -> None:
        registry = self.registry
        now_ms = self.context.clock.wall_ms()
        absence = encode(AbsenceRecord(since_ms=now_ms))
        relevant = self.index.by_broker.keys() | registry.known_ids
        absent = relevant - registry.members.keys() - registry.absent.keys()
        back = registry.absent.keys() & registry.members.keys()
        emptied = registry.absent.keys() - relevant
        operations: list[Operation] = [PutOp(absence_key(broker), absence) for broker in absent]
        operations += [DeleteOp(absence_key(broker)) for broker in back | emptied]
        for start in range(0, len(operations), 100):
            await self.context.store.txn([self.leadership.condition], operations[start : start + 100])

    async def _release_leaving(self) -> None:
        """Set `is_done` for leaving brokers that lead and coordinate nothing that another broker could."""
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
                        await self.context.store.txn([self.leadership.condition, Compare.unchanged(entry)], [done])
                    except StoreUnavailable as e:
                        log.warning("leaving broker not released; retrying", broker=broker, reason=str(e))
            await asyncio.sleep(LEAVING_POLL_S)

    async def _rebalance_leaders(self) -> None:
        """Periodically return leaderships to preferred replicas and rebalance coordinator shards."""
        config = self.context.config
        while True:
            await asyncio.sleep(config.leader_imbalance_check_interval_seconds)
            self.shards.rebalance()
            if config.auto_leader_rebalance_enable:
                self.keeper.prefer(list(self.index.unpreferred))
