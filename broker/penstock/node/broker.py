"""A broker from start to stop: creates its services in order and closes them in reverse.

A single broker and one of a cluster share these steps; `composition` has what differs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock import __version__
from penstock.api.authentication_stats import AuthenticationStats
from penstock.api.dispatch import Dispatcher
from penstock.api.pending_elections import PendingElections
from penstock.config.definition import InvalidSetting
from penstock.config.listener_sasl import BrokerCredentials
from penstock.config.listeners import ListenerAddress, advertised_listeners
from penstock.config.options import UpOptions
from penstock.control.bootstrap_user import ensure_security
from penstock.control.config_describe import record_identity
from penstock.control.membership import ensure_cluster
from penstock.control.topic_admin import TopicService
from penstock.group.coordinator import GroupCoordinator
from penstock.http.background import BackgroundHttpServer
from penstock.http.sources import Sources
from penstock.log.log_dir import LogDirectory
from penstock.log.types import LogError
from penstock.node import log_recovery
from penstock.node.authentication import Accept, ListenerAuthentication, bootstrap_user_of, sasl_of
from penstock.node.authorization import check_brokers_are_authorized, make_authorizer
from penstock.node.composition import BrokerComposition, CompositionContext
from penstock.node.environment import ClosableStore, NodeEnvironment
from penstock.node.handlers import BrokerServices, make_dispatcher
from penstock.node.latest_offsets import LatestOffsets
from penstock.node.partition_data import KnownPartitions, LogDirSizes, ReplicaAssignments
from penstock.node.remote_lag import RemoteLeaders
from penstock.node.settings import (
    PresentCredentials,
    StartError,
    configured_advertised,
    inter_broker_of,
    listeners_of,
    load_config,
    quota_windows,
    security_of,
    server_limits,
)
from penstock.node.single import SingleBrokerComposition
from penstock.replica.fetchers import ReplicaFetchers
from penstock.replica.isr_keeper import IsrKeeper
from penstock.replica.lost_leaders import LostLeaders
from penstock.replica.manager import ReplicaManager
from penstock.replica.producer_state import ProducerState
from penstock.runtime import logging
from penstock.runtime.stats import RequestStats
from penstock.runtime.tasks import spawn
from penstock.runtime.unhandled_errors import UnhandledErrors
from penstock.security.audit import AuditLog
from penstock.security.quotas.client_quotas import ClientQuotas
from penstock.server.listener import ListenError, Server
from penstock.share.coordinator import ShareStates
from penstock.share.dead_letter_logs import DeadLetterLogs
from penstock.share.dead_letter_topics import DeadLetterTopics
from penstock.share.dead_letter_writer import DeadLetterServices
from penstock.share.leaders import ShareLeaders
from penstock.share.routing import RoutedStates
from penstock.shrink.leaders import TopicShrinks
from penstock.state.store import StoreError
from penstock.state.view import BrokerEndpoint, ClusterView
from penstock.txn.producer_ids import ProducerIds
from penstock.txn.service import TransactionService

if TYPE_CHECKING:
    from penstock.server.tls.listener_tls import ListenerTls

STATE_FILE = "state.db"
CLOSE_GRACE_S = 5.0
"""Grace period for requests under way at shutdown."""
SERVICE_GRACE_S = 8.0
"""Grace period for closing a service; longer than the store takes to report that it is unavailable."""

log = logging.get_logger("penstock.node")


class BrokerNode:
    """One broker. `start` returns when it serves; `stop` shuts it down cleanly.

    `lost` is set when the cluster has ended its membership: stop it then, and start its `successor`.
    """

    def __init__(self, options: UpOptions, env_vars: Mapping[str, str], environment: NodeEnvironment) -> None:
        self.options, self.env_vars, self.environment = options, env_vars, environment
        self.clock = environment.clock
        self.data_dir = os.path.abspath(options.data_dir)
        self.config = load_config(options, env_vars)
        self.listeners = listeners_of(options, self.config)
        self.security = security_of(self.config, self.listeners)
        """The security of each listener by its name."""
        self.tls: dict[str, ListenerTls] = self.load_tls()
        """The TLS state of each listener that has TLS."""
        self.http_tls = self.load_http_tls()
        self.inter_broker_listener = inter_broker_of(self.config, self.security, environment.is_clustered)
        if environment.is_clustered:
            check_brokers_are_authorized(self.config, self.security[self.inter_broker_listener])
            self.check_brokers_trust()
        self.credentials: Callable[[], BrokerCredentials | None] = lambda: None
        """How this broker logs in to others; None without SASL."""
        if environment.is_clustered:
            self.credentials = PresentCredentials(self.config, self.security[self.inter_broker_listener])
        self.sasl = sasl_of(self.config, self.security)
        self.bootstrap_user = bootstrap_user_of(options)
        self.authentications = AuthenticationStats()
        self.view = ClusterView()
        self.lost_leaders = LostLeaders(self.view)
        self.files = environment.make_files(self.config.log_tail_cache_bytes)
        self.stats = RequestStats()
        self.unhandled_errors = UnhandledErrors()
        self.reason: str | None = "starting"
        """Why the broker is not ready for clients; None if it is."""
        self.log_dir: LogDirectory | None = None
        self.readiness: list[Callable[[], str | None]] = [lambda: self.reason]
        """Functions that return why the broker is not ready for clients, None if it is; the first reason counts."""
        self.composition: BrokerComposition
        self.services: BrokerServices | None = None
        self.lost = asyncio.Event()
        self.lost_reason = ""
        self.cleanup = contextlib.AsyncExitStack()
        """Undoes the steps of `start`, last first."""

    def load_tls(self) -> dict[str, ListenerTls]:
        """Load the certificates of the listeners with TLS, before any port opens. Raises `StartError`."""
        if not any(security.tls is not None for security in self.security.values()):
            return {}
        from penstock.node.listener_tls import load_listeners

        return load_listeners(self.security.values())

    def load_http_tls(self) -> ListenerTls | None:
        """Load the certificates of the HTTP port; None without TLS. Raises `StartError`."""
        if self.config.http_certificate_location is None and self.config.http_client_ca_location is None:
            return None
        from penstock.node.listener_tls import load_http

        return load_http(self.config)

    def check_brokers_trust(self) -> None:
        """Raise `StartError` if other brokers would refuse this broker's certificate."""
        tls = self.tls.get(self.inter_broker_listener)
        if tls is not None:
            from penstock.node.listener_tls import check_brokers_trust

            check_brokers_trust(tls)

    @property
    def all_tls(self) -> list[ListenerTls]:
        """The TLS state of the listeners and of the HTTP port."""
        return [*self.tls.values(), *([] if self.http_tls is None else [self.http_tls])]

    def peer_tls(self) -> ssl.SSLContext | None:
        """Return the present TLS context of connections to other brokers; None without TLS."""
        tls = self.tls.get(self.inter_broker_listener)
        return None if tls is None else tls.contexts.client

    def on_membership_lost(self, reason: str) -> None:
        """Set `lost`: the cluster has ended this broker's membership."""
        self.lost_reason = reason
        self.lost.set()

    def successor(self, listeners: list[ListenerAddress], http_port: int | None) -> BrokerNode:
        """Return a broker with the same data, to start at the same addresses after this one has stopped."""
        options = replace(self.options, listeners=[str(address) for address in listeners])
        if http_port is not None:
            options = replace(options, http_port=http_port)
        return BrokerNode(options, self.env_vars, self.environment)

    async def start(self) -> tuple[list[ListenerAddress], int | None]:
        """Start, and return the bound addresses and the HTTP port. Raises `StartError`."""
        try:
            return await self.start_services()
        except (StoreError, LogError, ListenError, InvalidSetting) as e:
            await self.cleanup.aclose()
            raise StartError(str(e)) from e
        except OSError as e:
            await self.cleanup.aclose()
            raise StartError(f'cannot use the data directory "{self.options.data_dir}": {e}') from e
        except BaseException:
            await self.cleanup.aclose()
            raise

    async def start_services(self) -> tuple[list[ListenerAddress], int | None]:
        """Run the steps of `start`."""
        self.unhandled_errors.install(asyncio.get_running_loop())
        executor = self.environment.make_executor()
        asyncio.get_running_loop().set_default_executor(executor)
        http = self.prepare_http()
        self.log_dir = log_dir = self.open_log_dir()
        own_store = self.open_store()
        log_dir.claim((await ensure_cluster(own_store, self.environment.new_id)).cluster_id)
        self.composition = composition = self.compose(own_store, log_dir)
        self.readiness = [composition.frozen_reason, *self.readiness, self.log_dir_failure, composition.not_ready]
        await composition.open()
        await composition.watcher.start()
        self.cleanup.push_async_callback(composition.watcher.stop)
        await composition.on_view_loaded()
        await self.recover(log_dir)
        self.services = services = await self.make_services(log_dir)
        dispatcher = make_dispatcher(services, asyncio.get_running_loop().time)
        self.cleanup.push_async_callback(dispatcher.close)
        accept = await self.start_authentication(dispatcher)
        limits, bind = server_limits(self.config), self.environment.bind
        server = Server(dispatcher, limits, executor, bind, services.quotas, self.tls, accept)
        if self.all_tls:
            from penstock.node.listener_tls import start_reloader

            self.cleanup.push_async_callback(start_reloader(self.config, self.all_tls, executor).close)
        if http is not None:
            self.cleanup.callback(http.set_sources, None)
        listening = await self.listen(server, services)
        services.shrinks.start()
        self.cleanup.callback(services.groups.dismiss)
        self.cleanup.callback(services.replicas.wake_readers)
        self.cleanup.push_async_callback(composition.leave)
        opening = spawn(services.replicas.open_idle_partitions(), "open idle partitions")
        self.cleanup.callback(opening.cancel)
        http_port = None
        if http is not None:
            http_port = await http.wait_started(self.sources(server, services))
        self.reason = None
        return listening, http_port

    def open_log_dir(self) -> LogDirectory:
        """Open the log directory; its lock comes before any other access to the data directory."""
        config = self.config
        log_dir = LogDirectory(
            self.files,
            self.data_dir,
            self.clock,
            config.node_id,
            config.log_max_open_files,
            random=self.environment.random,
            new_id=self.environment.new_id,
            retention_check_interval_ms=config.log_retention_check_interval_ms,
            compaction=self.environment.make_compaction(self.files),
            flusher=self.environment.make_flusher,
        )
        self.cleanup.push_async_callback(log_dir.close)
        return log_dir

    def open_store(self) -> ClosableStore:
        """Open the store and schedule its close."""
        store = self.make_store()
        self.cleanup.push_async_callback(store.close)
        return store

    def make_store(self) -> ClosableStore:
        """Return another client of the store."""
        return self.environment.open_store(os.path.join(self.data_dir, STATE_FILE))

    def compose(self, store: ClosableStore, log_dir: LogDirectory) -> BrokerComposition:
        """Return the parts that depend on whether there are other brokers.

        A single broker does not import the other composition, which has the controller and the client of other brokers.
        """
        context = CompositionContext(
            store,
            self.make_store,
            self.view,
            self.config,
            log_dir,
            self.environment,
            self.inter_broker_listener,
            self.peer_tls,
            self.credentials,
            self.on_membership_lost,
            self.cleanup,
        )
        if not self.environment.is_clustered:
            return SingleBrokerComposition(context)
        from penstock.node.clustered import ClusteredComposition

        return ClusteredComposition(context)

    async def recover(self, log_dir: LogDirectory) -> None:
        """Recover the logs in a thread, before requests can reach them; the health endpoints respond meanwhile."""
        assert log_dir.opened is not None, "the log directory is locked"
        if count := len(log_dir.opened.unrecovered):
            self.reason = f"starting: recovering {count:,} partitions after an unclean shutdown"

        retained = self.composition.retained(KnownPartitions(self.view, self.composition.watcher))

        def work() -> None:
            log_dir.recover(ProducerState)
            for name in log_dir.quarantine_unknown(retained):
                log.warning("quarantined data that belongs to no topic", directory=name)

        await log_recovery.run_recovery(log_dir, work)
        await self.composition.on_recovered()
        self.reason = "starting"
        log_dir.start()

    async def make_services(self, log_dir: LogDirectory) -> BrokerServices:
        """Create the services; in a cluster they are inactive before the broker is a member."""
        view, config, clock, composition = self.view, self.config, self.clock, self.composition
        store, watcher, peers = composition.store, composition.watcher, composition.peers
        replicas = self.make_replicas(log_dir)
        topics = TopicService(store, view, watcher, clock, config, self.environment.new_id, composition.brokers)
        self.close_in_time("membership", composition.close)
        groups = GroupCoordinator(
            store, view, clock, config, lambda: str(self.environment.new_id()), composition.ownership,
            composition.make_loader
        )  # fmt: skip
        self.close_in_time("groups", groups.close)
        share_states = ShareStates(store, groups, view)
        routed_states = RoutedStates(share_states, groups, config.node_id, peers)
        self.close_in_time("states of share groups", routed_states.close)
        ids, leaderships = ProducerIds(store), composition.make_leaderships(store, replicas)
        logs = DeadLetterLogs(replicas, peers, leaderships.confirm)
        letters = DeadLetterServices(DeadLetterTopics(view, config, topics, store), logs, ids.next_id, clock)
        shrinks = TopicShrinks(replicas, store, watcher, clock, logs, ids.next_id)
        self.close_in_time("topics with fewer partitions", shrinks.close)
        share = ShareLeaders(routed_states, store, clock, config, letters)
        self.close_in_time("share groups", share.close)
        transactions = TransactionService(store, view, clock, config, ids, replicas, groups, peers, peers)
        self.close_in_time("transactions", transactions.close)
        await groups.start()
        return BrokerServices(
            store, view, watcher, clock, self.environment.random, config, self.stats, log_dir, replicas,
            leaderships, topics, groups, share_states,
            LatestOffsets(replicas, RemoteLeaders(view, config.node_id, peers)), share, ids, transactions, shrinks,
            ClientQuotas(view, quota_windows(config), asyncio.get_running_loop().time),
            make_authorizer(config, view, composition.has_confirmed_acls), AuditLog(asyncio.get_running_loop().time),
            self.all_tls, PendingElections(view, self.lost_leaders)
        )  # fmt: skip

    async def start_authentication(self, dispatcher: Dispatcher) -> dict[str, Accept]:
        """Create the first administrator if necessary, and what begins the authentication of connections."""
        if not self.sasl and self.bootstrap_user is None:
            return {}
        secret, revision = await ensure_security(self.composition.store, self.bootstrap_user)
        if revision:
            await self.composition.watcher.applied(revision)
        listeners = ListenerAuthentication(self.config, self.sasl, self.authentications, self.clock, self.cleanup)
        return listeners.start(self.view, secret, dispatcher)

    def make_replicas(self, log_dir: LogDirectory) -> ReplicaManager:
        """Create this broker's replicas and schedule their close."""
        config, store, member = self.config, self.composition.store, self.composition.member
        keeper = IsrKeeper(store, self.view, self.clock, config, member)
        fetchers = ReplicaFetchers(self.composition.peers.fetch_from, config, member, self.lost_leaders)
        assigned = ReplicaAssignments(store, config.node_id)
        for close in (self.composition.peers.close, fetchers.close, keeper.close):
            self.cleanup.push_async_callback(close)
        replicas = ReplicaManager(
            self.view, log_dir, self.clock, config, member, keeper, fetchers, assigned.is_unassigned
        )
        replicas.schedule_expiry()
        self.cleanup.callback(replicas.close)
        return replicas

    async def listen(self, server: Server, services: BrokerServices) -> list[ListenerAddress]:
        """Open the listeners and register."""

        def publish_endpoints(bound: list[ListenerAddress]) -> list[BrokerEndpoint]:
            published = advertised_listeners(
                bound, configured_advertised(self.options, self.config), socket.gethostname()
            )
            record_identity(self.config, bound, published, self.data_dir)
            return [BrokerEndpoint(a.name, a.host, a.port) for a in published]

        self.cleanup.push_async_callback(server.close, CLOSE_GRACE_S)
        return await self.composition.listen(server, self.listeners, services, publish_endpoints)

    def prepare_http(self) -> BackgroundHttpServer | None:
        """Create the HTTP server first, so that it closes last and reports the state until then."""
        if self.options.http_port is None:
            return None
        http = BackgroundHttpServer(
            self.options.http_host, self.options.http_port, self.not_ready, self.http_tls, self.config.http_token_file
        )
        self.cleanup.push_async_callback(http.close)
        return http

    def not_ready(self) -> str | None:
        """Return why the broker is not ready for clients; None if it is."""
        return next((reason for check in self.readiness if (reason := check()) is not None), None)

    def log_dir_failure(self) -> str | None:
        """Return why the log directory cannot be used; None if it can."""
        if self.log_dir is None or self.log_dir.failed is None:
            return None
        return f'log directory "{self.log_dir.path}" has failed: {self.log_dir.failed}'

    def sources(self, server: Server, services: BrokerServices) -> Sources:
        """Return the sources of the metrics."""
        flusher = services.log_dir.flusher
        return Sources(
            version=__version__,
            clock=self.clock,
            requests=self.stats,
            authentications=self.authentications,
            server=server.stats,
            quotas=services.quotas,
            tls=self.all_tls,
            flusher=flusher,
            flush_durations=flusher.durations,
            not_ready=self.not_ready,
            is_frozen=lambda: self.composition.frozen_reason() is not None,
            partitions=services.replicas,
            directories=LogDirSizes(services.log_dir).log_dirs,
            committed=services.groups.committed,
            share=services.share,
            denials=services.audit.denials,
            unhandled_errors=self.unhandled_errors,
            failed_shards=lambda: services.groups.ownership.failed,
            query_remote=RemoteLeaders(self.view, self.config.node_id, self.composition.peers),
        )

    def close_in_time(self, name: str, close: Callable[[], Awaitable[None]]) -> None:
        """Schedule the close of a service, which may wait for an unavailable store, for at most `SERVICE_GRACE_S`."""

        async def within_bounds() -> None:
            try:
                async with asyncio.timeout(SERVICE_GRACE_S):
                    await close()
            except TimeoutError:
                log.warning("service not closed in time", service=name)

        self.cleanup.push_async_callback(within_bounds)

    async def stop(self) -> None:
        """Stop accepting, complete requests under way, flush, and mark the shutdown as clean."""
        self.reason = "stopping"
        await self.cleanup.aclose()
