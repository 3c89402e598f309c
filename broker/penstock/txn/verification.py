"""Asks a transaction's coordinator whether a partition, or a group, is part of the transaction in hand (KIP-890).

Used for the first batch of a transaction in a partition and for offsets committed in one: whatever arrives after the
transaction has ended is refused instead of beginning one that nobody ends. Where this broker is the coordinator the
answer is there at once; questions for another broker leave together while one to it is under way.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple, Protocol
from uuid import UUID

from penstock.state import keys
from penstock.txn.coordinator import TransactionCoordinator
from penstock.txn.state_machine import Producer
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

OFFSETS_TOPIC = "__consumer_offsets"
"""The name by which groups are asked for between brokers: a partition of it is a shard of group coordinators."""


class VerificationChannel(Protocol):
    """A way to other brokers; handed in by `node`."""

    async def add_partitions(self, broker_id: int, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        """Sends version 5. Raises OSError or TimeoutError where the broker cannot be reached."""


class Question(NamedTuple):
    transactional_id: str
    producer: Producer
    topic: str
    partition: int


Answer = ErrorCode | asyncio.Future[ErrorCode]


class Verifier:
    """Answers `ErrorCode` at once where it can, else a future of it. Without a channel there is no other broker."""

    def __init__(
        self, coordinator: TransactionCoordinator, broker_id: int, channel: VerificationChannel | None = None
    ) -> None:
        self._coordinator, self._broker_id, self._channel = coordinator, broker_id, channel
        self._asked: dict[Question, asyncio.Future[ErrorCode]] = {}
        self._queues: dict[int, list[Question]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def partition(self, transactional_id: str, producer: Producer, topic: str, topic_id: UUID, index: int) -> Answer:
        coordinator = self._coordinator.coordinator_of(transactional_id)
        if coordinator == self._broker_id or self._channel is None:
            return self._coordinator.verify(transactional_id, producer, topic_id, index)
        return self._ask(self._channel, coordinator, Question(transactional_id, producer, topic, index))

    def group(self, transactional_id: str, producer: Producer, group_id: str) -> Answer:
        coordinator = self._coordinator.coordinator_of(transactional_id)
        if coordinator == self._broker_id or self._channel is None:
            return self._coordinator.verify_group(transactional_id, producer, group_id)
        question = Question(transactional_id, producer, OFFSETS_TOPIC, keys.shard_of(group_id))
        return self._ask(self._channel, coordinator, question)

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ask(self, channel: VerificationChannel, broker_id: int, question: Question) -> Answer:
        if broker_id < 0:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        asked = self._asked.get(question)
        if asked is None:
            # Who asks the same while the answer is under way gets it in the order of asking.
            asked = self._asked[question] = asyncio.get_running_loop().create_future()
            self._queues.setdefault(broker_id, []).append(question)
            if broker_id not in self._tasks:
                self._tasks[broker_id] = asyncio.ensure_future(self._drain(channel, broker_id))
        return asked

    async def _drain(self, channel: VerificationChannel, broker_id: int) -> None:
        try:
            while questions := self._queues.pop(broker_id, None):
                found: dict[tuple[str, str, int], int] = {}
                try:
                    found = answers_in(await channel.add_partitions(broker_id, request_of(questions)))
                except (OSError, TimeoutError):
                    pass  # all are told that the coordinator is not available
                finally:
                    for q in questions:
                        asked_for = q.transactional_id, q.topic, q.partition
                        error = found.get(asked_for, ErrorCode.COORDINATOR_NOT_AVAILABLE)
                        asked = self._asked.pop(q)
                        if not asked.done():
                            asked.set_result(ErrorCode(error))
        finally:
            del self._tasks[broker_id]


def request_of(questions: list[Question]) -> AddPartitionsToTxnRequest:
    transactions: dict[tuple[str, Producer], AddPartitionsToTxnTransaction] = {}
    for q in questions:
        transaction = transactions.setdefault(
            (q.transactional_id, q.producer),
            AddPartitionsToTxnTransaction(
                transactional_id=q.transactional_id,
                producer_id=q.producer.producer_id,
                producer_epoch=q.producer.epoch,
                verify_only=True,
            ),
        )
        topic = next((t for t in transaction.topics if t.name == q.topic), None)
        if topic is None:
            topic = AddPartitionsToTxnTopic(name=q.topic)
            transaction.topics.append(topic)
        topic.partitions.append(q.partition)
    return AddPartitionsToTxnRequest(transactions=list(transactions.values()))


def answers_in(response: AddPartitionsToTxnResponse) -> dict[tuple[str, str, int], int]:
    return {
        (result.transactional_id, topic.name, p.partition_index): p.partition_error_code
        for result in response.results_by_transaction
        for topic in result.topic_results
        for p in topic.results_by_partition
    }
