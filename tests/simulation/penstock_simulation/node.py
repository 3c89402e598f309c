"""The broker's environment in the simulation: implements `penstock.node.environment.NodeEnvironment`.

The broker runs unmodified on a simulated machine: the world provides files, flushes, store, lease, listeners and
randomness. Created by `hosting`, one per process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any
from uuid import UUID

from penstock.control.membership import Registration
from penstock.log.compaction.runner import CompactionRunner, ThreadRunner
from penstock.log.flusher import Flusher, FlushWork, T
from penstock.log.log_dir import LogDirectory
from penstock.node.broker import BrokerNode
from penstock.node.clustered import ClusteredComposition
from penstock.node.handlers import BrokerServices
from penstock.replica.manager import ReplicaManager
from penstock.runtime.clock import Clock
from penstock_simulation.files import SimFile, SimFiles
from penstock_simulation.seams import bind
from penstock_simulation.store_client import SimStore

if TYPE_CHECKING:
    from penstock_simulation.process import Process
    from penstock_simulation.store import StoreCore


SNAPSHOT_CHECK_S, SNAPSHOT_MIN_OFFSETS = 2.0, 20
"""How often the snapshots of scheduled records are checked, and after which growth of a log they are written: in the
simulation, few records wait."""


class FlushQueue:
    """Replacement of the flush worker's queue: executes a round after a delay, without a thread."""

    def __init__(self, flusher: SimFlusher) -> None:
        self.flusher = flusher

    def put(self, work: list[FlushWork] | None) -> None:
        if work is not None:
            self.flusher.begin_round(work)


class SimFlusher(Flusher):
    """The flusher without a thread. A round makes durable the data written before its start."""

    files: SimFiles

    def start(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.work = FlushQueue(self)  # type: ignore[assignment]
        if self.requested and not self.scheduled:
            self.schedule_round()

    def begin_round(self, work: list[FlushWork]) -> None:
        assert self.loop is not None
        delay_s = 0.0
        for one in work:
            for file in one.files:
                if isinstance(file, SimFile):
                    file.begin_sync()
                delay_s += self.files.disk.sync_delay_s()
        self.loop.call_later(delay_s, self.end_round, work)

    def end_round(self, work: list[FlushWork]) -> None:
        error: Exception | None = None
        try:
            self.sync(work)
        except Exception as e:
            error = e
        self.finish_round(work, error)

    def sync_each(self, sync: Callable[[T], None], items: Sequence[T]) -> None:
        for item in items:
            sync(item)


class SimRenewal:
    """Renewal of a lease through a separate store client. Pausing the process also pauses the renewal."""

    def __init__(self, registration: Registration, store: SimStore, pulse: Callable[[], int]) -> None:
        self.keep_alive = registration.keep_alive(store, pulse)
        self.task = asyncio.get_running_loop().create_task(self.keep_alive.run(), name="lease")

    def stop(self) -> None:
        self.keep_alive.stop()
        self.task.cancel()


class SimOutside:
    """The environment of one broker process; `is_clustered` says whether there are other brokers."""

    def __init__(self, process: Process, core: StoreCore, is_clustered: bool) -> None:
        machine = process.machine
        assert machine is not None, "a process on a machine"
        self.process, self.core, self.is_clustered = process, core, is_clustered
        self.clock: Clock = machine.clock
        self.boot_id = f"{machine.name}-{machine.boots}"
        self.files = SimFiles(process)
        self.random = process.world.streams["ids"]

    def make_files(self, cache_bytes: int) -> SimFiles:
        return self.files

    def make_flusher(self, files: Any, on_error: Callable[[Exception], None]) -> Flusher:
        return SimFlusher(files, on_error)

    def make_compaction(self, files: Any) -> CompactionRunner:
        return ThreadRunner(files)

    def make_executor(self) -> Executor:
        """Return a placeholder: the loop runs submitted functions itself."""
        return Executor()

    def open_store(self, path: str) -> SimStore:
        return SimStore(self.core, self.process)

    def renew(self, registration: Registration, pulse: Callable[[], int]) -> SimRenewal:
        return SimRenewal(registration, SimStore(self.core, self.process), pulse)

    @property
    def bind(self) -> Any:
        return bind

    def new_id(self) -> UUID:
        return UUID(int=self.random.getrandbits(128), version=4)


class SimNode(BrokerNode):
    """The unmodified broker node, with its replica manager accessible."""

    replicas: ReplicaManager | None = None

    async def make_services(self, log_dir: LogDirectory) -> BrokerServices:
        services = await super().make_services(log_dir)
        self.replicas = services.replicas
        snapshots = services.replicas.schedule_snapshots
        snapshots.check_s, snapshots.min_offsets = SNAPSHOT_CHECK_S, SNAPSHOT_MIN_OFFSETS
        return services

    @property
    def is_controller(self) -> bool:
        controller = self.composition.member.controller if isinstance(self.composition, ClusteredComposition) else None
        return controller is not None and controller.term is not None
