"""Transactions of a broker, put together: what `node` makes, starts and closes, and hands to the handlers of `api`.

A broker coordinates the transactional ids of the shards whose groups it coordinates: both are owned together, loaded
before either is served, and given up at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.config.broker import BrokerConfig
from penstock.group.coordinator import GroupCoordinator
from penstock.group.coordinator_shard import CoordinatorShard
from penstock.replica.manager import ReplicaManager
from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock.state import keys
from penstock.state.store import Store, StoreEntry
from penstock.state.view import ClusterView
from penstock.txn.acknowledged_markers import AcknowledgedMarkers
from penstock.txn.coordinator import TransactionCoordinator
from penstock.txn.markers import LocalMarkers
from penstock.txn.offsets import TxnOffsets
from penstock.txn.orphans import Orphans
from penstock.txn.producer_ids import ProducerIds
from penstock.txn.router import MarkerChannel, MarkerRouter
from penstock.txn.verification import VerificationChannel, Verifier

log = get_logger(__name__)

ALONE_EPOCH = 0
"""The coordinator epoch of a broker that nobody can take a shard from; those of a cluster begin with 1."""


class TransactionService:
    """The parts. Without channels this is the only broker. Implements `group.listeners.ShardListener`."""

    def __init__(
        self,
        store: Store,
        view: ClusterView,
        clock: Clock,
        config: BrokerConfig,
        ids: ProducerIds,
        replicas: ReplicaManager,
        groups: GroupCoordinator,
        markers: MarkerChannel | None = None,
        verification: VerificationChannel | None = None,
    ) -> None:
        self._store, self._view, self._groups, self._broker_id = store, view, groups, config.node_id
        ownership, heard = groups.ownership, AcknowledgedMarkers()
        self.offsets = TxnOffsets(groups.offsets, clock, ownership.error, self._confirm)
        self.markers = LocalMarkers(replicas, self.offsets, heard)
        self.router = MarkerRouter(store, view, config.node_id, self.markers, self._owner_of, markers)
        self.coordinator = TransactionCoordinator(
            store, clock, config, ids, self.router, self._owner_of, ownership, lambda: groups.retention.paused
        )
        self.verifier = Verifier(self.coordinator, config.node_id, heard, verification)
        self._orphans = Orphans(store, self.offsets)
        self._closed = False

    async def start(self) -> None:
        """The one broker of an embedded store loads everything here and goes on with what was decided; in a cluster
        each shard comes when it is given to this broker. The group coordinator has started before. Raises StoreError.
        """
        self._groups.offsets.pending = self.offsets
        if self._groups.is_alone:
            await self._take_all()
        self._groups.ownership.add_listener(self)

    async def close(self) -> None:
        """What is under way goes on after the next start, or at the next coordinator. Comes before the group
        coordinator closes."""
        self._closed = True
        await self._orphans.close()
        await self.coordinator.close()
        await self.verifier.close()
        await self.router.close()
        await self.markers.close()

    # --- shards

    async def read(self, number: int) -> Sequence[list[StoreEntry]]:
        """What transactions have brought for the groups of a shard, and its transactional ids. Raises StoreError."""
        prefixes = keys.txn_offsets(number), keys.transactions(number)
        return [(await self._store.range(prefix)).entries for prefix in prefixes]

    def on_acquired(self, shard: CoordinatorShard, found: Sequence[list[StoreEntry]]) -> None:
        if self._closed:
            return
        pending, transactions = found
        self.offsets.take(shard.number, pending)
        if shard.guard is None:
            self.coordinator.take(shard.number, ALONE_EPOCH, None, transactions)
        else:
            self.coordinator.take(shard.number, shard.guard.epoch, shard.guard.ownership_compare(), transactions)
        self._orphans.look_at(shard.number)

    def on_resigned(self, number: int) -> None:
        self.coordinator.drop(number)
        self.offsets.drop(number)

    # --- inside

    async def _take_all(self) -> None:
        pending: list[list[StoreEntry]] = [[] for _ in range(keys.SHARD_COUNT)]
        transactions: list[list[StoreEntry]] = [[] for _ in range(keys.SHARD_COUNT)]
        for prefix, of_shard in ((keys.TXN_OFFSETS, pending), (keys.TRANSACTIONS, transactions)):
            for entry in (await self._store.range(prefix)).entries:
                number = entry.key[len(prefix) :].partition("/")[0]
                if number.isdecimal() and int(number) < keys.SHARD_COUNT:
                    of_shard[int(number)].append(entry)
                else:
                    log.error("a key of transactions belongs to no shard", key=entry.key)
        for shard in self._groups.ownership:
            self.on_acquired(shard, (pending[shard.number], transactions[shard.number]))

    def _owner_of(self, number: int) -> int:
        """The broker that coordinates a shard; -1 where none does just now."""
        if self._groups.is_alone:
            return self._broker_id
        broker = self._view.shard_owner(number)
        return -1 if broker is None else broker.broker_id

    async def _confirm(self, number: int) -> bool:
        """Whether a shard is this broker's, read linearizably. Raises StoreError."""
        shard = self._groups.ownership.get(number)
        if shard is None or shard.guard is None:
            return shard is not None
        if (await self._groups.reads.shard_revisions.read()).get(number) == shard.guard.revision:
            return True
        self._groups.ownership.handle_lost(number)
        return False
