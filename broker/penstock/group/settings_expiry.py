"""Ends the settings of groups that are not there: nobody joined them, nothing was committed, for as long as committed
offsets would be kept. What is set for a group that is there goes with it (`offsets.delete_group`).

A timer of `coordinator`'s looks at one shard of this broker's after the other, so that all are looked at within hours,
and the work of one turn does not grow with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.config.broker import BrokerConfig
from penstock.group.ownership import ShardOwnership
from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock.state import keys
from penstock.state.records import BadRecord, GroupSettingsRecord, decode
from penstock.state.store import Compare, DeleteOp, Store, StoreError

log = get_logger(__name__)

MINUTE_MS = 60_000


class SettingsExpiry:
    """`exists` tells whether there is a group; `is_paused` that times cannot be trusted now."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        config: BrokerConfig,
        ownership: ShardOwnership,
        exists: Callable[[str], bool],
        is_paused: Callable[[], bool],
    ) -> None:
        self._store, self._clock, self._config, self._ownership = store, clock, config, ownership
        self._exists, self._is_paused = exists, is_paused
        self._next = 0
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        interval_s = self._config.offsets_retention_check_interval_ms / 1000
        self._timer = asyncio.get_running_loop().call_later(interval_s, self._turn)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            self._task.cancel()

    def _turn(self) -> None:
        self.start()
        mine = sorted(tenure.number for tenure in self._ownership)
        if mine and self._task is None and not self._is_paused():
            number = next((number for number in mine if number >= self._next), mine[0])
            self._next = number + 1
            self._task = asyncio.get_running_loop().create_task(self._work(number), name="settings of absent groups")

    async def _work(self, number: int) -> None:
        try:
            await self.look(number)
        except StoreError as e:
            log.warning("settings of absent groups could not be looked at", shard=number, reason=str(e))
        finally:
            self._task = None

    async def look(self, number: int) -> None:
        """Ends what has had its time in one shard. Raises StoreError."""
        ends_ms = self._clock.wall_ms() - self._config.offsets_retention_minutes * MINUTE_MS
        for entry in (await self._store.range(keys.settings_of_groups(number))).entries:
            tenure = self._ownership.of_shard(number)
            if tenure is None or tenure.is_loading:
                return
            group_id = keys.group_of_settings(entry.key)
            try:
                is_over = decode(GroupSettingsRecord, entry.key, entry.value).changed_ms <= ends_ms
            except BadRecord as e:
                log.error("unreadable settings of a group are kept", key=entry.key, error=str(e))
                continue
            if is_over and not self._exists(group_id):
                compares = [Compare.unchanged(entry)]
                if tenure.guard is not None:
                    compares.append(tenure.guard.ownership())
                if (await self._store.txn(compares, [DeleteOp(entry.key)])).succeeded:
                    log.info("settings of a group that is not there have expired", group=group_id)
