"""Renews a broker's lease and tracks until when it is surely valid. Created by `membership.Registration`.

It runs on its own event loop in a thread with its own store, so that a busy broker keeps its lease. It renews only
while the broker's loop ticks (`pulse`), so that a hung broker loses it. The two loops share only numbers, which are
assigned atomically.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock.state.store import LeaseExpired, Store, StoreError

log = get_logger("penstock.control")

RENEWALS_PER_LEASE = 3
"""Renewals per lease TTL."""
RETRIES_PER_LEASE = 15
"""Attempts per lease TTL while the store is unavailable or refuses."""
SAFETY_DIVISOR = 10
"""The broker stops serving TTL / SAFETY_DIVISOR before the store can expire the lease, because clocks drift."""


class LeaseKeepAlive:
    """Renews a lease from `run` until it is lost or `stop` is called. `deadline_ms` is on the boot clock."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        lease: int,
        key: str,
        epoch: int,
        ttl_ms: int,
        granted_ms: int,
        on_lost: Callable[[str], None],
        pulse: Callable[[], int] | None = None,
    ) -> None:
        """`granted_ms` is the boot clock before the lease was requested; `pulse` returns that of the broker's last
        tick."""
        self.store, self.clock, self.lease, self.key, self.epoch, self.ttl_ms = store, clock, lease, key, epoch, ttl_ms
        self.on_lost, self.pulse = on_lost, pulse
        self.deadline_ms = granted_ms + ttl_ms - ttl_ms // SAFETY_DIVISOR
        self.is_stopped = False

    def may_serve(self) -> bool:
        """Return whether the lease is surely still valid. Thread-safe."""
        return not self.is_stopped and self.clock.boot_ms() < self.deadline_ms

    def stop(self) -> None:
        """Stop renewing; `run` returns after its current wait."""
        self.is_stopped = True

    async def run(self) -> None:
        """Renew until the lease is lost or `stop` is called."""
        pause_ms = self.ttl_ms // RENEWALS_PER_LEASE
        while True:
            await asyncio.sleep(pause_ms / 1000)
            if self.is_stopped:
                return
            try:
                pause_ms = await self._renew()
            except LeaseExpired:
                self._lose("the lease of this broker has expired")
                return

    async def _renew(self) -> int:
        """Return the ms to wait before the next renewal. Raises `LeaseExpired`."""
        now_ms = self.clock.boot_ms()
        if self.pulse is not None and now_ms - self.pulse() > self.ttl_ms:
            log.warning("lease not renewed: the broker's event loop is not responding", ms=now_ms - self.pulse())
            return self.ttl_ms // RETRIES_PER_LEASE
        try:
            async with asyncio.timeout(self.ttl_ms / RENEWALS_PER_LEASE / 1000):
                await self.store.keep_alive(self.lease)
                entry = await self.store.get(self.key)
        except LeaseExpired:
            raise
        except (StoreError, TimeoutError) as e:
            # Refusals too: an administrator can fix permissions and passwords before `deadline_ms`.
            log.warning("lease not renewed", reason=str(e) or "timeout")
            return self.ttl_ms // RETRIES_PER_LEASE
        if self.is_stopped:
            return 0
        if entry is None or entry.create_revision != self.epoch:
            self._lose("the registration of this broker was removed by the controller, or replaced by a newer start")
            return 0
        self.deadline_ms = max(self.deadline_ms, now_ms + self.ttl_ms - self.ttl_ms // SAFETY_DIVISOR)
        return self.ttl_ms // RENEWALS_PER_LEASE

    def _lose(self, reason: str) -> None:
        self.is_stopped = True
        self.on_lost(reason)
