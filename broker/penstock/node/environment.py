"""A broker's dependencies on the machine, as one object for `BrokerNode`: clock, files, store, threads, randomness.

`SystemEnvironment` is the real one. The simulation has its own, which runs the same broker in virtual time on a
simulated disk and store.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from random import Random
from typing import Protocol
from uuid import UUID, uuid4

from penstock.control.membership import Registration
from penstock.log.compaction.runner import CompactionRunner, ProcessRunner
from penstock.log.flusher import Flusher
from penstock.runtime.clock import Clock, SystemClock
from penstock.runtime.disk import OsFiles
from penstock.runtime.files import Files
from penstock.runtime.linux import boot_id
from penstock.server.listener import Bind, bind_sockets
from penstock.state.embedded import EmbeddedStore
from penstock.state.etcd.options import EtcdOptions
from penstock.state.store import Store

WORKER_THREADS = 4
LEASE_TIMEOUT_S = 1.5
"""Request timeout of lease renewals, so that another endpoint is tried well within the lease."""


class ClosableStore(Store, Protocol):
    """A store that its user closes."""

    async def close(self) -> None:
        """Close the store."""


class LeaseRenewal(Protocol):
    """Renews a lease from `NodeEnvironment.renew` to `stop`."""

    def stop(self) -> None:
        """Stop renewing."""


class NodeEnvironment(Protocol):
    """The dependencies. `clock` and `boot_id` are the machine's."""

    clock: Clock
    boot_id: str

    @property
    def is_clustered(self) -> bool:
        """Whether other brokers share the store."""

    def make_files(self, cache_bytes: int) -> Files:
        """Return the file system, with a cache of recently appended data."""

    def make_flusher(self, files: Files, on_error: Callable[[Exception], None]) -> Flusher:
        """Return the flusher of the logs."""

    def make_compaction(self, files: Files) -> CompactionRunner:
        """Return the runner of log compaction."""

    def make_executor(self) -> Executor:
        """Return the executor for blocking calls."""

    def open_store(self, path: str) -> ClosableStore:
        """Open the cluster's store, or a single broker's own at `path`."""

    def renew(self, registration: Registration, pulse: Callable[[], int]) -> LeaseRenewal:
        """Renew the lease while the broker's event loop ticks: see `Registration.keep_alive`."""

    @property
    def bind(self) -> Bind:
        """The function that binds listeners, as `server.listener.bind_sockets`."""

    def new_id(self) -> UUID:
        """Return a random UUID."""

    @property
    def random(self) -> Random:
        """The source of jitter and session ids."""


class SystemEnvironment:
    """The real machine, with the etcd at `etcd`; None for a single broker."""

    def __init__(self, etcd: EtcdOptions | None = None) -> None:
        self.etcd = etcd
        self.clock: Clock = SystemClock()
        self.random = Random()  # noqa: S311
        self.boot_id = boot_id()

    @property
    def is_clustered(self) -> bool:
        """Whether an etcd is configured."""
        return self.etcd is not None

    def make_files(self, cache_bytes: int) -> Files:
        """Return the operating system's files."""
        return OsFiles(cache_bytes)

    def make_flusher(self, files: Files, on_error: Callable[[Exception], None]) -> Flusher:
        """Return the flusher of the logs."""
        return Flusher(files, on_error)

    def make_compaction(self, files: Files) -> CompactionRunner:
        """Return a runner in a process of its own."""
        return ProcessRunner()

    def make_executor(self) -> Executor:
        """Return a thread pool."""
        return ThreadPoolExecutor(WORKER_THREADS, "penstock-worker")

    def open_store(self, path: str) -> ClosableStore:
        """Open the etcd store, or the embedded one at `path`."""
        return EmbeddedStore(path) if self.etcd is None else self._etcd_store(self.etcd.request_timeout_s)

    def _etcd_store(self, timeout_s: float) -> ClosableStore:
        from dataclasses import replace

        from penstock.state.etcd.store import EtcdStore

        assert self.etcd is not None, "there is an etcd"
        return EtcdStore(replace(self.etcd, request_timeout_s=timeout_s))

    def renew(self, registration: Registration, pulse: Callable[[], int]) -> LeaseRenewal:
        """Renew the lease in a thread."""
        return LeaseThread(registration, self._etcd_store(LEASE_TIMEOUT_S), pulse)

    @property
    def bind(self) -> Bind:
        """The function that binds sockets."""
        return bind_sockets

    def new_id(self) -> UUID:
        """Return a random UUID."""
        return uuid4()


class LeaseThread:
    """Renews the lease on its own event loop and store, so that a busy broker keeps its membership."""

    def __init__(self, registration: Registration, store: ClosableStore, pulse: Callable[[], int]) -> None:
        self.store = store
        self.keep_alive = registration.keep_alive(store, pulse)
        self.loop: asyncio.AbstractEventLoop | None = None
        self.task: asyncio.Task[None] | None = None
        self.stopped = False
        self.thread = threading.Thread(target=self._run, name="penstock-lease", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        with suppress(asyncio.CancelledError):
            asyncio.run(self._main())

    async def _main(self) -> None:
        self.loop, self.task = asyncio.get_running_loop(), asyncio.current_task()
        try:
            if not self.stopped:
                await self.keep_alive.run()
        finally:
            await self.store.close()

    def stop(self) -> None:
        """Stop the thread without waiting for it."""
        self.stopped = True
        self.keep_alive.stop()
        if self.loop is not None and self.task is not None:
            with suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(self.task.cancel)
