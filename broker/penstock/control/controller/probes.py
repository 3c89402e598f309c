"""Notices within a fraction of a second that a broker's process has died: its connection breaks, and nobody listens.

The controller keeps one connection to each broker; every other broker keeps one to the controller. A connection that
breaks and whose reconnecting is refused makes a suspicion; only the refusal counts, since a host that does not answer
may be slow, or cut off from us alone. A suspicion becomes a fact by the transaction that ends the registration. While
more than a third of the brokers are suspected the fault may be here, and leases alone decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from penstock.control.controller.leadership import Leadership
from penstock.control.controller.registry import Registry
from penstock.control.membership import created
from penstock.runtime.logging import get_logger
from penstock.state import keys
from penstock.state.store import DeleteOp, Store, StoreUnavailable
from penstock.state.view import BrokerView

log = get_logger("penstock.control")

SECOND_LOOK_S = 0.03
"""How long a broker must go on refusing after its connection broke."""
STRANGER_LOOK_S = 0.5
"""And where there was no connection yet: one that has just registered may not listen yet."""
GATHERING_S = 0.15
"""How long a suspicion waits for others: many together are a reason to doubt all of them."""
RETRY_S = 1.0
CONNECT_TIMEOUT_S = 3.0
AT_MOST = 3
"""No more than one in so many brokers are fenced on suspicion within the time of a lease."""


class Probe(Protocol):
    """A connection to a broker that is there to notice its end."""

    async def broken(self) -> None:
        """Returns when the connection is no more."""

    def close(self) -> None: ...


class Prober(Protocol):
    """Connects to brokers. Made by `node`."""

    async def connect(self, broker: BrokerView) -> Probe:
        """Raises ConnectionRefusedError where nobody listens there, another OSError where that is not known."""


async def watch_broker(prober: Prober, broker: BrokerView, suspect: Callable[[], None]) -> None:
    """Keeps a connection to a broker until cancelled; calls `suspect` each time it broke and nobody listens there."""
    loop = asyncio.get_running_loop()
    look_s = STRANGER_LOOK_S
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
                if now_s - refused_s >= look_s:
                    suspect()
                    await asyncio.sleep(RETRY_S)
                else:
                    await asyncio.sleep(look_s / 4)
            except (OSError, TimeoutError):
                refused_s = None
                await asyncio.sleep(RETRY_S)
        look_s = SECOND_LOOK_S
        try:
            await probe.broken()
        finally:
            probe.close()


class BrokerProbes:
    """The controller's probes: one task for each other broker. `run` until the leadership is over."""

    def __init__(
        self,
        store: Store,
        leadership: Leadership,
        registry: Registry,
        prober: Prober,
        own_id: int,
        lease_s: float,
    ) -> None:
        self.store, self.leadership, self.registry, self.prober, self.own_id = (
            store,
            leadership,
            registry,
            prober,
            own_id,
        )
        self.lease_s = lease_s
        self.fenced = 0
        self._tasks: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._suspects: dict[tuple[int, int], float] = {}
        """(broker, epoch) → when it was last suspected or fenced, on the loop's clock."""
        self._recent: dict[tuple[int, int], float] = {}
        self._suspected = asyncio.Event()

    def on_brokers(self) -> None:
        """Watches those who are there now, and nobody else."""
        wanted = {
            (member.broker_id, member.epoch): member
            for member in self.registry.members.values()
            if member.broker_id != self.own_id and not member.is_leaving
        }
        for key in self._tasks.keys() - wanted.keys():
            self._tasks.pop(key).cancel()
            self._suspects.pop(key, None)
        loop = asyncio.get_running_loop()
        for key in wanted.keys() - self._tasks.keys():
            view = self.registry.view_of(key[0])
            self._tasks[key] = loop.create_task(watch_broker(self.prober, view, partial(self._suspect, key)))

    def _suspect(self, key: tuple[int, int]) -> None:
        self._suspects[key] = asyncio.get_running_loop().time()
        self._suspected.set()

    async def run(self) -> None:
        try:
            while True:
                await self._suspected.wait()
                self._suspected.clear()
                await asyncio.sleep(GATHERING_S)
                await self._judge()
        finally:
            tasks, self._tasks = list(self._tasks.values()), {}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _judge(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for table in (self._recent, self._suspects):
            for key in [key for key, at_s in table.items() if at_s < now_s - self.lease_s]:
                del table[key]
        suspects = list(self._suspects)
        gone = {key for key in self._recent if key not in self._suspects}
        present = {(m.broker_id, m.epoch) for m in self.registry.members.values()}
        if (len(suspects) + len(gone)) * AT_MOST > len(present | gone):
            log.warning("too many brokers seem to be gone at once: their leases decide", suspected=sorted(suspects))
            return
        for broker_id, epoch in suspects:
            await self._fence(broker_id, epoch)

    async def _fence(self, broker_id: int, epoch: int) -> None:
        """Makes it a fact: from here on the broker is not registered, whatever it believes."""
        key = keys.broker(broker_id)
        try:
            result = await self.store.txn([self.leadership.condition, created(key, epoch)], [DeleteOp(key)])
        except StoreUnavailable as e:
            log.warning("a broker that seems dead could not be fenced", broker=broker_id, reason=str(e))
            return
        self._suspects.pop((broker_id, epoch), None)
        if result.succeeded:
            self.fenced += 1
            self._recent[broker_id, epoch] = asyncio.get_running_loop().time()
            log.warning("a broker has died: its connection broke and nobody listens there", broker=broker_id)
