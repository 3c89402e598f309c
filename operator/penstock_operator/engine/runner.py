"""Takes batches out of the queue and gives them to the controller of their kind, while this operator is the leader.

One runner for each kind, so that 10,000 topics do not keep a cluster waiting. A bounded number of batches is under way
at once: the queue holds the rest, as keys. A controller that raises or hangs costs its own keys a longer pause and
nothing else: the batch is cut in halves until the key that does it stands alone.
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
"""Longer than any bounded number of bounded requests should take; what hangs for longer is a defect, and is cut off."""
RESYNC_S = 60.0

log = get_logger("operator")


class ReconcileRunner:
    """`may_act` is asked before each batch: leadership may be lost between two."""

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
        self._began: dict[int, float] = {}
        self._batches = 0

    async def run(self, resync_s: float = RESYNC_S) -> None:
        """Until cancelled; batches under way are cancelled too, and their keys go back."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._resync_for_ever(resync_s), name=f"resync {self.kind}")
            slots = asyncio.Semaphore(BATCHES_IN_FLIGHT)
            while True:
                await slots.acquire()
                keys = await self._queue.take(self.kind, self._controller.batch)
                if not self._may_act():
                    self._queue.put_back(keys)
                    slots.release()
                    await asyncio.sleep(1.0)  # Leadership ends; whoever started this is about to cancel it.
                    continue
                task = tasks.create_task(self._look(keys), name=f"{self.kind} batch")
                task.add_done_callback(lambda _: slots.release())

    def stuck_for_s(self) -> float:
        """How long the oldest batch has been under way; 0 where none is."""
        return asyncio.get_running_loop().time() - min(self._began.values()) if self._began else 0.0

    async def _look(self, keys: Sequence[ObjectKey]) -> None:
        loop = asyncio.get_running_loop()
        self._batches += 1
        number = self._batches
        began = self._began[number] = loop.time()
        try:
            verdicts = await self._verdicts(keys)
        except asyncio.CancelledError:
            self._queue.put_back(keys)
            raise
        finally:
            del self._began[number]
        took = loop.time() - began
        self._metrics.looked(self.kind, len(keys), took, sum(v.error is not None for v in verdicts.values()))
        for key in keys:
            verdict = verdicts.get(key, ReconcileResult(error="the controller said nothing of it"))
            if verdict.error is not None:
                place = f"{key.namespace}/{key.name}"
                log.warning("reconcile failed", kind=key.kind, object=place, why=verdict.error)
            self._queue.done(key, verdict)

    async def _verdicts(self, keys: Sequence[ObjectKey]) -> Mapping[ObjectKey, ReconcileResult]:
        try:
            async with asyncio.timeout(BATCH_TIMEOUT_S):
                return await self._controller.reconcile(keys)
        except Exception as error:
            if len(keys) == 1 or isinstance(error, TimeoutError):
                log.exception("reconcile raised", kind=self.kind, keys=len(keys), first=keys[0].name)
                return {key: ReconcileResult(error=f"{type(error).__name__}: {error}") for key in keys}
            log.warning("reconcile raised: the batch is cut in halves", kind=self.kind, keys=len(keys), why=repr(error))
        half = len(keys) // 2
        return {**await self._verdicts(keys[:half]), **await self._verdicts(keys[half:])}

    async def _resync_for_ever(self, resync_s: float) -> None:
        while True:
            if self._may_act():
                try:
                    async with asyncio.timeout(BATCH_TIMEOUT_S):
                        await self._controller.resync()
                except Exception as error:
                    self._metrics.resync_failed(self.kind)
                    log.warning("resync failed", kind=self.kind, why=f"{type(error).__name__}: {error}", exc_info=True)
            await asyncio.sleep(resync_s)
