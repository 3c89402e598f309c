"""Pops batches of keys from the queue and passes them to the controller of their kind while this process is the leader.

One runner per kind, so that 10,000 topics do not delay a cluster. The number of concurrent batches is bounded. If a
controller raises, the batch is split in halves until the failing key is alone; only failed keys are delayed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from penstock.runtime.logging import get_logger
from penstock_operator.engine.metrics import OperatorMetrics
from penstock_operator.engine.ports import ReconcileResult, ResourceController
from penstock_operator.engine.queue import WorkQueue
from penstock_operator.model.common import Kind, ObjectKey

BATCHES_IN_FLIGHT = 2
BATCH_TIMEOUT_S = 180.0
"""Timeout of a batch; requests are bounded, so a longer batch indicates a defect."""
RESYNC_S = 60.0

log = get_logger("operator")


class ReconcileRunner:
    """Runner of one kind. It calls `may_act` before each batch, because leadership can be lost between batches."""

    def __init__(
        self,
        kind: Kind,
        controller: ResourceController,
        queue: WorkQueue,
        metrics: OperatorMetrics,
        may_act: Callable[[], bool],
    ) -> None:
        self.kind, self._controller, self._queue = kind, controller, queue
        self._metrics, self._may_act = metrics, may_act
        self._started: dict[int, float] = {}
        self._batches = 0

    async def run(self, resync_s: float = RESYNC_S) -> None:
        """Run until cancelled; cancels running batches and returns their keys to the queue."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._resync_loop(resync_s), name=f"resync {self.kind}")
            slots = asyncio.Semaphore(BATCHES_IN_FLIGHT)
            while True:
                await slots.acquire()
                keys = await self._queue.pop_batch(self.kind, self._controller.batch)
                if not self._may_act():
                    self._queue.put_back(keys)
                    slots.release()
                    await asyncio.sleep(1.0)  # Leadership was lost; the operator cancels this task.
                    continue
                task = tasks.create_task(self._reconcile_batch(keys), name=f"{self.kind} batch")
                task.add_done_callback(lambda _: slots.release())

    def stuck_for_s(self) -> float:
        """Return the duration of the oldest running batch in seconds; 0 if none is running."""
        return asyncio.get_running_loop().time() - min(self._started.values()) if self._started else 0.0

    async def _reconcile_batch(self, keys: Sequence[ObjectKey]) -> None:
        loop = asyncio.get_running_loop()
        self._batches += 1
        number = self._batches
        began = self._started[number] = loop.time()
        try:
            results = await self._reconcile_or_split(keys)
        except asyncio.CancelledError:
            self._queue.put_back(keys)
            raise
        finally:
            del self._started[number]
        took = loop.time() - began
        self._metrics.record_batch(self.kind, len(keys), took, sum(v.error is not None for v in results.values()))
        for key in keys:
            result = results.get(key, ReconcileResult(error="the controller returned no result"))
            if result.error is not None:
                cluster_key = f"{key.namespace}/{key.name}"
                log.warning("reconcile failed", kind=key.kind, object=cluster_key, why=result.error)
            self._queue.complete(key, result)

    async def _reconcile_or_split(self, keys: Sequence[ObjectKey]) -> Mapping[ObjectKey, ReconcileResult]:
        try:
            async with asyncio.timeout(BATCH_TIMEOUT_S):
                return await self._controller.reconcile(keys)
        except Exception as error:
            if len(keys) == 1 or isinstance(error, TimeoutError):
                log.exception("reconcile raised", kind=self.kind, keys=len(keys), first=keys[0].name)
                return {key: ReconcileResult(error=f"{type(error).__name__}: {error}") for key in keys}
            log.warning("reconcile raised; splitting the batch", kind=self.kind, keys=len(keys), why=repr(error))
        half = len(keys) // 2
        return {**await self._reconcile_or_split(keys[:half]), **await self._reconcile_or_split(keys[half:])}

    async def _resync_loop(self, resync_s: float) -> None:
        while True:
            if self._may_act():
                try:
                    async with asyncio.timeout(BATCH_TIMEOUT_S):
                        await self._controller.resync()
                except Exception as error:
                    self._metrics.record_resync_error(self.kind)
                    log.warning("resync failed", kind=self.kind, why=f"{type(error).__name__}: {error}", exc_info=True)
            await asyncio.sleep(resync_s)
