"""Assigns this broker's role for each partition as the view specifies: leader, follower, or none. Part of
`ReplicaManager`.

A role is an object for one leader epoch and, for a follower, one leader. The log stays open across roles. Only
partitions whose record has changed are processed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol
from uuid import UUID

from penstock.log.log_dir import LogDirectory
from penstock.log.partition_log import PartitionLog
from penstock.log.types import LogError
from penstock.replica.blocked_producers import RejectedBatches
from penstock.replica.delayed_delivery import DelayedDelivery
from penstock.replica.follower import Follower
from penstock.replica.isr import members_of
from penstock.replica.leader import Leader, LeaderHost
from penstock.replica.membership import BrokerMembership
from penstock.replica.offline import Offline
from penstock.replica.partition import Partition
from penstock.replica.producer_state import ProducerState
from penstock.replica.throttle import Throttles
from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock.state.records import BadRecord
from penstock.state.store import StoreError
from penstock.state.view import ClusterView, PartitionView, TopicChange, TopicView
from penstock.wire.errors import ErrorCode

logger = get_logger("penstock.replica")

MAX_CHECKS_PER_TURN = 64
"""Partitions checked per iteration of the event loop: each may read a checkpoint."""
RETRY_S = 0.5
DISCARD_RETRY_S = 5.0
"""Delay before data of moved replicas is checked again while the store is unavailable."""

Key = tuple[UUID, int]
IsUnassigned = Callable[[UUID, int], Coroutine[Any, Any, bool]]
"""Returns whether a partition's record, by a linearizable read, excludes this broker. Raises StoreError."""


class RoleManager(Protocol):
    """The part of `ReplicaManager` that is used here."""

    broker_id: int
    view: ClusterView
    log_dir: LogDirectory
    clock: Clock
    membership: BrokerMembership
    isr_host: LeaderHost
    throttles: Throttles
    rejected_batches: RejectedBatches
    unflushed: dict[Leader, None]
    delayed: DelayedDelivery

    def role(self, key: Key) -> Partition | None:
        """Return the current role for a partition."""

    def add_role(self, role: Partition) -> None:
        """Add a role."""

    def remove_role(self, role: Partition) -> None:
        """Remove a role; its log stays open."""

    def find(self, topic: str | UUID, index: int) -> Leader | None:
        """Return the partition if this broker leads it; starts the role."""

    def open(self, topic: TopicView, index: int) -> tuple[PartitionLog, ProducerState] | None:
        """Open the partition's log; None if it cannot be opened."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run work on a log as a task."""

    def may_discard(self) -> bool:
        """Return whether data may be truncated or deleted."""


