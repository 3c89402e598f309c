"""Looks after the ISRs of all partitions that this broker leads: who lags for too long, or by too much, leaves;
who has caught up joins.

Partitions where everybody has everything are not looked at: a leader is watched from the first batch that a follower
lacks until all have it, and one sweep covers those. Implements `leader.LeaderHost`. Made by `node` in a cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import UUID

from penstock.config.broker import BrokerConfig
from penstock.replica.isr import IsrChange
from penstock.replica.isr_changes import IsrChanges
from penstock.replica.leader import Leader
from penstock.replica.membership import ReplicaMembership
from penstock.runtime.clock import Clock
from penstock.state.store import Store
from penstock.state.view import ClusterView

SWEEPS = 4
"""Looks at the leaders with laggards in replica.lag.time.max.ms: a follower leaves at most a quarter of it later."""


class IsrKeeper:
    """See the module. `resigned` is told of partitions whose log has failed, once each."""

    def __init__(
        self,
        store: Store,
        view: ClusterView,
        clock: Clock,
        config: BrokerConfig,
        membership: ReplicaMembership,
        resigned: Callable[[UUID, int], None] | None = None,
    ) -> None:
        self.view, self.clock, self.config, self.membership = view, clock, config, membership
        self.changes = IsrChanges(store)
        self.resigned = resigned
        self.watched: dict[Leader, None] = {}
        self.timer: asyncio.TimerHandle | None = None
        self.closed = False

    @property
    def own_epoch(self) -> int:
        return self.membership.epoch

    def watch(self, leader: Leader) -> None:
        self.watched[leader] = None
        if self.timer is None and not self.closed:
            self.schedule()

    def schedule(self) -> None:
        pause_s = self.config.replica_lag_time_max_ms / SWEEPS / 1000
        self.timer = asyncio.get_running_loop().call_later(pause_s, self.sweep)

    def sweep(self) -> None:
        """Looks at the leaders that somebody lags behind; runs only while there are some."""
        self.timer = None
        if self.membership.may_serve():
            self.look()
        if self.watched and not self.closed:
            self.schedule()

    def look(self) -> None:
        now_ms, config = self.clock.boot_ms(), self.config
        for leader in list(self.watched):
            if not leader.look(now_ms, config.replica_lag_time_max_ms, config.replica_lag_max_messages):
                del self.watched[leader]

    def may_join(self, broker_id: int, epoch: int) -> bool:
        broker = self.view.brokers.get(broker_id)
        known = broker is not None and broker.epoch == epoch and not broker.draining
        return known and self.membership.may_serve()

    def propose(self, leader: Leader, change: IsrChange) -> None:
        self.changes.submit(change, leader.refused)

    def resign(self, leader: Leader) -> None:
        if self.resigned is not None:
            self.resigned(leader.topic_id, leader.index)

    async def close(self) -> None:
        self.closed = True
        if self.timer is not None:
            self.timer.cancel()
        await self.changes.close()
