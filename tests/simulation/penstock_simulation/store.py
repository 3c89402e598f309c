"""The store of the simulated world: etcd's semantics without etcd. One core for all, a client for each process.

The core is linearizable and loses nothing. Between it and a client lies a network, and a time-out: a call may be
answered late, or not at all, and then nobody knows whether it was carried out, or still will be. Watches lag.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.state.contents import Contents
from penstock.state.history import History, Revision
from penstock.state.limits import check_key, check_txn
from penstock.state.store import (
    Changes,
    Compare,
    Delete,
    Entry,
    LeaseExpired,
    Listing,
    Operation,
    Put,
    StoreError,
    StoreUnavailable,
    TxnResult,
)

if TYPE_CHECKING:
    from penstock_simulation.network import Network
    from penstock_simulation.process import Process
    from penstock_simulation.world import World

T = TypeVar("T")

STORE_HOST = "store"
FIRST_REVISION = 1
"""Of a store in which nothing has been written."""
TIMEOUT_S = 3.0
MAX_LEASE_S = 86_400.0
LATE_CALLS = 0.3
"""The share of calls that could not get through and are carried out later all the same, when they can."""
LATEST_S = 5.0
"""How much later than the next call of the same client a late one can be, where late calls are overtaken."""


@dataclass
class Lease:
    ttl_s: float
    deadline_s: float
    keys: dict[str, None] = field(default_factory=dict)


class StoreCore:
    """What is agreed. `away` is set while it has no leader."""

    def __init__(self, world: World, network: Network) -> None:
        self.world, self.network = world, network
        self.rng = world.streams["store"]
        self.contents = Contents([], FIRST_REVISION)
        self.history = History(FIRST_REVISION - 1)
        self.history.add(Revision(FIRST_REVISION, [], []))
        self.leases: dict[int, Lease] = {}
        self.lease_ids = count(1)
        self.channels: dict[Channel, None] = {}
        self.away = False
        self.delay_s = self.rng.choice([0.000_5, 0.002, 0.01])
        self.lag_s = self.rng.choice([0.000_5, 0.005, 0.1])
        self.late: list[Call] = []
        """Calls that wait for a leader, or in their sender's kernel for a cut to heal, in order."""
        self.late_are_overtaken = False
        """Whether late calls may come after later ones of the same client, as by another connection."""
        self.calls = 0

    # What clients ask for

    def txn(self, compares: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation]) -> TxnResult:
        succeeded = all(self.contents.holds(compare) for compare in compares)
        return TxnResult(succeeded, self.apply(then if succeeded else otherwise))

    def apply(self, operations: Sequence[Operation]) -> int:
        leased = [op for op in operations if isinstance(op, Put) and op.lease]
        for put in leased:
            self.live(put.lease)
        revision = self.contents.plan(operations)
        for put in leased:
            self.leases[put.lease].keys[put.key] = None
        if revision is not None:
            self.contents.commit(revision)
            self.history.add(revision)
            self.world.note("commit", STORE_HOST, revision.number)
            for channel in self.channels:
                channel.forward()
        return self.contents.committed_revision

    def range(self, prefix: str, revision: int) -> Listing:
        entries, current = self.contents.range(prefix), self.contents.committed_revision
        if revision in (0, current):
            return Listing(entries, current)
        if revision > current:
            raise ValueError(f"revision {revision} is in the future: the store is at {current}")
        return Listing(self.history.undo(prefix, entries, revision), revision)

    def compact(self, revision: int) -> None:
        if revision > self.contents.committed_revision:
            raise ValueError(
                f"revision {revision} is in the future: the store is at {self.contents.committed_revision}"
            )
        self.history.forget_before(revision)

    def grant(self, ttl_s: float) -> int:
        lease = next(self.lease_ids)
        held = self.leases[lease] = Lease(ttl_s, self.world.now + ttl_s)
        self.world.at(held.deadline_s, self.expire, lease)
        return lease

    def keep_alive(self, lease: int) -> None:
        held = self.live(lease)
        held.deadline_s = self.world.now + held.ttl_s

    def revoke(self, lease: int) -> None:
        self.live(lease)
        self.end_lease(lease)

    def live(self, lease: int) -> Lease:
        held = self.leases.get(lease)
        if held is None or held.deadline_s <= self.world.now:
            raise LeaseExpired(f"the lease {lease} is not there, or not any more")
        return held

    def expire(self, lease: int) -> None:
        """Whether a lease is over: nobody expires while there is no leader, and a new leader grants all their time."""
        held = self.leases.get(lease)
        if held is None:
            return
        if self.away:
            self.world.after(0.5, self.expire, lease)
        elif held.deadline_s > self.world.now:
            self.world.at(held.deadline_s, self.expire, lease)
        else:
            self.world.note("lease ends", STORE_HOST, lease)
            self.end_lease(lease)

    def end_lease(self, lease: int) -> None:
        held = self.leases.pop(lease)
        latest = self.contents.latest
        keys = sorted(key for key in held.keys if (entry := latest(key)) is not None and entry.lease == lease)
        self.apply([Delete(key) for key in keys])

    # Faults

    def go_away(self) -> None:
        self.world.note("away", STORE_HOST)
        self.away = True

    def come_back(self) -> None:
        """A leader is there again, and gives each lease its whole time, as etcd does."""
        self.world.note("back", STORE_HOST)
        self.away = False
        for held in self.leases.values():
            held.deadline_s = self.world.now + held.ttl_s
        self.carry_out_late(None)
        for channel in self.channels:
            channel.forward()

    def carry_out_late(self, host: str | None) -> None:
        """Does what waited, of one client machine or of all, before anything that comes now."""
        late, self.late = self.late, []
        for call in late:
            if host is not None and call.client.host != host:
                self.late.append(call)
            elif not call.is_gone():
                if self.late_are_overtaken:
                    self.world.after(self.rng.uniform(0, LATEST_S), call.carry_out)
                else:
                    call.carry_out()

    def reaches(self, source: str, target: str) -> bool:
        return not self.away and self.network.passes(source, target)


