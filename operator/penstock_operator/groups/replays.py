"""Replays dead letters in the background, for as long as this process is the leader. The controller of ConsumerGroups
starts and stops replays; their progress queues the keys of their objects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from penstock.runtime.tasks import report_failure
from penstock_operator.engine.ports import ConnectionPool, Queue
from penstock_operator.model.common import ObjectKey
from penstock_operator.ports.brokers import BrokerGateway, BrokersError, ReplayCount, ReplayRequest
from penstock_operator.reconcile.group.types import ObservedReplay

MAX_CONCURRENT_REPLAYS = 4
"""Bounds the memory: each replay buffers letters."""
PROGRESS_S = 2.0
"""Delay from progress to the reconciliation that reads it."""
FIRST_RETRY_S, MAX_RETRY_S = 2.0, 60.0
ClusterKey = tuple[str, str]
"""Namespace and name of a Cluster."""


class GroupReplays:
    """The replays of all ConsumerGroups, at most one each. Replays of one dead-letter topic follow one another: they
    share the progress at the brokers, and would fence each other."""

    def __init__(self, connections: ConnectionPool, queue: Queue) -> None:
        self._connections, self._queue = connections, queue
        self._states: dict[ObjectKey, ObservedReplay] = {}
        self._tasks: dict[ObjectKey, asyncio.Task[None]] = {}
        self._active: set[tuple[ClusterKey, str]] = set()
        """Cluster and topic of the replays that have a connection."""
        self._changed = asyncio.Condition()

    async def run(self) -> None:
        """Wait until cancelled, and stop all replays."""
        try:
            await asyncio.Event().wait()
        finally:
            tasks = list(self._tasks.values())
            for key in list(self._tasks):
                self.stop(key)
            await asyncio.gather(*tasks, return_exceptions=True)

    def find(self, key: ObjectKey) -> ObservedReplay | None:
        """Return the replay of an object that runs or has ended."""
        return self._states.get(key)

    def start(self, key: ObjectKey, cluster: ClusterKey, request: ReplayRequest) -> None:
        """Start a replay unless the same one runs or has ended. It replaces another one of the object."""
        known = self._states.get(key)
        if known is not None and known.request == request:
            return
        self.stop(key)
        self._states[key] = ObservedReplay(request)
        task = asyncio.create_task(self._run(key, cluster, request), name=f"replay of {key.namespace}/{key.name}")
        self._tasks[key] = task
        task.add_done_callback(partial(self._ended, key))

    def stop(self, key: ObjectKey) -> None:
        """Stop the replay of an object, if there is one. Letters whose transaction is complete stay replayed."""
        self._states.pop(key, None)
        task = self._tasks.pop(key, None)
        if task is not None:
            task.cancel()

    def _ended(self, key: ObjectKey, task: asyncio.Task[None]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]
        report_failure(task)

    async def _run(self, key: ObjectKey, cluster: ClusterKey, request: ReplayRequest) -> None:
        """Replay until all letters are sent, or until the brokers reject it for good."""
        pause_s = FIRST_RETRY_S
        while True:
            try:
                brokers = self._connections.gateway_for(*cluster)
                if brokers is None:
                    raise BrokersError(f'Cluster "{cluster[1]}" does not exist in this namespace')
                count = await self._replay(brokers, key, cluster, request)
            except BrokersError as error:
                self._update(key, request, partial(replace, error=str(error), has_failed=not error.is_passing))
                if not error.is_passing:
                    return
            else:
                self._update(key, request, partial(replace, count=count, error="", is_finished=True))
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_RETRY_S)

    async def _replay(
        self, brokers: BrokerGateway, key: ObjectKey, cluster: ClusterKey, request: ReplayRequest
    ) -> ReplayCount:
        place = (cluster, request.topic)
        async with self._changed:
            await self._changed.wait_for(
                lambda: place not in self._active and len(self._active) < MAX_CONCURRENT_REPLAYS
            )
            self._active.add(place)
        try:
            return await brokers.replay_letters(request, partial(self._record, key, request))
        finally:
            self._active.remove(place)
            async with self._changed:
                self._changed.notify_all()

    def _record(self, key: ObjectKey, request: ReplayRequest, count: ReplayCount) -> None:
        self._update(key, request, partial(replace, count=count, error=""), PROGRESS_S)

    def _update(
        self,
        key: ObjectKey,
        request: ReplayRequest,
        change: Callable[[ObservedReplay], ObservedReplay],
        delay_s: float = 0.0,
    ) -> None:
        known = self._states.get(key)
        if known is not None and known.request == request:
            self._states[key] = change(known)
            self._queue.put(key, delay_s)