class ReplicaRoles:
    """The roles of all partitions."""

    def __init__(self, manager: RoleManager, is_unassigned: IsUnassigned) -> None:
        self.manager, self.is_unassigned = manager, is_unassigned
        self.started = self.closed = False
        self.pending: dict[Key, None] = {}
        """Partitions to check: new followers, and data that may not belong to a replica."""
        self.scheduled = False
        self.to_discard: dict[Key, None] = {}
        """Partitions with data but without a replica here, which the store must still confirm."""
        self.discarding: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to follow all partitions that other brokers lead."""
        self.started = True
        for topic in list(self.manager.view.topics_by_id.values()):
            for placed in topic.partitions:
                if placed.leader != self.manager.broker_id and self.is_replica(placed):
                    self.pending[topic.topic_id, placed.index] = None
        for key in self.manager.log_dir.unopened():
            self.pending[key] = None
        self.schedule()

    def close(self) -> None:
        """Cancel all pending checks."""
        self.closed = True
        self.pending.clear()
        if self.discarding is not None:
            self.discarding.cancel()

    def is_replica(self, placed: PartitionView) -> bool:
        """Return whether this broker is or becomes a replica."""
        return self.manager.broker_id in placed.replicas or self.manager.broker_id in placed.adding

    def update_from_view(self, topic: TopicView, change: TopicChange) -> None:
        """Process the partitions of a topic whose records have changed."""
        for _, placed in change.differences():
            if placed is not None:
                self.assign_role(topic, placed)

    def assign_role(self, topic: TopicView, placed: PartitionView) -> None:
        """Change a partition's role to match its record."""
        manager = self.manager
        role = manager.role((topic.topic_id, placed.index))
        if not self.is_replica(placed):
            self.leave(topic, placed, role)
        elif placed.leader == manager.broker_id:
            if isinstance(role, Leader) and role.leader_epoch == placed.leader_epoch:
                role.update_from_view(manager.broker_id, placed)
            elif role is not None:
                self.change_role(topic, placed, role)
            elif self.started and self.must_lead(topic, placed.index):
                self.schedule_check((topic.topic_id, placed.index))
        elif role is None:
            if self.started:
                self.pending[topic.topic_id, placed.index] = None
                self.schedule()
        elif not self.has_role(role, placed):
            self.change_role(topic, placed, role)

    def must_lead(self, topic: TopicView, index: int) -> bool:
        """Return whether the leader role starts without a request: the log may have scheduled records."""
        return topic.config.delivery_schedule_enable and index in self.manager.log_dir.topics.get(topic.topic_id, ())

    def has_role(self, role: Partition, placed: PartitionView) -> bool:
        """Return whether the role matches the record's leader and epoch."""
        if placed.leader < 0:
            return isinstance(role, Offline) and role.leader_epoch == placed.leader_epoch
        return (
            isinstance(role, Follower) and role.leader_epoch == placed.leader_epoch and role.leader_id == placed.leader
        )

    def change_role(self, topic: TopicView, placed: PartitionView, role: Partition) -> None:
        """End a role and start the next with its log."""
        if placed.leader_epoch < role.leader_epoch:
            logger.error("ignoring a lower leader epoch", partition=repr(role), epoch=placed.leader_epoch)
            return
        manager = self.manager
        manager.remove_role(role)
        work = role.work if isinstance(role, Follower) else None
        role.end_role(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        key = role.key
        if work is not None and not work.done():
            work.add_done_callback(lambda _: self.schedule_check(key))
            self.take_offline(topic, placed, role.log, role.producers, role.high_watermark)
            return
        high_watermark = max(min(role.high_watermark, role.log.end_offset), role.log.start_offset)
        if placed.leader == manager.broker_id and may_lead(placed, manager):
            leader = self.lead(topic, placed, role.log, role.producers, high_watermark)
            if isinstance(role, Leader):
                leader.blocked_producers.refused.update(role.blocked_producers.refused)
        elif placed.leader >= 0 and placed.leader != manager.broker_id:
            self.follow(topic, placed, role.log, role.producers, high_watermark)
        else:
            self.take_offline(topic, placed, role.log, role.producers, high_watermark)

    def lead(
        self,
        topic: TopicView,
        placed: PartitionView,
        log: PartitionLog,
        producers: ProducerState,
        high_watermark: int | None,
    ) -> Leader:
        """Start the leader role."""
        manager = self.manager
        leader = Leader(
            topic.name,
            topic.topic_id,
            placed.index,
            placed.leader_epoch,
            log,
            producers,
            manager.clock,
            host=manager.isr_host,
            broker_id=manager.broker_id,
            placed=placed,
            high_watermark=high_watermark,
            blocked_producers=manager.rejected_batches.pop_partition(topic.name, topic.topic_id, placed.index),
            unflushed=manager.unflushed,
            delayed=manager.delayed,
        )
        manager.add_role(leader)
        return leader

    def follow(
        self, topic: TopicView, placed: PartitionView, log: PartitionLog, producers: ProducerState, high_watermark: int
    ) -> None:
        """Start the follower role."""
        manager = self.manager
        manager.add_role(
            Follower(
                topic.name,
                topic.topic_id,
                placed.index,
                placed.leader_epoch,
                log,
                producers,
                manager.clock,
                high_watermark,
                leader_id=placed.leader,
                host=manager,
            )
        )

    def take_offline(
        self, topic: TopicView, placed: PartitionView, log: PartitionLog, producers: ProducerState, high_watermark: int
    ) -> None:
        """Start the offline role. The high watermark is at most the log end after pending work."""
        known = min(high_watermark, log.end_offset)
        clock = self.manager.clock
        offline = Offline(topic.name, topic.topic_id, placed.index, placed.leader_epoch, log, producers, clock, known)
        self.manager.add_role(offline)

    # Deferred checks

    def schedule(self) -> None:
        """Schedule the pending checks."""
        if self.pending and not self.scheduled and not self.closed:
            self.scheduled = True
            asyncio.get_running_loop().call_soon(self.process_pending)

    def process_pending(self) -> None:
        """Check the next pending partitions."""
        self.scheduled = False
        for key in first(self.pending, MAX_CHECKS_PER_TURN):
            del self.pending[key]
            self.check_partition(key)
        self.schedule()

    def schedule_check(self, key: Key) -> None:
        """Schedule the check of a partition."""
        if not self.closed:
            self.pending[key] = None
            self.schedule()

    def check_partition(self, key: Key) -> None:
        """Start the role of a partition that has none, or is offline."""
        manager = self.manager
        topic = manager.view.topics_by_id.get(key[0])
        if topic is None or key[1] >= len(topic.partitions):
            return
        placed = topic.partitions[key[1]]
        role = manager.role(key)
        if role is not None:
            if isinstance(role, Offline):
                self.change_role(topic, placed, role)
            return
        if not self.is_replica(placed):
            self.leave(topic, placed, None)
        elif placed.leader == manager.broker_id and self.must_lead(topic, key[1]):
            manager.find(key[0], key[1])
        elif placed.leader >= 0 and placed.leader != manager.broker_id:
            self.quarantine_damaged(key)
            releasing = manager.log_dir.releasing.get(key)
            opened = manager.open(topic, key[1])
            if opened is not None:
                self.follow(topic, placed, *opened, opened[0].start_offset)
            elif releasing is not None:
                asyncio.get_running_loop().call_later(RETRY_S, self.schedule_check, key)

    def quarantine_damaged(self, key: Key) -> None:
        """Quarantine a damaged replica, so that it is fetched again from its leader."""
        manager = self.manager
        if key not in manager.log_dir.corrupt or not manager.may_discard():
            return
        try:
            manager.log_dir.quarantine_damaged(*key)
        except LogError as e:
            logger.warning("cannot quarantine a damaged replica", reason=str(e))

    # Removed replicas

    def leave(self, topic: TopicView, placed: PartitionView, role: Partition | None) -> None:
        """Stop serving a partition without a replica here. Its data is deleted after a linearizable read."""
        key = topic.topic_id, placed.index
        if role is not None:
            self.manager.remove_role(role)
            role.end_role(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            if isinstance(role, Follower) and role.work is not None and not role.work.done():
                role.work.add_done_callback(lambda _: self.manager.log_dir.release(*key))
            else:
                self.manager.log_dir.release(*key)
        if self.is_leftover(key):
            self.to_discard[key] = None
            if self.discarding is None or self.discarding.done():
                self.discarding = self.manager.spawn(self.discard_all())

    def is_leftover(self, key: Key) -> bool:
        """Return whether there is data of a partition that, by the view, has no replica here."""
        topic = self.manager.view.topics_by_id.get(key[0])
        if topic is not None and key[1] < len(topic.partitions) and self.is_replica(topic.partitions[key[1]]):
            return False
        return self.manager.role(key) is None and key[1] in self.manager.log_dir.topics.get(key[0], ())

    async def discard_all(self) -> None:
        """Delete leftover data one by one. Retries while the store is unavailable or may have been restored."""
        while self.to_discard:
            if not self.manager.may_discard():
                await asyncio.sleep(DISCARD_RETRY_S)
                continue
            key = next(iter(self.to_discard))
            del self.to_discard[key]
            try:
                await self.discard(key)
            except BadRecord as e:  # checked again when the record changes
                logger.warning(
                    "keeping data of a removed replica: unreadable partition record",
                    topic_id=str(key[0]),
                    reason=str(e),
                )
            except StoreError as e:
                self.to_discard[key] = None
                logger.warning("cannot confirm removed replicas: retrying", reason=str(e))
                await asyncio.sleep(DISCARD_RETRY_S)

    async def discard(self, key: Key) -> None:
        """Delete leftover data if the store confirms it. Raises what `is_unassigned` raises."""
        if not self.is_leftover(key) or not await self.is_unassigned(*key) or not self.is_leftover(key):
            return
        if not self.manager.may_discard():  # the response may predate a restore of the store
            self.to_discard[key] = None
            return
        logger.info("deleting data of a removed replica", topic_id=str(key[0]), partition=key[1])
        try:
            self.manager.log_dir.delete_partition(*key)
        except LogError as e:
            logger.warning("cannot delete data of a removed replica", reason=str(e))


def may_lead(placed: PartitionView, manager: RoleManager) -> bool:
    """Return whether the record names this incarnation: a restarted broker leads only in a new leader epoch."""
    own_epoch = manager.membership.epoch
    for broker_id, epoch in members_of(placed):
        if broker_id == manager.broker_id:
            return own_epoch >= 0 and epoch in (-1, own_epoch)
    return False


def first(keys: dict[Key, None], count: int) -> list[Key]:
    """Return the first `count` keys."""
    found = []
    for key in keys:
        found.append(key)
        if len(found) == count:
            break
    return found
