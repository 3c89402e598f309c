"""Writes batches of dead letters to the leaders of their partitions, on this broker or on others.

Used by `dead_letter_writer`. `api.produce` serves them on other brokers, as it does the batches of clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import NamedTuple, Protocol
from uuid import UUID

from penstock.log.types import LogError
from penstock.replica.leader import Leader
from penstock.replica.manager import ReplicaManager
from penstock.replica.partition import Partition
from penstock.share.dead_letters import DeadLetterTarget
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

COMMIT_TIMEOUT_MS = 5_000
"""How long a batch may take to reach all in-sync replicas before it is sent again."""
ALL = -1


class LetterChannel(Protocol):
    """Connections to other brokers. Provided by `node`."""

    async def produce_letters(self, broker_id: int, request: ProduceRequest) -> ProduceResponse:
        """Send Produce. Raises OSError or TimeoutError if the broker is unreachable."""


class LetterResult(NamedTuple):
    """The result of a write: NONE once all in-sync replicas have the batch, otherwise an error and the reason."""

    error: ErrorCode
    message: str = ""


class DeadLetterLogs:
    """The partitions of the dead-letter topics. `confirm` returns those that this broker leads, by the store."""

    def __init__(
        self,
        replicas: ReplicaManager,
        channel: LetterChannel,
        confirm: Callable[[Iterable[Partition]], Awaitable[Collection[object]]],
    ) -> None:
        self._replicas, self._channel, self._confirm = replicas, channel, confirm

    async def append(self, target: DeadLetterTarget, batch: bytes) -> LetterResult:
        """Append a batch at the leader of a partition. Does not raise."""
        partition = self._replicas.find(*target)
        if partition is not None:
            return await self._append_here(partition, batch)
        error, leader = self._replicas.absence(*target)
        if leader is None or leader[0] < 0:
            return LetterResult(error, "the partition has no leader")
        try:
            response = await self._channel.produce_letters(leader[0], self._request(target, batch))
        except (OSError, TimeoutError) as e:
            return LetterResult(ErrorCode.NETWORK_EXCEPTION, str(e))
        for topic in response.responses:
            for answer in topic.partition_responses:
                return LetterResult(ErrorCode(answer.error_code), answer.error_message or "")
        return LetterResult(ErrorCode.UNKNOWN_SERVER_ERROR, f"broker {leader[0]} answers without a result")

    def _request(self, target: DeadLetterTarget, batch: bytes) -> ProduceRequest:
        data = TopicProduceData(
            name=self._name(target.topic_id),
            topic_id=target.topic_id,
            partition_data=[PartitionProduceData(target.partition, memoryview(batch))],
        )
        return ProduceRequest(acks=ALL, timeout_ms=COMMIT_TIMEOUT_MS, topic_data=[data])

    def _name(self, topic_id: UUID) -> str:
        topic = self._replicas.topic(topic_id)
        return "" if topic is None else topic.name

    async def _append_here(self, partition: Leader, batch: bytes) -> LetterResult:
        try:
            await partition.log.ensure_prepared()
        except LogError as e:
            return LetterResult(ErrorCode.KAFKA_STORAGE_ERROR, str(e))
        if partition.ended:
            return LetterResult(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        outcome = partition.append(memoryview(bytearray(batch)), all_in_sync=True)
        if outcome.error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not await self._confirm([partition]):
            return LetterResult(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if outcome.error:
            return LetterResult(ErrorCode(outcome.error), outcome.message or "")
        committed: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def on_committed(error: int) -> None:
            if not committed.done():
                committed.set_result(error)

        if partition.high_watermark >= outcome.required_offset:
            return LetterResult(ErrorCode.NONE)
        partition.when_committed(outcome.required_offset, on_committed)
        try:
            async with asyncio.timeout(COMMIT_TIMEOUT_MS / 1000):
                return LetterResult(ErrorCode(await committed))
        except TimeoutError:
            return LetterResult(ErrorCode.REQUEST_TIMED_OUT, "the in-sync replicas do not have the batch yet")
