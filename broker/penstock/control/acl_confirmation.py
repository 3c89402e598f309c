"""Confirms at intervals that this broker's view has all changes of ACLs, so that a broker that was cut off from the
store does not allow for long what was revoked. Created by `node` in clusters with an authorizer.

Each change of ACLs also writes `keys.ACL_CHANGE`. The broker reads that key and waits until its view has the revision:
then the view had all changes that were made before the read. See docs/decisions/0041-outdated-acls.md.
"""

from __future__ import annotations

import asyncio

from penstock.control.keep_alive import RENEWALS_PER_LEASE, RETRIES_PER_LEASE, SAFETY_DIVISOR
from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock.runtime.tasks import spawn
from penstock.state import keys
from penstock.state.store import Store, StoreError
from penstock.state.watcher import Watcher

log = get_logger("penstock.control")


class AclConfirmation:
    """Confirms the view from `start` to `close`. A confirmation is valid for `lease_ms`, as the broker's lease."""

    def __init__(self, store: Store, watcher: Watcher, clock: Clock, lease_ms: int) -> None:
        self.store, self.watcher, self.clock, self.lease_ms = store, watcher, clock, lease_ms
        self.deadline_ms = 0
        """When the last confirmation ends, on the boot clock."""
        self.is_failing = False
        self.task: asyncio.Task[None] | None = None

    @property
    def is_started(self) -> bool:
        """Whether the broker has an authorizer."""
        return self.task is not None

    def is_valid(self) -> bool:
        """Return whether the view surely has the changes of ACLs that are older than the lease."""
        return self.clock.boot_ms() < self.deadline_ms

    async def start(self) -> None:
        """Confirm once, then at intervals. Does not fail: until the store responds, there is no confirmation."""
        assert self.task is None, "started once"
        pause_s = await self.confirm()
        self.task = spawn(self.run(pause_s), "acl confirmation")

    async def close(self) -> None:
        """Stop."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)

    async def run(self, pause_s: float) -> None:
        """Confirm until cancelled."""
        while True:
            await asyncio.sleep(pause_s)
            pause_s = await self.confirm()

    async def confirm(self) -> float:
        """Confirm the view if the store responds; return the seconds to wait before the next attempt."""
        asked_ms = self.clock.boot_ms()
        patience_s = self.lease_ms / RENEWALS_PER_LEASE / 1000
        try:
            async with asyncio.timeout(patience_s):
                entry = await self.store.get(keys.ACL_CHANGE)
                await self.watcher.applied(0 if entry is None else entry.mod_revision)
        except (StoreError, TimeoutError) as e:
            if not self.is_failing:
                log.warning("ACLs not confirmed; retrying", reason=str(e) or "timeout")
            self.is_failing = True
            return self.lease_ms / RETRIES_PER_LEASE / 1000
        self.is_failing = False
        self.deadline_ms = asked_ms + self.lease_ms - self.lease_ms // SAFETY_DIVISOR
        return patience_s
