"""The partitions that this broker hosts, looked up for each partition of each Produce and Fetch.

The view determines the role for each (`roles`). A leader object is created on first use, so that thousands of idle
partitions cost nothing. Followers must fetch, so they are created in batches when the broker starts.
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
from penstock.replica.delayed_delivery import DelayedDelivery
from penstock.replica.follower import Follower
from penstock.replica.health import ReplicaHealth, count_health
from penstock.replica.leader import Leader, LeaderHost
from penstock.replica.membership import BrokerMembership
from penstock.replica.offline import Offline
from penstock.replica.partition import Partition
from penstock.replica.producer_state import ProducerState
from penstock.replica.roles import ReplicaRoles, may_lead
from penstock.replica.schedule_snapshots import ScheduleSnapshots
from penstock.replica.throttle import Throttles
from penstock.runtime.clock import Clock
from penstock.state.view import ClusterView, TopicChange, TopicView
from penstock.wire.errors import ErrorCode

Topic = str | UUID
"""A topic as requests name it: by name, or in later versions by id."""


OPEN_INTERVAL_S = 0.05
MIN_EXPIRY_S, MAX_EXPIRY_S = 1.0, 600.0
"""Bounds of the interval between checks for expired producers, in seconds."""


class FollowerFetchers(Protocol):
    """Fetches for followers: `fetchers.ReplicaFetchers`."""

    def add(self, follower: Follower) -> None:
        """Start to fetch for a follower."""

    def remove(self, follower: Follower) -> None:
        """Stop fetching for a follower."""


Key = tuple[UUID, int]
IsUnassigned = Callable[[UUID, int], Coroutine[Any, Any, bool]]


class ReplicaManager:
    """Hosted partitions by (topic name or id, index).

    `isr_host` serves the leaders, `fetchers` the followers, and `is_unassigned` confirms by a linearizable read that
    this broker is no replica before data is deleted.
    """

    def __init__(
        self,
        view: ClusterView,
        log_dir: LogDirectory,
        clock: Clock,
        config: BrokerConfig,
        membership: BrokerMembership,
        isr_host: LeaderHost,
        fetchers: FollowerFetchers,
        is_unassigned: IsUnassigned,
    ) -> None:
        self.view, self.log_dir, self.clock = view, log_dir, clock
        self.config = config
        self.broker_id = config.node_id
        self.membership, self.isr_host, self.fetchers = membership, isr_host, fetchers
        self.may_serve, self.may_discard = membership.may_serve, membership.may_discard
        """The methods of the membership, without another call in between."""
        self.expiry: asyncio.TimerHandle | None = None
        self.leaders: dict[tuple[Topic, int], Leader] = {}
        """The leader roles, each by topic name and by id."""
        self.followers: dict[Key, Follower] = {}
        self.offline_roles: dict[Key, Offline] = {}
        self.rejected_batches = RejectedBatches()
        self.unflushed: dict[Leader, None] = {}
        """Leaders with acknowledged but unflushed records."""
        self.delayed = DelayedDelivery(clock, self.spawn)
        self.schedule_snapshots = ScheduleSnapshots(self.spawn)
        self.throttles = Throttles(view, config)
        self.roles = ReplicaRoles(self, is_unassigned)
        view.subscribe(self.on_topics_changed)

    def start(self) -> None:
        """Start to follow other brokers. Called once the view is loaded and this broker is registered."""
        self.roles.start()

    def __iter__(self) -> Iterator[Partition]:
        """Iterate over the leader and follower roles."""
        for (topic, _), leader in list(self.leaders.items()):
            if isinstance(topic, UUID):
                yield leader
        yield from list(self.followers.values())

    def find(self, topic: Topic, index: int) -> Leader | None:
        """Return the partition if this broker leads it."""
        return self.leaders.get((topic, index)) or self.open_leader(topic, index)

    def find_follower(self, topic: Topic, index: int) -> Follower | None:
        """Return the partition if this broker follows it."""
        found = self.topic(topic)
        return self.followers.get((found.topic_id, index)) if found is not None else None

    def topic(self, topic: Topic) -> TopicView | None:
        """Return the topic by name or id."""
        return self.view.topics.get(topic) if isinstance(topic, str) else self.view.topics_by_id.get(topic)

    def absence(self, topic: Topic, index: int) -> tuple[ErrorCode, tuple[int, int] | None]:
        """Return why `find` returns None: the error, and (leader id, leader epoch) if another broker leads."""
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
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, None  # temporary: clients retry
        return ErrorCode.KAFKA_STORAGE_ERROR, None

    def reject_batch(self, topic: Topic, index: int, batch: memoryview) -> tuple[ErrorCode, tuple[int, int] | None]:
        """Return the result of `absence`, and record the producer as blocked."""
        if topic in INTERNAL_TOPICS:
            return ErrorCode.INVALID_TOPIC_EXCEPTION, None
        code, leader = self.absence(topic, index)
        self.rejected_batches.record(topic, index, batch, code, self.clock.boot_ms())
        return code, leader

    def open_leader(self, topic: Topic, index: int) -> Leader | None:
        """Create the leader role. Its files are only opened if there is data.

        Returns None for offline partitions: damaged files, or a failed log directory.
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
        """Open or create the partition's log; None if it cannot be opened."""
        producers = ProducerState()
        try:
            return self.log_dir.open_or_create(topic.topic_id, topic.name, index, topic.config, producers), producers
        except LogError:  # logged when it was detected
            return None

    def log_end(self, topic_id: UUID, index: int) -> tuple[int, int] | None:
        """Return (last leader epoch, log end offset) of a replica here in any role, None if unknown."""
        role = self.role((topic_id, index))
        if role is None:
            topic = self.view.topics_by_id.get(topic_id)
            if topic is None or not 0 <= index < len(topic.partitions):
                return None
            placed = topic.partitions[index]
            if self.broker_id not in placed.replicas or (opened := self.open(topic, index)) is None:
                return None
            self.roles.take_offline(topic, placed, *opened, opened[0].start_offset)
            role = self.role((topic_id, index))
            assert role is not None, "a role was just started"
        if role.log.failed is not None:
            return None
        return role.log.epoch_at(role.log.end_offset - 1), role.log.end_offset

    def role(self, key: Key) -> Partition | None:
        """Return the current role for a partition, None if it has no object."""
        return self.leaders.get(key) or self.followers.get(key) or self.offline_roles.get(key)

    def add_role(self, role: Partition) -> None:
        """Add a role; a follower starts to fetch."""
        known = self.role(role.key)
        assert known is None, f"{role!r} would replace {known!r}, which has not been removed"
        assert not role.ended, f"{role!r} has ended"
        self.schedule_snapshots.add(role)
        if isinstance(role, Leader):
            self.leaders[role.name, role.index] = self.leaders[role.key] = role
        elif isinstance(role, Follower):
            self.followers[role.key] = role
            self.fetchers.add(role)
        else:
            assert isinstance(role, Offline), role
            self.offline_roles[role.key] = role
        topic = self.view.topics_by_id.get(role.topic_id)
        if topic is not None and (seal := topic.seals.get(role.index)) is not None:
            role.set_seal(seal)

    def remove_role(self, role: Partition) -> None:
        """Remove a role; its log stays open."""
        self.schedule_snapshots.remove(role)
        if self.leaders.get(role.key) is role:
            del self.leaders[role.key]
            if self.leaders.get((role.name, role.index)) is role:
                del self.leaders[role.name, role.index]
        if isinstance(role, Follower) and self.followers.pop(role.key, None) is role:
            self.fetchers.remove(role)
        if self.offline_roles.get(role.key) is role:
            del self.offline_roles[role.key]

    # Implementation of `follower.FollowerHost`

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run work on a log as a task."""
        return self.log_dir.maintenance.spawn(work)

    def damaged(self) -> list[tuple[str, int]]:
        """Return (topic, partition) of all partitions that are offline because of damaged files."""
        topics, found = self.view.topics_by_id, []
        for topic_id, index in self.log_dir.corrupt:
            if topic_id in topics:
                found.append((topics[topic_id].name, index))
        if self.log_dir.failed is None:
            found += [(p.name, p.index) for p in self if p.log.failed is not None]
        return found

    def offline(self) -> int:
        """Return the number of led partitions that cannot be served."""
        if self.log_dir.failed is None:
            return len(self.damaged())
        return sum(p.leader == self.broker_id for topic in self.view.topics.values() for p in topic.partitions)

    def health(self) -> Callable[[], ReplicaHealth]:
        """Return a function that counts the current partitions' health. It is slow and runs in a thread."""
        topics, alive = list(self.view.topics.values()), frozenset(self.view.brokers)
        return partial(count_health, topics, alive, self.broker_id)

    async def open_idle_partitions(self) -> None:
        """Open unused partitions with data, slowly one by one, for retention and compaction."""
        for topic_id, index in self.log_dir.unopened():
            if self.role((topic_id, index)) is None:
                self.find(topic_id, index)
            await asyncio.sleep(OPEN_INTERVAL_S)

    def on_topics_changed(self, changes: list[TopicChange]) -> None:
        """Apply created, deleted and changed topics to the roles."""
        for change in changes:
            old, new = change.old, change.new
            if old is not None and (new is None or new.topic_id != old.topic_id):
                self.drop_topic(old)
                old = None
            if new is None:
                continue
            if old is not None and old.config != new.config:
                for index in range(len(old.partitions)):
                    if partition := self.role((new.topic_id, index)):
                        partition.reconfigure(new.config)
                        self.schedule_snapshots.add(partition)
            self.roles.update_from_view(new, change if old is not None else TopicChange(None, new))
            if old is not None and old.seals is not new.seals:
                self.update_seals(old, new)

    def update_seals(self, old: TopicView, new: TopicView) -> None:
        """Apply changed seals of a topic to the roles."""
        for index in old.seals.keys() | new.seals.keys():
            seal, role = new.seals.get(index), self.role((new.topic_id, index))
            if role is not None and seal != old.seals.get(index):
                role.set_seal(seal)

    def drop_topic(self, topic: TopicView) -> None:
        """Stop serving a topic that the view lacks. Its data stays; see `delete_topic`.

        Without a tombstone its logs are closed, and can be opened again if the topic reappears.
        """
        is_deleted = topic.topic_id in self.view.deleting
        for index in range(len(topic.partitions)):
            partition = self.role((topic.topic_id, index))
            if partition is not None:
                self.remove_role(partition)
                partition.on_deleted()
                if not is_deleted:
                    self.log_dir.release(topic.topic_id, index)

    async def delete_topic(self, topic_id: UUID) -> None:
        """Delete the data of a topic that has a tombstone. Raises LogDirFailed.

        The tombstone must remain until this returns: otherwise a crash would leave orphaned data.
        """
        assert topic_id in self.view.deleting, f"topic {topic_id} has no tombstone"
        await asyncio.gather(*self.log_dir.delete_topic(topic_id))
        if self.log_dir.failed is not None:
            raise LogDirFailed(f'the data of topic "{topic_id}" could not be deleted: {self.log_dir.failed}')

    def expire_producers(self) -> None:
        """Remove idempotent producers that have not written for `producer.id.expiration.ms`."""
        now_ms, silent_ms = self.clock.boot_ms(), self.config.producer_id_expiration_ms
        for partition in self:
            partition.producers.expire(now_ms, silent_ms)
        self.schedule_expiry()

    def schedule_expiry(self) -> None:
        """Schedule the next check for expired producers."""
        loop = asyncio.get_running_loop()
        interval_s = min(max(self.config.producer_id_expiration_ms / 1000, MIN_EXPIRY_S), MAX_EXPIRY_S)
        self.expiry = loop.call_later(interval_s, self.expire_producers)

    def wake_readers(self) -> None:
        """Answer all waiting readers, before the broker stops."""
        for partition in self:
            partition.wake_readers()

    def close(self) -> None:
        """Cancel all scheduled work."""
        self.roles.close()
        self.delayed.close()
        self.schedule_snapshots.close()
        if self.expiry is not None:
            self.expiry.cancel()
