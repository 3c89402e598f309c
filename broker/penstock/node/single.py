"""A single broker with an embedded store: it owns everything, and nothing has to be confirmed. See `composition`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

from penstock.api.leaderships import LocalLeaderships
from penstock.config.listeners import ListenerAddress
from penstock.control.broker_availability import OnlyBroker
from penstock.control.broker_reports import BrokerReports, ReportedSettings, report_embedded
from penstock.control.membership import increment_leader_epochs, register_embedded
from penstock.control.topic_removal import TopicRemoval
from penstock.group.offset_loading import EagerOffsetLoader
from penstock.group.ownership import LocalShardOwnership
from penstock.node.composition import BrokerComposition, CompositionContext
from penstock.node.full_disk import write_despite_full_disk
from penstock.node.handlers import BrokerServices
from penstock.replica.fetcher import FetchChannel
from penstock.server.listener import Server
from penstock.state.view import BrokerEndpoint
from penstock.state.watcher import Watcher


class SingleMember:
    """The membership of the only broker, which no other can replace. Implements `BrokerMembership`."""

    epoch = 0

    def may_serve(self) -> bool:
        """Return True: there is no lease."""
        return True

    def may_discard(self) -> bool:
        """Return True: the store was opened with the data."""
        return True


class NoPeers:
    """The connections of a single broker: there is no other. Implements `composition.PeerChannels`."""

    def fetch_from(self, broker_id: int, on_lost: Callable[[], None]) -> FetchChannel:
        """Return a channel that refuses."""
        return self

    async def fetch(self, request: object) -> NoReturn:
        """Raise OSError."""
        raise ConnectionRefusedError("a single broker has no other brokers to connect to")

    async def call(self, broker_id: int, request: object) -> NoReturn:
        """Raise OSError."""
        await self.fetch(request)

    write_markers = add_partitions = list_offsets = read_share_states = write_share_states = produce_letters = call

    async def close(self) -> None:
        """Do nothing."""


class SingleBrokerComposition(BrokerComposition):
    """The composition of a broker with an embedded store."""

    make_loader = EagerOffsetLoader
    make_leaderships = LocalLeaderships

    def __init__(self, context: CompositionContext) -> None:
        self.context, self.store = context, context.own_store
        self.watcher = Watcher(self.store, context.view, context.config)
        self.member, self.peers, self.brokers = SingleMember(), NoPeers(), OnlyBroker()
        self.ownership = LocalShardOwnership(self.store, context.config.node_id)
        self.removal = TopicRemoval(self.store, context.view, self.watcher)

    async def on_view_loaded(self) -> None:
        """Start new leader epochs after an unclean shutdown. Raises `StoreError`."""
        log_dir = self.context.log_dir
        if log_dir.was_unclean:
            revision = await write_despite_full_disk(log_dir, lambda: increment_leader_epochs(self.store))
            await self.watcher.applied(revision)

    async def listen(
        self,
        server: Server,
        listeners: Sequence[ListenerAddress],
        services: BrokerServices,
        publish: Callable[[list[ListenerAddress]], list[BrokerEndpoint]],
    ) -> list[ListenerAddress]:
        """Register before the first connection is accepted: clients learn all addresses from this broker."""

        async def register(bound: list[ListenerAddress]) -> None:
            await self.register(publish(bound))
            await self.removal.start([services.replicas.delete_topic, services.groups.delete_topic_offsets])

        return await server.listen(listeners, before_accepting=register)

    async def register(self, endpoints: list[BrokerEndpoint]) -> None:
        """Register the only broker, and keep its registration up to date."""
        context, config, store = self.context, self.context.config, self.store
        settings, new_id = ReportedSettings.from_config(config), context.environment.new_id()
        now_ms = context.environment.clock.wall_ms()

        async def write() -> int:
            domain = settings.failure_domain
            return await register_embedded(store, config.node_id, endpoints, settings.rack, new_id, now_ms, domain)

        await self.watcher.applied(await write_despite_full_disk(context.log_dir, write))
        reports = BrokerReports(config, lambda settings: report_embedded(store, config.node_id, settings))
        reports.start(settings)
        context.cleanup.push_async_callback(reports.close)

    async def close(self) -> None:
        """Wait until no topic is being removed."""
        await self.removal.close()
