"""The partitions that this broker stores: which are known, their sizes and assignments, and the deletion of their data.

These classes connect the view, the logs and the replicas. Used by `broker` and `clustered`.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from uuid import UUID

from penstock.api.log_dirs import LogDirState
from penstock.log.log_dir import LogDirectory
from penstock.log.types import LogError
from penstock.replica.manager import ReplicaManager
from penstock.runtime.logging import get_logger
from penstock.runtime.tasks import spawn
from penstock.state import keys
from penstock.state.records import PartitionRecord, decode
from penstock.state.store import Store
from penstock.state.view import ClusterView, TopicChange
from penstock.state.watcher import Watcher

log = get_logger("penstock.node")

RETRY_S = 1.0
"""Interval between checks whether data may be deleted."""


class KnownPartitions:
    """The partitions that the cluster knows, as a container of (topic id, index).

    It includes topics being deleted, and all partitions of a topic that the view lacks but of which the store has keys:
    a value may be damaged, and the data is needed once it is repaired.
    """

    def __init__(self, view: ClusterView, watcher: Watcher) -> None:
        self.view, self.watcher = view, watcher

    def __contains__(self, key: object) -> bool:
        assert isinstance(key, tuple), key
        topic = self.view.topics_by_id.get(key[0])
        return key[1] < len(topic.partitions) if topic is not None else self.watcher.has_keys_of(key[0])


class LogDirSizes:
    """Implements `api.log_dirs.LogSizes` for the one log directory."""

    def __init__(self, log_dir: LogDirectory) -> None:
        self.log_dir = log_dir

    def log_dirs(self) -> list[LogDirState]:
        """Return the directory's state. May block on the disk. Unknown sizes are -1."""
        path, has_failed = self.log_dir.path, self.log_dir.failed is not None
        try:
            usage = shutil.disk_usage(path)
        except OSError as e:
            log.warning("cannot read the size of the file system", path=path, error=str(e))
            return [LogDirState(path, has_failed, -1, -1)]
        return [LogDirState(path, has_failed, usage.total, usage.free)]

    def partition_bytes(self, path: str, topic_id: UUID, index: int) -> int | None:
        """Return the size of a partition; None if it is not stored here."""
        return self.log_dir.partition_bytes(topic_id, index)


class ReplicaAssignments:
    """Reads this broker's assignments linearizably from the store: the condition for deleting replica data."""

    def __init__(self, store: Store, broker_id: int) -> None:
        self.store, self.broker_id = store, broker_id

    async def is_unassigned(self, topic_id: UUID, index: int) -> bool:
        """Return whether the partition's record leaves this broker out. Raises `StoreError`, `BadRecord`."""
        entry = await self.store.get(keys.partition(topic_id, index))
        if entry is None:
            return False
        record = decode(PartitionRecord, entry.key, entry.value)
        return self.broker_id not in [*record.replicas, *record.adding]


class TopicDataDeleter:
    """Deletes this broker's data of topics with a tombstone, in a cluster.

    Nothing is deleted while the store may be a restored one. What cannot be deleted is retried after the next start,
    since a tombstone stays for a day.
    """

    def __init__(self, view: ClusterView, replicas: ReplicaManager, may_discard: Callable[[], bool]) -> None:
        self.view, self.replicas, self.may_discard = view, replicas, may_discard
        self.tasks: set[asyncio.Task[None]] = set()
        self.due: set[UUID] = set()
        self.starting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Delete what is due, and follow the view."""
        self.view.subscribe(self._on_topics)
        for topic_id in self.view.deleting & self.replicas.log_dir.topics.keys():
            self._delete(topic_id)

    def _on_topics(self, changes: list[TopicChange]) -> None:
        for change in changes:
            if change.new is None and change.old is not None and change.old.topic_id in self.view.deleting:
                self._delete(change.old.topic_id)

    def _delete(self, topic_id: UUID) -> None:
        self.due.add(topic_id)
        if self.starting is None or self.starting.done():
            self.starting = spawn(self._start_deletions(), "deletions")

    async def _start_deletions(self) -> None:
        """Start all due deletions once data may be deleted."""
        while not self.may_discard():  # noqa: ASYNC110 - the guard has no event for this
            await asyncio.sleep(RETRY_S)
        due, self.due = self.due, set()
        for topic_id in due & self.view.deleting:
            task = spawn(self._delete_data(topic_id), f"delete topic {topic_id}")
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _delete_data(self, topic_id: UUID) -> None:
        if topic_id not in self.view.deleting:
            return
        if not self.may_discard():
            self._delete(topic_id)
            return
        try:
            await self.replicas.delete_topic(topic_id)
        except LogError as e:
            log.warning(
                "data of a deleted topic not removed; retrying at the next start", topic_id=str(topic_id), reason=str(e)
            )

    async def close(self) -> None:
        """Cancel pending deletions and wait for running ones."""
        if self.starting is not None:
            self.starting.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
