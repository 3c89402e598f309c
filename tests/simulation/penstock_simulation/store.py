"""The store of the simulated world, with etcd's semantics: one core for all, a client for each process.

The core is linearizable and loses nothing; it may be without a leader, slow, or compacted. The network connects it to
its clients, which are in `store_client`; watches lag.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from penstock.state.contents import StoreContents
from penstock.state.history import History, Revision
from penstock.state.store import (
    Compare,
    DeleteOp,
    LeaseExpired,
    Operation,
    PutOp,
    StoreListing,
    TxnResult,
)

if TYPE_CHECKING:
    from penstock_simulation.network import Network
    from penstock_simulation.store_client import Call, Channel
    from penstock_simulation.world import World

STORE_HOST = "store"
FIRST_REVISION = 1
"""Revision of an empty store."""
MAX_LEASE_S = 86_400.0
LATEST_S = 5.0
"""Longest delay of a late call after the next call of the same client, if late calls may be overtaken."""


@dataclass
class Lease:
    ttl_s: float
    deadline_s: float
    keys: dict[str, None] = field(default_factory=dict)


class StoreCore:
    """The agreed state. `away` is set while the store has no leader."""

    def __init__(self, world: World, network: Network) -> None:
        self.world, self.network = world, network
        self.rng = world.streams["store"]
        self.contents = StoreContents([], FIRST_REVISION)
        self.history = History(FIRST_REVISION - 1)
        self.history.add(Revision(FIRST_REVISION, [], []))
        self.leases: dict[int, Lease] = {}
        self.lease_ids = count(1)
        self.channels: dict[Channel, None] = {}
        self.away = False
        self.terms = 0
        """Number of leader changes."""
        self.usual_delay_s = self.delay_s = self.rng.choice([0.000_5, 0.002, 0.01])
        self.lag_s = self.rng.choice([0.000_5, 0.005, 0.1])
        self.lags: dict[str, float] = {}
        """Extra delay of watch events, by machine."""
        self.late: list[Call] = []
        """Calls that wait for a leader, or in their sender's kernel for a cut to heal, in order."""
        self.late_are_overtaken = False
        """Whether late calls may arrive after later ones of the same client, as over another connection."""
        self.calls = 0

    # Operations of clients

    def txn(self, compares: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation]) -> TxnResult:
        succeeded = all(self.contents.holds(compare) for compare in compares)
        return TxnResult(succeeded, self.apply(then if succeeded else otherwise))

    def apply(self, operations: Sequence[Operation]) -> int:
        leased = [op for op in operations if isinstance(op, PutOp) and op.lease]
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

    def range(self, prefix: str, revision: int) -> StoreListing:
        entries, current = self.contents.range(prefix), self.contents.committed_revision
        if revision in (0, current):
            return StoreListing(entries, current)
        if revision > current:
            raise ValueError(f"revision {revision} is in the future: the store is at {current}")
        return StoreListing(self.history.undo(prefix, entries, revision), revision)

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
            raise LeaseExpired(f"lease {lease} does not exist or has expired")
        return held

    def expire(self, lease: int) -> None:
        """Whether a lease has expired: none expires without a leader, and a new leader extends all."""
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
        self.apply([DeleteOp(key) for key in keys])

    # Faults

    def go_away(self) -> None:
        self.world.note("away", STORE_HOST)
        self.away = True

    def come_back(self) -> None:
        """Elect a leader, which extends each lease by its full TTL, as etcd does."""
        self.world.note("back", STORE_HOST)
        self.away = False
        self.terms += 1
        for held in self.leases.values():
            held.deadline_s = self.world.now + held.ttl_s
        self.carry_out_late(None)
        for channel in self.channels:
            channel.forward()

    def settle(self) -> None:
        """End all faults."""
        self.calm()
        self.lags.clear()
        if self.away:
            self.come_back()

    def calm(self) -> None:
        """Restore the usual delay."""
        self.delay_s = self.usual_delay_s

    def carry_out_late(self, host: str | None) -> None:
        """Execute the waiting calls of one client machine or of all, before any new call."""
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
