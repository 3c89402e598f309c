"""The group coordinator of a broker: its groups, their timers and their persistence. Called by `api`.

No method waits for the network: results are immediate or futures. The state machine of a group is in `state_machine`,
offsets are in `offsets`; this module runs both on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from uuid import UUID

from penstock.config.broker import BrokerConfig
from penstock.control.group_settings import MAX_GROUP_ID_CHARS
from penstock.group.admission import check_join, is_group_id
from penstock.group.calls import JoinRequest, JoinResult, Persist, Reply, SyncRequest, SyncResult
from penstock.group.classic_members import ClassicMembers
from penstock.group.coordinator_shard import CoordinatorShard, IdleGroup, LoadedKey, RunningGroup, RunningModernGroup
from penstock.group.directory import GroupDirectory
from penstock.group.fencing import FencingConfirmation
from penstock.group.modern.consumer import commit_error
from penstock.group.modern.group import GroupType, ModernGroup
from penstock.group.modern_groups import ModernGroups
from penstock.group.offset_loading import OffsetLoaderFactory
from penstock.group.offsets import CommittedOffset, OffsetCommit, Offsets
from penstock.group.ownership import ShardOwnership
from penstock.group.persistence import encode_group, restore_group
from penstock.group.phases import GroupState
from penstock.group.reads import OffsetReads
from penstock.group.retention import OffsetRetention
from penstock.group.settings_expiry import SettingsExpiry
from penstock.group.state_machine import ClassicGroup
from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock.state import keys, records
from penstock.state.records import BadRecord, GroupRecord
from penstock.state.store import DeleteOp, PutOp, Store, StoreEntry, StoreError
from penstock.state.view import ClusterView
from penstock.wire.errors import ErrorCode

log = get_logger(__name__)

JoinFuture = asyncio.Future[JoinResult]
SyncFuture = asyncio.Future[SyncResult]


class GroupCoordinator:
    """All groups of the shards that this broker owns.

    Before `start` and after `close`, every request fails with a retriable error. `new_id` returns the unguessable part
    of member ids. Implements `listeners.ShardListener`.
    """

    prefixes: Sequence[str] = (keys.GROUPS, keys.GROUP_MEMBERS, keys.GROUP_SETTINGS)

    def __init__(
        self,
        store: Store,
        view: ClusterView,
        clock: Clock,
        config: BrokerConfig,
        new_id: Callable[[], str],
        ownership: ShardOwnership,
        make_loader: OffsetLoaderFactory,
    ) -> None:
        self.config = config
        self.ownership = ownership
        """The owned shards, which also hold transactional ids."""
        self._groups = GroupDirectory(ownership, clock, config, new_id)
        on_lost, on_loaded = ownership.handle_lost, lambda group_id: self.retention.check_group(group_id)
        self.offsets = Offsets(store, view, clock, config, self._groups, on_lost, self._ensure_records, on_loaded)
        self.reads = OffsetReads(ownership, self.offsets.cache, self.error, self.exists)
        self.fencing = FencingConfirmation(ownership, self.error)
        self.retention: OffsetRetention = OffsetRetention(
            self.offsets, view, clock, config, self._groups.usage, self._delete_if_unused
        )
        self.modern = ModernGroups(
            store, view, clock, config, self._groups, self.offsets, ownership, self._request_error, new_id,
            self._apply_effects,
        )  # fmt: skip
        self._classic_members = ClassicMembers(self.modern, config, new_id)
        self._settings = SettingsExpiry(store, clock, config, ownership, self.exists, lambda: self.retention.paused)
        self._loader = make_loader(store, view, self.offsets, self.retention, ownership, self._ensure_records)
        ownership.add_listener(self)
        ownership.add_listener(self._loader)
        self._store, self._view, self._clock, self._new_id = store, view, clock, new_id
        self._unavailable = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        self._loop: asyncio.AbstractEventLoop

    # --- lifecycle

    async def start(self) -> None:
        """Acquire shards; all listeners must have been added. The view must be loaded. Raises StoreError.

        In a cluster, this returns before any shard is loaded.
        """
        assert self._view.revision > 0, "groups are loaded after the topics"
        self._loop = asyncio.get_running_loop()
        self.modern.start()
        await self.ownership.start()
        self._view.subscribe(self._loader.topics_changed)
        self._view.subscribe(self.modern.topics_changed)
        self.retention.start()
        self._settings.start()
        self._unavailable = ErrorCode.NONE

    def on_acquired(self, shard: CoordinatorShard, found: Sequence[list[StoreEntry]]) -> None:
        """Start to serve a shard whose groups have been read."""
        shard.is_loading = False
        self.offsets.writers.open(shard.guard)
        entries, members, settings = found
        loaded: dict[str, GroupRecord] = {}
        with LoadedKey() as loading:
            for entry in entries:
                loading.key = entry.key
                if record := self._load(shard, entry):
                    loaded[keys.group_of(entry.key)] = record
        self.modern.load(shard, loaded, members, settings)

    def _load(self, shard: CoordinatorShard, entry: StoreEntry) -> GroupRecord | None:
        """Load a classic group. Returns the record of the group, of whatever type; None if it is unreadable."""
        group_id = keys.group_of(entry.key)
        group = ClassicGroup(group_id, self.config, self._new_id)
        try:
            record = records.decode(GroupRecord, entry.key, entry.value)
            if keys.group(group_id) != entry.key:
                raise ValueError("the group belongs to another shard")
            if record.group_type != GroupType.CLASSIC:
                return record
            restore_group(group, record, self._now_ms())
        except (BadRecord, ValueError) as e:
            log.error("cannot read group record: starting with an empty group", key=entry.key, error=str(e))
            return None
        # The end of the last member's session is unknown; it ended now at the latest.
        state_ms = record.state_ms if record.protocol is None else self._clock.wall_ms()
        if group.phases.state is GroupState.EMPTY:
            shard.groups[group_id] = IdleGroup(record.generation, record.protocol_type, state_ms)
        else:
            running = shard.groups[group_id] = RunningGroup(group, state_ms, is_stored=True)
            self._apply_effects(running)
        return record

    def on_resigned(self, shard: CoordinatorShard) -> None:
        """Fail all waiting requests of a shard that this broker no longer owns."""
        self.offsets.writers.close(shard.number)
        if shard.groups:
            log.debug("coordinator shard resigned", shard=shard.number, groups=len(shard.groups))
        groups, shard.groups = shard.groups, {}
        for group_id, known in groups.items():
            if isinstance(known, RunningGroup):
                known.group.phases.close(ErrorCode.NOT_COORDINATOR)
                self._apply_effects(known)
            elif isinstance(known, RunningModernGroup):
                self.modern.stop(known)
            self.offsets.cache.evict(group_id)

    def dismiss(self) -> None:
        """Reject new and waiting requests, before the broker stops. Accepted commits become durable."""
        self._unavailable = ErrorCode.NOT_COORDINATOR
        self.retention.close()
        self._settings.close()
        self.modern.close()
        self.offsets.cache.close()
        self._loader.close()
        for shard in self.ownership:
            for group_id, known in list(shard.groups.items()):
                if isinstance(known, RunningGroup):
                    known.group.phases.close(ErrorCode.NOT_COORDINATOR)
                    self._apply_effects(known)
                    del shard.groups[group_id]

    async def close(self) -> None:
        """Call `dismiss`, and wait until all accepted writes are durable."""
        self.dismiss()
        await self.offsets.writers.drain()
        self.ownership.close()

    # --- members

    def join(self, group_id: str, request: JoinRequest) -> JoinFuture:
        """Join a group. The future resolves when the join phase ends. Call `abandon` if the client disconnects."""
        future: JoinFuture = asyncio.get_running_loop().create_future()
        error = self.error(group_id) or check_join(self.config, group_id, request)
        error = error or self._groups.check_classic_join(group_id)
        consumer = self._groups.consumer(group_id)
        if not error and consumer is not None:
            return self._classic_members.join(consumer, request)
        running = None if error else self._groups.running(group_id)
        if not error and running is None:
            if request.member_id:
                error = ErrorCode.UNKNOWN_MEMBER_ID
            else:
                running = self._groups.start_group(group_id)
        if error or running is None:
            future.set_result(JoinResult(error, request.member_id))
            return future
        running.group.join(request, future, self._now_ms())
        self._apply_effects(running)
        return future

    def sync(self, group_id: str, request: SyncRequest) -> SyncFuture:
        """Sync with the group. The future resolves once the assignment is durable. See `abandon`."""
        future: SyncFuture = asyncio.get_running_loop().create_future()
        running, consumer = self._groups.running(group_id), self._groups.consumer(group_id)
        error = self.error(group_id)
        if not error and consumer is not None:
            return self._classic_members.sync(consumer, request)
        if error or running is None:
            if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                # clients do not expect the loading error here; the member rejoins
                error = ErrorCode.REBALANCE_IN_PROGRESS
            future.set_result(SyncResult(error or self._unknown(group_id)))
            return future
        running.group.sync(request, future, self._now_ms())
        self._apply_effects(running)
        return future

    def abandon(self, group_id: str, future: JoinFuture | SyncFuture) -> None:
        """Drop the waiting request of a client that has disconnected."""
        running = self._groups.running(group_id)
        if running is not None and not future.done():
            running.group.abandon(future, self._now_ms())
            self._apply_effects(running)

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Extend the session. Returns NONE while the shard is loading, as Kafka does."""
        error = self.error(group_id)
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return ErrorCode.NONE if is_group_id(group_id) else ErrorCode.INVALID_GROUP_ID
        running, consumer = self._groups.running(group_id), self._groups.consumer(group_id)
        if consumer is not None:
            answer = self._classic_members.heartbeat(consumer, member_id, instance_id, generation)
            return error or answer
        if running is None:
            return error or self._unknown(group_id)
        # Also if the broker's lease may have expired: the session must not expire because of that.
        answer = running.group.heartbeat(member_id, instance_id, generation, self._now_ms())
        return error or answer

    def leave(self, group_id: str, members: Sequence[tuple[str, str | None]]) -> tuple[ErrorCode, list[ErrorCode]]:
        """Remove each (member id, instance id). Returns an error for the request, and one per member."""
        error = self.error(group_id)
        if error or not group_id:
            return error or ErrorCode.INVALID_GROUP_ID, []
        running, consumer = self._groups.running(group_id), self._groups.consumer(group_id)
        if consumer is not None:
            return ErrorCode.NONE, self._classic_members.leave(consumer, members)
        if running is None:
            return ErrorCode.NONE, [ErrorCode.UNKNOWN_MEMBER_ID] * len(members)
        errors = [running.group.leave(*member) for member in members]
        running.group.apply_leaves(self._now_ms())
        self._apply_effects(running)
        return ErrorCode.NONE, errors

    # --- offsets

    def check_commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        partitions: Iterable[tuple[UUID, int]],
    ) -> ErrorCode:
        """Return the error that fences a commit, or NONE. Extends the session of a member of a classic group.

        The generation is the member's epoch in a consumer group, where `partitions` are those to commit.
        """
        error = self.error(group_id)
        if error:
            return error
        if len(group_id) > MAX_GROUP_ID_CHARS:
            return ErrorCode.INVALID_GROUP_ID
        known = self._groups.get(group_id)
        if isinstance(known, RunningGroup):
            return known.group.check_commit(member_id, instance_id, generation, self._now_ms())
        if isinstance(known, RunningModernGroup):
            return commit_error(known.group, member_id, generation, partitions)
        if self._groups.is_share(group_id):
            return ErrorCode.GROUP_ID_NOT_FOUND
        if generation < 0:
            return ErrorCode.NONE
        return ErrorCode.ILLEGAL_GENERATION if known is None else ErrorCode.UNKNOWN_MEMBER_ID

    def commit(
        self, group_id: str, commits: Sequence[OffsetCommit], retention_ms: int | None = None
    ) -> asyncio.Future[list[int]]:
        """Commit offsets after `check_commit`. The result is the indexes of those that did not become durable."""
        if commits and group_id not in self.offsets.cache:
            if self._groups.get(group_id) is None:
                self._loader.admit(group_id)
            else:
                self.offsets.cache.load_in_background([group_id])
        if commits and not self._groups.is_stored(group_id):
            self._store_group(group_id)
        return self.offsets.commit(group_id, commits, retention_ms)

    def commit_failure(self, group_id: str) -> ErrorCode:
        """Return a retriable error for a commit that did not become durable."""
        return self.error(group_id) or ErrorCode.COORDINATOR_NOT_AVAILABLE

    def error(self, group_id: str) -> ErrorCode:
        """Return the error that prevents serving the group now, or NONE."""
        return self._unavailable or self.ownership.error(keys.shard_of(group_id))

    @property
    def unavailable(self) -> ErrorCode:
        """The error that prevents listing groups, or NONE. Clients retry only on these two errors."""
        if self._unavailable:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return self.ownership.loading_error

    def committed(self) -> Iterator[CommittedOffset]:
        """Iterate over the committed offsets in memory, for the lag metrics."""
        return self.offsets.committed()

    async def delete_topic_offsets(self, topic_id: UUID) -> None:
        """Return when no committed offsets of a deleted topic are left. Raises StoreError."""
        await self._loader.delete_topic_offsets(topic_id)

    # --- all groups

    def coordinator_of(self, group_id: str) -> int:
        """Return the id of the group's coordinator, -1 if there is none now."""
        return self.ownership.owner_of(keys.shard_of(group_id))

    def find(self, group_id: str) -> ClassicGroup | None:
        """Return the group if it has had members since this broker coordinates it."""
        running = self._groups.running(group_id)
        return None if running is None else running.group

    def new_member_id(self) -> str:
        """Return an id for a member that has none."""
        return self._new_id()

    def find_modern(self, group_id: str) -> ModernGroup | None:
        """Return the group if its broker assigns partitions and it has had members since this broker coordinates it."""
        modern = self._groups.modern(group_id)
        return None if modern is None else modern.group

    def idle(self, group_id: str) -> IdleGroup | None:
        """Return the group if it has had no members since this broker coordinates it."""
        return self._groups.idle(group_id)

    def is_share(self, group_id: str) -> bool:
        """Return whether the group is a share group and is coordinated here."""
        return self._groups.is_share(group_id)

    def exists(self, group_id: str) -> bool:
        """Return whether the group exists and is coordinated here."""
        return self._groups.get(group_id) is not None

    def group_ids(self) -> list[str]:
        """Return the ids of all groups that this broker coordinates."""
        return self._groups.group_ids()

    async def delete(self, group_id: str) -> ErrorCode:
        """Delete an empty group, its offsets and its settings. Durable on return."""
        error = (await self.reads.prepare([group_id], ErrorCode.COORDINATOR_NOT_AVAILABLE))[group_id]
        if error:
            return error
        if self._groups.get(group_id) is None:
            return await self._delete_settings(group_id)
        if self._groups.has_members(group_id):
            return ErrorCode.NON_EMPTY_GROUP
        failed = await asyncio.gather(*self._delete_group(group_id))
        return self.commit_failure(group_id) if any(failed) else ErrorCode.NONE

    async def _delete_settings(self, group_id: str) -> ErrorCode:
        """Delete the settings of a group that does not exist otherwise."""
        try:
            if await self._store.get(keys.group_settings(group_id)) is None:
                return ErrorCode.GROUP_ID_NOT_FOUND
        except StoreError as e:
            log.warning("cannot read group settings", group=group_id, reason=str(e))
            return self.error(group_id) or ErrorCode.COORDINATOR_NOT_AVAILABLE
        writer = self.offsets.writers.for_group(group_id)
        failed = await writer.submit([(DeleteOp(keys.group_settings(group_id)), None)])
        return self.commit_failure(group_id) if failed else ErrorCode.NONE

    def _delete_group(self, group_id: str) -> list[asyncio.Future[list[int]]]:
        shard = self.ownership.get(keys.shard_of(group_id))
        known = shard.groups.pop(group_id, None) if shard is not None else None
        if isinstance(known, RunningGroup):
            known.group.phases.close(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            self._apply_effects(known)
            known = IdleGroup(known.group.phases.generation, known.group.phases.protocol_type, known.state_ms)
        elif isinstance(known, RunningModernGroup):
            self.modern.stop(known)
            known = known.as_idle()
        futures = self.offsets.delete_group(group_id)
        if shard is not None and known is not None:
            futures[-1].add_done_callback(partial(self._on_group_deleted, shard, group_id, known))
        return futures

    def _on_group_deleted(
        self, shard: CoordinatorShard, group_id: str, known: IdleGroup, written: asyncio.Future[list[int]]
    ) -> None:
        """Restore a group whose deletion failed; else drop what is cached about its name."""
        if written.result():
            shard.groups.setdefault(group_id, known)
            self.offsets.expiry.schedule(group_id, self._clock.wall_ms())
            return
        self.offsets.forget_attached(group_id)
        if not self.offsets.outstanding_keys(group_id):
            self.reads.forget(group_id)

    # --- internal

    def _request_error(self, group_id: str) -> ErrorCode:
        return self.error(group_id) or (ErrorCode.NONE if is_group_id(group_id) else ErrorCode.INVALID_REQUEST)

    def _ensure_records(self, group_ids: Iterable[str]) -> None:
        """Store a record for groups that have offsets only, so that the next coordinator finds them."""
        for group_id in group_ids:
            writer = self.offsets.writers.for_group(group_id)
            if self._groups.get(group_id) is None and not writer.is_writing(keys.group(group_id)):
                self._store_group(group_id)
                if group_id not in self.offsets.cache:  # added by a transaction
                    self.offsets.cache.load_in_background([group_id], force=True)

    def _store_group(self, group_id: str) -> None:
        """Store the record of a group of generation 0."""
        shard = self._groups.shard(group_id)
        if shard is None:
            return
        self._groups.mark_stored(group_id)

        def written(done: asyncio.Future[list[int]]) -> None:
            if done.result():
                shard.unstored.add(group_id)

        self.offsets.store_group(group_id).add_done_callback(written)

    def _unknown(self, group_id: str) -> ErrorCode:
        return ErrorCode.UNKNOWN_MEMBER_ID if is_group_id(group_id) else ErrorCode.INVALID_GROUP_ID

    def _now_ms(self) -> float:
        return self._loop.time() * 1000

    def _apply_effects(self, running: RunningGroup) -> None:
        """Carry out the group's effects, and arm its timer."""
        group = running.group
        for effect in group.phases.pop_effects():
            if isinstance(effect, Reply):
                waiter = effect.waiter
                assert isinstance(waiter, asyncio.Future), "waiters are futures"
                if not waiter.done():
                    waiter.set_result(effect.result)
            else:
                self._persist(running, effect)
        if group.is_blank:
            self._groups.discard_blank(running)
        self._arm(running)

    def _arm(self, running: RunningGroup) -> None:
        wake_ms = running.group.phases.wake_ms
        if running.timer is not None:
            if wake_ms is not None and running.armed_ms <= wake_ms:
                return
            running.timer.cancel()
            running.timer = None
        if wake_ms is not None:
            running.armed_ms = wake_ms
            running.timer = self._loop.call_at(wake_ms / 1000, self._wake, running)

    def _wake(self, running: RunningGroup) -> None:
        running.timer = None
        running.group.tick(self._now_ms())
        self._apply_effects(running)

    def _persist(self, running: RunningGroup, effect: Persist) -> None:
        group = running.group
        wall_ms = running.state_ms = self._clock.wall_ms()
        if not running.is_stored:
            running.is_stored = True
            self.offsets.cache.load_in_background([group.group_id])
        put = PutOp(keys.group(group.group_id), encode_group(group, wall_ms))
        written = self.offsets.writers.for_group(group.group_id).submit([(put, None)])
        written.add_done_callback(partial(self._persisted, running, effect.sequence))
        self.offsets.expiry.schedule(group.group_id, wall_ms)

    def _persisted(self, running: RunningGroup, sequence: int, written: asyncio.Future[list[int]]) -> None:
        if running.group.phases.state is GroupState.DEAD:
            return
        if written.result():
            running.group.phases.persist_failed(sequence, self._now_ms())
        else:
            running.group.phases.persisted(sequence, self._now_ms())
        self._apply_effects(running)

    def _delete_if_unused(self, group_id: str) -> bool:
        """Delete an empty group without offsets, unless a member is joining. Share groups never expire, as in Kafka."""
        if self._groups.is_share(group_id):
            return False
        running = self._groups.running(group_id)
        if self._groups.has_members(group_id) or (running is not None and running.group.pending):
            return False
        self._delete_group(group_id)
        return True
