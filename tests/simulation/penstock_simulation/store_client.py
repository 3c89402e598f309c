"""A process's client of the simulated store: implements `state.store.Store`. Calls and watches cross the network.

The answer to a call may be late or missing. Then it is unknown whether the call was executed, or still will be.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.state.limits import check_key, check_txn
from penstock.state.store import (
    Compare,
    Operation,
    StoreChanges,
    StoreEntry,
    StoreError,
    StoreListing,
    StoreUnavailable,
    TxnResult,
)
from penstock_simulation.store import MAX_LEASE_S, STORE_HOST

if TYPE_CHECKING:
    from penstock_simulation.process import Process
    from penstock_simulation.store import StoreCore

T = TypeVar("T")

TIMEOUT_S = 3.0
LATE_CALLS = 0.3
"""Fraction of undelivered calls that are executed later, once they can be delivered."""
LOST_ANSWERS = 0.5
"""Fraction of answers lost if the store's leader changes while they are in flight."""


class Channel:
    """A watch of a client: batches of changes arrive in order and with a delay."""

    def __init__(self, client: SimStore, prefix: str, from_revision: int) -> None:
        self.core, self.process, self.prefix = client.core, client.process, prefix
        self.host = client.host
        self.next_revision = from_revision
        self.arrived: list[StoreChanges | StoreError] = []
        self.waiter: asyncio.Future[None] | None = None
        self.last_arrival = 0.0
        self.open = True
        self.process.at_end.append(self.end)

    def forward(self) -> None:
        """Send the changes that the client has not received; retry later if the link is cut."""
        core, world = self.core, self.core.world
        history = core.history
        up_to_date = history.first_change <= self.next_revision > history.last
        if not self.open or up_to_date:
            return
        if not core.reaches(STORE_HOST, self.host):
            if not core.away:
                world.after(0.3, self.forward)
            return
        try:
            changes, self.next_revision = history.changes(self.prefix, self.next_revision)
        except StoreError as e:
            self.open = False
            self.deliver_later(e)
            return
        if changes.events:
            self.deliver_later(changes)
        self.forward()

    def deliver_later(self, item: StoreChanges | StoreError) -> None:
        core = self.core
        delay_s = core.network.delay_s(STORE_HOST, self.host) + core.rng.expovariate(
            1 / core.lags.get(self.host, core.lag_s)
        )
        self.last_arrival = max(self.last_arrival, core.world.now + delay_s)
        core.world.at(self.last_arrival, self.process.post, self.deliver, item)

    def deliver(self, item: StoreChanges | StoreError) -> None:
        """Hand over the changes in the process."""
        self.arrived.append(item)
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def end(self, power_lost: bool) -> None:
        self.open = False
        self.core.channels.pop(self, None)

    def close(self) -> None:
        self.end(False)
        if self.end in self.process.at_end:
            self.process.at_end.remove(self.end)


