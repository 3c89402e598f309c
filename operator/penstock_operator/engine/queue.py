"""Work queue of object keys. `engine.runner` pops batches from it.

It uses only the running loop's clock and timers. Guarantees:
- One entry per key: 10,000 events for one object cause one reconciliation. The number of keys is not limited.
- A key is never in progress twice; an event during a reconciliation queues the key again afterwards.
- A failed key is retried with exponential backoff and jitter, up to `MAX_PAUSE_S`. An event shortens the pause to
  `MIN_PAUSE_S`, not to 0: a failing reconciliation that writes a status must not trigger itself immediately.
- Kinds do not wait for each other. Within a kind, lanes (clusters) are served round-robin.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock_operator.engine.ports import ReconcileResult
from penstock_operator.model.common import Kind, ObjectKey

FIRST_PAUSE_S = 0.5
MIN_PAUSE_S = 1.0
MAX_PAUSE_S = 60.0
Lane = tuple[str, str]


@dataclass(slots=True)
class _Failing:
    times: int
    not_before: float


class WorkQueue:
    """The queue. `jitter` returns numbers from 0 to 1; `lane_of` returns the lane of a key."""

    def __init__(self, jitter: Callable[[], float], lane_of: Callable[[ObjectKey], Lane]) -> None:
        self._jitter, self._lane_of = jitter, lane_of
        self._due: dict[ObjectKey, float] = {}
        """Due time of waiting keys. The heap may also contain outdated entries."""
        self._heap: list[tuple[float, int, ObjectKey]] = []
        self._numbers = itertools.count()
        self._ready: dict[Kind, OrderedDict[Lane, OrderedDict[ObjectKey, None]]] = {}
        self._is_ready: set[ObjectKey] = set()
        self._in_progress: dict[ObjectKey, float | None] = {}
        """Keys in progress, and when they are due again."""
        self._failing: dict[ObjectKey, _Failing] = {}
        self._wakers: dict[Kind, asyncio.Event] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0

    def put(self, key: ObjectKey, delay_s: float = 0.0) -> None:
        """Queue a key, due after `delay_s`, but not before its backoff minimum."""
        now = asyncio.get_running_loop().time()
        failing = self._failing.get(key)
        due = max(now + delay_s, failing.not_before if failing else now)
        if key in self._in_progress:
            again = self._in_progress[key]
            self._in_progress[key] = due if again is None else min(again, due)
        elif key not in self._is_ready and due < self._due.get(key, float("inf")):
            self._wait_until(key, due, now)

    async def pop_batch(self, kind: Kind, limit: int) -> list[ObjectKey]:
        """Wait until keys of a kind are due, and return up to `limit` of them, round-robin over lanes."""
        assert limit > 0, f"invalid batch size {limit}"
        waker = self._wakers.setdefault(kind, asyncio.Event())
        while not self._ready.get(kind):
            waker.clear()
            await waker.wait()
        lanes = self._ready[kind]
        taken: list[ObjectKey] = []
        while lanes and len(taken) < limit:
            lane, keys = lanes.popitem(last=False)
            key, _ = keys.popitem(last=False)
            if keys:
                lanes[lane] = keys
            self._is_ready.discard(key)
            self._in_progress[key] = None
            taken.append(key)
        return taken

    def complete(self, key: ObjectKey, result: ReconcileResult) -> None:
        """Finish a key in progress; requeue it as `result` requests."""
        assert key in self._in_progress, f"{key} is not in progress"
        again = self._in_progress.pop(key)
        now = asyncio.get_running_loop().time()
        if result.error is not None:
            failing = self._failing.setdefault(key, _Failing(0, 0.0))
            failing.times += 1
            pause = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2 ** min(failing.times - 1, 20)) * (0.75 + self._jitter() / 2)
            failing.not_before = now + min(pause, MIN_PAUSE_S)
            self.put(key, pause)
        else:
            self._failing.pop(key, None)
            if result.requeue_after_s is not None:
                self.put(key, result.requeue_after_s)
        if again is not None:
            self.put(key, max(0.0, again - now))

    def put_back(self, keys: Sequence[ObjectKey]) -> None:
        """Return popped keys that were not reconciled to the queue."""
        for key in keys:
            self._in_progress.pop(key, None)
            self.put(key)

    def depth(self, kind: Kind) -> int:
        """Return the number of due keys of a kind."""
        return sum(len(keys) for keys in self._ready.get(kind, {}).values())

    def waiting(self) -> int:
        """Return the number of keys that are not due yet."""
        return len(self._due)

    def failing(self, kind: Kind) -> int:
        """Return the number of keys of a kind whose last reconciliation failed."""
        return sum(key.kind == kind for key in self._failing)

    def _wait_until(self, key: ObjectKey, due: float, now: float) -> None:
        if due <= now:
            self._due.pop(key, None)
            self._make_ready(key)
            return
        self._due[key] = due
        heapq.heappush(self._heap, (due, next(self._numbers), key))
        if len(self._heap) > 64 + 2 * len(self._due):
            self._heap = [(due, number, key) for due, number, key in self._heap if self._due.get(key) == due]
            heapq.heapify(self._heap)
        self._set_timer()

    def _make_ready(self, key: ObjectKey) -> None:
        self._is_ready.add(key)
        self._ready.setdefault(key.kind, OrderedDict()).setdefault(self._lane_of(key), OrderedDict())[key] = None
        waker = self._wakers.get(key.kind)
        if waker is not None:
            waker.set()

    def _set_timer(self) -> None:
        if self._timer is not None:
            if self._heap and self._timer_due <= self._heap[0][0]:
                return
            self._timer.cancel()
            self._timer = None
        if self._heap:
            self._timer_due = self._heap[0][0]
            self._timer = asyncio.get_running_loop().call_at(self._timer_due, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time() + 1e-6
        while self._heap and self._heap[0][0] <= now:
            due, _, key = heapq.heappop(self._heap)
            if self._due.get(key) == due:
                del self._due[key]
                self._make_ready(key)
        self._set_timer()
