"""A broker of a cluster: registration under a lease, restore guard, other brokers, controller. See `composition`.

Imported in a cluster only, so that a single broker loads neither the controller nor the client of other brokers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import Protocol
from uuid import UUID

from penstock.api.leaderships import Leaderships
from penstock.config.listeners import ListenerAddress
from penstock.control.acl_confirmation import AclConfirmation
from penstock.control.broker_availability import RegisteredBrokers
from penstock.control.restored.guarded import GuardedStore
from penstock.control.restored.restored import RestoreGuard
from penstock.group.assigned_shards import AssignedShardOwnership
from penstock.group.offset_loading import LazyOffsetLoader
from penstock.node import log_recovery
from penstock.node.composition import BrokerComposition, CompositionContext
from penstock.node.handlers import BrokerServices
from penstock.node.member import ClusterMember
from penstock.node.partition_data import TopicDataDeleter
from penstock.node.peers import Peers
from penstock.node.tcp_prober import TcpProber
from penstock.replica.producer_state import ProducerState
from penstock.runtime.logging import get_logger
from penstock.server.listener import Server
from penstock.state import keys
from penstock.state.view import BrokerEndpoint
from penstock.state.watcher import Watcher

log = get_logger("penstock.node")

REDIRECT_S = 1.0
"""Time in which a stopping broker redirects clients to the new leaders and coordinators before its name goes."""
UNNAMED_S = 2.0
"""How long a stopping broker waits until other brokers no longer name it to clients."""
POLL_S = 0.02


class ClusteredComposition(BrokerComposition):
    """The composition of a broker whose store is etcd."""

    member: ClusterMember
    ownership: AssignedShardOwnership
    peers: Peers
    make_loader = LazyOffsetLoader
    make_leaderships = Leaderships

    def __init__(self, context: CompositionContext) -> None:
        self.context, self.view, self.log_dir = context, context.view, context.log_dir
        config, clock = context.config, context.environment.clock
        self.store = GuardedStore(context.own_store)
        self.restored = RestoreGuard(self.store, context.open_store, self.log_dir, self.view, clock)
        self.watcher = Watcher(self.store, self.view, config, self.restored.gate)
        self.peers = Peers(self.view, config, context.listener, context.peer_tls, context.credentials)
        self.member = ClusterMember(
            self.store,
            self.view,
            self.watcher,
            config,
            self.log_dir,
            context.environment,
            self.restored,
            context.on_lost,
        )
        self.acls = AclConfirmation(self.store, self.watcher, clock, config.broker_session_timeout_ms)
        self.brokers = RegisteredBrokers(self.store, self.view, clock, config)
        self.ownership = AssignedShardOwnership(self.store, self.view, config.node_id, self.member)

    async def open(self) -> None:
        """Return when the store is known not to be a restored backup, or has been recovered."""
        self.context.cleanup.push_async_callback(self.restored.close)

        async def recover_logs() -> None:
            await log_recovery.run_recovery(self.log_dir, partial(self.log_dir.recover, ProducerState))

        await self.restored.start(recover_logs)

    def retained(self, hosted: Container[tuple[UUID, int]]) -> Container[tuple[UUID, int]]:
        """Return the partitions whose data must not be quarantined."""
        return self.restored.retained(hosted)

    async def on_recovered(self) -> None:
        """Record what the recovery has quarantined. From now on a failed log directory ends the membership."""
        await self.restored.on_data_set_aside()
        self.log_dir.on_failed = self.member.withdraw

    async def listen(
        self,
        server: Server,
        listeners: Sequence[ListenerAddress],
        services: BrokerServices,
        publish: Callable[[list[ListenerAddress]], list[BrokerEndpoint]],
    ) -> list[ListenerAddress]:
        """Register once connections are accepted, because other brokers then name this one to clients."""
        if services.authorizer.is_enabled:
            self.context.cleanup.push_async_callback(self.acls.close)
            await self.acls.start()

        async def register(bound: list[ListenerAddress]) -> None:
            await self.register(services, publish(bound))

        return await server.listen(listeners, once_accepting=register)

    async def register(self, services: BrokerServices, endpoints: Sequence[BrokerEndpoint]) -> None:
        """Join the cluster: this broker now follows, leads and can be elected controller."""
        member = self.member
        await member.register(endpoints)
        self.ownership.check_shards(range(keys.SHARD_COUNT))  # shards assigned before it knew its epoch
        deleted = TopicDataDeleter(self.view, services.replicas, member.may_discard)
        deleted.start()
        self.context.cleanup.push_async_callback(deleted.close)
        services.replicas.start()
        cleaners = [services.groups.delete_topic_offsets]
        member.start_controller(TcpProber(self.peers.listener, self.peers.tls), self.peers, cleaners)

    def has_confirmed_acls(self) -> bool:
        """Return whether the view surely has the changes of ACLs that are older than the broker's lease."""
        return self.acls.is_valid()

    def frozen_reason(self) -> str | None:
        """Return why this broker is frozen; None if it is not."""
        return self.restored.reason

    def not_ready(self) -> str | None:
        """Return why a member is not ready for clients; None if the cluster is no reason."""
        if not self.member.may_serve():
            return "the lease of this broker may have expired: etcd is not responding"
        if self.acls.is_started and not self.acls.is_valid():
            return "the ACLs of this broker may be outdated: etcd is not responding, or its changes arrive late"
        return None

    async def leave(self) -> None:
        """Leave the cluster before the listeners close, in Kafka's order: leaderships and coordinator shards move to
        other brokers, the registration ends, and no other broker names this one to clients any longer."""
        if await self.member.request_handover():
            await asyncio.sleep(REDIRECT_S)
        await self.member.leave()
        await wait_until_unnamed(self.peers, self.context.config.node_id, list(self.view.brokers))

    async def close(self) -> None:
        """Leave, and stop the controller and all tasks."""
        await self.member.close()


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
