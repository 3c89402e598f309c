"""The group coordinator of a broker: all its groups, their timers, and what makes them durable. `api` calls it.

Every method answers at once or returns a future; nothing here waits for the network. The state machine of a group
is in `state_machine`, offsets are in `offsets`; this puts both on an event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from uuid import UUID, uuid4

from penstock.config.broker import BrokerConfig
from penstock.control.group_settings import MAX_GROUP_ID
from penstock.group.calls import Answer, JoinAnswer, JoinRequest, Persist, SyncAnswer, SyncRequest
from penstock.group.directory import Directory
from penstock.group.fencing import FencingConfirmations
from penstock.group.offsets import CommittedOffset, OffsetCommit, Offsets
from penstock.group.ownership import LocalShardOwnership, ShardMembership, ShardOwnership
from penstock.group.persistence import encode_group, restore_group
from penstock.group.phases import GroupState
from penstock.group.reads import OffsetReads
from penstock.group.retention import OffsetRetention
from penstock.group.settings_expiry import SettingsExpiry
from penstock.group.shard_tenancy import IdleTenancy, RunningTenancy, ShardTenancy
from penstock.group.state_machine import ClassicGroup
from penstock.group.topic_cleaning import TopicCleaning, check_forgotten
from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock.state import keys, records
from penstock.state.records import BadRecord, GroupRecord
from penstock.state.store import DeleteOp, PutOp, Store, StoreEntry, StoreError
from penstock.state.view import ClusterView
from penstock.wire.errors import ErrorCode

log = get_logger(__name__)

MAX_INSTANCE_ID = 1024
MAX_PROTOCOLS = 64
"""Assignors that one member may name."""
MAX_METADATA_BYTES = 8 << 20
"""Of one member, for all assignors together."""

JoinFuture = asyncio.Future[JoinAnswer]
SyncFuture = asyncio.Future[SyncAnswer]


class GroupCoordinator:
    """`start` begins to take up shards; until it has one, and after `close`, everybody is told to come back.

    `new_id` makes the unguessable part of member ids. Without a `membership` this is the one broker there is, and has
    all shards.
    """

    def __init__(
        self,
        store: Store,
        view: ClusterView,
        clock: Clock,
        config: BrokerConfig,
        new_id: Callable[[], str] = lambda: str(uuid4()),
        membership: ShardMembership | None = None,
    ) -> None:
        self.config = config
        self.offsets = Offsets(store, view, clock, config)
        self._ownership: ShardOwnership
        if membership is None:
            self._ownership = LocalShardOwnership(store, view, self._taken, self._resigned)
        else:
            self._ownership = ShardOwnership(store, view, config.node_id, membership, self._taken, self._resigned)
        self.is_alone = membership is None
        self._groups = Directory(self._ownership, clock, config, new_id)
        self.reads = OffsetReads(store, self._ownership, self.offsets.residence, self.error, self.exists, self.is_alone)
        self.verdicts = FencingConfirmations(self.reads.confirmation, self._ownership, self.error)
        self.retention = OffsetRetention(self.offsets, view, clock, config, self._groups.standing, self._nothing_left)
        self._settings = SettingsExpiry(
            store, clock, config, self._ownership, self.exists, lambda: self.retention.paused
        )
        self._cleaning = TopicCleaning(store, view, self.offsets, self._ownership)
        self._store = store
        self._view = view
        self._clock = clock
        self._new_id = new_id
        self._unavailable = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        self._loop: asyncio.AbstractEventLoop

    # --- life

    async def start(self) -> None:
        """Takes up shards. The view has been loaded before: offsets of topics that it lacks are not served.

        In a cluster it returns before any shard is loaded.
        """
        assert self._view.revision > 0, "groups are loaded when the topics are known"
        self._loop = asyncio.get_running_loop()
        self.offsets.writers.lost = self._ownership.lost
        self.offsets.residence.has_members = self._groups.is_running
        self.offsets.residence.has_read = self.retention.look
        self.offsets.residence.is_mine = lambda group_id: self._groups.tenure(group_id) is not None
        self.offsets.unknown_groups = self._make_known
        self._ownership.start()
        if isinstance(self._ownership, LocalShardOwnership):
            groups = (await self._store.range(keys.GROUPS)).entries
            offsets = (await self._store.range(keys.OFFSETS)).entries
            self._ownership.fill(groups)
            self._make_known(self.offsets.load(offsets))
            self._view.subscribe(self.offsets.topics_changed)
        else:
            self._view.subscribe(self._cleaning.topics_changed)
        self.retention.start()
        self._settings.start()
        self._unavailable = ErrorCode.NONE

    def _taken(self, tenure: ShardTenancy, entries: list[StoreEntry]) -> None:
        """A shard's groups have been read: from now on they are served."""
        tenure.is_loading = False
        self.offsets.writers.open(tenure.number, tenure.guard)
        idle: list[str] = []
        for entry in entries:
            self._load(tenure, entry, idle)
        if self.is_alone:
            for group_id in tenure.groups:
                self.offsets.residence.is_all_here(group_id)
            return
        log.debug("a coordinator shard is this broker's", shard=tenure.number, groups=len(tenure.groups))
        self.offsets.residence.want(tenure.groups)
        for group_id in idle:
            self.retention.look_at_leisure(group_id)
        self._cleaning.shard_taken(tenure)

    def _load(self, tenure: ShardTenancy, entry: StoreEntry, idle: list[str]) -> None:
        group_id = keys.group_of(entry.key)
        group = ClassicGroup(group_id, self.config, self._new_id)
        try:
            record = records.decode(GroupRecord, entry.key, entry.value)
            restore_group(group, record, self._now_ms())
            if keys.group(group_id) != entry.key:
                raise ValueError("the group belongs to another shard")
        except (BadRecord, ValueError) as e:
            log.error("skipping an unreadable group: it starts anew", key=entry.key, error=str(e))
            return
        # Of a group that had members nobody knows how long it has been without: from now on, at the latest.
        state_ms = record.state_ms if record.protocol is None else self._clock.wall_ms()
        if group.state is GroupState.EMPTY:
            tenure.groups[group_id] = IdleTenancy(record.generation, record.protocol_type, state_ms)
            idle.append(group_id)
        else:
            running = tenure.groups[group_id] = RunningTenancy(group, state_ms, is_stored=True)
            self._after(running)
        if self.is_alone:
            self.offsets.expiry.schedule(group_id, self._clock.wall_ms())

    def _resigned(self, tenure: ShardTenancy) -> None:
        """A shard is no longer this broker's: nobody gets another answer from it."""
        self.offsets.writers.close(tenure.number)
        if tenure.groups:
            log.debug("a coordinator shard is given up", shard=tenure.number, groups=len(tenure.groups))
        groups, tenure.groups = tenure.groups, {}
        for group_id, known in groups.items():
            if isinstance(known, RunningTenancy):
                known.group.close(ErrorCode.NOT_COORDINATOR)
                self._after(known)
            self.offsets.residence.drop(group_id)
        self.offsets.residence.drop_shard(tenure.number)

    def dismiss(self) -> None:
        """Tells everybody, and at once those who wait, to look for the coordinator again: the broker is to stop.

        Offsets that were accepted go on becoming durable.
        """
        self._unavailable = ErrorCode.NOT_COORDINATOR
        self.retention.close()
        self._settings.close()
        self.offsets.residence.close()
        self._cleaning.close()
        for tenure in self._ownership:
            for group_id, known in list(tenure.groups.items()):
                if isinstance(known, RunningTenancy):
                    known.group.close(ErrorCode.NOT_COORDINATOR)
                    self._after(known)
                    del tenure.groups[group_id]

    async def close(self) -> None:
        """As `dismiss`; returns when what was accepted is durable."""
        self.dismiss()
        await self.offsets.writers.settle()
        self._ownership.close()

    # --- members

    def join(self, group_id: str, request: JoinRequest) -> JoinFuture:
        """Resolves when the join phase ends. Call `abandon` where nobody waits any longer."""
        future: JoinFuture = asyncio.get_running_loop().create_future()
        error = self.error(group_id) or self._check_join(group_id, request)
        running = None if error else self._groups.running(group_id)
        if not error and running is None:
            if request.member_id:
                error = ErrorCode.UNKNOWN_MEMBER_ID
            else:
                running = self._groups.begin(group_id)
        if error or running is None:
            future.set_result(JoinAnswer(error, request.member_id))
            return future
        running.group.join(request, future, self._now_ms())
        self._after(running)
        return future

    def _check_join(self, group_id: str, request: JoinRequest) -> ErrorCode:
        if not is_group_id(group_id):
            return ErrorCode.INVALID_GROUP_ID
        config = self.config
        if not (
            config.group_min_session_timeout_ms <= request.session_timeout_ms <= config.group_max_session_timeout_ms
        ):
            return ErrorCode.INVALID_SESSION_TIMEOUT
        metadata_bytes = sum(map(len, request.protocols.values()))
        too_long = request.instance_id is not None and not 0 < len(request.instance_id) <= MAX_INSTANCE_ID
        if too_long or len(request.protocols) > MAX_PROTOCOLS or metadata_bytes > MAX_METADATA_BYTES:
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.NONE

    def sync(self, group_id: str, request: SyncRequest) -> SyncFuture:
        """Resolves when the assignment is there and durable."""
        future: SyncFuture = asyncio.get_running_loop().create_future()
        running = self._groups.running(group_id)
        error = self.error(group_id)
        if error or running is None:
            if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                error = ErrorCode.REBALANCE_IN_PROGRESS  # clients do not expect the other here; the member joins again
            future.set_result(SyncAnswer(error or self._unknown(group_id)))
            return future
        running.group.sync(request, future, self._now_ms())
        self._after(running)
        return future

    def abandon(self, group_id: str, future: JoinFuture | SyncFuture) -> None:
        """The connection that waits for this answer is gone."""
        running = self._groups.running(group_id)
        if running is not None and not future.done():
            running.group.abandon(future, self._now_ms())
            self._after(running)

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Returns NONE while the shard is loaded, as Kafka does: clients do not expect the loading error here."""
        error = self.error(group_id)
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return ErrorCode.NONE if is_group_id(group_id) else ErrorCode.INVALID_GROUP_ID
        running = self._groups.running(group_id)
        if running is None:
            return error or self._unknown(group_id)
        # Also where the lease may have ended: who was heard of is not to expire for that.
        answer = running.group.heartbeat(member_id, instance_id, generation, self._now_ms())
        return error or answer

    def leave(self, group_id: str, members: Sequence[tuple[str, str | None]]) -> tuple[ErrorCode, list[ErrorCode]]:
        """Each (member id, instance id) leaves: an error for all of them, and one for each."""
        error = self.error(group_id)
        if error or not group_id:
            return error or ErrorCode.INVALID_GROUP_ID, []
        running = self._groups.running(group_id)
        if running is None:
            return ErrorCode.NONE, [ErrorCode.UNKNOWN_MEMBER_ID] * len(members)
        errors = [running.group.leave(*member) for member in members]
        running.group.settle(self._now_ms())
        self._after(running)
        return ErrorCode.NONE, errors

    # --- offsets

    def check_commit(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Whether a commit is in order; it counts as a sign of life. Without members a group takes any without id."""
        error = self.error(group_id)
        if error:
            return error
        if len(group_id) > MAX_GROUP_ID:
            return ErrorCode.INVALID_GROUP_ID
        known = self._groups.known(group_id)
        if isinstance(known, RunningTenancy):
            return known.group.check_commit(member_id, instance_id, generation, self._now_ms())
        if generation < 0:
            return ErrorCode.NONE
        return ErrorCode.ILLEGAL_GENERATION if known is None else ErrorCode.UNKNOWN_MEMBER_ID

    def commit(
        self, group_id: str, commits: Sequence[OffsetCommit], retention_ms: int | None = None
    ) -> asyncio.Future[list[int]]:
        """Makes offsets durable, after `check_commit`; the result names by index those that are not."""
        if commits and group_id not in self.offsets.residence:
            is_new = self._groups.known(group_id) is None
            if is_new and self.is_alone:
                self.offsets.residence.is_all_here(group_id)
            else:
                # Offsets may be there without a record: a transaction's come before it, and it may be unreadable.
                self.offsets.residence.want([group_id], must=is_new)
        if commits and not self._groups.is_stored(group_id):
            self._store_group(group_id)
        return self.offsets.commit(group_id, commits, retention_ms)

    def commit_failure(self, group_id: str) -> ErrorCode:
        """What to tell of a commit that did not become durable: all clients try it again, here or elsewhere."""
        return self.error(group_id) or ErrorCode.COORDINATOR_NOT_AVAILABLE

    def error(self, group_id: str) -> ErrorCode:
        """Why nothing can be answered for a group just now, or NONE."""
        return self._unavailable or self._ownership.error(keys.shard_of(group_id))

    @property
    def unavailable(self) -> ErrorCode:
        """Why this broker cannot list its groups, or NONE. Clients repeat a list only after these two errors."""
        if self._unavailable:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if self._ownership.is_loading else ErrorCode.NONE

    def committed(self) -> Iterator[CommittedOffset]:
        """Where groups are, for the metrics: a lag is what a log's end has beyond that."""
        return self.offsets.committed()

    async def forget_topic(self, topic_id: UUID) -> None:
        """Returns when no offset of a deleted topic is left in the store. Raises StoreError until that is so.

        In a cluster for the controller to call: it asks what the owners of all shards have done.
        """
        if self.is_alone:
            await self.offsets.forget_topic(topic_id)
        else:
            await check_forgotten(self._store, topic_id)

    # --- all groups

    @property
    def ownership(self) -> ShardOwnership:
        """Which shards are this broker's: also those of transactional ids."""
        return self._ownership

    def coordinator_of(self, group_id: str) -> int:
        """The id of the broker that coordinates a group, -1 where it has none just now."""
        if self.is_alone:
            return self.config.node_id
        broker = self._view.shard_owner(keys.shard_of(group_id))
        return -1 if broker is None else broker.broker_id

    def find(self, group_id: str) -> ClassicGroup | None:
        """The group, if it has had members since this broker coordinates it."""
        running = self._groups.running(group_id)
        return None if running is None else running.group

    def idle(self, group_id: str) -> IdleTenancy | None:
        """The group, if it has had none."""
        return self._groups.idle(group_id)

    def exists(self, group_id: str) -> bool:
        return self._groups.known(group_id) is not None

    def group_ids(self) -> list[str]:
        """Of all groups that this broker coordinates."""
        return self._groups.all()

    async def delete(self, group_id: str) -> ErrorCode:
        """Deletes a group without members, its offsets included; durable when this returns."""
        error = (await self.reads.prepare([group_id], ErrorCode.COORDINATOR_NOT_AVAILABLE))[group_id]
        if error:
            return error
        known = self._groups.known(group_id)
        if known is None:
            return await self._delete_settings(group_id)
        if isinstance(known, RunningTenancy) and known.group.state is not GroupState.EMPTY:
            return ErrorCode.NON_EMPTY_GROUP
        failed = await asyncio.gather(*self._give_up(group_id))
        return self.commit_failure(group_id) if any(failed) else ErrorCode.NONE

    async def _delete_settings(self, group_id: str) -> ErrorCode:
        """Of a group that is not there: something may be set for it all the same."""
        try:
            if await self._store.get(keys.group_settings(group_id)) is None:
                return ErrorCode.GROUP_ID_NOT_FOUND
        except StoreError as e:
            log.warning("the settings of a group cannot be read", group=group_id, reason=str(e))
            return self.error(group_id) or ErrorCode.COORDINATOR_NOT_AVAILABLE
        writer = self.offsets.writers.of_group(group_id)
        failed = await writer.submit([(DeleteOp(keys.group_settings(group_id)), None)])
        return self.commit_failure(group_id) if failed else ErrorCode.NONE

    def _give_up(self, group_id: str) -> list[asyncio.Future[list[int]]]:
        tenure = self._ownership.of_shard(keys.shard_of(group_id))
        known = tenure.groups.pop(group_id, None) if tenure is not None else None
        if isinstance(known, RunningTenancy):
            known.group.close(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            self._after(known)
            known = IdleTenancy(known.group.generation, known.group.protocol_type, known.state_ms)
        futures = self.offsets.delete_group(group_id)
        if tenure is not None and known is not None:
            futures[-1].add_done_callback(partial(self._given_up, tenure, group_id, known))
        return futures

    def _given_up(
        self, tenure: ShardTenancy, group_id: str, known: IdleTenancy, written: asyncio.Future[list[int]]
    ) -> None:
        """What could not be deleted is still there, as far as anybody knows. Of the rest no name is kept."""
        if written.result():
            tenure.groups.setdefault(group_id, known)
            self.offsets.expiry.schedule(group_id, self._clock.wall_ms())
        elif not self.offsets.being_committed(group_id):
            self.reads.forget(group_id)

    # --- inside

    def _make_known(self, group_ids: Iterable[str]) -> None:
        """These have offsets: so they are to have a record too, by which the next coordinator finds them."""
        for group_id in group_ids:
            writer = self.offsets.writers.of_group(group_id)
            if self._groups.known(group_id) is None and not writer.is_writing(keys.group(group_id)):
                self._store_group(group_id)
                if group_id not in self.offsets.residence:  # a transaction brought them
                    self.offsets.residence.want([group_id], must=True)

    def _store_group(self, group_id: str) -> None:
        """Writes the record of a group without a generation."""
        tenure = self._groups.tenure(group_id)
        if tenure is None:
            return
        self._groups.note_stored(group_id)

        def written(done: asyncio.Future[list[int]]) -> None:
            if done.result():
                tenure.unstored.add(group_id)

        self.offsets.store_group(group_id).add_done_callback(written)

    def _unknown(self, group_id: str) -> ErrorCode:
        return ErrorCode.UNKNOWN_MEMBER_ID if is_group_id(group_id) else ErrorCode.INVALID_GROUP_ID

    def _now_ms(self) -> float:
        return self._loop.time() * 1000

    def _after(self, running: RunningTenancy) -> None:
        """Does what a group asks for after an input, and sees to its next deadline."""
        group = running.group
        for effect in group.take_effects():
            if isinstance(effect, Answer):
                waiter = effect.waiter
                assert isinstance(waiter, asyncio.Future), "answers go to futures"
                if not waiter.done():
                    waiter.set_result(effect.answer)
            else:
                self._persist(running, effect)
        if group.is_blank:
            self._groups.blank(running)
        self._arm(running)

    def _arm(self, running: RunningTenancy) -> None:
        wake_ms = running.group.wake_ms
        if running.timer is not None:
            if wake_ms is not None and running.armed_ms <= wake_ms:
                return
            running.timer.cancel()
            running.timer = None
        if wake_ms is not None:
            running.armed_ms = wake_ms
            running.timer = self._loop.call_at(wake_ms / 1000, self._wake, running)

    def _wake(self, running: RunningTenancy) -> None:
        running.timer = None
        running.group.tick(self._now_ms())
        self._after(running)

    def _persist(self, running: RunningTenancy, effect: Persist) -> None:
        group = running.group
        wall_ms = running.state_ms = self._clock.wall_ms()
        if not running.is_stored:
            running.is_stored = True
            self.offsets.residence.want([group.group_id])
        put = PutOp(keys.group(group.group_id), encode_group(group, wall_ms))
        written = self.offsets.writers.of_group(group.group_id).submit([(put, None)])
        written.add_done_callback(partial(self._persisted, running, effect.sequence))
        self.offsets.expiry.schedule(group.group_id, wall_ms)

    def _persisted(self, running: RunningTenancy, sequence: int, written: asyncio.Future[list[int]]) -> None:
        if running.group.state is GroupState.DEAD:
            return
        if written.result():
            running.group.persist_failed(sequence, self._now_ms())
        else:
            running.group.persisted(sequence, self._now_ms())
        self._after(running)

    def _nothing_left(self, group_id: str) -> bool:
        """Gives up a group that is empty and whose offsets have ended, unless somebody is about to join."""
        running = self._groups.running(group_id)
        if running is not None and (running.group.state is not GroupState.EMPTY or running.group.pending):
            return False
        self._give_up(group_id)
        return True


def is_group_id(group_id: str) -> bool:
    return 0 < len(group_id) <= MAX_GROUP_ID
