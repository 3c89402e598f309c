"""The share-partitions of partitions that this broker leads: claimed on the first fetch, closed with the leadership.

ShareFetch and ShareAcknowledge find them here. An open share-partition follows the high watermark and the log start of
its partition, and wakes the fetches that wait for it. One that members have not fetched for a while is closed: its
state is with the group's coordinator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any
from uuid import UUID

from penstock.config.broker import BrokerConfig
from penstock.config.modern_groups import ShareGroupConfig
from penstock.replica.leader import Leader
from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock.runtime.tasks import spawn
from penstock.share.dead_letter_writer import DeadLetterServices
from penstock.share.group_settings import ShareGroupSettings
from penstock.share.led_partition import LedSharePartition
from penstock.share.state_client import SharePartitionKey, StateClient
from penstock.share.stats import ShareStats
from penstock.state.store import Store

log = get_logger(__name__)

TopicPartition = tuple[UUID, int]
MAX_OPEN_PARTITIONS = 100_000
"""Share-partitions that a broker keeps open together."""
IDLE_S = 300.0
"""Time without a fetch after which a share-partition without records in flight is closed."""


class ShareLeaders:
    """The open share-partitions by group. `client` reaches the coordinators of the groups."""

    def __init__(
        self, client: StateClient, store: Store, clock: Clock, config: BrokerConfig, letters: DeadLetterServices
    ) -> None:
        self.client, self._clock, self._config, self.letters = client, clock, config, letters
        self.stats: ShareStats = letters.stats
        self.loop = asyncio.get_running_loop()
        self._settings = ShareGroupSettings(store, config, self._configure)
        self.load_config = self._settings.load
        self._groups: dict[str, dict[TopicPartition, LedSharePartition]] = {}
        self._open = 0
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[LedSharePartition]:
        """Iterate over the open share-partitions."""
        for partitions in list(self._groups.values()):
            yield from list(partitions.values())

    async def close(self) -> None:
        """Close all share-partitions. The states stay with the coordinators."""
        for partition in self:
            self.remove(partition)
        if self._timer is not None:
            self._timer.cancel()
        self._settings.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def in_flight(self) -> int:
        """Number of records that were delivered and are not done, or wait for an earlier record to be done."""
        return sum(p.leader.partition.window.delivered for p in self if p.leader is not None)

    @property
    def pending_letters(self) -> int:
        """Number of records that await their dead letters."""
        letters = [partition.leader.partition.dead_letters for partition in self if partition.leader is not None]
        return sum(each.pending for each in letters if each.is_pending)

    def open(self, group_id: str, role: Leader) -> LedSharePartition | None:
        """Return the share-partition of a group for a partition that this broker leads; claim it if it is not open.

        Returns None if too many are open.
        """
        found = self.find(group_id, *role.key)
        if found is not None and found.role is not role:
            self.remove(found)
            found = None
        if found is None:
            if self._open >= MAX_OPEN_PARTITIONS:
                log.warning("too many share-partitions are open", limit=MAX_OPEN_PARTITIONS)
                return None
            found = self._add(SharePartitionKey(group_id, *role.key), role)
        found.last_used_s = self.loop.time()
        return found

    def find(self, group_id: str, topic_id: UUID, index: int) -> LedSharePartition | None:
        """Return an open share-partition; it may be waiting for its claim."""
        partitions = self._groups.get(group_id)
        return None if partitions is None else partitions.get((topic_id, index))

    def lock_timeout_ms(self, group_id: str) -> int:
        """Return how long the members of a group may hold a record."""
        known = self._settings.get(group_id)
        return self._config.group_share_record_lock_duration_ms if known is None else known.record_lock_duration_ms

    def config_of(self, group_id: str) -> ShareGroupConfig | None:
        """Return the settings of a group; None before they are loaded."""
        return self._settings.get(group_id)

    def reopen_idle(self, group_id: str) -> None:
        """Claim a group's share-partitions without records in flight again: an administrator may have set their offsets
        while the group was empty, and their next claims find that. Without delays, the next fetch claims."""
        for partition in list(self._groups.get(group_id, {}).values()):
            if partition.is_idle and partition.has_delays:
                partition.claim_again()
            elif partition.is_idle:
                self.remove(partition)

    def release_member(self, group_id: str, member: str) -> None:
        """Release what a member holds: its session has ended."""
        for partition in list(self._groups.get(group_id, {}).values()):
            if partition.leader is not None:
                partition.leader.release_member(member)

    # Implementation of `led_partition.ShareHost`

    def wall_ms(self) -> int:
        """Return the wall clock in ms since 1970."""
        return self._clock.wall_ms()

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run work on a share-partition as a task."""
        task = spawn(work, name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def remove(self, partition: LedSharePartition) -> None:
        """Close a share-partition. Waiting acknowledgements get NOT_LEADER_OR_FOLLOWER, waiting fetches look again."""
        group_id = partition.key.group_id
        partitions = self._groups.get(group_id, {})
        if partitions.get(partition.role.key) is not partition:
            return
        del partitions[partition.role.key]
        self._open -= 1
        if not partitions:
            del self._groups[group_id]
            self._settings.remove(group_id)
        partition.detach()
        if partition.leader is not None:
            self.spawn(partition.leader.close(), f"close {partition.key}")

    # --- internal

    def _add(self, key: SharePartitionKey, role: Leader) -> LedSharePartition:
        partition = LedSharePartition(self, key, role)
        self._groups.setdefault(key.group_id, {})[role.key] = partition
        self._open += 1
        if self._timer is None:
            self._timer = self.loop.call_later(IDLE_S, self._close_idle)
        return partition

    def _configure(self, group_id: str) -> None:
        config = self._settings.get(group_id)
        assert config is not None, f"the settings of {group_id} have changed"
        for partition in list(self._groups.get(group_id, {}).values()):
            partition.configure(config)

    def _close_idle(self) -> None:
        unused_since_s = self.loop.time() - IDLE_S
        for partition in self:
            if partition.last_used_s <= unused_since_s and partition.is_idle and not partition.has_delays:
                self.remove(partition)
        self._timer = self.loop.call_later(IDLE_S, self._close_idle) if self._open else None
