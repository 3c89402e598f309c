"""A broker: the one place where its parts are made and put together. `penstock up` runs it.

Everything that the rooms need from outside (clock, files, store) is made here and handed to them.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import shutil
import signal
import socket
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol
from uuid import UUID, uuid4

import msgspec

from penstock import __version__
from penstock.api.cluster import ClusterApi
from penstock.api.configs import ConfigsApi
from penstock.api.dispatch import Dispatcher
from penstock.api.fetch import FetchApi, FetchLimits
from penstock.api.fetch_sessions import FetchSessions
from penstock.api.group_admin import GroupAdminApi
from penstock.api.groups import GroupsApi
from penstock.api.log_dirs import LogDirsApi, LogDirState
from penstock.api.log_queries import LogQueriesApi
from penstock.api.metadata import MetadataApi
from penstock.api.offsets import OffsetsApi
from penstock.api.produce import ProduceApi
from penstock.api.producer_ids import ProducerIdsApi
from penstock.api.quorum import QuorumApi
from penstock.api.routes import Route
from penstock.api.topics import TopicsApi
from penstock.api.versions import ApiVersionsApi
from penstock.config import sources
from penstock.config.broker import BrokerConfig
from penstock.config.definition import InvalidSetting
from penstock.config.listeners import ListenerAddress, advertised, parse_listeners
from penstock.config.options import UpOptions
from penstock.control.config_admin import ConfigAdmin
from penstock.control.config_describe import note_identity
from penstock.control.membership import begin_leader_epochs, ensure_cluster, register_embedded
from penstock.control.topic_admin import TopicAdmin
from penstock.group.coordinator import GroupCoordinator
from penstock.http.late import LateHttp
from penstock.http.sources import Sources
from penstock.log.log_dir import LogDir
from penstock.log.types import LogError
from penstock.replica.manager import ReplicaManager
from penstock.replica.producer_state import ProducerState
from penstock.runtime import logging
from penstock.runtime.clock import Clock, SystemClock
from penstock.runtime.disk import OsFiles
from penstock.runtime.linux import raise_descriptor_limit
from penstock.runtime.stats import RequestStats
from penstock.server.limits import ServerLimits
from penstock.server.listener import ListenError, Server
from penstock.state.embedded import EmbeddedStore
from penstock.state.store import Store, StoreError
from penstock.state.view import ClusterView, Endpoint
from penstock.state.watcher import Watcher
from penstock.txn.producer_ids import ProducerIds

STATE_FILE = "state.db"
CONFIG_FILE = "penstock.toml"
"""Read from the current directory where no other file is named."""
CLOSE_GRACE_S = 5.0
DEFAULT_LISTENER = "PLAINTEXT"
EXIT_USAGE = 2
WORKER_THREADS = 4
OTHER_DESCRIPTORS = 256
"""What else is open: the store, listeners, HTTP, files that are looked at in passing."""
FEWEST_CONNECTIONS = 64
GC_THRESHOLDS = (50_000, 20, 100)
"""Little here is cyclic garbage: the default would look through all objects far too often."""

log = logging.get_logger("penstock.node")


class StartError(Exception):
    """The broker cannot start; the message says why and what to do."""


class Node:
    """One embedded broker. `start` returns when it serves; `stop` ends it in good order."""

    def __init__(self, options: UpOptions, environment: Mapping[str, str], clock: Clock) -> None:
        self.options, self.clock = options, clock
        self.config = load_config(options, environment)
        self.listeners = listeners_of(options, self.config)
        self.view = ClusterView()
        self.files = OsFiles(self.config.log_tail_cache_bytes)
        self.stats = RequestStats()
        self.reason: str | None = "starting"
        """Why clients should not be sent here; None when they may."""
        self.log_dir: LogDir | None = None
        self.cleanup = contextlib.AsyncExitStack()
        """Undoes, last first, what `start` did so far."""

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
        executor = ThreadPoolExecutor(WORKER_THREADS, "penstock-worker")
        asyncio.get_running_loop().set_default_executor(executor)
        http = self.prepare_http()
        self.log_dir = log_dir = self.open_log_dir()
        store = self.open_store()
        cluster = await ensure_cluster(store)
        log_dir.claim(cluster.cluster_id)
        watcher = Watcher(store, self.view, self.config)
        await watcher.start()
        self.cleanup.push_async_callback(watcher.stop)
        if log_dir.was_unclean:
            await watcher.applied(await begin_leader_epochs(store))
        await self.recover(log_dir)
        replicas = ReplicaManager(self.view, log_dir, self.clock, self.config)
        replicas.schedule_expiry()
        self.cleanup.callback(replicas.close)
        topics = TopicAdmin(store, self.view, watcher, self.clock, self.config)
        self.cleanup.push_async_callback(topics.settle)
        coordinator = GroupCoordinator(store, self.view, self.clock, self.config)
        await coordinator.start()
        self.cleanup.push_async_callback(coordinator.close)
        topics.cleaners += [replicas.forget_topic, coordinator.offsets.forget_topic]
        dispatcher = self.dispatcher(store, watcher, log_dir, replicas, topics, coordinator)
        self.cleanup.push_async_callback(dispatcher.close)
        server = Server(dispatcher, server_limits(self.config), executor)
        if http is not None:
            self.cleanup.callback(http.tell, None)
        listening = await self.listen(server, store, watcher)
        self.cleanup.callback(coordinator.dismiss)
        self.cleanup.callback(replicas.wake_readers)
        await topics.resume()
        opening = asyncio.create_task(replicas.host_unopened())
        self.cleanup.callback(opening.cancel)
        http_port = None
        if http is not None:
            http_port = await http.opened(self.sources(server, log_dir, replicas, coordinator))
        self.reason = None
        return listening, http_port

    def open_log_dir(self) -> LogDir:
        """The lock on the data directory comes before anything else in it is touched."""
        path = os.path.abspath(self.options.data_dir)
        config = self.config
        log_dir = LogDir(
            self.files,
            path,
            self.clock,
            config.node_id,
            config.log_max_open_files,
            retention_delay_ms=config.log_retention_check_interval_ms,
        )
        self.cleanup.push_async_callback(log_dir.close)
        return log_dir

    def open_store(self) -> EmbeddedStore:
        store = EmbeddedStore(os.path.join(os.path.abspath(self.options.data_dir), STATE_FILE))
        self.cleanup.push_async_callback(store.close)
        return store

    async def recover(self, log_dir: LogDir) -> None:
        """Brings the logs into order before anybody can ask for them; in a thread, for the sake of the health pages."""
        assert log_dir.found is not None, "the log directory was claimed"
        if count := len(log_dir.found.unrecovered):
            self.reason = f"starting: {count:,} partitions are looked at, as the broker did not end cleanly"

        def work() -> None:
            log_dir.recover(ProducerState)
            for name in log_dir.quarantine_unknown(Hosted(self.view)):
                log.warning("data that belongs to no topic was put aside", directory=name)

        await asyncio.to_thread(work)
        self.reason = "starting"
        log_dir.start()

    def prepare_http(self) -> LateHttp | None:
        """Comes first, so that it ends last: until then it tells how things are."""
        if self.options.http_port is None:
            return None
        http = LateHttp(self.options.http_host, self.options.http_port, self.not_ready)
        self.cleanup.push_async_callback(http.close)
        return http

    def not_ready(self) -> str | None:
        """Why clients should not be sent here; None when they may."""
        if self.reason is None and self.log_dir is not None and self.log_dir.failed is not None:
            return f"{self.log_dir.path} has failed: {self.log_dir.failed}"
        return self.reason

    def sources(
        self, server: Server, log_dir: LogDir, replicas: ReplicaManager, coordinator: GroupCoordinator
    ) -> Sources:
        """What metrics are made from."""
        return Sources(
            version=__version__,
            clock=self.clock,
            requests=self.stats,
            server=server.stats,
            flusher=log_dir.flusher,
            flush_durations=log_dir.flusher.durations,
            not_ready=self.not_ready,
            partitions=replicas,
            directories=DirSizes(log_dir).log_dirs,
            committed=coordinator.committed,
        )

    async def listen(self, server: Server, store: Store, watcher: Watcher) -> list[ListenerAddress]:
        """Opens the listeners; nobody is accepted before the addresses by which clients find us are registered."""

        async def register(bound: list[ListenerAddress]) -> None:
            given = ",".join(self.options.advertise) or self.config.advertised_listeners
            told = advertised(bound, given, socket.gethostname())
            note_identity(self.config, bound, told)
            endpoints = [Endpoint(a.name, a.host, a.port) for a in told]
            broker_id, rack, now_ms = self.config.node_id, self.config.broker_rack, self.clock.wall_ms()
            await watcher.applied(await register_embedded(store, broker_id, endpoints, rack, uuid4(), now_ms))

        self.cleanup.push_async_callback(server.close, CLOSE_GRACE_S)
        return await server.listen(self.listeners, register)

    def dispatcher(
        self,
        store: Store,
        watcher: Watcher,
        log_dir: LogDir,
        replicas: ReplicaManager,
        topics: TopicAdmin,
        coordinator: GroupCoordinator,
    ) -> Dispatcher:
        """The handlers of all APIs."""
        view, config = self.view, self.config
        apis: list[Api] = [
            MetadataApi(view, topics, config),
            TopicsApi(view, topics, config),
            ConfigsApi(view, ConfigAdmin(store, view, watcher, config), config),
            ClusterApi(view),
            QuorumApi(store, view, self.clock),
            LogDirsApi(view, DirSizes(log_dir)),
            LogQueriesApi(replicas),
            GroupsApi(coordinator, view),
            GroupAdminApi(coordinator, view),
            OffsetsApi(coordinator, view),
            ProducerIdsApi(ProducerIds(store)),
        ]
        routes = [route for api in apis for route in api.routes()]
        sessions = FetchSessions(config.max_incremental_fetch_session_cache_slots, asyncio.get_running_loop().time)
        fetch = FetchApi(replicas, sessions, FetchLimits(config.fetch_max_bytes), self.stats)
        produce = ProduceApi(replicas, self.stats)
        return Dispatcher(produce, fetch, ApiVersionsApi(routes), routes, self.stats)

    async def stop(self) -> None:
        """Stops accepting, answers what is under way, flushes, and marks the end as clean."""
        self.reason = "stopping"
        await self.cleanup.aclose()


class Api(Protocol):
    """A module of `api`: handlers for a family of requests."""

    def routes(self) -> list[Route]: ...


class Hosted:
    """The partitions that the cluster knows, those on their way out included, as a container of (topic id, index)."""

    def __init__(self, view: ClusterView) -> None:
        self.view = view

    def __contains__(self, key: object) -> bool:
        assert isinstance(key, tuple), key
        topic = self.view.topics_by_id.get(key[0])
        return key[0] in self.view.deleting or (topic is not None and key[1] < len(topic.partitions))


class DirSizes:
    """Implements `api.log_dirs.LogSizes` for the one log directory."""

    def __init__(self, log_dir: LogDir) -> None:
        self.log_dir = log_dir

    def log_dirs(self) -> list[LogDirState]:
        """May wait for the disk. Sizes are -1 where they cannot be had."""
        path, has_failed = self.log_dir.path, self.log_dir.failed is not None
        try:
            usage = shutil.disk_usage(path)
        except OSError as e:
            log.warning("the size of the file system is unknown", path=path, error=str(e))
            return [LogDirState(path, has_failed, -1, -1)]
        return [LogDirState(path, has_failed, usage.total, usage.free)]

    def partition_bytes(self, path: str, topic_id: UUID, index: int) -> int | None:
        return self.log_dir.partition_bytes(topic_id, index)


def server_limits(config: BrokerConfig) -> ServerLimits:
    """Connections get the descriptors that the logs leave: none of theirs may fail for want of one."""
    left = raise_descriptor_limit() - config.log_max_open_files * 3 // 2 - OTHER_DESCRIPTORS
    return ServerLimits(
        max_request_bytes=config.socket_request_max_bytes,
        max_receive_bytes=config.queued_max_request_bytes,
        idle_s=config.connections_max_idle_ms / 1000,
        max_connections=min(config.max_connections, max(left, FEWEST_CONNECTIONS)),
        max_connections_per_ip=config.max_connections_per_ip,
    )


def load_config(options: UpOptions, environment: Mapping[str, str]) -> BrokerConfig:
    """Raises StartError."""
    try:
        file = options.config_file
        if file is None and os.path.exists(CONFIG_FILE):
            file = CONFIG_FILE
        return sources.load(file, environment, options.settings)
    except InvalidSetting as e:
        raise StartError(str(e)) from e
    except OSError as e:
        raise StartError(f"the settings in {options.config_file} cannot be read: {e.strerror}") from e


def listeners_of(options: UpOptions, config: BrokerConfig) -> list[ListenerAddress]:
    """Where to listen: what the command line says, else the settings, else one listener on its host and port."""
    try:
        if options.listeners:
            return parse_listeners(",".join(options.listeners))
        if config.listeners:
            return parse_listeners(config.listeners)
    except InvalidSetting as e:
        raise StartError(str(e)) from e
    return [ListenerAddress(DEFAULT_LISTENER, options.host, options.port)]


def run(options: UpOptions) -> int:
    """Runs a broker until SIGTERM or SIGINT; returns the process's exit code."""
    logging.configure(options.log_level, options.log_format)
    try:
        node = Node(options, os.environ, SystemClock())
    except StartError as e:
        print(f"penstock up: {e}", file=sys.stderr)  # noqa: T201
        return EXIT_USAGE
    try:
        import uvloop

        uvloop.run(serve(node))
    except StartError as e:
        print(f"penstock up: {e}", file=sys.stderr)  # noqa: T201
        return 1
    except Exception:
        log.exception("the broker ended with an error")
        return 1
    return 0


def main() -> int:
    """`python -m penstock.node OPTIONS`: the process that `penstock up` becomes; OPTIONS are `UpOptions` as JSON."""
    return run(msgspec.json.decode(sys.argv[1], type=UpOptions))


async def serve(node: Node) -> None:
    """Starts, says so, waits to be told to stop, stops."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    listeners, http_port = await node.start()
    first = listeners[0]
    http = "off" if http_port is None else f"{node.options.http_host}:{http_port}"
    print(f"ready kafka={first.host}:{first.port} http={http}", flush=True)  # noqa: T201
    gc.set_threshold(*GC_THRESHOLDS)
    # What was made at the start lives as long as the process: it need not be looked at for garbage again.
    gc.collect()
    gc.freeze()
    await stop.wait()
    log.info("stopping")
    await node.stop()


if __name__ == "__main__":
    sys.exit(main())
