"""The partitions that this broker hosts. Looked up for each partition of each Produce and Fetch.

A `Partition` is made when somebody first asks for it, so that ten thousand idle ones cost nothing; the view decides
which exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from uuid import UUID

from penstock.config.broker import BrokerConfig
from penstock.log.log_dir import LogDir
from penstock.log.types import LogDirFailed, LogError
from penstock.replica.partition import Partition
from penstock.replica.producer_state import ProducerState
from penstock.runtime.clock import Clock
from penstock.state.view import ClusterView, TopicChange, TopicView
from penstock.wire.errors import ErrorCode

Topic = str | UUID
"""What a request calls a topic by: its name or, from some versions on, its id."""


OPENING_PAUSE_S = 0.05
EXPIRY_S = 600.0
"""How often silent producers are looked for."""


class ReplicaManager:
    """Hosted partitions by (topic name or id, index)."""

    def __init__(self, view: ClusterView, log_dir: LogDir, clock: Clock, config: BrokerConfig) -> None:
        self.view, self.log_dir, self.clock = view, log_dir, clock
        self.config = config
        self.broker_id = config.node_id
        self.expiry: asyncio.TimerHandle | None = None
        self.hosted: dict[tuple[Topic, int], Partition] = {}
        view.subscribe(self.on_topics_changed)

    def __iter__(self) -> Iterator[Partition]:
        """The partitions that have been asked for, each once."""
        return (p for (topic, _), p in list(self.hosted.items()) if isinstance(topic, UUID))

    def find(self, topic: Topic, index: int) -> Partition | None:
        """The partition, if the cluster has it and this broker leads it."""
        return self.hosted.get((topic, index)) or self.host(topic, index)

    def topic(self, topic: Topic) -> TopicView | None:
        return self.view.topics.get(topic) if isinstance(topic, str) else self.view.topics_by_id.get(topic)

    def absence(self, topic: Topic, index: int) -> tuple[ErrorCode, tuple[int, int] | None]:
        """Why `find` has nothing: the error, and (leader's id, leader epoch) where another broker serves it."""
        found = self.topic(topic)
        if found is None:
            by_name = isinstance(topic, str)
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if by_name else ErrorCode.UNKNOWN_TOPIC_ID, None
        if not 0 <= index < len(found.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
        placed = found.partitions[index]
        if placed.leader != self.broker_id:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, (placed.leader, placed.leader_epoch)
        if (found.topic_id, index) in self.log_dir.releasing:  # for a moment: clients come again
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, None
        return ErrorCode.KAFKA_STORAGE_ERROR, None

    def host(self, topic: Topic, index: int) -> Partition | None:
        """Makes the partition's object; its files are only touched when there is something in them.

        None also where they are damaged, or the log directory has failed: those partitions are offline.
        """
        found = self.topic(topic)
        if found is None or not 0 <= index < len(found.partitions):
            return None
        placed = found.partitions[index]
        if placed.leader != self.broker_id:
            return None
        producers = ProducerState()
        try:
            log = self.log_dir.open_or_create(found.topic_id, found.name, index, found.config, producers)
        except LogError:  # reported when it was found
            return None
        partition = Partition(found.name, found.topic_id, index, placed.leader_epoch, log, producers, self.clock)
        self.hosted[found.name, index] = self.hosted[found.topic_id, index] = partition
        return partition

    def damaged(self) -> list[tuple[str, int]]:
        """(topic, partition) of those whose files are damaged, so that they are offline."""
        topics, found = self.view.topics_by_id, []
        for topic_id, index in self.log_dir.corrupt:
            if topic_id in topics:
                found.append((topics[topic_id].name, index))
        if self.log_dir.failed is None:
            found += [(p.name, p.index) for p in self if p.log.failed is not None]
        return found

    def offline(self) -> int:
        """How many partitions that this broker leads cannot be served."""
        if self.log_dir.failed is None:
            return len(self.damaged())
        return sum(p.leader == self.broker_id for topic in self.view.topics.values() for p in topic.partitions)

    async def host_unopened(self) -> None:
        """Opens, one by one and in no hurry, what has data and nobody asked for: it too grows old and is compacted."""
        for topic_id, index in self.log_dir.unopened():
            self.find(topic_id, index)
            await asyncio.sleep(OPENING_PAUSE_S)

    def on_topics_changed(self, changes: list[TopicChange]) -> None:
        for change in changes:
            old, new = change.old, change.new
            if old is not None and (new is None or new.topic_id != old.topic_id):
                self.drop(old)
            elif old is not None and new is not None and old.config != new.config:
                for index in range(len(old.partitions)):
                    if partition := self.hosted.get((new.topic_id, index)):
                        partition.reconfigure(new.config)

    def drop(self, topic: TopicView) -> None:
        """Stops serving a topic that the cluster no longer has; its data is another's to delete (`forget_topic`).

        Without a tombstone nobody may: its logs are closed, and can be opened again should the topic come back.
        """
        is_deleted = topic.topic_id in self.view.deleting
        for index in range(len(topic.partitions)):
            partition = self.hosted.pop((topic.topic_id, index), None)
            named = self.hosted.get((topic.name, index))
            if named is not None and named.topic_id == topic.topic_id:
                del self.hosted[topic.name, index]
            if partition is not None:
                partition.on_deleted()
                if not is_deleted:
                    self.log_dir.release(topic.topic_id, index)

    async def forget_topic(self, topic_id: UUID) -> None:
        """Deletes the data of a topic that has a tombstone: for nothing less is data deleted.

        The tombstone must stay until this returns, or a crash would leave data that nobody knows.
        Raises LogDirFailed.
        """
        assert topic_id in self.view.deleting, f"topic {topic_id} has no tombstone"
        await asyncio.gather(*self.log_dir.delete_topic(topic_id))
        if self.log_dir.failed is not None:
            raise LogDirFailed(f"the data of topic {topic_id} could not be deleted: {self.log_dir.failed}")

    def expire_producers(self) -> None:
        """Forgets idempotent producers that have been silent for `producer.id.expiration.ms`."""
        now_ms, silent_ms = self.clock.boot_ms(), self.config.producer_id_expiration_ms
        for partition in self:
            partition.producers.expire(now_ms, silent_ms)
        self.schedule_expiry()

    def schedule_expiry(self) -> None:
        loop = asyncio.get_running_loop()
        self.expiry = loop.call_later(EXPIRY_S, self.expire_producers)

    def wake_readers(self) -> None:
        """Has everybody who waits for data answered with what there is, as before an end."""
        for partition in self:
            for reader in list(partition.readers):
                reader.on_end()

    def close(self) -> None:
        if self.expiry is not None:
            self.expiry.cancel()