class Channel:
    """A watch on its way to a client: batches of changes arrive in order, some time after they happened."""

    def __init__(self, client: SimStore, prefix: str, from_revision: int) -> None:
        self.core, self.process, self.prefix = client.core, client.process, prefix
        self.host = client.host
        self.next_revision = from_revision
        self.arrived: list[Changes | StoreError] = []
        self.waiter: asyncio.Future[None] | None = None
        self.last_arrival = 0.0
        self.open = True
        self.process.at_end.append(self.end)

    def forward(self) -> None:
        """Sends what the client has not been sent, if it gets through; else it is tried again."""
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

    def deliver_later(self, item: Changes | StoreError) -> None:
        core = self.core
        delay_s = core.network.delay_s(STORE_HOST, self.host) + core.rng.expovariate(1 / core.lag_s)
        self.last_arrival = max(self.last_arrival, core.world.now + delay_s)
        core.world.at(self.last_arrival, self.process.post, self.deliver, item)

    def deliver(self, item: Changes | StoreError) -> None:
        """In the process."""
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
    """Implements `state.store.Store` for one process."""

    def __init__(self, core: StoreCore, process: Process) -> None:
        assert process.machine is not None, "a process on a machine"
        self.core, self.process, self.host = core, process, process.machine.name
        self.world = core.world
        self.closed = False
        self.last_arrival = 0.0
        """Calls of one client share a connection: they arrive in order."""

    async def get(self, key: str) -> Entry | None:
        check_key(key)
        return await self.call(lambda: self.core.contents.committed.get(key))

    async def range(self, prefix: str, revision: int = 0) -> Listing:
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

    async def watch(self, prefix: str, from_revision: int) -> AsyncIterator[Changes]:
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
        """Has the core do something; StoreUnavailable where no answer comes, whatever happened to the call."""
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
    """One call on its way to the core and back."""

    def __init__(self, client: SimStore, work: Callable[[], Any], answer: asyncio.Future[Any]) -> None:
        self.client, self.core, self.work, self.answer = client, client.core, work, answer
        assert client.process.machine is not None
        self.machine, self.boots = client.process.machine, client.process.machine.boots
        self.at_store = False

    def is_gone(self) -> bool:
        """Whether it was in the kernel of a machine that has lost power since."""
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
            core.world.after(delay_s, client.process.post, self.answered, result, failed)

    def answered(self, result: Any, failed: bool) -> None:
        """In the process."""
        if self.answer.done():
            return
        if failed:
            self.answer.set_exception(result)
        else:
            self.answer.set_result(result)

    def time_out(self) -> None:
        if not self.answer.done():
            self.answer.set_exception(StoreUnavailable(f"the store did not answer within {TIMEOUT_S} s"))
