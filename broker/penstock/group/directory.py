"""The groups that this broker coordinates, by shard: state machines for groups that have had members, compact records
for the others. Used by `coordinator`."""

from __future__ import annotations

from collections.abc import Callable

from penstock.config.broker import BrokerConfig
from penstock.group.coordinator_shard import (
    CoordinatorShard,
    HostedGroup,
    IdleGroup,
    RunningGroup,
    RunningModernGroup,
    type_of,
)
from penstock.group.expiry import OffsetUsage
from penstock.group.modern.group import GroupType
from penstock.group.ownership import ShardOwnership
from penstock.group.phases import GroupState
from penstock.group.state_machine import ClassicGroup
from penstock.runtime.clock import Clock
from penstock.state import keys
from penstock.wire.errors import ErrorCode


class GroupDirectory:
    """The groups of all owned shards."""

    def __init__(
        self, ownership: ShardOwnership, clock: Clock, config: BrokerConfig, new_id: Callable[[], str]
    ) -> None:
        self._ownership, self._clock, self._config, self._new_id = ownership, clock, config, new_id

    def shard(self, group_id: str) -> CoordinatorShard | None:
        """Return the group's shard if this broker owns it."""
        return self._ownership.get(keys.shard_of(group_id))

    def get(self, group_id: str) -> HostedGroup | None:
        """Return the group, or None if it does not exist or is not coordinated here."""
        shard = self.shard(group_id)
        return None if shard is None else shard.groups.get(group_id)

    def running(self, group_id: str) -> RunningGroup | None:
        """Return the group if it has had members since this broker coordinates it."""
        known = self.get(group_id)
        return known if isinstance(known, RunningGroup) else None

    def idle(self, group_id: str) -> IdleGroup | None:
        """Return the group if it has had no members since this broker coordinates it."""
        known = self.get(group_id)
        return known if isinstance(known, IdleGroup) else None

    def modern(self, group_id: str) -> RunningModernGroup | None:
        """Return the group if its broker assigns partitions and it has had members since this broker coordinates it."""
        known = self.get(group_id)
        return known if isinstance(known, RunningModernGroup) else None

    def is_share(self, group_id: str) -> bool:
        """Return whether the group is a share group."""
        known = self.get(group_id)
        return known is not None and type_of(known) is GroupType.SHARE

    def consumer(self, group_id: str) -> RunningModernGroup | None:
        """Return the consumer group if it has members."""
        modern = self.modern(group_id)
        is_consumer = modern is not None and modern.group.group_type is GroupType.CONSUMER and modern.group.members
        return modern if is_consumer else None

    def has_members(self, group_id: str) -> bool:
        """Return whether the group has members, of whatever protocol."""
        known = self.get(group_id)
        if isinstance(known, RunningGroup):
            return known.group.phases.state is not GroupState.EMPTY
        return isinstance(known, RunningModernGroup) and bool(known.group.members)

    def check_classic_join(self, group_id: str) -> ErrorCode:
        """Return the error if no classic member can join. A consumer group without members becomes a classic one."""
        if self.is_share(group_id):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        shard, modern = self.shard(group_id), self.modern(group_id)
        if shard is not None and modern is not None and not modern.group.members:
            shard.groups[group_id] = modern.as_idle()
        return ErrorCode.NONE

    def is_running(self, group_id: str) -> bool:
        """Return whether the group has a state machine."""
        return self.running(group_id) is not None

    def group_ids(self) -> list[str]:
        """Return the ids of all groups of loaded shards."""
        return [group_id for shard in self._ownership for group_id in shard.groups]

    def start_group(self, group_id: str) -> RunningGroup:
        """Create the state machine of a group that a first member joins; an idle group keeps its generation."""
        shard = self.shard(group_id)
        assert shard is not None, f'this broker does not coordinate group "{group_id}"'
        assert not self.is_running(group_id), f'group "{group_id}" has a state machine'
        group = ClassicGroup(group_id, self._config, self._new_id)
        idle = self.idle(group_id)
        state_ms = self._clock.wall_ms()
        if idle is not None:
            group.phases.generation, group.phases.protocol_type, state_ms = idle[:3]
        running = shard.groups[group_id] = RunningGroup(group, state_ms, is_stored=idle is not None)
        return running

    def is_stored(self, group_id: str) -> bool:
        """Return whether the store has a record of the group, or a write of one is outstanding."""
        shard, known = self.shard(group_id), self.get(group_id)
        if shard is None or known is None:
            return False
        if isinstance(known, RunningModernGroup):
            return True
        if known.generation if isinstance(known, IdleGroup) else known.group.phases.generation:
            return True
        return group_id not in shard.unstored and (isinstance(known, IdleGroup) or known.is_stored)

    def mark_stored(self, group_id: str) -> None:
        """Record that a write of the group's record is outstanding; the group may never have had members."""
        shard = self.shard(group_id)
        if shard is not None:
            shard.unstored.discard(group_id)
            known = shard.groups.setdefault(group_id, IdleGroup(0, "", self._clock.wall_ms()))
            if isinstance(known, RunningGroup):
                known.is_stored = True

    def discard_blank(self, running: RunningGroup) -> None:
        """Replace a group that no member joined in the end by its previous state."""
        group_id = running.group.group_id
        shard = self.shard(group_id)
        if shard is not None and shard.groups.get(group_id) is running:
            if running.is_stored:
                shard.groups[group_id] = IdleGroup(0, "", running.state_ms)
            else:
                del shard.groups[group_id]

    def usage(self, group_id: str) -> OffsetUsage | None:
        """Return what determines the expiry of the group's offsets, None if it is not coordinated here."""
        known = self.get(group_id)
        if known is None:
            return None
        if isinstance(known, RunningModernGroup):
            is_empty = not known.group.members
            topics = None if is_empty else known.group.subscribed_topics()
            return OffsetUsage(is_simple=False, empty_since_ms=known.state_ms if is_empty else None, topics=topics)
        generation = known.generation if isinstance(known, IdleGroup) else known.group.phases.generation
        if generation == 0:
            return OffsetUsage(is_simple=True, empty_since_ms=None, topics=None)
        if isinstance(known, IdleGroup) or known.group.phases.state is GroupState.EMPTY:
            return OffsetUsage(is_simple=False, empty_since_ms=known.state_ms, topics=None)
        topics = known.group.subscribed_topics() if known.group.phases.state is GroupState.STABLE else None
        return OffsetUsage(is_simple=False, empty_since_ms=None, topics=topics)
