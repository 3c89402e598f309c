"""What a broker reaches outside of itself, as one object handed to `Node`: clock, files, store, threads, chance.

`SystemEnvironment` is the real one. A simulation has its own, and with it runs the same broker on virtual time, a disk
that forgets and a store of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
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
"""For one answer of the store to whoever renews the lease: another endpoint is tried well within the lease."""


class OwnStore(Store, Protocol):
    """A store that is its user's to close."""

    async def close(self) -> None: ...


class Renewal(Protocol):
    """Somebody renews a lease, from `NodeEnvironment.renew` to `stop`."""

    def stop(self) -> None: ...


class NodeEnvironment(Protocol):
    """See the module. `clock` and `boot_id` are the machine's."""

    clock: Clock
    boot_id: str

    @property
    def is_clustered(self) -> bool:
        """Whether there is a store that other brokers use too."""

    def make_files(self, cache_bytes: int) -> Files: ...

    def make_flusher(self, files: Files, on_error: Callable[[Exception], None]) -> Flusher: ...

    def make_compaction(self, files: Files) -> CompactionRunner: ...

    def make_executor(self) -> Executor:
        """For what may block."""

    def open_store(self, path: str) -> OwnStore:
        """The cluster's store; where the broker is alone, its own at `path`."""

    def renew(self, registration: Registration, pulse: Callable[[], int]) -> Renewal:
        """Keeps the lease alive for as long as the broker's loop ticks: see `Registration.keep_alive`."""

    @property
    def bind(self) -> Bind:
        """As `server.listener.bind_sockets`."""

    def new_id(self) -> UUID: ...


class SystemEnvironment:
    """The machine, and the etcd at `etcd`; without one the broker is alone."""

    def __init__(self, etcd: EtcdOptions | None = None) -> None:
        self.etcd = etcd
        self.clock: Clock = SystemClock()
        self.boot_id = boot_id()

    @property
    def is_clustered(self) -> bool:
        return self.etcd is not None

    def make_files(self, cache_bytes: int) -> Files:
        return OsFiles(cache_bytes)

    def make_flusher(self, files: Files, on_error: Callable[[Exception], None]) -> Flusher:
        return Flusher(files, on_error)

    def make_compaction(self, files: Files) -> CompactionRunner:
        return ProcessRunner()

    def make_executor(self) -> Executor:
        return ThreadPoolExecutor(WORKER_THREADS, "penstock-worker")

    def open_store(self, path: str) -> OwnStore:
        return EmbeddedStore(path) if self.etcd is None else self._etcd_store(self.etcd.request_timeout_s)

    def _etcd_store(self, timeout_s: float) -> OwnStore:
        from dataclasses import replace

        from penstock.state.etcd.store import EtcdStore

        assert self.etcd is not None, "there is an etcd"
        return EtcdStore(replace(self.etcd, request_timeout_s=timeout_s))

    def renew(self, registration: Registration, pulse: Callable[[], int]) -> Renewal:
        return LeaseThread(registration, self._etcd_store(LEASE_TIMEOUT_S), pulse)

    @property
    def bind(self) -> Bind:
        return bind_sockets

    def new_id(self) -> UUID:
        return uuid4()


class LeaseThread:
    """Renews the lease on a loop of its own, with a store of its own: a busy broker does not lose its membership."""

    def __init__(self, registration: Registration, store: OwnStore, pulse: Callable[[], int]) -> None:
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
        """Returns at once; the thread ends soon."""
        self.stopped = True
        self.keep_alive.stop()
        if self.loop is not None and self.task is not None:
            with suppress(RuntimeError):  # the loop has ended before
                self.loop.call_soon_threadsafe(self.task.cancel)
