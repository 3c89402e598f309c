"""A broker from start to stop: makes its parts in order, hands them to each other, undoes all of it in reverse.

One that is alone and one of a cluster are put together by the same steps; a cluster's has a `Member` beside them, which
registers it, and followers, an ISR keeper and a controller, which the other has no use for.
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
from penstock.config.listeners import ListenerAddress, advertised
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
from penstock.node import recovering
from penstock.node.environment import NodeEnvironment, OwnStore
from penstock.node.full_disk import despite_full_disk
from penstock.node.handlers import BrokerServices, make_dispatcher
from penstock.node.parts import DirSizes, Hosted
from penstock.node.settings import StartError, given_advertised, listeners_of, load_config, server_limits
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
    from penstock.node.clustered import Clustered

STATE_FILE = "state.db"
CLOSE_GRACE_S = 5.0
"""For requests that are under way at the end."""
PART_GRACE_S = 8.0
"""For a part that has something to bring to its end: longer than the store takes to say that it is away."""

log = logging.get_logger("penstock.node")


class BrokerNode:
    """One broker. `start` returns when it serves; `stop` ends it in good order.

    `lost` is set when the cluster has ended its membership: it is then to be stopped, and may come back as `successor`.
    """

    def __init__(self, options: UpOptions, environment: Mapping[str, str], outside: NodeEnvironment) -> None:
        self.options, self.environment, self.outside = options, environment, outside
        self.clock = outside.clock
        self.data_dir = os.path.abspath(options.data_dir)
        self.config = load_config(options, environment)
        self.listeners = listeners_of(options, self.config)
        self.view = ClusterView()
        self.files = outside.make_files(self.config.log_tail_cache_bytes)
        self.stats = RequestStats()
        self.reason: str | None = "starting"
        """Why clients should not be sent here; None when they may."""
        self.log_dir: LogDirectory | None = None
        self.cluster: Clustered | None = None
        """What belongs to the cluster that this broker is of; None where it is alone."""
        self.parts: BrokerServices | None = None
        self.never = asyncio.Event()
        self.cleanup = contextlib.AsyncExitStack()
        """Undoes, last first, what `start` did so far."""

    @property
    def lost(self) -> asyncio.Event:
        return self.never if self.cluster is None else self.cluster.member.lost

    @property
    def lost_reason(self) -> str:
        return "" if self.cluster is None else self.cluster.member.lost_reason

    def successor(self, listeners: list[ListenerAddress], http_port: int | None) -> BrokerNode:
        """A broker with the same data, to start at the same addresses after this one has stopped."""
        options = replace(self.options, listeners=[str(address) for address in listeners])
        if http_port is not None:
            options = replace(options, http_port=http_port)
        return BrokerNode(options, self.environment, self.outside)

    async def start(self) -> tuple[list[ListenerAddress], int | None]:
        """Returns the addresses that are listened on and the HTTP port. Raises StartError."""
        try:
            return await self.start_parts()
        except (StoreError, LogError, ListenError, InvalidSetting) as e:
            await self.cleanup.aclose()
            raise StartError(str(e)) from e
        except OSError as e:
            await self.cleanup.aclose()
            raise StartError(f"the data directory {self.options.data_dir} cannot be used: {e}") from e
        except BaseException:
            await self.cleanup.aclose()
            raise

    async def start_parts(self) -> tuple[list[ListenerAddress], int | None]:
        executor = self.outside.make_executor()
        asyncio.get_running_loop().set_default_executor(executor)
        http = self.prepare_http()
        self.log_dir = log_dir = self.open_log_dir()
        own_store = self.open_store()
        log_dir.claim((await ensure_cluster(own_store, self.outside.new_id)).cluster_id)
        store, gate = await self.look_for_cluster(own_store, log_dir)
        watcher = Watcher(store, self.view, self.config, gate)
        await watcher.start()
        self.cleanup.push_async_callback(watcher.stop)
        if log_dir.was_unclean and not self.outside.is_clustered:
            await watcher.applied(await despite_full_disk(log_dir, lambda: increment_leader_epochs(store)))
        await self.recover(log_dir, watcher)
        self.parts = parts = await self.make_parts(store, watcher, log_dir)
        dispatcher = make_dispatcher(parts, asyncio.get_running_loop().time)
        self.cleanup.push_async_callback(dispatcher.close)
        server = Server(dispatcher, server_limits(self.config), executor, self.outside.bind)
        if http is not None:
            self.cleanup.callback(http.set_sources, None)
        listening = await self.listen(server, parts)
        self.cleanup.callback(parts.groups.dismiss)
        self.cleanup.callback(parts.replicas.wake_readers)
        if self.cluster is not None:
            self.cleanup.push_async_callback(self.cluster.depart)
        await parts.topics.resume()
        opening = asyncio.create_task(parts.replicas.host_unopened())
        self.cleanup.callback(opening.cancel)
        http_port = None
        if http is not None:
            http_port = await http.wait_started(self.sources(server, parts))
        self.reason = None
        return listening, http_port

    def open_log_dir(self) -> LogDirectory:
        """The lock on the data directory comes before anything else in it is touched."""
        config = self.config
        log_dir = LogDirectory(
            self.files,
            self.data_dir,
            self.clock,
            config.node_id,
            config.log_max_open_files,
            retention_check_interval_ms=config.log_retention_check_interval_ms,
            compaction=self.outside.make_compaction(self.files),
            flusher=self.outside.make_flusher,
        )
        self.cleanup.push_async_callback(log_dir.close)
        return log_dir

    def open_store(self) -> OwnStore:
        store = self.make_store()
        self.cleanup.push_async_callback(store.close)
        return store

    def make_store(self) -> OwnStore:
        return self.outside.open_store(os.path.join(self.data_dir, STATE_FILE))

    async def look_for_cluster(self, store: OwnStore, log_dir: LogDirectory) -> tuple[Store, Gate | None]:
        """The store that everything goes through, and what looks at changes before the view takes them in."""
        if not self.outside.is_clustered:
            return store, None
        from penstock.node.clustered import Clustered

        listener = self.listeners[0].name
        self.cluster = cluster = Clustered(
            store, self.make_store, self.view, self.config, log_dir, self.outside, listener, self.cleanup
        )
        await cluster.begin()
        return cluster.store, cluster.restored.gate

    async def recover(self, log_dir: LogDirectory, watcher: Watcher) -> None:
        """Brings the logs into order before anybody can ask for them; in a thread, for the sake of the health pages."""
        assert log_dir.opened is not None, "the log directory was claimed"
        if count := len(log_dir.opened.unrecovered):
            self.reason = f"starting: {count:,} partitions are looked at, as the broker did not end cleanly"

        hosted = Hosted(self.view, watcher)
        known = hosted if self.cluster is None else self.cluster.known(hosted)

        def work() -> None:
            log_dir.recover(ProducerState)
            for name in log_dir.quarantine_unknown(known):
                log.warning("data that belongs to no topic was put aside", directory=name)

        await recovering.in_thread(log_dir, work)
        if self.cluster is not None:
            await self.cluster.restored.on_data_set_aside()
        self.reason = "starting"
        log_dir.start()

    async def make_parts(self, store: Store, watcher: Watcher, log_dir: LogDirectory) -> BrokerServices:
        """What serves, ready to; in a cluster nothing of it acts before this broker is a member."""
        view, config, clock, cluster = self.view, self.config, self.clock, self.cluster
        if cluster is None:
            member, peers, replicas = None, None, ReplicaManager(view, log_dir, clock, config)
        else:
            replicas = cluster.join(watcher)
            member, peers = cluster.member, cluster.peers
        replicas.schedule_expiry()
        self.cleanup.callback(replicas.close)
        topics = TopicService(store, view, watcher, clock, config, self.outside.new_id, member is not None)
        self.undo_in_time("topics", topics.wait_background)
        if member is not None:
            self.undo_in_time("membership", member.close)
        groups = GroupCoordinator(store, view, clock, config, lambda: str(self.outside.new_id()), membership=member)
        await groups.start()
        self.undo_in_time("groups", groups.close)
        if member is None:
            topics.cleaners += [replicas.forget_topic, groups.offsets.delete_topic_offsets]
        ids = ProducerIds(store)
        transactions = TransactionService(store, view, clock, config, ids, replicas, groups, peers, peers)
        await transactions.start()
        self.undo_in_time("transactions", transactions.close)
        return BrokerServices(
            store, view, watcher, clock, config, self.stats, log_dir, replicas, topics, groups, ids, transactions
        )  # fmt: skip

    async def listen(self, server: Server, parts: BrokerServices) -> list[ListenerAddress]:
        """Opens the listeners and registers.

        A broker of a cluster registers once it accepts connections: other brokers name it to clients from then on.
        One that is alone registers first, as its clients learn all addresses from itself.
        """
        cluster = self.cluster

        def endpoints_of(bound: list[ListenerAddress]) -> list[BrokerEndpoint]:
            published = advertised(bound, given_advertised(self.options, self.config), socket.gethostname())
            record_identity(self.config, bound, published, self.data_dir)
            return [BrokerEndpoint(a.name, a.host, a.port) for a in published]

        async def register_alone(bound: list[ListenerAddress]) -> None:
            await self.register_alone(parts, endpoints_of(bound))

        self.cleanup.push_async_callback(server.close, CLOSE_GRACE_S)
        if cluster is None:
            return await server.listen(self.listeners, before_accepting=register_alone)

        async def enter(bound: list[ListenerAddress]) -> None:
            await cluster.enter(parts.replicas, parts.groups, endpoints_of(bound))

        return await server.listen(self.listeners, once_accepting=enter)

    async def register_alone(self, parts: BrokerServices, endpoints: list[BrokerEndpoint]) -> None:
        config, new_id = self.config, self.outside.new_id()
        shown, store = ReportedSettings.from_config(config), parts.store
        now_ms = self.clock.wall_ms()

        async def register() -> int:
            domain = shown.failure_domain
            return await register_embedded(store, config.node_id, endpoints, shown.rack, new_id, now_ms, domain)

        await parts.watcher.applied(await despite_full_disk(parts.log_dir, register))
        showing = BrokerReports(config, lambda shown: report_embedded(store, config.node_id, shown))
        showing.start(shown)
        self.cleanup.push_async_callback(showing.close)

    def prepare_http(self) -> BackgroundHttpServer | None:
        """Comes first, so that it ends last: until then it tells how things are."""
        if self.options.http_port is None:
            return None
        http = BackgroundHttpServer(self.options.http_host, self.options.http_port, self.not_ready)
        self.cleanup.push_async_callback(http.close)
        return http

    def not_ready(self) -> str | None:
        """Why clients should not be sent here; None when they may."""
        if self.cluster is not None and self.cluster.restored.reason is not None:
            return self.cluster.restored.reason  # also at the start, which waits for it
        if self.reason is not None:
            return self.reason
        if self.log_dir is not None and self.log_dir.failed is not None:
            return f"{self.log_dir.path} has failed: {self.log_dir.failed}"
        return None if self.cluster is None else self.cluster.not_ready()

    def sources(self, server: Server, parts: BrokerServices) -> Sources:
        """What metrics are made from."""
        flusher = parts.log_dir.flusher
        return Sources(
            version=__version__,
            clock=self.clock,
            requests=self.stats,
            server=server.stats,
            flusher=flusher,
            flush_durations=flusher.durations,
            not_ready=self.not_ready,
            is_frozen=lambda: self.cluster is not None and self.cluster.restored.is_frozen,
            partitions=parts.replicas,
            directories=DirSizes(parts.log_dir).log_dirs,
            committed=parts.groups.committed,
            query_remote=None if self.cluster is None else self.cluster.ends_elsewhere(),
        )

    def undo_in_time(self, name: str, close: Callable[[], Awaitable[None]]) -> None:
        """Has a part closed at the end, which may wait for a store that does not answer: not for ever."""

        async def within_bounds() -> None:
            try:
                async with asyncio.timeout(PART_GRACE_S):
                    await close()
            except TimeoutError:
                log.warning("a part of the broker did not end in time and is left as it is", part=name)

        self.cleanup.push_async_callback(within_bounds)

    async def stop(self) -> None:
        """Stops accepting, answers what is under way, flushes, and marks the end as clean."""
        self.reason = "stopping"
        await self.cleanup.aclose()
