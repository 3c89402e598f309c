"""The partitions that this broker hosts. Looked up for each partition of each Produce and Fetch.

The view decides which role this broker has for each (`roles`). A leader is made when somebody first asks for it, so
that ten thousand idle ones cost nothing; followers have to fetch, so they are made in slices when their broker starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any, Protocol
from uuid import UUID

from penstock.config.broker import BrokerConfig
from penstock.config.internal_topics import INTERNAL_TOPICS
from penstock.log.log_dir import LogDirectory
from penstock.log.partition_log import PartitionLog
from penstock.log.types import LogDirFailed, LogError
from penstock.replica.blocked_producers import RejectedBatches
from penstock.replica.follower import Follower
from penstock.replica.health import ReplicaHealth, count_health
from penstock.replica.leader import Leader, LeaderHost
from penstock.replica.membership import ReplicaMembership
from penstock.replica.offline import Offline
from penstock.replica.partition import Partition
from penstock.replica.producer_state import ProducerState
from penstock.replica.roles import Roles, may_lead
from penstock.replica.throttle import Throttles
from penstock.runtime.clock import Clock
from penstock.state.view import ClusterView, TopicChange, TopicView
from penstock.wire.errors import ErrorCode

Topic = str | UUID
"""What a request calls a topic by: its name or, from some versions on, its id."""


OPENING_PAUSE_S = 0.05
MIN_EXPIRY_S, MAX_EXPIRY_S = 1.0, 600.0
"""The least and the most seconds between two searches for silent producers."""


class Fetchers(Protocol):
    """Who fetches for followers."""

    def add(self, follower: Follower) -> None: ...

    def remove(self, follower: Follower) -> None: ...


Key = tuple[UUID, int]
Unassigned = Callable[[UUID, int], Coroutine[Any, Any, bool]]


class ReplicaManager:
    """Hosted partitions by (topic name or id, index).

    In a cluster there are a `membership`, `isr_host` for what leaders ask for, `fetchers` for the followers, and
    `is_unassigned`, which reads, linearizably, whether a partition's record leaves this broker out: only then is its
    data deleted.
    """

    def __init__(
        self,
        view: ClusterView,
        log_dir: LogDirectory,
        clock: Clock,
        config: BrokerConfig,
        membership: ReplicaMembership | None = None,
        isr_host: LeaderHost | None = None,
        fetchers: Fetchers | None = None,
        is_unassigned: Unassigned | None = None,
    ) -> None:
        self.view, self.log_dir, self.clock = view, log_dir, clock
        self.config = config
        self.broker_id = config.node_id
        self.membership, self.isr_host, self.fetchers = membership, isr_host, fetchers
        self.expiry: asyncio.TimerHandle | None = None
        self.hosted: dict[tuple[Topic, int], Leader] = {}
        """The leaders, each by name and by id."""
        self.followers: dict[Key, Follower] = {}
        self.offline_roles: dict[Key, Offline] = {}
        self.turned_away = RejectedBatches()
        self.unflushed: dict[Leader, None] = {}
        """Leaders with records that were acknowledged before they were flushed, until the flush."""
        self.throttles = Throttles(view, config)
        self.roles = Roles(self, is_unassigned)
        view.subscribe(self.on_topics_changed)

    def start(self) -> None:
        """Begins to follow what other brokers lead. Called once the view is filled and this broker has registered."""
        self.roles.start()

    def __iter__(self) -> Iterator[Partition]:
        """The partitions that have been asked for, or are followed, each once."""
        for (topic, _), leader in list(self.hosted.items()):
            if isinstance(topic, UUID):
                yield leader
        yield from list(self.followers.values())

    def find(self, topic: Topic, index: int) -> Leader | None:
        """The partition, if the cluster has it and this broker leads it."""
        return self.hosted.get((topic, index)) or self.host(topic, index)

    def find_follower(self, topic: Topic, index: int) -> Follower | None:
        """The partition, if this broker follows another that leads it."""
        found = self.topic(topic)
        return self.followers.get((found.topic_id, index)) if found is not None else None

    def may_serve(self) -> bool:
        """Whether acks=0 and 1 may be served: whoever has lost its lease may have been replaced."""
        return self.membership is None or self.membership.may_serve()

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
        placed, key = found.partitions[index], (found.topic_id, index)
        if placed.leader != self.broker_id:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, (placed.leader, placed.leader_epoch)
        if key in self.log_dir.releasing or key in self.offline_roles or not may_lead(placed, self):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, None  # for a moment: clients come again
        return ErrorCode.KAFKA_STORAGE_ERROR, None

    def turn_away(self, topic: Topic, index: int, batch: memoryview) -> tuple[ErrorCode, tuple[int, int] | None]:
        """As above, for a producer that is told so, and may have sent more behind this batch."""
        if topic in INTERNAL_TOPICS:
            return ErrorCode.INVALID_TOPIC_EXCEPTION, None
        code, leader = self.absence(topic, index)
        self.turned_away.note(topic, index, batch, code, self.clock.boot_ms())
        return code, leader

    def host(self, topic: Topic, index: int) -> Leader | None:
        """Makes the leader's object; its files are only touched when there is something in them.

        None also where they are damaged, or the log directory has failed: those partitions are offline.
        """
        found = self.topic(topic)
        if found is None or not 0 <= index < len(found.partitions):
            return None
        placed = found.partitions[index]
        if placed.leader != self.broker_id or (found.topic_id, index) in self.offline_roles:
            return None
        if not may_lead(placed, self):
            return None
        opened = self.open(found, index)
        return self.roles.lead(found, placed, *opened, None) if opened is not None else None

    def open(self, topic: TopicView, index: int) -> tuple[PartitionLog, ProducerState] | None:
        producers = ProducerState()
        try:
            return self.log_dir.open_or_create(topic.topic_id, topic.name, index, topic.config, producers), producers
        except LogError:  # reported when it was found
            return None

    def log_end(self, topic_id: UUID, index: int) -> tuple[int, int] | None:
        """(last leader epoch, log end offset) of a replica here, whatever its role; None where it cannot be told."""
        role = self.role((topic_id, index))
        if role is None:
            topic = self.view.topics_by_id.get(topic_id)
            if topic is None or not 0 <= index < len(topic.partitions):
                return None
            placed = topic.partitions[index]
            if self.broker_id not in placed.replicas or (opened := self.open(topic, index)) is None:
                return None
            self.roles.rest(topic, placed, *opened, opened[0].start_offset)
            role = self.role((topic_id, index))
            assert role is not None, "a role was just begun"
        if role.log.failed is not None:
            return None
        return role.log.epoch_at(role.log.end_offset - 1), role.log.end_offset

    def role(self, key: Key) -> Partition | None:
        """The present role for a partition, None where it has no object."""
        return self.hosted.get(key) or self.followers.get(key) or self.offline_roles.get(key)

    def keep(self, role: Partition) -> None:
        """Puts a role in its place."""
        if isinstance(role, Leader):
            self.hosted[role.name, role.index] = self.hosted[role.key] = role
        elif isinstance(role, Follower):
            self.followers[role.key] = role
            if self.fetchers is not None:
                self.fetchers.add(role)
        else:
            assert isinstance(role, Offline), role
            self.offline_roles[role.key] = role

    def forget(self, role: Partition) -> None:
        """Takes a role out; its log stays open."""
        if self.hosted.get(role.key) is role:
            del self.hosted[role.key]
            if self.hosted.get((role.name, role.index)) is role:
                del self.hosted[role.name, role.index]
        if isinstance(role, Follower) and self.followers.pop(role.key, None) is role and self.fetchers is not None:
            self.fetchers.remove(role)
        if self.offline_roles.get(role.key) is role:
            del self.offline_roles[role.key]

    # What followers ask for: see `follower.FollowerHost`

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self.log_dir.maintenance.spawn(work)

    def may_discard(self) -> bool:
        return self.membership is None or self.membership.may_discard()

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

    def health(self) -> Callable[[], ReplicaHealth]:
        """Counts how partitions are off for replicas, as of now, where it is called: in a thread, as it takes long."""
        topics, alive = list(self.view.topics.values()), frozenset(self.view.brokers)
        return partial(count_health, topics, alive, self.broker_id)

    async def host_unopened(self) -> None:
        """Opens, one by one and in no hurry, what has data and nobody asked for: it too grows old and is compacted."""
        for topic_id, index in self.log_dir.unopened():
            if self.role((topic_id, index)) is None:
                self.find(topic_id, index)
            await asyncio.sleep(OPENING_PAUSE_S)

    def on_topics_changed(self, changes: list[TopicChange]) -> None:
        for change in changes:
            old, new = change.old, change.new
            if old is not None and (new is None or new.topic_id != old.topic_id):
                self.drop(old)
                old = None
            if new is None:
                continue
            if old is not None and old.config != new.config:
                for index in range(len(old.partitions)):
                    if partition := self.role((new.topic_id, index)):
                        partition.reconfigure(new.config)
            self.roles.follow_view(new, change if old is not None else TopicChange(None, new))

    def drop(self, topic: TopicView) -> None:
        """Stops serving a topic that the cluster no longer has; its data is another's to delete (`forget_topic`).

        Without a tombstone nobody may: its logs are closed, and can be opened again should the topic come back.
        """
        is_deleted = topic.topic_id in self.view.deleting
        for index in range(len(topic.partitions)):
            partition = self.role((topic.topic_id, index))
            if partition is not None:
                self.forget(partition)
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
        interval_s = min(max(self.config.producer_id_expiration_ms / 1000, MIN_EXPIRY_S), MAX_EXPIRY_S)
        self.expiry = loop.call_later(interval_s, self.expire_producers)

    def wake_readers(self) -> None:
        """Has everybody who waits for data answered with what there is, as before an end."""
        for partition in self:
            partition.wake_readers()

    def close(self) -> None:
        self.roles.close()
        if self.expiry is not None:
            self.expiry.cancel()
