"""The additional services of a broker in a cluster, from before its view is filled to its end.

Created by `broker` in a cluster and imported only there, so that a single broker does not load the controller and the
client of other brokers. Closes are scheduled on the broker's `cleanup`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import Protocol
from uuid import UUID

from penstock.config.broker import BrokerConfig
from penstock.control.restored.guarded import GuardedStore
from penstock.control.restored.restored import RestoreGuard
from penstock.group.coordinator import GroupCoordinator
from penstock.http.sources import RemoteOffsetsQuery
from penstock.log.log_dir import LogDirectory
from penstock.node import log_recovery
from penstock.node.environment import ClosableStore, NodeEnvironment
from penstock.node.member import ClusterMember
from penstock.node.partition_data import ReplicaAssignments, TopicDataDeleter
from penstock.node.peers import Peers
from penstock.node.remote_lag import RemoteLeaders
from penstock.node.tcp_prober import TcpProber
from penstock.replica.fetchers import ReplicaFetchers
from penstock.replica.isr_keeper import IsrKeeper
from penstock.replica.manager import ReplicaManager
from penstock.replica.producer_state import ProducerState
from penstock.runtime.logging import get_logger
from penstock.state import keys
from penstock.state.view import BrokerEndpoint, ClusterView
from penstock.state.watcher import Watcher

log = get_logger("penstock.node")

REDIRECT_S = 1.0
"""Time in which a stopping broker redirects clients to the new leaders and coordinators before its name goes."""
UNNAMED_S = 2.0
"""How long a stopping broker waits until other brokers no longer name it to clients."""
POLL_S = 0.02


class ClusterServices:
    """Call `start_restore_guard`, then `create_replicas`, then `register`.

    `open_store` opens another client of the store; `listener` is the name of the brokers' listener for each other.
    """

    def __init__(
        self,
        store: ClosableStore,
        open_store: Callable[[], ClosableStore],
        view: ClusterView,
        config: BrokerConfig,
        log_dir: LogDirectory,
        environment: NodeEnvironment,
        listener: str,
        cleanup: contextlib.AsyncExitStack,
    ) -> None:
        self.view, self.config, self.log_dir, self.environment = view, config, log_dir, environment
        self.cleanup = cleanup
        self.store = GuardedStore(store)
        """The store that all writers use."""
        self.restored = RestoreGuard(self.store, open_store, log_dir, view, environment.clock)
        self.peers = Peers(view, config, listener)
        self.member: ClusterMember

    async def start_restore_guard(self) -> None:
        """Return when the store is known not to be a restored backup, or has been recovered."""
        self.cleanup.push_async_callback(self.restored.close)

        async def recover_logs() -> None:
            await log_recovery.run_recovery(self.log_dir, partial(self.log_dir.recover, ProducerState))

        await self.restored.start(recover_logs)

    def retained(self, hosted: Container[tuple[UUID, int]]) -> Container[tuple[UUID, int]]:
        """Return the partitions whose data must not be quarantined."""
        return self.restored.retained(hosted)

    def create_replicas(self, watcher: Watcher) -> ReplicaManager:
        """Create this broker's replicas, which lead and follow once it is a member (`register`)."""
        store, view, config, clock = self.store, self.view, self.config, self.environment.clock
        self.member = member = ClusterMember(
            store, view, watcher, config, self.log_dir, self.environment, self.restored
        )
        self.log_dir.on_failed = member.withdraw
        keeper = IsrKeeper(store, view, clock, config, member)
        fetchers = ReplicaFetchers(self.peers.fetch_from, config, member)
        assigned = ReplicaAssignments(store, config.node_id)
        for close in (self.peers.close, fetchers.close, keeper.close):
            self.cleanup.push_async_callback(close)
        return ReplicaManager(view, self.log_dir, clock, config, member, keeper, fetchers, assigned.is_unassigned)

    async def register(
        self, replicas: ReplicaManager, groups: GroupCoordinator, endpoints: Sequence[BrokerEndpoint]
    ) -> None:
        """Join the cluster: this broker now follows, leads and can be elected controller."""
        member = self.member
        await member.register(endpoints)
        groups.ownership.check_shards(range(keys.SHARD_COUNT))  # shards assigned before it knew its epoch
        deleted = TopicDataDeleter(self.view, replicas, member.may_discard)
        deleted.start()
        self.cleanup.push_async_callback(deleted.close)
        replicas.start()
        member.start_controller(TcpProber(self.peers.listener), self.peers, [groups.delete_topic_offsets])

    async def leave(self) -> None:
        """Leave the cluster before the listeners close, in Kafka's order: leaderships and coordinator shards move to
        other brokers, the registration ends, and no other broker names this one to clients any longer."""
        if await self.member.request_handover():
            await asyncio.sleep(REDIRECT_S)
        await self.member.leave()
        await wait_until_unnamed(self.peers, self.config.node_id, list(self.view.brokers))

    def remote_leaders(self) -> RemoteOffsetsQuery:
        """Return the query for log ends of partitions that other brokers lead."""
        return RemoteLeaders(self.view, self.config.node_id, self.peers)

    def not_ready(self) -> str | None:
        """Return why a member is not ready for clients; None if the cluster is no reason."""
        if not self.member.may_serve():
            return "the lease of this broker may have expired: etcd is not responding"
        return None


class BrokerLists(Protocol):
    """Queries which brokers the Metadata of other brokers names."""

    async def brokers_named_by(self, broker_id: int) -> Container[int]:
        """Return the broker ids. Raises OSError if the broker does not respond."""


async def wait_until_unnamed(peers: BrokerLists, own_id: int, broker_ids: Sequence[int]) -> None:
    """Return when no other responding broker names broker `own_id`, or after `UNNAMED_S` with a warning."""

    async def unnamed_by(broker_id: int) -> None:
        with contextlib.suppress(OSError):
            while True:
                named = await peers.brokers_named_by(broker_id)
                if own_id not in named:
                    return
                await asyncio.sleep(POLL_S)

    try:
        async with asyncio.timeout(UNNAMED_S):
            await asyncio.gather(*(unnamed_by(broker_id) for broker_id in broker_ids if broker_id != own_id))
    except TimeoutError:
        log.warning("other brokers may still name this broker to clients", seconds=UNNAMED_S)
