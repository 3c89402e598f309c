"""Small objects by which rooms see each other's work: what is hosted, how large it is, what is nobody's any more."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from uuid import UUID

from penstock.api.log_dirs import LogDirState
from penstock.log.log_dir import LogDir
from penstock.log.types import LogError
from penstock.replica.manager import ReplicaManager
from penstock.runtime.logging import get_logger
from penstock.state import keys
from penstock.state.records import PartitionRecord, decode
from penstock.state.store import Store
from penstock.state.view import ClusterView, TopicChange

log = get_logger("penstock.node")


class Hosted:
    """The partitions that the cluster knows, those on their way out included, as a container of (topic id, index)."""

    def __init__(self, view: ClusterView) -> None:
        self.view = view

    def __contains__(self, key: object) -> bool:
        assert isinstance(key, tuple), key
        topic = self.view.topics_by_id.get(key[0])
        return key[0] in self.view.deleting or (topic is not None and key[1] < len(topic.partitions))


class DirSizes:
    """Implements `api.log_dirs.LogSizes` for the one log directory."""

    def __init__(self, log_dir: LogDir) -> None:
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

    What cannot be deleted now is deleted after the next start: a tombstone stays for a day.
    """

    def __init__(self, view: ClusterView, replicas: ReplicaManager, may_discard: Callable[[], bool]) -> None:
        self.view, self.replicas, self.may_discard = view, replicas, may_discard
        self.tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self.view.subscribe(self._on_topics)
        for topic_id in self.view.deleting & self.replicas.log_dir.topics.keys():
            self._delete(topic_id)

    def _on_topics(self, changes: list[TopicChange]) -> None:
        for change in changes:
            if change.new is None and change.old is not None and change.old.topic_id in self.view.deleting:
                self._delete(change.old.topic_id)

    def _delete(self, topic_id: UUID) -> None:
        task = asyncio.get_running_loop().create_task(self._forget(topic_id))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _forget(self, topic_id: UUID) -> None:
        if not self.may_discard() or topic_id not in self.view.deleting:
            return
        try:
            await self.replicas.forget_topic(topic_id)
        except LogError as e:
            log.warning("data of a deleted topic stays for now", topic_id=str(topic_id), reason=str(e))

    async def close(self) -> None:
        await asyncio.gather(*self.tasks, return_exceptions=True)
