"""Asks a transaction's coordinator whether a partition, or a group, is part of the transaction in hand (KIP-890).

Used for the first batch of a transaction in a partition and for offsets committed in one: whatever arrives after the
transaction has ended is refused instead of beginning one that nobody ends. Where this broker is the coordinator the
answer is there at once, except that nothing is refused for good before the store says that it is the coordinator still;
questions for another broker leave together while one to it is under way. An answer is about one transaction, by its
number, and is worth something as long as nobody has said that it has ended: `Verifier.settle` tells, at the moment when
it is acted on.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple, Protocol
from uuid import UUID

from penstock.runtime.logging import get_logger
from penstock.state import keys
from penstock.txn.acknowledged_markers import AcknowledgedMarkers
from penstock.txn.coordinator import TransactionCoordinator
from penstock.txn.state_machine import FINAL, ProducerIdentity, VerifiedTransaction
from penstock.txn.transaction_partitions import OFFSETS_TOPIC, OFFSETS_TOPIC_ID
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

log = get_logger(__name__)


class VerificationChannel(Protocol):
    """A way to other brokers; handed in by `node`."""

    async def add_partitions(self, broker_id: int, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        """Sends version 5. Raises OSError or TimeoutError where the broker cannot be reached."""


class Question(NamedTuple):
    """`group_id` where it is answered here; other brokers are asked for the group's shard, by `partition`."""

    transactional_id: str
    producer: ProducerIdentity
    topic: str
    topic_id: UUID
    partition: int
    group_id: str | None = None


Answer = VerifiedTransaction | asyncio.Future[VerifiedTransaction]
UNANSWERED = VerifiedTransaction(ErrorCode.COORDINATOR_NOT_AVAILABLE)


