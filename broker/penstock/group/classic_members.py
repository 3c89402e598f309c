"""Serves classic members of groups whose broker assigns partitions. Used by `coordinator`.

As for other members, a response leaves only when everything that its group has changed so far is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from penstock.config.broker import BrokerConfig
from penstock.group.calls import JoinRequest, JoinResult, SyncRequest, SyncResult
from penstock.group.coordinator_shard import RunningModernGroup
from penstock.group.modern.classic import classic_heartbeat, join_classic, join_result, leave_classic, sync_classic
from penstock.group.modern.member import GroupError
from penstock.group.modern_groups import ModernGroups
from penstock.wire.errors import ErrorCode

T = TypeVar("T", JoinResult, SyncResult)


class ClassicMembers:
    """The requests of classic members. `new_id` returns the unguessable part of a member id."""

    def __init__(self, modern: ModernGroups, config: BrokerConfig, new_id: Callable[[], str]) -> None:
        self._modern, self._config, self._new_id = modern, config, new_id

    def join(self, running: RunningModernGroup, request: JoinRequest) -> asyncio.Future[JoinResult]:
        """Join a group. The future resolves when the join is durable, without waiting for other members."""
        group, now_ms = running.group, self._now_ms()
        new_id = f"{request.instance_id or request.client_id}-{self._new_id()}"
        try:
            member, owned = join_classic(group, request, new_id, self._config.group_consumer_max_size, now_ms)
            self._modern.start_assignment(running)
            result = join_result(group, member, owned, now_ms)
        except GroupError as e:
            member_id = new_id if e.error is ErrorCode.MEMBER_ID_REQUIRED else request.member_id
            result = JoinResult(e.error, member_id)
        failed = JoinResult(ErrorCode.COORDINATOR_NOT_AVAILABLE, request.member_id)
        return self._once_durable(running, result, failed)

    def sync(self, running: RunningModernGroup, request: SyncRequest) -> asyncio.Future[SyncResult]:
        """Return a member's assignment."""
        try:
            result = sync_classic(running.group, request, self._now_ms())
        except GroupError as e:
            result = SyncResult(e.error)
        return self._once_durable(running, result, SyncResult(ErrorCode.COORDINATOR_NOT_AVAILABLE))

    def heartbeat(
        self, running: RunningModernGroup, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Extend a member's session, and return what it has to do."""
        self._modern.start_assignment(running)
        error = classic_heartbeat(running.group, member_id, instance_id, generation, self._now_ms())
        self._modern.store(running)
        return error

    def leave(self, running: RunningModernGroup, members: Sequence[tuple[str, str | None]]) -> list[ErrorCode]:
        """Remove each (member id, instance id). Returns their errors."""
        errors = [leave_classic(running.group, *member) for member in members]
        self._modern.start_assignment(running)
        self._modern.store(running)
        return errors

    def _now_ms(self) -> float:
        return asyncio.get_running_loop().time() * 1000

    def _once_durable(self, running: RunningModernGroup, result: T, failed: T) -> asyncio.Future[T]:
        """Return the result once all changes of the group are durable; `failed` if they are not."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        write = self._modern.store(running)
        if write is None:
            answer.set_result(result)
            return answer

        def written(done: asyncio.Future[list[int]]) -> None:
            is_stored = not done.cancelled() and not done.result() and not running.group.has_changes
            if not answer.done():
                answer.set_result(result if is_stored else failed)

        write.add_done_callback(written)
        return answer
