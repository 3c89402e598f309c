"""The broker as it is, on a simulated machine: what `node.py` puts together, with files, store, clock and network
handed in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.config.options import UpOptions
from penstock.log.compaction.runner import ThreadRunner
from penstock.log.flusher import Flusher, FlushWork, T
from penstock.log.log_dir import LogDir
from penstock.node import Node
from penstock_simulation.files import SimFile, SimFiles
from penstock_simulation.store import SimStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock_simulation.process import Process
    from penstock_simulation.store import StoreCore

DATA_DIR = "/data"
PORT = 9092


class FlushQueue:
    """In the place of the queue to the flush worker's thread: the round is carried out after a while."""

    def __init__(self, flusher: SimFlusher) -> None:
        self.flusher = flusher

    def put(self, work: list[FlushWork] | None) -> None:
        if work is not None:
            self.flusher.begin_round(work)


class SimFlusher(Flusher):
    """The flusher without a thread. What a round makes durable is what was written when it began."""

    files: SimFiles

    def start(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.work = FlushQueue(self)  # type: ignore[assignment]
        if self.requested and not self.scheduled:
            self.schedule()

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
        self.done(work, error)

    def each(self, sync: Callable[[T], None], items: Sequence[T]) -> None:
        for item in items:
            sync(item)


class SimNode(Node):
    """One broker. `process` is the one that it runs in."""

    def __init__(self, process: Process, core: StoreCore, settings: dict[str, str]) -> None:
        assert process.machine is not None, "a process on a machine"
        host = process.machine.name
        options = UpOptions(data_dir=DATA_DIR, host=host, port=PORT, http_port=None, settings=settings)
        super().__init__(options, {}, process.machine.clock)
        self.files: Any = SimFiles(process)
        self.process, self.core = process, core
        self.log_dir: LogDir | None = None

    def open_log_dir(self) -> LogDir:
        log_dir = self.log_dir = super().open_log_dir()
        log_dir.flusher = SimFlusher(self.files, log_dir.fail)
        log_dir.pool.on_pressure = log_dir.flush_dirty
        log_dir.compactor.runner = ThreadRunner(self.files)
        return log_dir

    def open_store(self) -> Any:
        store = SimStore(self.core, self.process)
        self.cleanup.push_async_callback(store.close)
        return store
