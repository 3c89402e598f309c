"""Gives this broker the role for each partition that the view says: leader, follower, none. Part of `ReplicaManager`.

A role is an object for one leader epoch (or, for a follower, one leader); the log stays open from one to the next. Only
partitions whose record has changed are looked at.
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
from penstock.replica.follower import Follower
from penstock.replica.isr import members_of
from penstock.replica.leader import Leader, LeaderHost
from penstock.replica.membership import ReplicaMembership
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

SLICE = 64
"""Followers that are made in one turn of the loop: each may have its checkpoint read."""
RETRY_S = 0.5
DISCARD_RETRY_S = 5.0
"""Before data of replicas that have moved is looked at again, where the store could not be asked."""

Key = tuple[UUID, int]
Unassigned = Callable[[UUID, int], Coroutine[Any, Any, bool]]
"""Whether a partition's record, read linearizably, leaves this broker out. Raises `StoreError`."""


class Manager(Protocol):
    """The `ReplicaManager`, for this part of it."""

    broker_id: int
    view: ClusterView
    log_dir: LogDirectory
    clock: Clock
    membership: ReplicaMembership | None
    isr_host: LeaderHost | None
    throttles: Throttles
    turned_away: RejectedBatches
    unflushed: dict[Leader, None]

    def role(self, key: Key) -> Partition | None: ...

    def keep(self, role: Partition) -> None: ...

    def forget(self, role: Partition) -> None: ...

    def open(self, topic: TopicView, index: int) -> tuple[PartitionLog, ProducerState] | None: ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]: ...

    def may_discard(self) -> bool: ...


