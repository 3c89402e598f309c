"""Assembles the transaction services of a broker. Created before the group coordinator starts, and closed, by `node`,
which passes them to the `api` handlers.

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


class TransactionService:
    """The transaction services. Implements `group.listeners.ShardListener`."""

    prefixes: Sequence[str] = keys.TXN_OFFSETS, keys.TRANSACTIONS

    def __init__(
        self,
        store: Store,
        view: ClusterView,
        clock: Clock,
        config: BrokerConfig,
        ids: ProducerIds,
        replicas: ReplicaManager,
        groups: GroupCoordinator,
        markers: MarkerChannel,
        verification: VerificationChannel,
    ) -> None:
        self._ownership = ownership = groups.ownership
        latest = LatestTransactions()
        self.offsets = groups.offsets.pending = TxnOffsets(groups.offsets, clock, ownership.error, self._confirm)
        self.markers = LocalMarkers(replicas, self.offsets, latest)
        self.router = MarkerRouter(store, view, config.node_id, self.markers, ownership.owner_of, markers)
        self.coordinator = TransactionCoordinator(
            store, clock, config, ids, self.router, ownership, lambda: groups.retention.paused
        )
        self.verifier = Verifier(self.coordinator, config.node_id, latest, verification, view)
        self._orphans = OrphanedOffsets(store, self.offsets)
        self._closed = False
        ownership.add_listener(self)

    async def close(self) -> None:
        """Stop before the group coordinator. Completions resume after a restart or at the next coordinator."""
        self._closed = True
        await self._orphans.close()
        await self.coordinator.close()
        await self.verifier.close()
        await self.router.close()
        await self.markers.close()

    # --- shards

    def on_acquired(self, shard: CoordinatorShard, found: Sequence[list[StoreEntry]]) -> None:
        """Load an acquired shard."""
        if self._closed:
            return
        pending, transactions = found
        self.offsets.load_shard(shard.number, pending)
        self.coordinator.load_shard(shard.number, shard.guard, transactions)
        self._orphans.check_shard(shard.number)

    def on_resigned(self, shard: CoordinatorShard) -> None:
        """Drop a resigned shard."""
        self.coordinator.drop_shard(shard.number)
        self.offsets.drop_shard(shard.number)

    # --- internal

    async def _confirm(self, number: int) -> bool:
        """Return whether this broker owns the shard, by a linearizable read. Raises StoreError."""
        shard = self._ownership.get(number)
        if shard is None:
            return False
        if (await self._ownership.read_revisions()).get(number, 0) == shard.guard.revision:
            return True
        self._ownership.handle_lost(number)
        return False
