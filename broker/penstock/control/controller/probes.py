"""Detects within a fraction of a second that a broker's process has died: its connection breaks and reconnecting is
refused.

The controller keeps a connection to each broker, every other broker one to the controller. Only a refused connection
makes a broker a suspect: a host that does not respond may be slow, or unreachable only from here. Fencing deletes the
suspect's registration. If more than a third of the brokers are suspects, the fault may be local, and only leases
decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from penstock.control.controller.leadership import Leadership
from penstock.control.controller.registry import Registry
from penstock.control.membership import compare_created
from penstock.runtime.logging import get_logger
from penstock.runtime.tasks import spawn
from penstock.state import keys
from penstock.state.store import DeleteOp, Store, StoreUnavailable
from penstock.state.view import BrokerView

log = get_logger("penstock.control")

REFUSED_AFTER_BREAK_S = 0.03
"""How long a broker must refuse connections after its connection broke."""
REFUSED_AT_START_S = 0.5
"""As `REFUSED_AFTER_BREAK_S`, before the first connection: a new broker may not listen yet."""
SUSPICION_WINDOW_S = 0.15
"""How long a suspicion waits for others; many at once are a reason to doubt all of them."""
RETRY_S = 1.0
CONNECT_TIMEOUT_S = 3.0
MAX_FENCED_DIVISOR = 3
"""At most one in this many brokers is fenced on suspicion within a lease TTL."""


class Probe(Protocol):
    """A connection to a broker whose end is observed."""

    async def wait_closed(self) -> None:
        """Return when the connection is closed."""

    def close(self) -> None:
        """Close the connection."""


class Prober(Protocol):
    """Connects to brokers. Implemented by `node`."""

    async def connect(self, broker: BrokerView) -> Probe:
        """Connect to a broker. Raises ConnectionRefusedError if no process listens, another OSError if unknown."""


async def watch_broker(
    prober: Prober, broker: BrokerView, suspect: Callable[[], None], refused_for_s: float = REFUSED_AT_START_S
) -> None:
    """Keep a connection to a broker until cancelled; call `suspect` each time it breaks and reconnecting is refused.

    `refused_for_s` applies until the first connection.
    """
    loop = asyncio.get_running_loop()
    while True:
        refused_s: float | None = None
        probe: Probe | None = None
        while probe is None:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    probe = await prober.connect(broker)
            except ConnectionRefusedError:
                now_s = loop.time()
                refused_s = now_s if refused_s is None else refused_s
                if now_s - refused_s >= refused_for_s:
                    suspect()
                    await asyncio.sleep(RETRY_S)
                else:
                    await asyncio.sleep(refused_for_s / 4)
            except (OSError, TimeoutError):
                refused_s = None
                await asyncio.sleep(RETRY_S)
        refused_for_s = REFUSED_AFTER_BREAK_S
        try:
            await probe.wait_closed()
        finally:
            probe.close()


class BrokerProbes:
    """The controller's probes: one task per other broker."""

    def __init__(
        self,
        store: Store,
        leadership: Leadership,
        registry: Registry,
        prober: Prober,
        own_id: int,
        lease_s: float,
        deposed: tuple[int, int] | None = None,
    ) -> None:
        """`deposed` is the (broker, epoch) of the last controller if its death was the reason for the election."""
        self.store, self.leadership, self.registry, self.prober, self.own_id = (
            store,
            leadership,
            registry,
            prober,
            own_id,
        )
        self.lease_s, self.deposed = lease_s, deposed
        self.fenced = 0
        self._tasks: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._suspects: dict[tuple[int, int], float] = {}
        """(broker, epoch) → when it was last suspected, on the loop's clock."""
        self._recent: dict[tuple[int, int], float] = {}
        self._suspected = asyncio.Event()

    def on_brokers(self) -> None:
        """Start and stop probes to match the registered brokers."""
        registered = {
            (member.broker_id, member.epoch): member
            for member in self.registry.members.values()
            if member.broker_id != self.own_id and not member.is_leaving
        }
        for key in self._tasks.keys() - registered.keys():
            self._tasks.pop(key).cancel()
            self._suspects.pop(key, None)
        for key in registered.keys() - self._tasks.keys():
            view = self.registry.view_of(key[0])
            # The election has already observed that the connection to a deposed controller broke.
            refused_for_s = REFUSED_AFTER_BREAK_S if key == self.deposed else REFUSED_AT_START_S
            probing = watch_broker(self.prober, view, partial(self._suspect, key), refused_for_s)
            self._tasks[key] = spawn(probing, f"probe broker {key[0]}")

    def _suspect(self, key: tuple[int, int]) -> None:
        self._suspects[key] = asyncio.get_running_loop().time()
        self._suspected.set()

    async def run(self) -> None:
        """Fence suspects until cancelled."""
        try:
            while True:
                await self._suspected.wait()
                self._suspected.clear()
                await asyncio.sleep(SUSPICION_WINDOW_S)
                await self._evaluate_suspects()
        finally:
            tasks, self._tasks = list(self._tasks.values()), {}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _evaluate_suspects(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for table in (self._recent, self._suspects):
            for key in [key for key, at_s in table.items() if at_s < now_s - self.lease_s]:
                del table[key]
        suspects = list(self._suspects)
        gone = {key for key in self._recent if key not in self._suspects}
        present = {(m.broker_id, m.epoch) for m in self.registry.members.values()}
        if (len(suspects) + len(gone)) * MAX_FENCED_DIVISOR > len(present | gone):
            log.warning("too many suspected brokers; waiting for their leases to expire", suspected=sorted(suspects))
            return
        for broker_id, epoch in suspects:
            await self._fence(broker_id, epoch)

    async def _fence(self, broker_id: int, epoch: int) -> None:
        """Delete the broker's registration."""
        key = keys.broker(broker_id)
        try:
            result = await self.store.txn([self.leadership.condition, compare_created(key, epoch)], [DeleteOp(key)])
        except StoreUnavailable as e:
            log.warning("suspected broker not fenced", broker=broker_id, reason=str(e))
            return
        self._suspects.pop((broker_id, epoch), None)
        if result.succeeded:
            self.fenced += 1
            self._recent[broker_id, epoch] = asyncio.get_running_loop().time()
            log.warning("fenced a broker: its connection broke and reconnecting was refused", broker=broker_id)
