"""Assigns coordinator shards to brokers by `shard_plan`. Part of a `ControllerTerm`.

Level-triggered: each change of brokers makes a plan from all brokers and shards. A broker that comes back gets shards
of others only at the next rebalance, because each move interrupts the groups of a shard.
"""

from __future__ import annotations

import asyncio

from penstock.control import shard_plan
from penstock.control.controller.leadership import Leadership
from penstock.control.controller.registry import Registry
from penstock.runtime.logging import get_logger
from penstock.state.store import Store, StoreUnavailable
from penstock.state.view import ClusterView
from penstock.state.watcher import Watcher

log = get_logger("penstock.control")

RETRY_S = 0.5


class ShardKeeper:
    """Assigns shards until `run` is cancelled."""

    def __init__(
        self, store: Store, view: ClusterView, watcher: Watcher, leadership: Leadership, registry: Registry
    ) -> None:
        self.store, self.view, self.watcher = store, view, watcher
        self.leadership, self.registry = leadership, registry
        self._changed = asyncio.Event()
        self._is_uneven = False

    def rebalance(self) -> None:
        """Spread the shards evenly over all brokers, including those that came back."""
        self._is_uneven = True
        self._changed.set()

    def is_busy_with(self, broker_id: int) -> bool:
        """Return whether a leaving broker still has shards that another broker could have."""
        member = self.registry.members.get(broker_id)
        others = any(other.may_be_chosen for other in self.registry.members.values())
        if member is None or not others:
            return False
        return any(s.broker_id == broker_id and s.broker_epoch == member.epoch for s in self.view.shards.values())

    def wake(self) -> None:
        """Assign again: brokers have changed."""
        self._changed.set()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                if not await self._assign():
                    # A record has changed: retry when the view has it.
                    self._changed.set()
                    await asyncio.sleep(RETRY_S)
            except StoreUnavailable as e:
                log.warning("coordinator shards not assigned; retrying", reason=str(e))
                self._changed.set()
                await asyncio.sleep(RETRY_S)

    async def _assign(self) -> bool:
        """Return whether all shards are assigned as planned, as far as the view knows."""
        members = self.registry.members
        epochs = {broker: member.epoch for broker, member in members.items()}
        avoided = [broker for broker, member in members.items() if not member.may_be_chosen]
        returned = () if self._is_uneven else [broker for broker in members if self.registry.has_restarted(broker)]
        changes = shard_plan.assign(self.view.shards, epochs, avoided, returned)
        if not changes:
            self._is_uneven = False
            return True
        result = await self.store.txn(
            [self.leadership.condition, *(change.condition() for change in changes)],
            [change.put() for change in changes],
        )
        if result.succeeded:
            log.info("assigned coordinator shards", shards=len(changes))
            await self.watcher.applied(result.revision)
            self._is_uneven = False
        return result.succeeded
