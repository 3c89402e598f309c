"""The keys that are to be looked at: each once, however many events named it. `engine.runner` takes batches out.

Sans-io but for the running loop's clock and timers, so that it is tested in virtual time. What it guarantees:
- One entry for each key, without a limit to their number: 10,000 events for one object are one look, and no number of
  objects is too many.
- A key is never looked at twice at once; an event that comes meanwhile makes it looked at again afterwards.
- A key that failed waits, longer each time (with jitter), up to `MAX_PAUSE_S`; an event may bring that forward, but
  not below `MIN_PAUSE_S`: what a failing look writes about itself must not call for the next look at once.
- Kinds do not wait for each other, and inside a kind the lanes (clusters) take turns.
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
    """`jitter` gives numbers from 0 to 1; `lane_of` the lane of a key."""

    def __init__(self, jitter: Callable[[], float], lane_of: Callable[[ObjectKey], Lane]) -> None:
        self._jitter, self._lane_of = jitter, lane_of
        self._due: dict[ObjectKey, float] = {}
        """Keys that wait for their time. The heap may have more entries than this, outdated ones."""
        self._heap: list[tuple[float, int, ObjectKey]] = []
        self._numbers = itertools.count()
        self._ready: dict[Kind, OrderedDict[Lane, OrderedDict[ObjectKey, None]]] = {}
        self._is_ready: set[ObjectKey] = set()
        self._taken: dict[ObjectKey, float | None] = {}
        """Keys that are being looked at, and when they are to be looked at again."""
        self._failing: dict[ObjectKey, _Failing] = {}
        self._wakers: dict[Kind, asyncio.Event] = {}
        self._timer: asyncio.TimerHandle | None = None

    def put(self, key: ObjectKey, delay_s: float = 0.0) -> None:
        now = asyncio.get_running_loop().time()
        failing = self._failing.get(key)
        due = max(now + delay_s, failing.not_before if failing else now)
        if key in self._taken:
            again = self._taken[key]
            self._taken[key] = due if again is None else min(again, due)
        elif key not in self._is_ready and due < self._due.get(key, float("inf")):
            self._wait_until(key, due, now)

    async def take(self, kind: Kind, limit: int) -> list[ObjectKey]:
        """Waits until there are keys of this kind, and takes up to `limit`: from each lane in turn."""
        assert limit > 0, f"a batch of {limit} is none"
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
            self._taken[key] = None
            taken.append(key)
        return taken

    def done(self, key: ObjectKey, verdict: ReconcileResult) -> None:
        """Gives a key back that was taken."""
        assert key in self._taken, f"{key} was not taken"
        again = self._taken.pop(key)
        now = asyncio.get_running_loop().time()
        if verdict.error is not None:
            failing = self._failing.setdefault(key, _Failing(0, 0.0))
            failing.times += 1
            pause = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2 ** min(failing.times - 1, 20)) * (0.75 + self._jitter() / 2)
            failing.not_before = now + min(pause, MIN_PAUSE_S)
            self.put(key, pause)
        else:
            self._failing.pop(key, None)
            if verdict.look_again_s is not None:
                self.put(key, verdict.look_again_s)
        if again is not None:
            self.put(key, max(0.0, again - now))

    def put_back(self, keys: Sequence[ObjectKey]) -> None:
        """Gives keys back that were taken and not looked at, as if they had not been."""
        for key in keys:
            self._taken.pop(key, None)
            self.put(key)

    def depth(self, kind: Kind) -> int:
        """Keys that could be looked at now."""
        return sum(len(keys) for keys in self._ready.get(kind, {}).values())

    def waiting(self) -> int:
        """Keys whose time has not come."""
        return len(self._due)

    def failing(self, kind: Kind) -> int:
        """Keys whose last look failed."""
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
            if self._heap and self._timer.when() <= self._heap[0][0]:
                return
            self._timer.cancel()
            self._timer = None
        if self._heap:
            self._timer = asyncio.get_running_loop().call_at(self._heap[0][0], self._ring)

    def _ring(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time() + 1e-6
        while self._heap and self._heap[0][0] <= now:
            due, _, key = heapq.heappop(self._heap)
            if self._due.get(key) == due:
                del self._due[key]
                self._make_ready(key)
        self._set_timer()
