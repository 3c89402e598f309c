"""The runner: bounded batches while leading; a controller that raises or hangs delays only its own keys."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence

from doubles.virtual import run_virtually

from penstock_operator.engine import runner as module
from penstock_operator.engine.metrics import OperatorMetrics
from penstock_operator.engine.ports import ReconcileResult
from penstock_operator.engine.queue import WorkQueue
from penstock_operator.engine.runner import BATCHES_IN_FLIGHT, ReconcileRunner
from penstock_operator.model.common import ObjectKey


def key(number: int | str) -> ObjectKey:
    return ObjectKey("Topic", "ns", str(number))


class Looking:
    """Counts reconciliations by key and fails for configured keys."""

    batch = 64

    def __init__(self) -> None:
        self.looks: Counter[str] = Counter()
        self.under_way = self.most_under_way = self.resyncs = 0
        self.raises: set[str] = set()
        self.hangs: set[str] = set()
        self.forgets: set[str] = set()
        self.takes_s = 0.01

    async def reconcile(self, keys: Sequence[ObjectKey]) -> Mapping[ObjectKey, ReconcileResult]:
        assert 0 < len(keys) <= self.batch
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await asyncio.sleep(self.takes_s)
            if any(one.name in self.hangs for one in keys):
                await asyncio.sleep(100_000)
            if any(one.name in self.raises for one in keys):
                raise RuntimeError("a defect")
            self.looks.update(one.name for one in keys)
            return {one: ReconcileResult() for one in keys if one.name not in self.forgets}
        finally:
            self.under_way -= 1

    async def resync(self) -> None:
        self.resyncs += 1
        if self.resyncs == 2:
            raise RuntimeError("a defect in resync")


class Going:
    def __init__(self) -> None:
        self.controller, self.is_leader = Looking(), True
        self.metrics = OperatorMetrics()
        self.queue = WorkQueue(lambda: 0.5, lambda one: (one.namespace, ""))
        self.runner = ReconcileRunner("Topic", self.controller, self.queue, self.metrics, lambda: self.is_leader)
        self.task: asyncio.Task[None] | None = None

    def start(self) -> Going:
        self.task = asyncio.create_task(self.runner.run(60.0))
        return self

    async def stop(self) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def virtually(test: Callable[[], Coroutine[object, object, None]]) -> Callable[[], None]:
    def run() -> None:
        run_virtually(test())

    run.__name__ = test.__name__
    return run


@virtually
async def test_five_thousand_keys_are_looked_at_in_bounded_batches() -> None:
    going = Going().start()
    for number in range(5_000):
        going.queue.put(key(number))
    await asyncio.sleep(10)
    assert len(going.controller.looks) == 5_000
    assert set(going.controller.looks.values()) == {1}
    assert going.controller.most_under_way == BATCHES_IN_FLIGHT
    await going.stop()


@virtually
async def test_a_controller_that_raises_for_one_key_looks_at_all_others() -> None:
    going = Going()
    going.controller.raises = {"13"}
    for number in range(64):
        going.queue.put(key(number))
    going.start()
    await asyncio.sleep(0.4)
    assert len(going.controller.looks) == 63
    assert going.queue.failing("Topic") == 1
    assert b'penstock_operator_reconcile_errors_total{kind="Topic"} 1.0' in going.metrics.text()
    going.controller.raises = set()
    await asyncio.sleep(60)
    assert going.controller.looks["13"] == 1
    assert going.queue.failing("Topic") == 0
    await going.stop()


@virtually
async def test_a_batch_that_hangs_is_cut_off_and_others_go_on() -> None:
    going = Going()
    going.controller.hangs = {"stuck"}
    going.queue.put(key("stuck"))
    going.start()
    await asyncio.sleep(1)
    for number in range(500):
        going.queue.put(key(number))
    await asyncio.sleep(10)
    assert len(going.controller.looks) == 500
    assert going.runner.stuck_for_s() > 10
    going.controller.hangs = set()
    await asyncio.sleep(module.BATCH_TIMEOUT_S + 5)
    assert going.controller.looks["stuck"] == 1
    assert going.runner.stuck_for_s() == 0
    await going.stop()


@virtually
async def test_a_key_of_which_nothing_is_said_is_looked_at_again() -> None:
    going = Going()
    going.controller.forgets = {"a"}
    going.queue.put(key("a"))
    going.start()
    await asyncio.sleep(5)
    assert going.controller.looks["a"] > 1
    await going.stop()


@virtually
async def test_without_leadership_nothing_is_looked_at_and_nothing_is_lost() -> None:
    going = Going()
    going.is_leader = False
    for number in range(100):
        going.queue.put(key(number))
    going.start()
    await asyncio.sleep(30)
    assert not going.controller.looks
    assert going.controller.resyncs == 0
    going.is_leader = True
    await asyncio.sleep(5)
    assert len(going.controller.looks) == 100
    await going.stop()


@virtually
async def test_one_that_is_stopped_gives_its_keys_back() -> None:
    going = Going()
    going.controller.takes_s = 50
    for number in range(10):
        going.queue.put(key(number))
    going.start()
    await asyncio.sleep(1)
    await going.stop()
    assert going.queue.depth("Topic") == 10


@virtually
async def test_resyncs_go_on_after_one_that_raised() -> None:
    going = Going().start()
    await asyncio.sleep(290)
    assert going.controller.resyncs == 5
    assert b'penstock_operator_resync_errors_total{kind="Topic"} 1.0' in going.metrics.text()
    await going.stop()