class Roles:
    """See the module."""

    def __init__(self, manager: Manager, is_unassigned: Unassigned | None) -> None:
        self.manager, self.is_unassigned = manager, is_unassigned
        self.started = self.closed = False
        self.due: dict[Key, None] = {}
        """Partitions that are to be looked at: to be followed, or with data that may be nobody's."""
        self.scheduled = False
        self.leaving: dict[Key, None] = {}
        """Partitions with data that this broker has no replica of: the store is still to confirm that."""
        self.discarding: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Takes up everything that other brokers lead."""
        self.started = True
        for topic in list(self.manager.view.topics_by_id.values()):
            for placed in topic.partitions:
                if placed.leader != self.manager.broker_id and self.is_mine(placed):
                    self.due[topic.topic_id, placed.index] = None
        for key in self.manager.log_dir.unopened():
            self.due[key] = None
        self.schedule()

    def close(self) -> None:
        self.closed = True
        self.due.clear()
        if self.discarding is not None:
            self.discarding.cancel()

    def is_mine(self, placed: PartitionView) -> bool:
        return self.manager.broker_id in placed.replicas or self.manager.broker_id in placed.adding

    def follow_view(self, topic: TopicView, change: TopicChange) -> None:
        """Looks at the partitions of a topic whose records have changed."""
        for _, placed in change.differences():
            if placed is not None:
                self.place(topic, placed)

    def place(self, topic: TopicView, placed: PartitionView) -> None:
        """Brings the role for one partition up to its record."""
        manager = self.manager
        role = manager.role((topic.topic_id, placed.index))
        if not self.is_mine(placed):
            self.leave(topic, placed, role)
        elif placed.leader == manager.broker_id:
            if isinstance(role, Leader) and role.leader_epoch == placed.leader_epoch:
                role.follow_view(manager.broker_id, placed)
            elif role is not None:
                self.change(topic, placed, role)
        elif role is None:
            if self.started:
                self.due[topic.topic_id, placed.index] = None
                self.schedule()
        elif not self.is_followed(role, placed):
            self.change(topic, placed, role)

    def is_followed(self, role: Partition, placed: PartitionView) -> bool:
        if placed.leader < 0:
            return isinstance(role, Offline) and role.leader_epoch == placed.leader_epoch
        return (
            isinstance(role, Follower) and role.leader_epoch == placed.leader_epoch and role.leader_id == placed.leader
        )

    def change(self, topic: TopicView, placed: PartitionView, role: Partition) -> None:
        """Ends a role and begins another with its log."""
        if placed.leader_epoch < role.leader_epoch:
            logger.error("a leader epoch goes back", partition=repr(role), epoch=placed.leader_epoch)
            return
        manager = self.manager
        manager.forget(role)
        work = role.work if isinstance(role, Follower) else None
        role.end(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        key = role.key
        if work is not None and not work.done():
            work.add_done_callback(lambda _: self.look_again(key))
            self.rest(topic, placed, role.log, role.producers, role.high_watermark)
            return
        high_watermark = max(min(role.high_watermark, role.log.end_offset), role.log.start_offset)
        if placed.leader == manager.broker_id and may_lead(placed, manager):
            leader = self.lead(topic, placed, role.log, role.producers, high_watermark)
            if isinstance(role, Leader):
                leader.held_up.refused.update(role.held_up.refused)
        elif placed.leader >= 0 and placed.leader != manager.broker_id:
            self.follow(topic, placed, role.log, role.producers, high_watermark)
        else:
            self.rest(topic, placed, role.log, role.producers, high_watermark)

    def lead(
        self,
        topic: TopicView,
        placed: PartitionView,
        log: PartitionLog,
        producers: ProducerState,
        high_watermark: int | None,
    ) -> Leader:
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
            held_up=manager.turned_away.take(topic.name, topic.topic_id, placed.index),
            unflushed=manager.unflushed,
        )
        manager.keep(leader)
        return leader

    def follow(
        self, topic: TopicView, placed: PartitionView, log: PartitionLog, producers: ProducerState, high_watermark: int
    ) -> None:
        manager = self.manager
        manager.keep(
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

    def rest(
        self, topic: TopicView, placed: PartitionView, log: PartitionLog, producers: ProducerState, high_watermark: int
    ) -> None:
        """Neither leads nor follows. What may be committed is at most what the log has when its work has ended."""
        known = min(high_watermark, log.end_offset)
        clock = self.manager.clock
        offline = Offline(topic.name, topic.topic_id, placed.index, placed.leader_epoch, log, producers, clock, known)
        self.manager.keep(offline)

    # Later

    def schedule(self) -> None:
        if self.due and not self.scheduled and not self.closed:
            self.scheduled = True
            asyncio.get_running_loop().call_soon(self.work_off)

    def work_off(self) -> None:
        """Looks at a slice of what is due."""
        self.scheduled = False
        for key in first(self.due, SLICE):
            del self.due[key]
            self.look_at(key)
        self.schedule()

    def look_again(self, key: Key) -> None:
        if not self.closed:
            self.due[key] = None
            self.schedule()

    def look_at(self, key: Key) -> None:
        manager = self.manager
        topic = manager.view.topics_by_id.get(key[0])
        if topic is None or key[1] >= len(topic.partitions):
            return
        placed = topic.partitions[key[1]]
        role = manager.role(key)
        if role is not None:
            if isinstance(role, Offline):
                self.change(topic, placed, role)
            return
        if not self.is_mine(placed):
            self.leave(topic, placed, None)
        elif placed.leader >= 0 and placed.leader != manager.broker_id:
            self.quarantine_damaged(key)
            releasing = manager.log_dir.releasing.get(key)
            opened = manager.open(topic, key[1])
            if opened is not None:
                self.follow(topic, placed, *opened, opened[0].start_offset)
            elif releasing is not None:
                asyncio.get_running_loop().call_later(RETRY_S, self.look_again, key)

    def quarantine_damaged(self, key: Key) -> None:
        """A replica whose files are damaged comes back by fetching all of it from its leader."""
        manager = self.manager
        if manager.membership is None or key not in manager.log_dir.corrupt or not manager.may_discard():
            return
        try:
            manager.log_dir.quarantine_damaged(*key)
        except LogError as e:
            logger.warning("a damaged replica stays as it is", reason=str(e))

    # Leaving

    def leave(self, topic: TopicView, placed: PartitionView, role: Partition | None) -> None:
        """This broker has no replica any more: stops, and deletes the data once that was read linearizably."""
        key = topic.topic_id, placed.index
        if role is not None:
            self.manager.forget(role)
            role.end(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            if isinstance(role, Follower) and role.work is not None and not role.work.done():
                role.work.add_done_callback(lambda _: self.manager.log_dir.release(*key))
            else:
                self.manager.log_dir.release(*key)
        if self.is_unassigned is not None and self.is_left(key):
            self.leaving[key] = None
            if self.discarding is None or self.discarding.done():
                self.discarding = self.manager.spawn(self.discard_all(self.is_unassigned))

    def is_left(self, key: Key) -> bool:
        """Whether there is data of a partition of which, as far as this broker knows, it has no replica."""
        topic = self.manager.view.topics_by_id.get(key[0])
        if topic is not None and key[1] < len(topic.partitions) and self.is_mine(topic.partitions[key[1]]):
            return False
        return self.manager.role(key) is None and key[1] in self.manager.log_dir.topics.get(key[0], ())

    async def discard_all(self, is_unassigned: Unassigned) -> None:
        """One by one; goes on later where the store does not answer, or may have gone back in time."""
        while self.leaving:
            if not self.manager.may_discard():
                await asyncio.sleep(DISCARD_RETRY_S)
                continue
            key = next(iter(self.leaving))
            del self.leaving[key]
            try:
                await self.discard(key, is_unassigned)
            except BadRecord as e:  # looked at again when the record changes
                logger.warning("data of a replica that may have moved stays", topic_id=str(key[0]), reason=str(e))
            except StoreError as e:
                self.leaving[key] = None
                logger.warning("data of replicas that have moved stays for now", reason=str(e))
                await asyncio.sleep(DISCARD_RETRY_S)

    async def discard(self, key: Key, is_unassigned: Unassigned) -> None:
        """Raises what `is_unassigned` does."""
        if not self.is_left(key) or not await is_unassigned(*key) or not self.is_left(key):
            return
        if not self.manager.may_discard():  # of which time the answer was is not known
            self.leaving[key] = None
            return
        logger.info("the data of a replica that has moved is deleted", topic_id=str(key[0]), partition=key[1])
        try:
            self.manager.log_dir.delete_partition(*key)
        except LogError as e:
            logger.warning("data stays", reason=str(e))


def may_lead(placed: PartitionView, manager: Manager) -> bool:
    """Whether the record means this incarnation of the broker: a restarted one leads only in a new leader epoch."""
    membership = manager.membership
    if membership is None:
        return True
    for broker_id, epoch in members_of(placed):
        if broker_id == manager.broker_id:
            return membership.epoch >= 0 and epoch in (-1, membership.epoch)
    return False


def first(keys: dict[Key, None], count: int) -> list[Key]:
    found = []
    for key in keys:
        found.append(key)
        if len(found) == count:
            break
    return found
