"""Reaches the states of share-partitions at the coordinators of their groups, on this broker or on others.

Requests to another broker are batched by group while one is in flight. `api.share.states` serves them there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, NamedTuple, Protocol, TypeVar
from uuid import UUID

from penstock.group.coordinator import GroupCoordinator
from penstock.runtime.logging import get_logger
from penstock.runtime.tasks import spawn
from penstock.share.coordinator import ShareStates
from penstock.share.state import InvalidShareState, decode_head, decode_state
from penstock.share.state_client import ClaimResult, SharePartitionKey, StateWrite
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import read_share_group_state as reading
from penstock.wire.messages import write_share_group_state as writing
from penstock.wire.messages.read_share_group_state import ReadShareGroupStateRequest, ReadShareGroupStateResponse
from penstock.wire.messages.write_share_group_state import WriteShareGroupStateRequest, WriteShareGroupStateResponse

log = get_logger(__name__)

MAX_BATCHED_STATES = 100
"""Maximum number of states in a request; each has at most `state.MAX_STATE_BYTES`."""


class ShareStateChannel(Protocol):
    """Connections to other brokers. Provided by `node`."""

    async def read_share_states(
        self, broker_id: int, request: ReadShareGroupStateRequest
    ) -> ReadShareGroupStateResponse:
        """Send version 0. Raises OSError or TimeoutError if the broker is unreachable."""

    async def write_share_states(
        self, broker_id: int, request: WriteShareGroupStateRequest
    ) -> WriteShareGroupStateResponse:
        """Send version 1. Raises OSError or TimeoutError if the broker is unreachable."""


class StateClaim(NamedTuple):
    """A leader's claim, see `StateClient.claim`."""

    key: SharePartitionKey
    leader_epoch: int
    initial_offset: int


class GroupAtBroker(NamedTuple):
    """A group and the broker that coordinates it."""

    broker_id: int
    group_id: str


PartitionId = tuple[UUID, int]
Q = TypeVar("Q", bound=StateClaim | StateWrite)
A = TypeVar("A", bound=ClaimResult | ErrorCode)


