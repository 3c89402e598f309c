"""Deletes the settings of groups that do not exist, after the retention time of committed offsets. The settings of an
existing group are deleted with it (`offsets.delete_group`).

A timer started by `coordinator` checks one owned shard per interval, so the work per interval does not grow with the
number of shards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.config.broker import BrokerConfig
from penstock.group.ownership import ShardOwnership
from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock.runtime.tasks import spawn
from penstock.state import keys
from penstock.state.records import BadRecord, GroupSettingsRecord, decode
from penstock.state.store import Compare, DeleteOp, Store, StoreError

log = get_logger(__name__)

MINUTE_MS = 60_000


class SettingsExpiry:
    """`exists` returns whether a group exists; `is_paused` whether the wall clock is unreliable."""

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
        """Start the timer for the next shard."""
        interval_s = self._config.offsets_retention_check_interval_ms / 1000
        self._timer = asyncio.get_running_loop().call_later(interval_s, self._turn)

    def close(self) -> None:
        """Stop the timer and a running check."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            self._task.cancel()

    def _turn(self) -> None:
        self.start()
        owned = sorted(shard.number for shard in self._ownership)
        if owned and self._task is None and not self._is_paused():
            number = next((number for number in owned if number >= self._next), owned[0])
            self._next = number + 1
            self._task = spawn(self._work(number), "settings of absent groups")

    async def _work(self, number: int) -> None:
        try:
            await self.expire_settings(number)
        except StoreError as e:
            log.warning("cannot expire group settings: retrying later", shard=number, reason=str(e))
        finally:
            self._task = None

    async def expire_settings(self, number: int) -> None:
        """Delete the expired settings of one shard. Raises StoreError."""
        expired_before_ms = self._clock.wall_ms() - self._config.offsets_retention_minutes * MINUTE_MS
        for entry in (await self._store.range(keys.settings_of_groups(number))).entries:
            shard = self._ownership.get(number)
            if shard is None or shard.is_loading:
                return
            group_id = keys.group_of_settings(entry.key)
            try:
                is_expired = decode(GroupSettingsRecord, entry.key, entry.value).changed_ms <= expired_before_ms
            except BadRecord as e:
                log.error("keeping unreadable group settings", key=entry.key, error=str(e))
                continue
            if is_expired and not self._exists(group_id):
                compares = [Compare.unchanged(entry), *shard.guard.ownership_compares()]
                if (await self._store.txn(compares, [DeleteOp(entry.key)])).succeeded:
                    log.info("settings of a nonexistent group have expired", group=group_id)
