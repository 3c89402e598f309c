"""Which groups this broker coordinates: by shard, those with members as state machines, the others as little more than
their names. Used by `coordinator`.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.config.broker import BrokerConfig
from penstock.group.expiry import GroupStanding
from penstock.group.ownership import ShardOwnership
from penstock.group.phases import GroupState
from penstock.group.shard_tenancy import IdleTenancy, RunningTenancy, ShardTenancy
from penstock.group.state_machine import ClassicGroup
from penstock.runtime.clock import Clock
from penstock.state import keys


class Directory:
    """The groups of all shards that are this broker's."""

    def __init__(
        self, ownership: ShardOwnership, clock: Clock, config: BrokerConfig, new_id: Callable[[], str]
    ) -> None:
        self._ownership, self._clock, self._config, self._new_id = ownership, clock, config, new_id

    def tenure(self, group_id: str) -> ShardTenancy | None:
        return self._ownership.of_shard(keys.shard_of(group_id))

    def known(self, group_id: str) -> RunningTenancy | IdleTenancy | None:
        tenure = self.tenure(group_id)
        return None if tenure is None else tenure.groups.get(group_id)

    def running(self, group_id: str) -> RunningTenancy | None:
        """The group, if it has had members since this broker coordinates it."""
        known = self.known(group_id)
        return known if isinstance(known, RunningTenancy) else None

    def idle(self, group_id: str) -> IdleTenancy | None:
        """The group, if it has had none."""
        known = self.known(group_id)
        return known if isinstance(known, IdleTenancy) else None

    def is_running(self, group_id: str) -> bool:
        return self.running(group_id) is not None

    def all(self) -> list[str]:
        return [group_id for tenure in self._ownership for group_id in tenure.groups]

    def begin(self, group_id: str) -> RunningTenancy:
        """Somebody joins a group that nobody is in; its generations go on."""
        tenure = self.tenure(group_id)
        assert tenure is not None, "whoever has no shard was sent away"
        group = ClassicGroup(group_id, self._config, self._new_id)
        idle = self.idle(group_id)
        state_ms = self._clock.wall_ms()
        if idle is not None:
            group.generation, group.protocol_type, state_ms = idle
        running = tenure.groups[group_id] = RunningTenancy(group, state_ms, is_stored=idle is not None)
        return running

    def is_stored(self, group_id: str) -> bool:
        """Whether the store has a record of a group, or is about to."""
        tenure, known = self.tenure(group_id), self.known(group_id)
        if tenure is None or known is None:
            return False
        if known.generation if isinstance(known, IdleTenancy) else known.group.generation:
            return True
        return group_id not in tenure.unstored and (isinstance(known, IdleTenancy) or known.is_stored)

    def note_stored(self, group_id: str) -> None:
        """A record is about to be in the store of a group that nobody may have joined."""
        tenure = self.tenure(group_id)
        if tenure is not None:
            tenure.unstored.discard(group_id)
            known = tenure.groups.setdefault(group_id, IdleTenancy(0, "", self._clock.wall_ms()))
            if isinstance(known, RunningTenancy):
                known.is_stored = True

    def blank(self, running: RunningTenancy) -> None:
        """Nobody joined in the end: what is left is what there was before."""
        group_id = running.group.group_id
        tenure = self.tenure(group_id)
        if tenure is not None and tenure.groups.get(group_id) is running:
            if running.is_stored:
                tenure.groups[group_id] = IdleTenancy(0, "", running.state_ms)
            else:
                del tenure.groups[group_id]

    def standing(self, group_id: str) -> GroupStanding | None:
        """What decides over a group's offsets; None where the group is not this broker's."""
        known = self.known(group_id)
        if known is None:
            return None
        generation = known.generation if isinstance(known, IdleTenancy) else known.group.generation
        if generation == 0:
            return GroupStanding(is_simple=True, empty_since_ms=None, topics=None)
        if isinstance(known, IdleTenancy) or known.group.state is GroupState.EMPTY:
            return GroupStanding(is_simple=False, empty_since_ms=known.state_ms, topics=None)
        topics = known.group.subscribed_topics() if known.group.state is GroupState.STABLE else None
        return GroupStanding(is_simple=False, empty_since_ms=None, topics=topics)
