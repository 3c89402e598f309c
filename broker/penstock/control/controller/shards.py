"""Gives the coordinator shards to brokers while this broker is controller: `shard_plan` says which to whom.

Level-triggered: whenever brokers change, the plan is made from all brokers and shards as they are. A broker that comes
back gets shards of others when the controller next evens out leaderships and shards, as each move interrupts the
groups of a shard. Part of `Term`.
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
    """`run` works until it is cancelled; `wake` says that brokers have changed."""

    def __init__(
        self, store: Store, view: ClusterView, watcher: Watcher, leadership: Leadership, registry: Registry
    ) -> None:
        self.store, self.view, self.watcher = store, view, watcher
        self.leadership, self.registry = leadership, registry
        self._changed = asyncio.Event()
        self._is_uneven = False

    def even_out(self) -> None:
        """Has the shards spread evenly over all brokers, those that came back among them."""
        self._is_uneven = True
        self._changed.set()

    def is_busy_with(self, broker_id: int) -> bool:
        """Whether a broker that leaves still has shards that another could have."""
        member = self.registry.members.get(broker_id)
        others = any(other.may_be_chosen for other in self.registry.members.values())
        if member is None or not others:
            return False
        return any(s.broker_id == broker_id and s.broker_epoch == member.epoch for s in self.view.shards.values())

    def wake(self) -> None:
        self._changed.set()

    async def run(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                if not await self._assign():
                    # Somebody's record was another: what is seen of it next tells more.
                    self._changed.set()
                    await asyncio.sleep(RETRY_S)
            except StoreUnavailable as e:
                log.warning("coordinator shards could not be given out", reason=str(e))
                self._changed.set()
                await asyncio.sleep(RETRY_S)

    async def _assign(self) -> bool:
        """Whether all shards are where they should be, as far as is known."""
        members = self.registry.members
        epochs = {broker: member.epoch for broker, member in members.items()}
        avoided = [broker for broker, member in members.items() if not member.may_be_chosen]
        back = () if self._is_uneven else [broker for broker in members if self.registry.was_here(broker)]
        changes = shard_plan.assign(self.view.shards, epochs, avoided, back)
        if not changes:
            self._is_uneven = False
            return True
        result = await self.store.txn(
            [self.leadership.condition, *(change.condition() for change in changes)],
            [change.put() for change in changes],
        )
        if result.succeeded:
            log.info("coordinator shards were given out", shards=len(changes))
            await self.watcher.applied(result.revision)
            self._is_uneven = False
        return result.succeeded
