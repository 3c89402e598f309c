"""Transactions of a broker, put together: what `node` makes, starts and closes, and hands to the handlers of `api`."""

from __future__ import annotations

from penstock.config.broker import BrokerConfig
from penstock.group.coordinator import GroupCoordinator
from penstock.replica.manager import ReplicaManager
from penstock.runtime.clock import Clock
from penstock.state import keys
from penstock.state.store import Store
from penstock.state.view import ClusterView
from penstock.txn.coordinator import TransactionCoordinator
from penstock.txn.markers import LocalMarkers, MarkerChannel, MarkerRouter
from penstock.txn.offsets import TxnOffsets
from penstock.txn.producer_ids import ProducerIds
from penstock.txn.verification import VerificationChannel, Verifier


class Transactions:
    """The parts. Without channels this is the only broker."""

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
        self._store, self._groups = store, groups
        self.markers = LocalMarkers(replicas)
        self.offsets = TxnOffsets(groups.offsets, clock)
        self.router = MarkerRouter(store, view, config.node_id, self.markers, markers)
        self.coordinator = TransactionCoordinator(store, clock, config, ids, self.router, self.offsets)
        self.verifier = Verifier(self.coordinator, config.node_id, verification)

    async def start(self) -> None:
        """Loads all and goes on with what was decided. The group coordinator has started before. Raises StoreError."""
        self._groups.offsets.pending = self.offsets
        self.offsets.load((await self._store.range(keys.TXN_OFFSETS)).entries)
        await self.coordinator.start()
        self.offsets.drop_orphans(self.coordinator.is_in_hand)

    async def close(self) -> None:
        """What is under way goes on after the next start. Comes before the group coordinator closes."""
        await self.coordinator.close()
        await self.verifier.close()
        await self.router.close()