class SimStore:
    """Implementation of `state.store.Store` for one process."""

    def __init__(self, core: StoreCore, process: Process) -> None:
        assert process.machine is not None, "a process on a machine"
        self.core, self.process, self.host = core, process, process.machine.name
        self.world = core.world
        self.closed = False
        self.last_arrival = 0.0
        """Calls of one client share a connection: they arrive in order."""

    async def get(self, key: str) -> StoreEntry | None:
        check_key(key)
        return await self.call(lambda: self.core.contents.committed.get(key))

    async def range(self, prefix: str, revision: int = 0) -> StoreListing:
        return await self.call(lambda: self.core.range(prefix, revision))

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TxnResult:
        check_txn(compares, then, otherwise)
        compares, then, otherwise = list(compares), list(then), list(otherwise)
        return await self.call(lambda: self.core.txn(compares, then, otherwise))

    async def grant_lease(self, ttl_s: float) -> int:
        if not 0 < ttl_s <= MAX_LEASE_S:
            raise ValueError(f"a lease lasts more than 0 and at most {MAX_LEASE_S} seconds, not {ttl_s}")
        return await self.call(lambda: self.core.grant(ttl_s))

    async def keep_alive(self, lease: int) -> None:
        await self.call(lambda: self.core.keep_alive(lease))

    async def revoke_lease(self, lease: int) -> None:
        await self.call(lambda: self.core.revoke(lease))

    async def compact(self, revision: int) -> None:
        await self.call(lambda: self.core.compact(revision))

    async def close(self) -> None:
        self.closed = True

    async def watch(self, prefix: str, from_revision: int) -> AsyncIterator[StoreChanges]:
        if from_revision < 1:
            raise ValueError(f"a watch begins at revision 1 or later, not at {from_revision}")
        if self.closed:
            raise StoreUnavailable("the store is closed")
        channel = Channel(self, prefix, from_revision)
        self.core.channels[channel] = None
        self.world.after(self.delay_s(self.host, STORE_HOST), channel.forward)
        try:
            while True:
                while channel.arrived:
                    item = channel.arrived.pop(0)
                    if isinstance(item, StoreError):
                        raise item
                    yield item
                channel.waiter = asyncio.get_running_loop().create_future()
                await channel.waiter
        finally:
            channel.close()

    # Calls

    def delay_s(self, source: str, target: str) -> float:
        return self.core.network.delay_s(source, target) + self.core.rng.expovariate(1 / self.core.delay_s)

    async def call(self, work: Callable[[], T]) -> T:
        """Execute `work` on the core. Raises StoreUnavailable without an answer, whether or not it was executed."""
        if self.closed:
            raise StoreUnavailable("the store is closed")
        loop = asyncio.get_running_loop()
        call = Call(self, work, loop.create_future())
        self.last_arrival = max(self.last_arrival, self.world.now + self.delay_s(self.host, STORE_HOST))
        self.world.at(self.last_arrival, call.arrive)
        timer = loop.call_later(TIMEOUT_S, call.time_out)
        try:
            result: T = await call.answer
            return result
        finally:
            timer.cancel()


class Call:
    """A call to the core, and its answer."""

    def __init__(self, client: SimStore, work: Callable[[], Any], answer: asyncio.Future[Any]) -> None:
        self.client, self.core, self.work, self.answer = client, client.core, work, answer
        assert client.process.machine is not None
        self.machine, self.boots = client.process.machine, client.process.machine.boots
        self.at_store = False

    def is_gone(self) -> bool:
        """Whether the call was in the kernel of a machine that has lost power since."""
        return not self.at_store and self.machine.boots != self.boots

    def arrive(self) -> None:
        core, client = self.core, self.client
        if not core.reaches(client.host, STORE_HOST):
            self.at_store = core.away and core.network.passes(client.host, STORE_HOST)
            if core.rng.random() < LATE_CALLS:
                core.late.append(self)
            if self.at_store and core.rng.random() < 0.5:
                self.reply(StoreUnavailable("the store has no leader"), failed=True)
            return
        if core.late:
            core.carry_out_late(client.host)
        self.carry_out()

    def carry_out(self) -> None:
        core = self.core
        core.calls += 1
        try:
            result, failed = self.work(), False
        except (StoreError, ValueError) as e:
            result, failed = e, True
        self.reply(result, failed=failed)

    def reply(self, result: Any, *, failed: bool) -> None:
        core, client = self.core, self.client
        if core.network.passes(STORE_HOST, client.host):
            delay_s = client.delay_s(STORE_HOST, client.host)
            core.world.after(delay_s, self.deliver, result, failed, core.terms)

    def deliver(self, result: Any, failed: bool, term: int) -> None:
        """Deliver the answer, or an error if the leader has changed."""
        core = self.core
        if (core.away or core.terms != term) and core.rng.random() < LOST_ANSWERS:
            result, failed = StoreUnavailable("the leader of the store has changed"), True
        self.client.process.post(self.answered, result, failed)

    def answered(self, result: Any, failed: bool) -> None:
        """Complete the call in the process."""
        if self.answer.done():
            return
        if failed:
            self.answer.set_exception(result)
        else:
            self.answer.set_result(result)

    def time_out(self) -> None:
        if not self.answer.done():
            self.answer.set_exception(StoreUnavailable(f"the store did not answer within {TIMEOUT_S} s"))
