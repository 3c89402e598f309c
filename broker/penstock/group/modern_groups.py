"""Runs the consumer groups (KIP-848) and share groups (KIP-932) of this broker: timers, assignments and persistence.

A response leaves only when everything that its group has changed so far is durable: after a failover, the next
coordinator knows of every partition that a member was assigned or has released.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from penstock.config.broker import BrokerConfig
from penstock.control.group_settings import MAX_GROUP_ID_CHARS
from penstock.group.coordinator_shard import (
    CoordinatorShard,
    HostedGroup,
    IdleGroup,
    LoadedKey,
    RunningGroup,
    RunningModernGroup,
    type_of,
)
from penstock.group.directory import GroupDirectory
from penstock.group.migration import check_upgrade, downgraded_group, may_downgrade, upgraded_members
from penstock.group.modern.assignment import Assignment
from penstock.group.modern.assignors import AssignmentInput
from penstock.group.modern.consumer import (
    HeartbeatResult,
    MemberHeartbeat,
    check_id,
    handle_heartbeat,
    respond,
    unknown_member,
)
from penstock.group.modern.group import GroupChanges, GroupType, ModernGroup
from penstock.group.modern.member import JOIN_EPOCH, GroupError
from penstock.group.modern.persistence import encode_member, restored_member
from penstock.group.modern.protocols import MODERN_PROTOCOLS
from penstock.group.modern.topics import ViewTopicCatalog
from penstock.group.offsets import Offsets, OffsetWrite
from penstock.group.ownership import ShardOwnership
from penstock.group.persistence import encode_rebalancing_group
from penstock.group.phases import GroupState
from penstock.group.settings_refresh import GroupSettingsRefresh
from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock.runtime.tasks import report
from penstock.state import keys, records
from penstock.state.records import BadRecord, GroupRecord, ModernMemberRecord
from penstock.state.store import DeleteOp, Operation, PutOp, Store, StoreEntry
from penstock.state.view import ClusterView, TopicChange
from penstock.wire.errors import ErrorCode

log = get_logger(__name__)

FIRST_EPOCH = 1
"""The epoch of a group that is created without members."""


class ModernGroups:
    """The consumer groups and share groups of the owned shards. `error` returns what prevents serving a group now.

    `apply_effects` answers the waiting members of a classic group that is upgraded, and runs one that was downgraded.
    """

    def __init__(
        self,
        store: Store,
        view: ClusterView,
        clock: Clock,
        config: BrokerConfig,
        groups: GroupDirectory,
        offsets: Offsets,
        ownership: ShardOwnership,
        error: Callable[[str], ErrorCode],
        new_id: Callable[[], str],
        apply_effects: Callable[[RunningGroup], None],
    ) -> None:
        self._clock, self._config, self._groups, self._offsets = clock, config, groups, offsets
        self._ownership, self._error, self._new_id = ownership, error, new_id
        self._apply_effects = apply_effects
        self.topics = ViewTopicCatalog(view)
        self._settings = GroupSettingsRefresh(store, self._shards_with_groups, self._apply_settings)
        self._refresh: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop

    # --- lifecycle

    def start(self) -> None:
        """Start the timers. Call on the event loop, before shards are acquired."""
        self._loop = asyncio.get_running_loop()
        self._settings.start()
        self._schedule_refresh()

    def close(self) -> None:
        """Stop all timers."""
        self._settings.close()
        if self._refresh is not None:
            self._refresh.cancel()
        for _, running in self._running():
            self.stop(running)

    def stop(self, running: RunningModernGroup) -> None:
        """Stop the timer of a group that this broker no longer runs."""
        if running.timer is not None:
            running.timer.cancel()
            running.timer = None

    def load(
        self,
        shard: CoordinatorShard,
        group_records: Mapping[str, GroupRecord],
        members: Iterable[StoreEntry],
        settings: Iterable[StoreEntry],
    ) -> None:
        """Restore the groups of an acquired shard."""
        self._settings.load(shard.number, settings)
        by_group: dict[str, list[StoreEntry]] = {}
        for entry in members:
            try:
                by_group.setdefault(keys.parse_group_member(entry.key)[0], []).append(entry)
            except ValueError as e:
                log.error("skipping an unreadable group member", key=entry.key, error=str(e))
        with LoadedKey() as loading:
            for group_id in group_records.keys() | by_group.keys():
                loading.key = keys.group(group_id)
                record = group_records.get(group_id, GroupRecord(group_type=GroupType.CONSUMER))
                if record.group_type in MODERN_PROTOCOLS:
                    self._restore(shard, group_id, record, by_group.get(group_id, []))
                else:
                    self._discard(group_id, by_group.get(group_id, []))

    def _restore(self, shard: CoordinatorShard, group_id: str, record: GroupRecord, entries: list[StoreEntry]) -> None:
        group_type, members = GroupType(record.group_type), []
        for entry in entries:
            try:
                found = records.decode(ModernMemberRecord, entry.key, entry.value)
                members.append(restored_member(keys.parse_group_member(entry.key)[1], found))
            except (BadRecord, ValueError) as e:
                log.error("skipping an unreadable group member", key=entry.key, error=str(e))
        if not members:
            shard.groups[group_id] = IdleGroup(record.generation, group_type, record.state_ms, group_type)
            return
        group = self._new_group(group_type, group_id, record.generation)
        group.restore(members, self._now_ms())
        running = shard.groups[group_id] = RunningModernGroup(group, self._clock.wall_ms())
        self._settings.request(shard.number)
        self.start_assignment(running)
        self._arm(running)

    def _discard(self, group_id: str, entries: list[StoreEntry]) -> None:
        """Delete members of a group that has become a classic one: the deletion of these failed."""
        if entries:
            writer = self._offsets.writers.for_group(group_id)
            writer.submit([(DeleteOp(entry.key), None) for entry in entries])

    # --- requests

    def heartbeat(
        self, group_type: GroupType, group_id: str, request: MemberHeartbeat
    ) -> HeartbeatResult | Awaitable[HeartbeatResult]:
        """Handle a heartbeat. The result is immediate if nothing has to be stored."""
        error = self._error(group_id)
        if error and error is not ErrorCode.INVALID_REQUEST:
            return failed(request, error)
        try:
            check_id("GroupId", group_id, MAX_GROUP_ID_CHARS)
            protocol = MODERN_PROTOCOLS[group_type]
            protocol.check(request, protocol.assignors(self._config))
            running = self._find_or_create(group_type, group_id, request)
        except GroupError as e:
            return failed(request, e.error, e.message)
        try:
            result = self._apply(running, request)
        except GroupError as e:
            result = failed(request, e.error, e.message)
        write = self.store(running)
        self._discard_unused(running)
        return result if write is None else self._await_durable(running, write, request, result)

    async def create_empty(self, group_type: GroupType, group_id: str) -> ErrorCode:
        """Store a group without members. Returns NONE once it is durable."""
        shard = self._groups.shard(group_id)
        error = self._error(group_id)
        if error or shard is None:
            return error or ErrorCode.NOT_COORDINATOR
        created = shard.groups[group_id] = IdleGroup(FIRST_EPOCH, group_type, self._clock.wall_ms(), group_type)
        record = GroupRecord(
            protocol_type=group_type, generation=FIRST_EPOCH, state_ms=created.state_ms, group_type=group_type
        )
        put = PutOp(keys.group(group_id), records.encode(record))
        if await self._offsets.writers.for_group(group_id).submit([(put, None)]):
            if shard.groups.get(group_id) is created:
                del shard.groups[group_id]
            return self._error(group_id) or ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE

    def _apply(self, running: RunningModernGroup, request: MemberHeartbeat) -> HeartbeatResult:
        """Apply a heartbeat to its group. Raises `GroupError`."""
        group, now_ms = running.group, self._now_ms()
        member = handle_heartbeat(group, request, MODERN_PROTOCOLS[group.group_type].max_size(self._config), now_ms)
        self.start_assignment(running)
        if member is None:
            return HeartbeatResult(request.member_id, request.epoch)
        return respond(group, member, request, now_ms)

    async def _await_durable(
        self,
        running: RunningModernGroup,
        write: asyncio.Future[list[int]],
        request: MemberHeartbeat,
        result: HeartbeatResult,
    ) -> HeartbeatResult:
        failures = await write
        if not failures and not running.group.has_changes:
            return result
        return failed(request, self._error(running.group.group_id) or ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _find_or_create(self, group_type: GroupType, group_id: str, request: MemberHeartbeat) -> RunningModernGroup:
        """Return the group of a heartbeat; a first member creates it. Raises `GroupError`."""
        known = self._groups.get(group_id)
        check_type(group_type, group_id, known, request)
        if isinstance(known, RunningModernGroup):
            return known
        if request.epoch != JOIN_EPOCH:
            # Never GROUP_ID_NOT_FOUND: librdkafka before 2.14.3 would repeat the heartbeat forever.
            raise unknown_member(request.member_id, group_id)
        epoch, state_ms = 0, self._clock.wall_ms()
        if isinstance(known, RunningGroup):
            if known.group.phases.state is not GroupState.EMPTY or known.group.pending:
                return self._upgrade(group_id, known)
            epoch = known.group.phases.generation
            if known.timer is not None:
                known.timer.cancel()
        elif known is not None:
            epoch, state_ms = known.generation, known.state_ms
        shard = self._groups.shard(group_id)
        assert shard is not None, f'this broker does not coordinate group "{group_id}"'
        running = RunningModernGroup(self._new_group(group_type, group_id, epoch), state_ms, replaced=known)
        shard.groups[group_id] = running
        shard.unstored.discard(group_id)
        self._offsets.cache.load_in_background([group_id])
        self._settings.request(shard.number)
        return running

    # --- online migration

    def _upgrade(self, group_id: str, classic: RunningGroup) -> RunningModernGroup:
        """Convert a classic group with members, for a member of the consumer protocol. Raises `GroupError`."""
        check_upgrade(classic.group, self._config)
        members = upgraded_members(classic.group, self.topics)
        group = self._new_group(GroupType.CONSUMER, group_id, classic.group.phases.generation)
        group.restore(members, self._now_ms())
        group.mark_all()
        shard = self._groups.shard(group_id)
        assert shard is not None, f'this broker does not coordinate group "{group_id}"'
        running = shard.groups[group_id] = RunningModernGroup(group, self._clock.wall_ms())
        self._settings.request(shard.number)
        classic.group.phases.close(ErrorCode.REBALANCE_IN_PROGRESS)
        self._apply_effects(classic)
        log.info("upgraded a group to the consumer protocol", group=group_id, members=len(members))
        return running

    def _downgrade(self, running: RunningModernGroup) -> None:
        """Convert a group whose last member of the consumer protocol has gone, if the policy permits."""
        group = running.group
        shard = self._groups.shard(group.group_id)
        if shard is None or not may_downgrade(group, self._config):
            return
        self.stop(running)
        classic = downgraded_group(group, self._config, self._new_id, self._now_ms())
        started = shard.groups[group.group_id] = RunningGroup(classic, self._clock.wall_ms(), is_stored=True)
        deletes = [DeleteOp(keys.group_member(group.group_id, member_id)) for member_id in group.members]
        put = PutOp(keys.group(group.group_id), encode_rebalancing_group(classic, self._clock.wall_ms()))
        self._offsets.writers.for_group(group.group_id).submit([(put, None), *((each, None) for each in deletes)])
        self._apply_effects(started)
        log.info("downgraded a group to the classic protocol", group=group.group_id, members=len(group.members))

    def _discard_unused(self, running: RunningModernGroup) -> None:
        """Replace a group that its first member could not join by what was there before."""
        group = running.group
        shard = self._groups.shard(group.group_id)
        if group.members or running.was_stored or shard is None:
            return
        if running.replaced is None:
            del shard.groups[group.group_id]
        elif isinstance(running.replaced, IdleGroup):
            shard.groups[group.group_id] = running.replaced
        else:
            phases = running.replaced.group.phases
            shard.groups[group.group_id] = IdleGroup(
                phases.generation, phases.protocol_type, running.state_ms, GroupType.CLASSIC
            )

    def _new_group(self, group_type: GroupType, group_id: str, epoch: int) -> ModernGroup:
        protocol = MODERN_PROTOCOLS[group_type]
        config = protocol.config_of(self._config, self._settings.of_group(group_id))
        return ModernGroup(group_id, group_type, protocol.assignors(self._config), self.topics, config, epoch)

    # --- topics and settings

    def topics_changed(self, changes: Sequence[TopicChange]) -> None:
        """Assign anew in groups that subscribe to new, deleted, or extended topics."""
        names = [name for change in changes if (name := changed_name(change)) is not None]
        if names:
            self.topics.forget_matches()
            self._select_topics(names)

    def _select_topics(self, names: Sequence[str]) -> None:
        for _, running in list(self._running()):
            if running.group.on_topics_changed(names):
                self.start_assignment(running)
                self._flush(running)
                self._arm(running)

    def _schedule_refresh(self) -> None:
        delay_s = self._config.group_consumer_regex_refresh_interval_ms / 1000
        self._refresh = self._loop.call_later(delay_s, self._refresh_patterns)

    def _refresh_patterns(self) -> None:
        """Select topics by expression again, with the current rights of the members."""
        self.topics.forget_matches()
        self._select_topics([])
        self._schedule_refresh()

    def _apply_settings(self, number: int) -> None:
        """Apply the settings of a shard's groups that were read again."""
        shard = self._ownership.get(number)
        defaults = {
            group_type: protocol.config_of(self._config, {}) for group_type, protocol in MODERN_PROTOCOLS.items()
        }
        for group_id, running in shard.groups.items() if shard is not None else ():
            if isinstance(running, RunningModernGroup):
                group, settings = running.group, self._settings.of_group(group_id)
                config_of = MODERN_PROTOCOLS[group.group_type].config_of
                group.config = config_of(self._config, settings) if settings else defaults[group.group_type]

    def _shards_with_groups(self) -> list[int]:
        return [
            shard.number
            for shard in self._ownership
            if any(isinstance(known, RunningModernGroup) for known in shard.groups.values())
        ]

    # --- internal

    def _running(self) -> Iterator[tuple[str, RunningModernGroup]]:
        for shard in self._ownership:
            for group_id, known in shard.groups.items():
                if isinstance(known, RunningModernGroup):
                    yield group_id, known

    def _now_ms(self) -> float:
        return self._loop.time() * 1000

    def start_assignment(self, running: RunningModernGroup) -> None:
        """Start the assignment that is due, if any; a large one is computed in a thread."""
        given = running.group.start_assignment(self._now_ms())
        if given is not None:
            epoch, assign = running.group.group_epoch, running.group.assignors[running.group.assignor]
            computed: asyncio.Future[dict[str, Assignment]] = self._loop.run_in_executor(None, assign, given)
            computed.add_done_callback(partial(self._assigned, running, epoch, given))

    def _assigned(
        self,
        running: RunningModernGroup,
        epoch: int,
        given: AssignmentInput,
        computed: asyncio.Future[dict[str, Assignment]],
    ) -> None:
        error = None if computed.cancelled() else computed.exception()
        if error is not None:
            report("cannot assign partitions", error, group=running.group.group_id, size=given.size)
        if computed.cancelled() or error is not None:
            running.group.install(epoch, None)
        else:
            running.group.install(epoch, computed.result())
        if self._groups.get(running.group.group_id) is running:
            self._arm(running)

    def store(self, running: RunningModernGroup) -> asyncio.Future[list[int]] | None:
        """Store what has changed, and arm the timer. Returns the last write of the group that is not durable yet.

        A group that has lost its last member of the consumer protocol may become a classic one.
        """
        is_changed = running.group.has_changes
        write = self._flush(running)
        if is_changed and self._groups.get(running.group.group_id) is running:
            self._downgrade(running)
        return write

    def _flush(self, running: RunningModernGroup) -> asyncio.Future[list[int]] | None:
        group = running.group
        changes = group.pop_changes()
        if changes:
            if not group.members:
                running.state_ms = self._clock.wall_ms()
                self._offsets.expiry.schedule(group.group_id, running.state_ms)
            written = self._offsets.writers.for_group(group.group_id).submit(list(self._operations(running, changes)))
            written.add_done_callback(partial(self._on_written, running, changes))
            running.last_write, running.was_stored = written, True
        self._arm(running)
        write = running.last_write
        return None if write is None or (write.done() and not write.result()) else write

    def _operations(
        self, running: RunningModernGroup, changes: GroupChanges
    ) -> Iterator[tuple[Operation, OffsetWrite | None]]:
        group = running.group
        for member_id, member in changes.members.items():
            key = keys.group_member(group.group_id, member_id)
            yield (DeleteOp(key) if member is None else PutOp(key, encode_member(member))), None
        if changes.is_epoch_changed:  # after the members: without it, an upgraded group is still a classic one
            record = GroupRecord(
                protocol_type=group.group_type,
                generation=group.group_epoch,
                state_ms=running.state_ms,
                group_type=group.group_type,
            )
            yield PutOp(keys.group(group.group_id), records.encode(record)), None

    def _on_written(
        self, running: RunningModernGroup, changes: GroupChanges, written: asyncio.Future[list[int]]
    ) -> None:
        if written.cancelled() or written.result():
            running.group.restore_changes(changes)

    def _arm(self, running: RunningModernGroup) -> None:
        wake_ms = running.group.wake_ms
        if running.timer is not None:
            if wake_ms is not None and running.armed_ms <= wake_ms:
                return
            self.stop(running)
        if wake_ms is not None and self._groups.get(running.group.group_id) is running:
            running.armed_ms = wake_ms
            running.timer = self._loop.call_at(wake_ms / 1000, self._wake, running)

    def _wake(self, running: RunningModernGroup) -> None:
        running.timer = None
        for member_id in running.group.tick(max(self._now_ms(), running.armed_ms)):
            log.info("removed a member without heartbeats", group=running.group.group_id, member=member_id)
        self.start_assignment(running)
        self.store(running)


