"""Runs the tasks of topics with fewer partitions on this broker: one per sealed partition that it leads, and one per
topic whose first partition it leads. Created by `node`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from uuid import UUID

from penstock.replica.manager import ReplicaManager
from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock.runtime.tasks import spawn
from penstock.shrink.driver import STABLE_S, ShrinkDriver
from penstock.shrink.relay import RelayServices, TargetLogs
from penstock.shrink.sealed_partition import SealedPartition, SealServices, needs_steps
from penstock.state.store import Store
from penstock.state.view import TopicChange, TopicView
from penstock.state.watcher import Watcher

log = get_logger("penstock.shrink")

DRAIN_INTERVAL_S = 5.0

Key = tuple[UUID, int]
DRIVER = -1
"""Stands in a key for the topic itself."""


class TopicShrinks:
    """The tasks of this broker. Topics whose number of partitions was never reduced cost nothing."""

    def __init__(
        self,
        replicas: ReplicaManager,
        store: Store,
        watcher: Watcher,
        clock: Clock,
        logs: TargetLogs,
        new_producer_id: Callable[[], Awaitable[int]],
        drain_interval_s: float = DRAIN_INTERVAL_S,
        stable_s: float = STABLE_S,
    ) -> None:
        self._replicas, self._store, self._watcher, self._clock = replicas, store, watcher, clock
        self._seal_services = SealServices(replicas, watcher, RelayServices(store, logs, new_producer_id))
        self._drain_interval_s, self._stable_s = drain_interval_s, stable_s
        self._running: dict[Key, tuple[SealedPartition | ShrinkDriver, asyncio.Task[None]]] = {}
        self._closed = False

    def start(self) -> None:
        """Start the tasks of all topics, and follow the view."""
        self._replicas.view.subscribe(self._on_changes)
        self._update(list(self._replicas.view.topics_by_id.values()))

    async def close(self) -> None:
        """Stop all tasks."""
        self._closed = True
        tasks = [task for _, task in self._running.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _on_changes(self, changes: list[TopicChange]) -> None:
        for old in (change.old for change in changes):
            if old is not None:
                self._notify_all(old)
        self._update([change.new for change in changes if change.new is not None])

    def _update(self, topics: Iterable[TopicView]) -> None:
        """Start the missing tasks of topics, and notify the others."""
        if self._closed:
            return
        own_id = self._replicas.broker_id
        for topic in topics:
            if topic.shrink is None and not topic.seals:
                continue
            self._notify_all(topic)
            if topic.shrink is not None and topic.partitions[0].leader == own_id:
                self._start((topic.topic_id, DRIVER))
            for placed in topic.partitions:
                if placed.leader == own_id and needs_steps(topic, placed.index):
                    self._start((topic.topic_id, placed.index))

    def _notify_all(self, topic: TopicView) -> None:
        """Notify the tasks of a topic."""
        if topic.shrink is not None or topic.seals:
            for index in range(DRIVER, len(topic.partitions)):
                if (running := self._running.get((topic.topic_id, index))) is not None:
                    running[0].notify()

    def _start(self, key: Key) -> None:
        """Start a task that is not running."""
        if key in self._running:
            return
        topic_id, index = key
        work: SealedPartition | ShrinkDriver
        if index == DRIVER:
            work = ShrinkDriver(
                topic_id,
                self._replicas,
                self._store,
                self._watcher,
                self._clock,
                self._drain_interval_s,
                self._stable_s,
            )
        else:
            work = SealedPartition(topic_id, index, self._seal_services)
        task = spawn(work.run(), f"fewer partitions of {topic_id}, {index}")
        self._running[key] = work, task
        task.add_done_callback(lambda _: self._on_done(key))

    def _on_done(self, key: Key) -> None:
        """Forget a task that has ended, and start it again if the view has changed since."""
        _, task = self._running.pop(key)
        if task.cancelled() or task.exception() is not None:  # a bug: a restart at once would repeat it
            return
        topic = self._replicas.view.topics_by_id.get(key[0])
        if topic is not None:
            self._update([topic])
