"""Keeps a broker's lease alive, and knows until when it surely is. Made by `membership.Registration`.

It runs on a loop of its own, in a thread with a store of its own, so that a busy broker does not lose its lease; but
only for as long as the broker's loop ticks (`pulse`), so that one that hangs does. Nothing here is shared with the
broker's loop but numbers that are replaced whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock.state.store import LeaseExpired, Store, StoreError

log = get_logger("penstock.control")

RENEWALS = 3
"""Renewals in the time of a lease."""
RETRIES = 15
"""Attempts in the time of a lease while the store does not answer, or refuses."""
MARGIN = 10
"""The part of a lease, one in so many, by which the broker stops before the store can end it: clocks drift."""


class LeaseKeepAlive:
    """`run` renews until the lease is lost or `end` is called. `deadline_ms` is on the boot clock."""

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
        """`granted_ms` is the boot clock before the lease was asked for; `pulse` that of the broker's last tick."""
        self.store, self.clock, self.lease, self.key, self.epoch, self.ttl_ms = store, clock, lease, key, epoch, ttl_ms
        self.on_lost, self.pulse = on_lost, pulse
        self.deadline_ms = granted_ms + ttl_ms - ttl_ms // MARGIN
        self.is_ended = False

    def may_serve(self) -> bool:
        """Whether the lease surely has not ended. Safe to ask from any thread."""
        return not self.is_ended and self.clock.boot_ms() < self.deadline_ms

    def end(self) -> None:
        """Renews no more; `run` returns after its present wait."""
        self.is_ended = True

    async def run(self) -> None:
        pause_ms = self.ttl_ms // RENEWALS
        while True:
            await asyncio.sleep(pause_ms / 1000)
            if self.is_ended:
                return
            try:
                pause_ms = await self._renew()
            except LeaseExpired:
                self._lose("the lease of this broker has ended")
                return

    async def _renew(self) -> int:
        """How long to wait before the next time, in ms. Raises `LeaseExpired`."""
        now_ms = self.clock.boot_ms()
        if self.pulse is not None and now_ms - self.pulse() > self.ttl_ms:
            log.warning("the broker does not respond: its lease is not renewed", ms=now_ms - self.pulse())
            return self.ttl_ms // RETRIES
        try:
            async with asyncio.timeout(self.ttl_ms / RENEWALS / 1000):
                await self.store.keep_alive(self.lease)
                entry = await self.store.get(self.key)
        except LeaseExpired:
            raise
        except (StoreError, TimeoutError) as e:
            # Also where the store refuses: permissions and passwords are set right again, and `deadline_ms` stands.
            log.warning("the lease could not be renewed", reason=str(e) or "no answer")
            return self.ttl_ms // RETRIES
        if self.is_ended:
            return 0
        if entry is None or entry.create_revision != self.epoch:
            self._lose("the registration of this broker was ended by the controller, or replaced by a newer start")
            return 0
        self.deadline_ms = max(self.deadline_ms, now_ms + self.ttl_ms - self.ttl_ms // MARGIN)
        return self.ttl_ms // RENEWALS

    def _lose(self, reason: str) -> None:
        self.is_ended = True
        self.on_lost(reason)
