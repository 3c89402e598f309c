"""Moves a topic with fewer partitions on: hides surplus partitions once they are read, and removes the record of the
change at its end. The leader of partition 0 runs it; all writes are conditional, so that two such brokers do no harm.
"""

from __future__ import annotations

import asyncio
from uuid import UUID

from penstock.replica.manager import ReplicaManager
from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock.shrink.committed import read_committed_offsets
from penstock.shrink.stages import is_draining, is_finished, may_hide
from penstock.state import keys
from penstock.state.records import BadRecord, encode
from penstock.state.shrink_records import ShrinkRecord
from penstock.state.store import Compare, CompareTarget, DeleteOp, Operation, PutOp, Store, StoreError
from penstock.state.view import TopicView
from penstock.state.watcher import Watcher

log = get_logger("penstock.shrink")

READS_SHARE = 20
"""The offsets are read for at most one part in so many of the time."""
STABLE_S = 30.0
"""Time for which the leaders of the surplus partitions must stay before clients no longer see them. A producer whose
batch got no answer from a leader finds the next one by Metadata only."""
RETRY_S = 5.0
VIEW_TIMEOUT_S = 10.0


class ShrinkDriver:
    """The driver of one topic. `interval_s` is the least time between two reads of the committed offsets."""

    def __init__(
        self,
        topic_id: UUID,
        replicas: ReplicaManager,
        store: Store,
        watcher: Watcher,
        clock: Clock,
        interval_s: float,
        stable_s: float,
    ) -> None:
        self.topic_id, self._replicas, self._store, self._watcher = topic_id, replicas, store, watcher
        self._clock, self._interval_s = clock, interval_s
        self._stable_ms = stable_s * 1000
        self._leader_epochs: list[int] | None = None
        self._leaders_since_ms = 0
        self._news = asyncio.Event()

    def notify(self) -> None:
        """Continue: the view has changed."""
        self._news.set()

    async def run(self) -> None:
        """Move the topic on until nothing is left to do, or another broker leads its first partition."""
        while (topic := self._topic()) is not None:
            self._news.clear()
            try:
                pause_s = await self._step(topic)
            except (StoreError, BadRecord) as e:
                log.warning("cannot move a topic with fewer partitions on: retrying", topic=topic.name, reason=str(e))
                pause_s = RETRY_S
            if pause_s is None:
                await self._news.wait()
            else:
                await asyncio.sleep(pause_s)

    def _topic(self) -> TopicView | None:
        """Return the topic while it has fewer partitions and this broker leads its first one; else None."""
        topic = self._replicas.view.topics_by_id.get(self.topic_id)
        if topic is None or topic.shrink is None or topic.partitions[0].leader != self._replicas.broker_id:
            return None
        return topic

    async def _step(self, topic: TopicView) -> float | None:
        """Move on if possible. Returns the time until the next step in seconds, None to wait for news.

        Raises StoreError, BadRecord.
        """
        assert topic.shrink is not None, "only topics with fewer partitions have a driver"
        if is_finished(topic):
            await self._write(topic, DeleteOp(keys.shrink(topic.topic_id)))
            return None
        has_stable_leaders = self._has_stable_leaders(topic)
        if not is_draining(topic):
            return None
        started_ms = self._clock.boot_ms()
        committed = await read_committed_offsets(self._store, topic.topic_id)
        read_s = (self._clock.boot_ms() - started_ms) / 1000
        if self._replicas.view.topics_by_id.get(self.topic_id) is not topic:
            return 0.0
        if not may_hide(topic, committed) or not has_stable_leaders:
            return max(self._interval_s, READS_SHARE * read_s)
        remaining = topic.shrink.remaining
        record = ShrinkRecord(remaining=remaining, shown=remaining, changed_ms=self._clock.wall_ms())
        if await self._write(topic, PutOp(keys.shrink(topic.topic_id), encode(record))):
            log.info("surplus partitions are read and hidden", topic=topic.name, partitions=remaining)
        return None

    def _has_stable_leaders(self, topic: TopicView) -> bool:
        """Return whether the surplus partitions have had their leaders for `stable_s`, as far as this driver knows."""
        epochs, now_ms = [placed.leader_epoch for placed in topic.partitions], self._clock.boot_ms()
        if self._leader_epochs != epochs:
            self._leader_epochs, self._leaders_since_ms = epochs, now_ms
        return now_ms - self._leaders_since_ms >= self._stable_ms

    async def _write(self, topic: TopicView, operation: Operation) -> bool:
        """Apply an operation if the topic and its number of partitions have not changed; return whether it was."""
        assert topic.shrink is not None, "only topics with fewer partitions have a driver"
        key = keys.shrink(topic.topic_id)
        compares = [Compare(key, CompareTarget.MOD_REVISION, topic.shrink.revision)]
        result = await self._store.txn(compares, [operation])
        if result.succeeded:
            await self._watcher.applied(result.revision, VIEW_TIMEOUT_S)
        return result.succeeded
