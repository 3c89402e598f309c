"""Assembles the transaction services of a broker. Created, started and closed by `node`, which passes them to the `api`
handlers.

A broker coordinates the transactional ids of the shards whose groups it coordinates: both are acquired, loaded and
resigned together.
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
from penstock.txn.coordinator import TransactionCoordinator
from penstock.txn.latest_transactions import LatestTransactions
from penstock.txn.markers import LocalMarkers
from penstock.txn.offsets import TxnOffsets
from penstock.txn.orphans import OrphanedOffsets
from penstock.txn.producer_ids import ProducerIds
from penstock.txn.router import MarkerChannel, MarkerRouter
from penstock.txn.verification import VerificationChannel, Verifier

log = get_logger(__name__)

ALONE_EPOCH = 0
"""Coordinator epoch of a single broker. Epochs in a cluster start at 1."""


class TransactionService:
    """The transaction services. Without channels this is the only broker. Implements
    `group.listeners.ShardListener`."""

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
        ownership, latest = groups.ownership, LatestTransactions()
        self.offsets = TxnOffsets(groups.offsets, clock, ownership.error, self._confirm)
        self.markers = LocalMarkers(replicas, self.offsets, latest)
        self.router = MarkerRouter(store, view, config.node_id, self.markers, self._owner_of, markers)
        self.coordinator = TransactionCoordinator(
            store, clock, config, ids, self.router, self._owner_of, ownership, lambda: groups.retention.paused
        )
        self.verifier = Verifier(self.coordinator, config.node_id, latest, verification)
        self._orphans = OrphanedOffsets(store, self.offsets)
        self._closed = False

    async def start(self) -> None:
        """Start after the group coordinator. Raises StoreError.

        A single broker loads all transactions here; in a cluster each shard is loaded when it is acquired.
        """
        self._groups.offsets.pending = self.offsets
        if self._groups.is_alone:
            await self._load_all()
        self._groups.ownership.add_listener(self)

    async def close(self) -> None:
        """Stop before the group coordinator. Completions resume after a restart or at the next coordinator."""
        self._closed = True
        await self._orphans.close()
        await self.coordinator.close()
        await self.verifier.close()
        await self.router.close()
        await self.markers.close()

    # --- shards

    async def read(self, number: int) -> Sequence[list[StoreEntry]]:
        """Read the shard's pending offsets and transactional ids. Raises StoreError."""
        prefixes = keys.txn_offsets(number), keys.transactions(number)
        return [(await self._store.range(prefix)).entries for prefix in prefixes]

    def on_acquired(self, shard: CoordinatorShard, found: Sequence[list[StoreEntry]]) -> None:
        """Load an acquired shard."""
        if self._closed:
            return
        pending, transactions = found
        self.offsets.load_shard(shard.number, pending)
        if shard.guard is None:
            self.coordinator.load_shard(shard.number, ALONE_EPOCH, None, transactions)
        else:
            self.coordinator.load_shard(shard.number, shard.guard.epoch, shard.guard.ownership_compare(), transactions)
        self._orphans.check_shard(shard.number)

    def on_resigned(self, number: int) -> None:
        """Drop a resigned shard."""
        self.coordinator.drop_shard(number)
        self.offsets.drop_shard(number)

    # --- internal

    async def _load_all(self) -> None:
        pending: list[list[StoreEntry]] = [[] for _ in range(keys.SHARD_COUNT)]
        transactions: list[list[StoreEntry]] = [[] for _ in range(keys.SHARD_COUNT)]
        for prefix, entries_by_shard in ((keys.TXN_OFFSETS, pending), (keys.TRANSACTIONS, transactions)):
            for entry in (await self._store.range(prefix)).entries:
                number = entry.key[len(prefix) :].partition("/")[0]
                if number.isdecimal() and int(number) < keys.SHARD_COUNT:
                    entries_by_shard[int(number)].append(entry)
                else:
                    log.error("transaction key of an unknown shard", key=entry.key)
        for shard in self._groups.ownership:
            self.on_acquired(shard, (pending[shard.number], transactions[shard.number]))

    def _owner_of(self, number: int) -> int:
        """Return the broker that coordinates a shard, -1 if none does now."""
        if self._groups.is_alone:
            return self._broker_id
        broker = self._view.shard_owner(number)
        return -1 if broker is None else broker.broker_id

    async def _confirm(self, number: int) -> bool:
        """Return whether this broker owns the shard, by a linearizable read. Raises StoreError."""
        shard = self._groups.ownership.get(number)
        if shard is None or shard.guard is None:
            return shard is not None
        if (await self._groups.reads.shard_revisions.read()).get(number) == shard.guard.revision:
            return True
        self._groups.ownership.handle_lost(number)
        return False