def check_type(group_type: GroupType, group_id: str, known: HostedGroup | None, request: MemberHeartbeat) -> None:
    """Raise `GroupError` if a heartbeat's group is, and stays, of another type.

    A share group never becomes a consumer group, nor the reverse. A consumer never gets GROUP_ID_NOT_FOUND: librdkafka
    before 2.14.3 would repeat the heartbeat forever.
    """
    known_type = None if known is None else type_of(known)
    is_share = group_type is GroupType.SHARE
    if known_type is None and is_share and request.epoch != JOIN_EPOCH:
        raise GroupError(ErrorCode.GROUP_ID_NOT_FOUND, f"Share group {group_id} not found.")
    if known_type not in (None, group_type) and (is_share or known_type is GroupType.SHARE):
        error = ErrorCode.GROUP_ID_NOT_FOUND if is_share else ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        raise GroupError(error, f"Group {group_id} is not a {group_type} group.")


def failed(request: MemberHeartbeat, error: ErrorCode, message: str | None = None) -> HeartbeatResult:
    """Return the result of a rejected heartbeat."""
    return HeartbeatResult(request.member_id, 0, error=error, message=message)


def changed_name(change: TopicChange) -> str | None:
    """Return the name of a topic that is new, deleted, or has other partitions; else None."""
    old, new = change.old, change.new
    if old is None:
        return None if new is None else new.name
    return old.name if new is None or old.shown_count != new.shown_count else None