class BatchedRequests(Generic[Q, A]):
    """Requests to other brokers, one in flight per group. `send` does not raise, and answers each partition once."""

    def __init__(self, send: Callable[[GroupAtBroker, list[Q]], Awaitable[dict[PartitionId, A]]], missing: A) -> None:
        self._send, self._missing = send, missing
        self._queues: dict[GroupAtBroker, list[tuple[Q, asyncio.Future[A]]]] = {}
        self._tasks: dict[GroupAtBroker, asyncio.Task[None]] = {}

    def submit(self, target: GroupAtBroker, request: Q) -> asyncio.Future[A]:
        """Send a request with the next batch."""
        future: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(target, []).append((request, future))
        if target not in self._tasks:
            self._tasks[target] = spawn(self._drain(target), f"states of {target}")
        return future

    async def close(self) -> None:
        """Cancel all requests."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _drain(self, target: GroupAtBroker) -> None:
        waiting: list[tuple[Q, asyncio.Future[A]]] = []
        try:
            while self._queues.get(target):
                waiting = self._pop_batch(target)
                found = await self._send(target, [request for request, _ in waiting])
                for request, future in waiting:
                    if not future.done():
                        future.set_result(found.get(request.key[1:], self._missing))
        finally:
            for _, future in [*waiting, *self._queues.pop(target, [])]:
                if not future.done():
                    future.set_result(self._missing)
            del self._tasks[target]

    def _pop_batch(self, target: GroupAtBroker) -> list[tuple[Q, asyncio.Future[A]]]:
        """Remove the next requests from a queue, at most one for each partition."""
        batch: dict[SharePartitionKey, tuple[Q, asyncio.Future[A]]] = {}
        rest = []
        for each in self._queues[target]:
            if len(batch) < MAX_BATCHED_STATES and each[0].key not in batch:
                batch[each[0].key] = each
            else:
                rest.append(each)
        self._queues[target] = rest
        return list(batch.values())


class RoutedStates:
    """The states of all groups. Implements `StateClient`."""

    def __init__(
        self, states: ShareStates, groups: GroupCoordinator, broker_id: int, channel: ShareStateChannel
    ) -> None:
        self._states, self._groups, self._broker_id, self._channel = states, groups, broker_id, channel
        unavailable = ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._claims: BatchedRequests[StateClaim, ClaimResult] = BatchedRequests(
            self._send_claims, ClaimResult(unavailable)
        )
        self._writes: BatchedRequests[StateWrite, ErrorCode] = BatchedRequests(self._send_writes, unavailable)

    async def claim(self, key: SharePartitionKey, leader_epoch: int, initial_offset: int) -> ClaimResult:
        """Claim a state, see `StateClient.claim`."""
        target = self._groups.coordinator_of(key.group_id)
        if target == self._broker_id:
            return await self._states.claim(key, leader_epoch, initial_offset)
        if target < 0:
            return ClaimResult(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        claim = StateClaim(key, leader_epoch, initial_offset)
        return await self._claims.submit(GroupAtBroker(target, key.group_id), claim)

    async def write(self, write: StateWrite) -> ErrorCode:
        """Write a state, see `StateClient.write`."""
        target = self._groups.coordinator_of(write.key.group_id)
        if target == self._broker_id:
            return await self._states.write(write)
        if target < 0:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return await self._writes.submit(GroupAtBroker(target, write.key.group_id), write)

    async def close(self) -> None:
        """Cancel the requests to other brokers."""
        await asyncio.gather(self._claims.close(), self._writes.close())

    async def _send_claims(self, target: GroupAtBroker, claims: list[StateClaim]) -> dict[PartitionId, ClaimResult]:
        topics: dict[UUID, reading.ReadStateData] = {}
        for (_, topic_id, index), leader_epoch, initial_offset in claims:
            topic = topics.setdefault(topic_id, reading.ReadStateData(topic_id=topic_id, partitions=[]))
            topic.partitions.append(
                reading.PartitionData(partition=index, leader_epoch=leader_epoch, initial_offset=initial_offset)
            )
        request = ReadShareGroupStateRequest(group_id=target.group_id, topics=list(topics.values()))
        try:
            response = await self._channel.read_share_states(target.broker_id, request)
        except (OSError, TimeoutError) as e:
            log_unreachable(target, e)
            return {}
        return {(t.topic_id, p.partition): claim_result(p) for t in response.results for p in t.partitions}

    async def _send_writes(self, target: GroupAtBroker, writes: list[StateWrite]) -> dict[PartitionId, ErrorCode]:
        topics: dict[UUID, writing.WriteStateData] = {}
        for (_, topic_id, index), data in writes:
            topic = topics.setdefault(topic_id, writing.WriteStateData(topic_id=topic_id, partitions=[]))
            _, (state_epoch, leader_epoch, _), start_offset = decode_head(data)
            topic.partitions.append(
                writing.PartitionData(
                    partition=index,
                    state_epoch=state_epoch,
                    leader_epoch=leader_epoch,
                    start_offset=start_offset,
                    state=data,
                )
            )
        request = WriteShareGroupStateRequest(group_id=target.group_id, topics=list(topics.values()))
        try:
            response = await self._channel.write_share_states(target.broker_id, request)
        except (OSError, TimeoutError) as e:
            log_unreachable(target, e)
            return {}
        return {(t.topic_id, p.partition): ErrorCode(p.error_code) for t in response.results for p in t.partitions}


def claim_result(result: reading.PartitionResult) -> ClaimResult:
    """Return the result of a claim at another broker."""
    if result.error_code:
        return ClaimResult(ErrorCode(result.error_code))
    try:
        return ClaimResult(ErrorCode.NONE, decode_state(result.state))
    except InvalidShareState as e:
        log.error("cannot read the state of a share-partition", error=str(e))
        return ClaimResult(ErrorCode.UNKNOWN_SERVER_ERROR)


def log_unreachable(target: GroupAtBroker, error: Exception) -> None:
    """Log that the coordinator of a group could not be reached."""
    log.info("cannot reach the coordinator of a share group", **target._asdict(), reason=str(error))