class Verifier:
    """Answers at once where it can, else with a future. Without a channel there is no other broker."""

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        broker_id: int,
        heard: AcknowledgedMarkers,
        channel: VerificationChannel | None = None,
    ) -> None:
        self._coordinator, self._broker_id, self._heard, self._channel = coordinator, broker_id, heard, channel
        self._asked: dict[Question, asyncio.Future[VerifiedTransaction]] = {}
        self._queues: dict[int, list[Question]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def partition(
        self, transactional_id: str, producer: ProducerIdentity, topic: str, topic_id: UUID, index: int
    ) -> Answer:
        question = Question(transactional_id, producer, topic, topic_id, index)
        return self._ask(self._target(transactional_id), question)

    def group(self, transactional_id: str, producer: ProducerIdentity, group_id: str) -> Answer:
        target = self._target(transactional_id)
        own = group_id if target == self._broker_id else None
        shard = keys.shard_of(group_id)
        return self._ask(target, Question(transactional_id, producer, OFFSETS_TOPIC, OFFSETS_TOPIC_ID, shard, own))

    def settle(self, producer_id: int, answer: VerifiedTransaction) -> ErrorCode:
        """What an answer comes to, when what it was asked for is about to be done: an end that was heard of since, or
        the beginning of a later transaction, makes it worthless, and whoever asked is to ask again."""
        if answer.error:
            return answer.error
        in_hand = self._heard.in_hand(producer_id, answer.number)
        return ErrorCode.NONE if in_hand else ErrorCode.CONCURRENT_TRANSACTIONS

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- inside

    def _target(self, transactional_id: str) -> int:
        """The broker that is to be asked, -1 where nobody is."""
        return self._broker_id if self._channel is None else self._coordinator.coordinator_of(transactional_id)

    def _ask(self, target: int, question: Question) -> Answer:
        asked = self._asked.get(question)
        if asked is None:
            if target < 0:
                return UNANSWERED
            if target == self._broker_id:
                answer = self._here(question)
                if answer.error not in FINAL:
                    return answer
            # Who asks the same while the answer is under way gets it in the order of asking.
            asked = self._asked[question] = asyncio.get_running_loop().create_future()
            self._queues.setdefault(target, []).append(question)
            if target not in self._tasks:
                self._tasks[target] = asyncio.ensure_future(self._drain(target))
        return asked

    def _here(self, question: Question) -> VerifiedTransaction:
        """By what this broker remembers."""
        who = question.transactional_id, question.producer
        if question.group_id is not None:
            return self._coordinator.verify_group(*who, question.group_id)
        return self._coordinator.verify(*who, question.topic_id, question.partition)

    async def _drain(self, target: int) -> None:
        try:
            while questions := self._queues.pop(target, None):
                found: dict[Question, VerifiedTransaction] = {}
                try:
                    found = await self._answers(target, questions)
                except (OSError, TimeoutError) as e:
                    log.info("a coordinator could not be asked", broker=target, reason=str(e))
                except Exception:
                    log.exception("a coordinator could not be asked", broker=target)
                finally:
                    for q in questions:
                        asked = self._asked.pop(q)
                        if not asked.done():
                            asked.set_result(found.get(q, UNANSWERED))
        finally:
            del self._tasks[target]

    async def _answers(self, target: int, questions: list[Question]) -> dict[Question, VerifiedTransaction]:
        """Of another broker; or of this one where it would refuse for good, once it is known to be the coordinator."""
        if target != self._broker_id:
            assert self._channel is not None, "without a channel there is no other broker"
            request = request_of(questions)
            return answers_in(request, await self._channel.add_partitions(target, request))
        names = list(dict.fromkeys(q.transactional_id for q in questions))
        errors = dict(zip(names, await asyncio.gather(*map(self._coordinator.confirmed, names)), strict=True))
        # Asked again: what was remembered before may be of an earlier tenure than the one that was confirmed.
        return {
            q: VerifiedTransaction(error) if (error := errors[q.transactional_id]) else self._here(q) for q in questions
        }


def request_of(questions: list[Question]) -> AddPartitionsToTxnRequest:
    transactions: dict[tuple[str, ProducerIdentity], AddPartitionsToTxnTransaction] = {}
    topics: dict[tuple[str, ProducerIdentity, UUID], AddPartitionsToTxnTopic] = {}
    for q in questions:
        who = q.transactional_id, q.producer
        transaction = transactions.get(who)
        if transaction is None:
            transaction = transactions[who] = AddPartitionsToTxnTransaction(
                transactional_id=q.transactional_id,
                producer_id=q.producer.producer_id,
                producer_epoch=q.producer.epoch,
                verify_only=True,
            )
        topic = topics.get((*who, q.topic_id))
        if topic is None:
            topic = topics[*who, q.topic_id] = AddPartitionsToTxnTopic(name=q.topic, topic_id=q.topic_id)
            transaction.topics.append(topic)
        topic.partitions.append(q.partition)
    return AddPartitionsToTxnRequest(transactions=list(transactions.values()))


def answers_in(
    request: AddPartitionsToTxnRequest, response: AddPartitionsToTxnResponse
) -> dict[Question, VerifiedTransaction]:
    """By question; answers stand in the order of what was asked. Raises ValueError where they do not."""
    found: dict[Question, VerifiedTransaction] = {}
    for asked, result in zip(request.transactions, response.results_by_transaction, strict=True):
        producer = ProducerIdentity(asked.producer_id, asked.producer_epoch)
        for topic, answered in zip(asked.topics, result.topic_results, strict=True):
            for index, p in zip(topic.partitions, answered.results_by_partition, strict=True):
                if (asked.transactional_id, topic.name, index) != (
                    result.transactional_id,
                    answered.name,
                    p.partition_index,
                ):
                    raise ValueError(f"an answer about {answered.name}-{p.partition_index} was not asked for")
                question = Question(asked.transactional_id, producer, topic.name, topic.topic_id, index)
                found[question] = VerifiedTransaction(ErrorCode(p.partition_error_code), result.transaction_number)
    return found
