"""What a broker of a cluster has beside what one that is alone has, from before its view is filled to its end.

Made by `broker` where there is a cluster, and loaded only there: a broker that is alone has no use for the controller,
nor for a client of other brokers, in its memory. Whatever it begins it puts onto the broker's `cleanup`, as that does.
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
from penstock.node import recovering
from penstock.node.environment import NodeEnvironment, OwnStore
from penstock.node.lags import RemoteLeaders
from penstock.node.member import ClusterMember
from penstock.node.parts import Assignments, DeletedTopics
from penstock.node.peers import Peers
from penstock.node.probing import TcpProber
from penstock.replica.fetchers import ReplicaFetchers
from penstock.replica.isr_keeper import IsrKeeper
from penstock.replica.manager import ReplicaManager
from penstock.replica.producer_state import ProducerState
from penstock.runtime.logging import get_logger
from penstock.state import keys
from penstock.state.view import BrokerEndpoint, ClusterView
from penstock.state.watcher import Watcher

log = get_logger("penstock.node")

UNNAMED_S = 2.0
"""How long a stopping broker waits until other brokers no longer name it."""
LOOK_S = 0.02


class Clustered:
    """`begin` first, then `join`, then `enter`. `open_store` makes one more store; `listener` names the brokers'
    listener for each other."""

    def __init__(
        self,
        store: OwnStore,
        open_store: Callable[[], OwnStore],
        view: ClusterView,
        config: BrokerConfig,
        log_dir: LogDirectory,
        outside: NodeEnvironment,
        listener: str,
        cleanup: contextlib.AsyncExitStack,
    ) -> None:
        self.view, self.config, self.log_dir, self.outside = view, config, log_dir, outside
        self.cleanup = cleanup
        self.store = GuardedStore(store)
        """Through which everything is written."""
        self.restored = RestoreGuard(self.store, open_store, log_dir, view, outside.clock)
        self.peers = Peers(view, config, listener)
        self.member: ClusterMember

    async def begin(self) -> None:
        """Returns when the store is known not to be one restored from a backup, or to have been recovered."""
        self.cleanup.push_async_callback(self.restored.close)

        async def recover_logs() -> None:
            await recovering.in_thread(self.log_dir, partial(self.log_dir.recover, ProducerState))

        await self.restored.start(recover_logs)

    def known(self, hosted: Container[tuple[UUID, int]]) -> Container[tuple[UUID, int]]:
        """Whose data is not to be put aside."""
        return self.restored.retained(hosted)

    def join(self, watcher: Watcher) -> ReplicaManager:
        """The partitions of this broker, which lead and follow once it is a member (`enter`)."""
        store, view, config, clock = self.store, self.view, self.config, self.outside.clock
        self.member = member = ClusterMember(store, view, watcher, config, self.log_dir, self.outside, self.restored)
        self.log_dir.on_failed = member.withdraw
        keeper = IsrKeeper(store, view, clock, config, member)
        fetchers = ReplicaFetchers(self.peers.fetch_from, config, member)
        assigned = Assignments(store, config.node_id)
        for close in (self.peers.close, fetchers.close, keeper.close):
            self.cleanup.push_async_callback(close)
        return ReplicaManager(view, self.log_dir, clock, config, member, keeper, fetchers, assigned.is_unassigned)

    async def enter(
        self, replicas: ReplicaManager, groups: GroupCoordinator, endpoints: Sequence[BrokerEndpoint]
    ) -> None:
        """Becomes a member of the cluster; from here on this broker follows, leads and may govern."""
        member = self.member
        await member.register(endpoints)
        groups.ownership.check_shards(
            range(keys.SHARD_COUNT)
        )  # some may have been given to it before it knew its epoch
        deleted = DeletedTopics(self.view, replicas, member.may_discard)
        deleted.start()
        self.cleanup.push_async_callback(deleted.close)
        replicas.start()
        member.govern(TcpProber(self.peers.listener), self.peers, [groups.delete_topic_offsets])

    async def depart(self) -> None:
        """Leaves the cluster before the listeners are closed, in Kafka's order: leaderships and coordinator shards move
        to other brokers, the registration ends, and no other broker names this one to clients any longer."""
        await self.member.request_handover()
        await self.member.leave()
        await wait_until_unnamed(self.peers, self.config.node_id, list(self.view.brokers))

    def ends_elsewhere(self) -> RemoteOffsetsQuery:
        """What asks other brokers where their partitions end."""
        return RemoteLeaders(self.view, self.config.node_id, self.peers)

    def not_ready(self) -> str | None:
        """Why clients should not be sent to a member; None where the cluster is no reason."""
        if not self.member.may_serve():
            return "the lease of this broker may have ended: its etcd does not answer, or has ended its membership"
        return None


class BrokerLists(Protocol):
    """Asks other brokers which brokers their Metadata names."""

    async def brokers_named_by(self, broker_id: int) -> Container[int]:
        """Raises OSError if the broker does not answer."""


async def wait_until_unnamed(peers: BrokerLists, own_id: int, broker_ids: Sequence[int]) -> None:
    """Return when no other broker that answers names broker `own_id`, or after `UNNAMED_S` with a warning."""

    async def unnamed_by(broker_id: int) -> None:
        with contextlib.suppress(OSError):
            while True:
                named = await peers.brokers_named_by(broker_id)
                if own_id not in named:
                    return
                await asyncio.sleep(LOOK_S)

    try:
        async with asyncio.timeout(UNNAMED_S):
            await asyncio.gather(*(unnamed_by(broker_id) for broker_id in broker_ids if broker_id != own_id))
    except TimeoutError:
        log.warning("other brokers may still name this broker to clients", seconds=UNNAMED_S)
