"""The group coordinator of a broker: all its groups, their timers, and what makes them durable. `api` calls it.

Every method answers at once or returns a future; nothing here waits for the network. The state machine of a group
is in `state_machine`, offsets are in `offsets`; this puts both on an event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from uuid import uuid4

from penstock.config.broker import BrokerConfig
from penstock.group.calls import Answer, JoinAnswer, JoinRequest, Persist, SyncAnswer, SyncRequest
from penstock.group.expiry import GroupStanding
from penstock.group.offsets import Commit, CommittedOffset, Offsets
from penstock.group.persistence import encode_group, restore_group
from penstock.group.phases import GroupState
from penstock.group.retention import OffsetRetention
from penstock.group.state_machine import ClassicGroup
from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock.state import keys, records
from penstock.state.records import BadRecord, GroupRecord
from penstock.state.store import Entry, Put, Store
from penstock.state.view import ClusterView
from penstock.wire.errors import ErrorCode

log = get_logger(__name__)

MAX_GROUP_ID = 1024
"""Characters of a group id."""
MAX_INSTANCE_ID = 1024
MAX_PROTOCOLS = 64
"""Assignors that one member may name."""
MAX_METADATA_BYTES = 8 << 20
"""Of one member, for all assignors together."""

JoinFuture = asyncio.Future[JoinAnswer]
SyncFuture = asyncio.Future[SyncAnswer]


class Running:
    """A group on the loop. `armed_ms` is when its timer fires, which may be sooner than needed, never later."""

    __slots__ = ("armed_ms", "group", "state_ms", "timer")

    def __init__(self, group: ClassicGroup, state_ms: int) -> None:
        self.group = group
        self.state_ms = state_ms
        """Wall-clock time of the last change that was made durable."""
        self.timer: asyncio.TimerHandle | None = None
        self.armed_ms = 0.0


class GroupCoordinator:
    """`start` loads what the store holds; until then, and after `close`, everybody is told to come back.

    `new_id` makes the unguessable part of member ids.
    """

    def __init__(
        self,
        store: Store,
        view: ClusterView,
        clock: Clock,
        config: BrokerConfig,
        new_id: Callable[[], str] = lambda: str(uuid4()),
    ) -> None:
        self.config = config
        self.offsets = Offsets(store, view, clock, config)
        self.retention = OffsetRetention(self.offsets, view, clock, config, self._standing, self._nothing_left)
        self._running: dict[str, Running] = {}
        self._store = store
        self._view = view
        self._clock = clock
        self._new_id = new_id
        self._unavailable = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        self._loop: asyncio.AbstractEventLoop

    # --- life

    async def start(self) -> None:
        """Loads groups and offsets. The view has been loaded before: offsets of topics that it lacks are deleted."""
        assert self._view.revision > 0, "groups are loaded when the topics are known"
        self._loop = asyncio.get_running_loop()
        self.offsets.load((await self._store.range(keys.OFFSETS)).entries)
        for entry in (await self._store.range(keys.GROUPS)).entries:
            self._load(entry)
        self._view.subscribe(self.offsets.topics_changed)
        self.retention.start()
        self._unavailable = ErrorCode.NONE

    def _load(self, entry: Entry) -> None:
        group_id = keys.group_of(entry.key)
        group = ClassicGroup(group_id, self.config, self._new_id)
        try:
            record = records.decode(GroupRecord, entry.key, entry.value)
            restore_group(group, record, self._now_ms())
        except (BadRecord, ValueError) as e:
            log.error("skipping an unreadable group: it starts anew", key=entry.key, error=str(e))
            return
        # Of a group that had members nobody knows how long it has been without: from now on, at the latest.
        state_ms = record.state_ms if record.protocol is None else self._clock.wall_ms()
        running = self._running[group_id] = Running(group, state_ms)
        self.offsets.expiry.schedule(group_id, self._clock.wall_ms())
        self._after(running)

    def dismiss(self) -> None:
        """Tells everybody, and at once those who wait, to look for the coordinator again: the broker is to stop.

        Offsets that were accepted go on becoming durable.
        """
        self._unavailable = ErrorCode.NOT_COORDINATOR
        self.retention.close()
        for running in list(self._running.values()):
            running.group.close(ErrorCode.NOT_COORDINATOR)
            self._after(running)
        self._running.clear()

    async def close(self) -> None:
        """As `dismiss`; returns when what was accepted is durable."""
        self.dismiss()
        await self.offsets.writers.close()

    # --- members

    def join(self, group_id: str, request: JoinRequest) -> JoinFuture:
        """Resolves when the join phase ends. Call `abandon` where nobody waits any longer."""
        future: JoinFuture = asyncio.get_running_loop().create_future()
        error = self._unavailable or self._check_join(group_id, request)
        running = self._running.get(group_id)
        if not error and running is None:
            if request.member_id:
                error = ErrorCode.UNKNOWN_MEMBER_ID
            else:
                group = ClassicGroup(group_id, self.config, self._new_id)
                running = self._running[group_id] = Running(group, self._clock.wall_ms())
        if error or running is None:
            future.set_result(JoinAnswer(error, request.member_id))
            return future
        running.group.join(request, future, self._now_ms())
        self._after(running)
        return future

    def _check_join(self, group_id: str, request: JoinRequest) -> ErrorCode:
        if not 0 < len(group_id) <= MAX_GROUP_ID:
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
        running = self._running.get(group_id)
        if running is None:
            future.set_result(SyncAnswer(self._unavailable or self._unknown(group_id)))
            return future
        running.group.sync(request, future, self._now_ms())
        self._after(running)
        return future

    def abandon(self, group_id: str, future: JoinFuture | SyncFuture) -> None:
        """The connection that waits for this answer is gone."""
        running = self._running.get(group_id)
        if running is not None and not future.done():
            running.group.abandon(future, self._now_ms())
            self._after(running)

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        running = self._running.get(group_id)
        if running is None:
            return self._unavailable or self._unknown(group_id)
        return running.group.heartbeat(member_id, instance_id, generation, self._now_ms())

    def leave(self, group_id: str, members: Sequence[tuple[str, str | None]]) -> tuple[ErrorCode, list[ErrorCode]]:
        """Each (member id, instance id) leaves: an error for all of them, and one for each."""
        if self._unavailable or not group_id:
            return self._unavailable or ErrorCode.INVALID_GROUP_ID, []
        running = self._running.get(group_id)
        if running is None:
            return ErrorCode.NONE, [ErrorCode.UNKNOWN_MEMBER_ID] * len(members)
        errors = [running.group.leave(*member) for member in members]
        running.group.settle(self._now_ms())
        self._after(running)
        return ErrorCode.NONE, errors

    # --- offsets

    def check_commit(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Whether a commit is in order; it counts as a sign of life. Without members a group takes any without id."""
        if self._unavailable:
            return self._unavailable
        if len(group_id) > MAX_GROUP_ID:
            return ErrorCode.INVALID_GROUP_ID
        running = self._running.get(group_id)
        if running is None:
            return ErrorCode.NONE if generation < 0 else ErrorCode.ILLEGAL_GENERATION
        return running.group.check_commit(member_id, instance_id, generation, self._now_ms())

    def commit(
        self, group_id: str, commits: Sequence[Commit], retention_ms: int | None = None
    ) -> asyncio.Future[list[int]]:
        """Makes offsets durable, after `check_commit`; the result names by index those that are not."""
        return self.offsets.commit(group_id, commits, retention_ms)

    @property
    def unavailable(self) -> ErrorCode:
        """Why nothing can be answered just now, or NONE."""
        return self._unavailable

    def committed(self) -> Iterator[CommittedOffset]:
        """Where all groups are, for the metrics: a lag is what a log's end has beyond that."""
        return self.offsets.committed()

    # --- all groups

    def coordinator_of(self, group_id: str) -> int:
        """The id of the broker that coordinates a group: with one broker it is this one."""
        return self.config.node_id

    def find(self, group_id: str) -> ClassicGroup | None:
        """The group, if anybody ever joined it; one that only committed offsets has none."""
        running = self._running.get(group_id)
        return None if running is None else running.group

    def exists(self, group_id: str) -> bool:
        return group_id in self._running or group_id in self.offsets.table

    def group_ids(self) -> list[str]:
        simple = [group_id for group_id in self.offsets.table.groups() if group_id not in self._running]
        return [*self._running, *simple]

    async def delete(self, group_id: str) -> ErrorCode:
        """Deletes a group without members, its offsets included; durable when this returns."""
        if self._unavailable:
            return self._unavailable
        if not self.exists(group_id):
            return ErrorCode.GROUP_ID_NOT_FOUND
        running = self._running.get(group_id)
        if running is not None and running.group.state is not GroupState.EMPTY:
            return ErrorCode.NON_EMPTY_GROUP
        failed = await asyncio.gather(*self._give_up(group_id))
        return ErrorCode.COORDINATOR_NOT_AVAILABLE if any(failed) else ErrorCode.NONE

    def _give_up(self, group_id: str) -> list[asyncio.Future[list[int]]]:
        running = self._running.pop(group_id, None)
        if running is not None:
            running.group.close(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            self._after(running)
        return self.offsets.delete_group(group_id)

    # --- inside

    def _unknown(self, group_id: str) -> ErrorCode:
        return ErrorCode.UNKNOWN_MEMBER_ID if 0 < len(group_id) <= MAX_GROUP_ID else ErrorCode.INVALID_GROUP_ID

    def _now_ms(self) -> float:
        return self._loop.time() * 1000

    def _after(self, running: Running) -> None:
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
        if group.is_blank and self._running.get(group.group_id) is running:
            del self._running[group.group_id]
        self._arm(running)

    def _arm(self, running: Running) -> None:
        wake_ms = running.group.wake_ms
        if running.timer is not None:
            if wake_ms is not None and running.armed_ms <= wake_ms:
                return
            running.timer.cancel()
            running.timer = None
        if wake_ms is not None:
            running.armed_ms = wake_ms
            running.timer = self._loop.call_at(wake_ms / 1000, self._wake, running)

    def _wake(self, running: Running) -> None:
        running.timer = None
        running.group.tick(self._now_ms())
        self._after(running)

    def _persist(self, running: Running, effect: Persist) -> None:
        group = running.group
        wall_ms = running.state_ms = self._clock.wall_ms()
        put = Put(keys.group(group.group_id), encode_group(group, wall_ms))
        written = self.offsets.writers.of_group(group.group_id).submit([(put, None)])
        written.add_done_callback(partial(self._persisted, running, effect.sequence))
        self.offsets.expiry.schedule(group.group_id, wall_ms)

    def _persisted(self, running: Running, sequence: int, written: asyncio.Future[list[int]]) -> None:
        if running.group.state is GroupState.DEAD:
            return
        if written.result():
            running.group.persist_failed(sequence, self._now_ms())
        else:
            running.group.persisted(sequence, self._now_ms())
        self._after(running)

    def _standing(self, group_id: str) -> GroupStanding:
        running = self._running.get(group_id)
        if running is None or running.group.generation == 0:
            return GroupStanding(is_simple=True, empty_since_ms=None, topics=None)
        state = running.group.state
        topics = running.group.subscribed_topics() if state is GroupState.STABLE else None
        empty_since_ms = running.state_ms if state is GroupState.EMPTY else None
        return GroupStanding(is_simple=False, empty_since_ms=empty_since_ms, topics=topics)

    def _nothing_left(self, group_id: str) -> bool:
        """Gives up a group that is empty and whose offsets have ended, unless somebody is about to join."""
        running = self._running.get(group_id)
        if running is not None and (running.group.state is not GroupState.EMPTY or running.group.pending):
            return False
        self._give_up(group_id)
        return True
