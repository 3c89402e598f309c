"""A broker from start to stop: creates its services in order and closes them in reverse.

A single broker and one of a cluster share these steps. In a cluster, `ClusterServices` add registration, followers, ISR
maintenance and the controller.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock import __version__
from penstock.config.definition import InvalidSetting
from penstock.config.listeners import ListenerAddress, advertised_listeners
from penstock.config.options import UpOptions
from penstock.control.broker_reports import BrokerReports, ReportedSettings, report_embedded
from penstock.control.config_describe import record_identity
from penstock.control.membership import ensure_cluster, increment_leader_epochs, register_embedded
from penstock.control.topic_admin import TopicService
from penstock.group.coordinator import GroupCoordinator
from penstock.http.background import BackgroundHttpServer
from penstock.http.sources import Sources
from penstock.log.log_dir import LogDirectory
from penstock.log.types import LogError
from penstock.node import log_recovery
from penstock.node.environment import ClosableStore, NodeEnvironment
from penstock.node.full_disk import write_despite_full_disk
from penstock.node.handlers import BrokerServices, make_dispatcher
from penstock.node.partition_data import KnownPartitions, LogDirSizes
from penstock.node.settings import StartError, configured_advertised, listeners_of, load_config, server_limits
from penstock.replica.manager import ReplicaManager
from penstock.replica.producer_state import ProducerState
from penstock.runtime import logging
from penstock.runtime.stats import RequestStats
from penstock.server.listener import ListenError, Server
from penstock.state.store import Store, StoreError
from penstock.state.view import BrokerEndpoint, ClusterView
from penstock.state.watcher import Gate, Watcher
from penstock.txn.producer_ids import ProducerIds
from penstock.txn.service import TransactionService

if TYPE_CHECKING:
    from penstock.node.clustered import ClusterServices

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
        self.view = ClusterView()
        self.files = environment.make_files(self.config.log_tail_cache_bytes)
        self.stats = RequestStats()
        self.reason: str | None = "starting"
        """Why the broker is not ready for clients; None if it is."""
        self.log_dir: LogDirectory | None = None
        self.cluster: ClusterServices | None = None
        """The services of a broker in a cluster; None for a single broker."""
        self.services: BrokerServices | None = None
        self.never = asyncio.Event()
        self.cleanup = contextlib.AsyncExitStack()
        """Undoes the steps of `start`, last first."""

    @property
    def lost(self) -> asyncio.Event:
        """Set when the cluster has ended this broker's membership; never for a single broker."""
        return self.never if self.cluster is None else self.cluster.member.lost

    @property
    def lost_reason(self) -> str:
        """Why the membership has ended."""
        return "" if self.cluster is None else self.cluster.member.lost_reason

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
        executor = self.environment.make_executor()
        asyncio.get_running_loop().set_default_executor(executor)
        http = self.prepare_http()
        self.log_dir = log_dir = self.open_log_dir()
        own_store = self.open_store()
        log_dir.claim((await ensure_cluster(own_store, self.environment.new_id)).cluster_id)
        store, gate = await self.open_cluster_store(own_store, log_dir)
        watcher = Watcher(store, self.view, self.config, gate)
        await watcher.start()
        self.cleanup.push_async_callback(watcher.stop)
        if log_dir.was_unclean and not self.environment.is_clustered:
            await watcher.applied(await write_despite_full_disk(log_dir, lambda: increment_leader_epochs(store)))
        await self.recover(log_dir, watcher)
        self.services = services = await self.make_services(store, watcher, log_dir)
        dispatcher = make_dispatcher(services, asyncio.get_running_loop().time)
        self.cleanup.push_async_callback(dispatcher.close)
        server = Server(dispatcher, server_limits(self.config), executor, self.environment.bind)
        if http is not None:
            self.cleanup.callback(http.set_sources, None)
        listening = await self.listen(server, services)
        self.cleanup.callback(services.groups.dismiss)
        self.cleanup.callback(services.replicas.wake_readers)
        if self.cluster is not None:
            self.cleanup.push_async_callback(self.cluster.leave)
        await services.topics.resume()
        opening = asyncio.create_task(services.replicas.open_idle_partitions())
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

    async def open_cluster_store(self, store: ClosableStore, log_dir: LogDirectory) -> tuple[Store, Gate | None]:
        """Return the store that all writers use, and the gate for changes of the view."""
        if not self.environment.is_clustered:
            return store, None
        from penstock.node.clustered import ClusterServices

        listener = self.listeners[0].name
        self.cluster = cluster = ClusterServices(
            store, self.make_store, self.view, self.config, log_dir, self.environment, listener, self.cleanup
        )
        await cluster.start_restore_guard()
        return cluster.store, cluster.restored.gate

    async def recover(self, log_dir: LogDirectory, watcher: Watcher) -> None:
        """Recover the logs in a thread, before requests can reach them; the health endpoints respond meanwhile."""
        assert log_dir.opened is not None, "the log directory is locked"
        if count := len(log_dir.opened.unrecovered):
            self.reason = f"starting: recovering {count:,} partitions after an unclean shutdown"

        hosted = KnownPartitions(self.view, watcher)
        retained = hosted if self.cluster is None else self.cluster.retained(hosted)

        def work() -> None:
            log_dir.recover(ProducerState)
            for name in log_dir.quarantine_unknown(retained):
                log.warning("quarantined data that belongs to no topic", directory=name)

        await log_recovery.run_recovery(log_dir, work)
        if self.cluster is not None:
            await self.cluster.restored.on_data_set_aside()
        self.reason = "starting"
        log_dir.start()

    async def make_services(self, store: Store, watcher: Watcher, log_dir: LogDirectory) -> BrokerServices:
        """Create the services; in a cluster they are inactive before the broker is a member."""
        view, config, clock, cluster = self.view, self.config, self.clock, self.cluster
        if cluster is None:
            member, peers, replicas = None, None, ReplicaManager(view, log_dir, clock, config)
        else:
            replicas = cluster.create_replicas(watcher)
            member, peers = cluster.member, cluster.peers
        replicas.schedule_expiry()
        self.cleanup.callback(replicas.close)
        topics = TopicService(store, view, watcher, clock, config, self.environment.new_id, member is not None)
        self.close_in_time("topics", topics.wait_background)
        if member is not None:
            self.close_in_time("membership", member.close)
        groups = GroupCoordinator(store, view, clock, config, lambda: str(self.environment.new_id()), membership=member)
        await groups.start()
        self.close_in_time("groups", groups.close)
        if member is None:
            topics.cleaners += [replicas.delete_topic, groups.offsets.delete_topic_offsets]
        ids = ProducerIds(store)
        transactions = TransactionService(store, view, clock, config, ids, replicas, groups, peers, peers)
        await transactions.start()
        self.close_in_time("transactions", transactions.close)
        return BrokerServices(
            store, view, watcher, clock, self.environment.random, config, self.stats, log_dir, replicas, topics, groups,
            ids, transactions
        )  # fmt: skip

    async def listen(self, server: Server, services: BrokerServices) -> list[ListenerAddress]:
        """Open the listeners and register.

        In a cluster a broker registers once it accepts connections, because other brokers then name it to clients. A
        single broker registers first, because its clients learn all addresses from it.
        """
        cluster = self.cluster

        def publish_endpoints(bound: list[ListenerAddress]) -> list[BrokerEndpoint]:
            published = advertised_listeners(
                bound, configured_advertised(self.options, self.config), socket.gethostname()
            )
            record_identity(self.config, bound, published, self.data_dir)
            return [BrokerEndpoint(a.name, a.host, a.port) for a in published]

        async def register_single(bound: list[ListenerAddress]) -> None:
            await self.register_single(services, publish_endpoints(bound))

        self.cleanup.push_async_callback(server.close, CLOSE_GRACE_S)
        if cluster is None:
            return await server.listen(self.listeners, before_accepting=register_single)

        async def register_clustered(bound: list[ListenerAddress]) -> None:
            await cluster.register(services.replicas, services.groups, publish_endpoints(bound))

        return await server.listen(self.listeners, once_accepting=register_clustered)

    async def register_single(self, services: BrokerServices, endpoints: list[BrokerEndpoint]) -> None:
        """Register the only broker of an embedded store, and keep its registration up to date."""
        config, new_id = self.config, self.environment.new_id()
        settings, store = ReportedSettings.from_config(config), services.store
        now_ms = self.clock.wall_ms()

        async def register() -> int:
            domain = settings.failure_domain
            return await register_embedded(store, config.node_id, endpoints, settings.rack, new_id, now_ms, domain)

        await services.watcher.applied(await write_despite_full_disk(services.log_dir, register))
        reports = BrokerReports(config, lambda settings: report_embedded(store, config.node_id, settings))
        reports.start(settings)
        self.cleanup.push_async_callback(reports.close)

    def prepare_http(self) -> BackgroundHttpServer | None:
        """Create the HTTP server first, so that it closes last and reports the state until then."""
        if self.options.http_port is None:
            return None
        http = BackgroundHttpServer(self.options.http_host, self.options.http_port, self.not_ready)
        self.cleanup.push_async_callback(http.close)
        return http

    def not_ready(self) -> str | None:
        """Return why the broker is not ready for clients; None if it is."""
        if self.cluster is not None and self.cluster.restored.reason is not None:
            return self.cluster.restored.reason  # also at startup, which waits for the recovery
        if self.reason is not None:
            return self.reason
        if self.log_dir is not None and self.log_dir.failed is not None:
            return f'log directory "{self.log_dir.path}" has failed: {self.log_dir.failed}'
        return None if self.cluster is None else self.cluster.not_ready()

    def sources(self, server: Server, services: BrokerServices) -> Sources:
        """Return the sources of the metrics."""
        flusher = services.log_dir.flusher
        return Sources(
            version=__version__,
            clock=self.clock,
            requests=self.stats,
            server=server.stats,
            flusher=flusher,
            flush_durations=flusher.durations,
            not_ready=self.not_ready,
            is_frozen=lambda: self.cluster is not None and self.cluster.restored.is_frozen,
            partitions=services.replicas,
            directories=LogDirSizes(services.log_dir).log_dirs,
            committed=services.groups.committed,
            query_remote=None if self.cluster is None else self.cluster.remote_leaders(),
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
