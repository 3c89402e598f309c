"""Small objects by which rooms see each other's work: what is hosted, how large it is, what is nobody's any more."""

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
from penstock.state import keys
from penstock.state.records import PartitionRecord, decode
from penstock.state.store import Store
from penstock.state.view import ClusterView, TopicChange
from penstock.state.watcher import Watcher

log = get_logger("penstock.node")

RETRY_S = 1.0
"""Before another look whether what is deleted in the store may be deleted here."""


class Hosted:
    """The partitions that the cluster knows, as a container of (topic id, index).

    Those on their way out are among them, and all of a topic that is no topic to the view, but of which the store has
    something: a value of it may be damaged, and its data is needed when that is mended.
    """

    def __init__(self, view: ClusterView, watcher: Watcher) -> None:
        self.view, self.watcher = view, watcher

    def __contains__(self, key: object) -> bool:
        assert isinstance(key, tuple), key
        topic = self.view.topics_by_id.get(key[0])
        return key[1] < len(topic.partitions) if topic is not None else self.watcher.has_keys_of(key[0])


class DirSizes:
    """Implements `api.log_dirs.LogSizes` for the one log directory."""

    def __init__(self, log_dir: LogDirectory) -> None:
        self.log_dir = log_dir

    def log_dirs(self) -> list[LogDirState]:
        """May wait for the disk. Sizes are -1 where they cannot be had."""
        path, has_failed = self.log_dir.path, self.log_dir.failed is not None
        try:
            usage = shutil.disk_usage(path)
        except OSError as e:
            log.warning("the size of the file system is unknown", path=path, error=str(e))
            return [LogDirState(path, has_failed, -1, -1)]
        return [LogDirState(path, has_failed, usage.total, usage.free)]

    def partition_bytes(self, path: str, topic_id: UUID, index: int) -> int | None:
        return self.log_dir.partition_bytes(topic_id, index)


class Assignments:
    """What the store, read linearizably, says of this broker's replicas: without its word no data is deleted."""

    def __init__(self, store: Store, broker_id: int) -> None:
        self.store, self.broker_id = store, broker_id

    async def is_unassigned(self, topic_id: UUID, index: int) -> bool:
        """Whether the partition's record leaves this broker out. Raises StoreError, BadRecord."""
        entry = await self.store.get(keys.partition(topic_id, index))
        if entry is None:
            return False
        record = decode(PartitionRecord, entry.key, entry.value)
        return self.broker_id not in [*record.replicas, *record.adding]


class DeletedTopics:
    """Deletes this broker's data of topics that have a tombstone; for a cluster, where each broker has its own.

    While the store may have gone back in time it is not believed: what is due waits. What cannot be deleted is tried
    again after the next start, as a tombstone stays for a day.
    """

    def __init__(self, view: ClusterView, replicas: ReplicaManager, may_discard: Callable[[], bool]) -> None:
        self.view, self.replicas, self.may_discard = view, replicas, may_discard
        self.tasks: set[asyncio.Task[None]] = set()
        self.due: set[UUID] = set()
        self.beginning: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.view.subscribe(self._on_topics)
        for topic_id in self.view.deleting & self.replicas.log_dir.topics.keys():
            self._delete(topic_id)

    def _on_topics(self, changes: list[TopicChange]) -> None:
        for change in changes:
            if change.new is None and change.old is not None and change.old.topic_id in self.view.deleting:
                self._delete(change.old.topic_id)

    def _delete(self, topic_id: UUID) -> None:
        self.due.add(topic_id)
        if self.beginning is None or self.beginning.done():
            self.beginning = asyncio.get_running_loop().create_task(self._begin())

    async def _begin(self) -> None:
        """Begins all that is due as soon as that may be."""
        while not self.may_discard():  # noqa: ASYNC110 - nobody tells when the store is believed again
            await asyncio.sleep(RETRY_S)
        due, self.due = self.due, set()
        for topic_id in due & self.view.deleting:
            task = asyncio.get_running_loop().create_task(self._forget(topic_id))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _forget(self, topic_id: UUID) -> None:
        if topic_id not in self.view.deleting:
            return
        if not self.may_discard():
            self._delete(topic_id)
            return
        try:
            await self.replicas.forget_topic(topic_id)
        except LogError as e:
            log.warning("data of a deleted topic stays for now", topic_id=str(topic_id), reason=str(e))

    async def close(self) -> None:
        if self.beginning is not None:
            self.beginning.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
