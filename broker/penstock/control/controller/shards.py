"""Gives the coordinator shards to brokers while this broker is controller: `shard_plan` says which to whom.

Level-triggered: whenever brokers or shards change, the plan is made from all of them as they are. Part of `Term`.
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
        changes = shard_plan.assign(self.view.shards, epochs, avoided)
        if not changes:
            return True
        result = await self.store.txn(
            [self.leadership.condition, *(change.condition() for change in changes)],
            [change.put() for change in changes],
        )
        if result.succeeded:
            log.info("coordinator shards were given out", shards=len(changes))
            await self.watcher.applied(result.revision)
        return result.succeeded
