"""Shrinks and expands the ISRs of all partitions that this broker leads: lagging followers leave, caught-up ones join.

Only leaders with lagging followers are checked, in one periodic pass. Implements `leader.LeaderHost`.
"""

from __future__ import annotations

import asyncio

from penstock.config.broker import BrokerConfig
from penstock.replica.isr import IsrChange
from penstock.replica.isr_changes import IsrChanges
from penstock.replica.leader import Leader
from penstock.replica.membership import BrokerMembership
from penstock.runtime.clock import Clock
from penstock.state.store import Store
from penstock.state.view import ClusterView

CHECKS_PER_LAG_TIME = 4
"""Checks per replica.lag.time.max.ms: a follower is removed at most a quarter of it late."""


class IsrKeeper:
    """Keeps the ISRs of led partitions."""

    def __init__(
        self,
        store: Store,
        view: ClusterView,
        clock: Clock,
        config: BrokerConfig,
        membership: BrokerMembership,
    ) -> None:
        self.view, self.clock, self.config, self.membership = view, clock, config, membership
        self.changes = IsrChanges(store)
        self.watched: dict[Leader, None] = {}
        self.timer: asyncio.TimerHandle | None = None
        self.closed = False

    @property
    def own_epoch(self) -> int:
        """The broker epoch of this broker's registration."""
        return self.membership.epoch

    def watch(self, leader: Leader) -> None:
        """Check the leader periodically until no follower lags."""
        self.watched[leader] = None
        if self.timer is None and not self.closed:
            self.schedule()

    def schedule(self) -> None:
        """Schedule the next check."""
        pause_s = self.config.replica_lag_time_max_ms / CHECKS_PER_LAG_TIME / 1000
        self.timer = asyncio.get_running_loop().call_later(pause_s, self.run_check)

    def run_check(self) -> None:
        """Check the watched leaders, and schedule the next check if any are left."""
        self.timer = None
        if self.membership.may_serve():
            self.check_leaders()
        if self.watched and not self.closed:
            self.schedule()

    def check_leaders(self) -> None:
        """Check the watched leaders for followers to remove or add."""
        now_ms, config = self.clock.boot_ms(), self.config
        for leader in list(self.watched):
            if not leader.check_lagging(now_ms, config.replica_lag_time_max_ms):
                del self.watched[leader]

    def may_join(self, broker_id: int, epoch: int) -> bool:
        """Return whether this incarnation of a broker is registered and not draining."""
        broker = self.view.brokers.get(broker_id)
        known = broker is not None and broker.epoch == epoch and not broker.draining
        return known and self.membership.may_serve()

    def propose(self, leader: Leader, change: IsrChange) -> None:
        """Submit an ISR change of a leader."""
        self.changes.submit(change, leader.on_change_refused)

    async def close(self) -> None:
        """Stop the checks and the writing of changes."""
        self.closed = True
        if self.timer is not None:
            self.timer.cancel()
        await self.changes.close()
