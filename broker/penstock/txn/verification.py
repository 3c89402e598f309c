"""Verifies with the transaction's coordinator that a partition or group is part of the ongoing transaction, or adds it
(KIP-890).

Used for a transaction's first batch in a partition, and for transactional offset commits: what arrives after the end is
rejected instead of starting a transaction that never ends. Clients of transactions v2 do not add partitions and groups
themselves. If this broker is the coordinator, the result is immediate, except that ownership is confirmed before a
fatal error, and that an addition is stored. Requests are batched while one to the same broker is in flight.
A result refers to one transaction by its number. It is valid until that transaction is known to have ended, which
`Verifier.check_result` checks immediately before the write.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple, Protocol
from uuid import UUID

from penstock.control.features import TRANSACTIONS_V2_LEVEL
from penstock.replica.partition import Partition
from penstock.runtime.logging import get_logger
from penstock.runtime.tasks import report, spawn
from penstock.state import keys
from penstock.state.view import ClusterView
from penstock.txn.coordinator import TransactionCoordinator
from penstock.txn.latest_transactions import LatestTransactions
from penstock.txn.state_machine import FATAL_ERRORS, ProducerIdentity, VerifiedTransaction
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
    """Connections to other brokers. Provided by `node`."""

    async def add_partitions(self, broker_id: int, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        """Send version 5. Raises OSError or TimeoutError if the broker is unreachable."""


class VerificationRequest(NamedTuple):
    """What to verify, or with `adds` to add if it is missing. `group_id` is set if it is verified locally or may be
    added; `partition` is the group's shard, which remote verifications name."""

    transactional_id: str
    producer: ProducerIdentity
    topic: str
    topic_id: UUID
    partition: int
    group_id: str | None = None
    adds: bool = False


class ResultKey(NamedTuple):
    """What a result of a remote request is about."""

    transactional_id: str
    producer: ProducerIdentity
    adds: bool
    topic: str
    topic_id: UUID
    partition: int


VerificationResult = VerifiedTransaction | asyncio.Future[VerifiedTransaction]
ADDITION_RETRIES, ADDITION_RETRY_S = 5, 0.02
"""How often an addition is repeated while the previous transaction is completing, and after which time."""
COORDINATOR_UNAVAILABLE = VerifiedTransaction(ErrorCode.COORDINATOR_NOT_AVAILABLE)


class Verifier:
    """Returns results immediately where possible, else as futures."""

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        broker_id: int,
        latest: LatestTransactions,
        channel: VerificationChannel,
        view: ClusterView,
    ) -> None:
        self._coordinator, self._broker_id, self._latest, self._channel = coordinator, broker_id, latest, channel
        self._view = view
        self._pending: dict[VerificationRequest, asyncio.Future[VerifiedTransaction]] = {}
        self._queues: dict[int, list[VerificationRequest]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._additions: dict[VerificationRequest, asyncio.Task[VerifiedTransaction]] = {}
        self._is_closed = False

    def verify_partition(
        self, transactional_id: str, producer: ProducerIdentity, partition: Partition, *, adds: bool
    ) -> VerificationResult:
        """Verify a partition of the transaction; `adds` is whether the client leaves the addition to the broker."""
        place = partition.name, partition.topic_id, partition.index
        return self._request(VerificationRequest(transactional_id, producer, *place, adds=adds and self._may_add))

    def verify_group(
        self, transactional_id: str, producer: ProducerIdentity, group_id: str, *, adds: bool
    ) -> VerificationResult:
        """Verify a group of the transaction; see `verify_partition`."""
        adds = adds and self._may_add
        is_local = self._coordinator.coordinator_of(transactional_id) == self._broker_id
        own = group_id if adds or is_local else None
        place = OFFSETS_TOPIC, OFFSETS_TOPIC_ID, keys.shard_of(group_id)
        return self._request(VerificationRequest(transactional_id, producer, *place, own, adds))

    def check_result(self, producer_id: int, result: VerifiedTransaction) -> ErrorCode:
        """Return the error of a result, immediately before the write.

        CONCURRENT_TRANSACTIONS, which makes the client retry, if the transaction has ended or a later one has started
        since.
        """
        if result.error:
            return result.error
        is_ongoing = self._latest.observe_ongoing(producer_id, result.number)
        return ErrorCode.NONE if is_ongoing else ErrorCode.CONCURRENT_TRANSACTIONS

    async def close(self) -> None:
        """Cancel all requests."""
        self._is_closed = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._additions.values(), return_exceptions=True)

    # --- internal

    @property
    def _may_add(self) -> bool:
        """Whether all coordinators return the number of a transaction with an addition."""
        return self._view.feature_level >= TRANSACTIONS_V2_LEVEL

    def _request(self, request: VerificationRequest) -> VerificationResult:
        addition = self._additions.get(request)
        if addition is not None:
            return addition
        result = self._request_once(request)
        if not request.adds or (isinstance(result, VerifiedTransaction) and not is_busy(result)):
            return result
        addition = self._additions[request] = asyncio.ensure_future(self._add(request, result))
        return addition

    async def _add(self, request: VerificationRequest, result: VerificationResult) -> VerifiedTransaction:
        """Repeat an addition for a short time while the previous transaction is completing.

        Clients of transactions v2 start the next transaction at once, and wait for long before they retry a batch.
        """
        try:
            for _ in range(ADDITION_RETRIES):
                found = result if isinstance(result, VerifiedTransaction) else await result
                if not is_busy(found):
                    return found
                await asyncio.sleep(ADDITION_RETRY_S)
                if self._is_closed:
                    return COORDINATOR_UNAVAILABLE
                result = self._request_once(request)
            return result if isinstance(result, VerifiedTransaction) else await result
        finally:
            del self._additions[request]

    def _request_once(self, request: VerificationRequest) -> VerificationResult:
        target = self._coordinator.coordinator_of(request.transactional_id)
        future = self._pending.get(request)
        if future is None:
            if target < 0:
                return COORDINATOR_UNAVAILABLE
            if target == self._broker_id:
                result = self._verify_locally(request)
                if result.error not in FATAL_ERRORS:
                    return result
            # Identical requests meanwhile share the result, and are answered in order.
            future = self._pending[request] = asyncio.get_running_loop().create_future()
            self._queues.setdefault(target, []).append(request)
            if target not in self._tasks:
                self._tasks[target] = spawn(self._drain(target), f"verify transactions at broker {target}")
        return future

    def _verify_locally(self, request: VerificationRequest) -> VerifiedTransaction:
        """Verify with the local coordinator's state."""
        producer_key = request.transactional_id, request.producer
        if request.group_id is not None:
            return self._coordinator.verify_group(*producer_key, request.group_id)
        return self._coordinator.verify(*producer_key, request.topic_id, request.partition)

    async def _drain(self, target: int) -> None:
        try:
            while requests := self._queues.pop(target, None):
                found: dict[VerificationRequest, VerifiedTransaction] = {}
                try:
                    found = await self._fetch_results(target, requests)
                except (OSError, TimeoutError) as e:
                    log.info("cannot verify transactions with their coordinator", broker=target, reason=str(e))
                except Exception as e:
                    report("cannot verify transactions with their coordinator", e, broker=target)
                finally:
                    for q in requests:
                        future = self._pending.pop(q)
                        if not future.done():
                            future.set_result(found.get(q, COORDINATOR_UNAVAILABLE))
        finally:
            del self._tasks[target]

    async def _fetch_results(
        self, target: int, requests: list[VerificationRequest]
    ) -> dict[VerificationRequest, VerifiedTransaction]:
        """Fetch results from another broker, or local ones after confirming ownership."""
        if target != self._broker_id:
            request = encode_requests(requests)
            results = decode_results(request, await self._channel.add_partitions(target, request))
            return {q: results[result_key(q)] for q in requests}
        additions: dict[tuple[str, ProducerIdentity], list[VerificationRequest]] = {}
        for q in requests:
            if q.adds:
                additions.setdefault((q.transactional_id, q.producer), []).append(q)
        added = await asyncio.gather(*(self._add_locally(*key, of_one) for key, of_one in additions.items()))
        found = dict(pair for results in added for pair in results)
        names = list(dict.fromkeys(q.transactional_id for q in requests if not q.adds))
        errors = dict(zip(names, await asyncio.gather(*map(self._coordinator.confirm_ownership, names)), strict=True))
        for q in requests:
            if not q.adds:
                # Verified again: the earlier result may be of an earlier ownership term than the confirmed one.
                error = errors[q.transactional_id]
                found[q] = VerifiedTransaction(error) if error else self._verify_locally(q)
        return found

    async def _add_locally(
        self, transactional_id: str, producer: ProducerIdentity, requests: list[VerificationRequest]
    ) -> list[tuple[VerificationRequest, VerifiedTransaction]]:
        """Add partitions and groups to one transaction of the local coordinator."""
        partitions: dict[UUID, list[int]] = {}
        for q in requests:
            if q.group_id is None:
                partitions.setdefault(q.topic_id, []).append(q.partition)
        groups = [q.group_id for q in requests if q.group_id is not None]
        result = await self._coordinator.add_and_verify(transactional_id, producer, partitions, groups)
        return [(q, result) for q in requests]


def is_busy(result: VerifiedTransaction) -> bool:
    """Return whether the previous transaction is completing."""
    return result.error is ErrorCode.CONCURRENT_TRANSACTIONS


def encode_requests(requests: list[VerificationRequest]) -> AddPartitionsToTxnRequest:
    """Encode verification requests."""
    transactions: dict[tuple[str, ProducerIdentity, bool], AddPartitionsToTxnTransaction] = {}
    topics: dict[tuple[str, ProducerIdentity, bool, UUID], AddPartitionsToTxnTopic] = {}
    for q in requests:
        producer_key = q.transactional_id, q.producer, q.adds
        transaction = transactions.get(producer_key)
        if transaction is None:
            transaction = transactions[producer_key] = AddPartitionsToTxnTransaction(
                transactional_id=q.transactional_id,
                producer_id=q.producer.producer_id,
                producer_epoch=q.producer.epoch,
                verify_only=not q.adds,
            )
        if q.adds and q.group_id is not None:
            transaction.groups.append(q.group_id)
        topic = topics.get((*producer_key, q.topic_id))
        if topic is None:
            topic = topics[*producer_key, q.topic_id] = AddPartitionsToTxnTopic(name=q.topic, topic_id=q.topic_id)
            transaction.topics.append(topic)
        if q.group_id is None or q.partition not in topic.partitions:
            topic.partitions.append(q.partition)
    return AddPartitionsToTxnRequest(transactions=list(transactions.values()))


def result_key(request: VerificationRequest) -> ResultKey:
    """Return the key of a request's result; groups of one shard share a result."""
    return ResultKey(
        request.transactional_id, request.producer, request.adds, request.topic, request.topic_id, request.partition
    )


def decode_results(
    request: AddPartitionsToTxnRequest, response: AddPartitionsToTxnResponse
) -> dict[ResultKey, VerifiedTransaction]:
    """Return the results. Raises ValueError unless they are in request order."""
    found: dict[ResultKey, VerifiedTransaction] = {}
    for transaction, result in zip(request.transactions, response.results_by_transaction, strict=True):
        producer = ProducerIdentity(transaction.producer_id, transaction.producer_epoch)
        for topic, answered in zip(transaction.topics, result.topic_results, strict=True):
            for index, p in zip(topic.partitions, answered.results_by_partition, strict=True):
                if (transaction.transactional_id, topic.name, index) != (
                    result.transactional_id,
                    answered.name,
                    p.partition_index,
                ):
                    raise ValueError(f"unexpected result for {answered.name}-{p.partition_index}: it was not requested")
                key = ResultKey(
                    transaction.transactional_id,
                    producer,
                    not transaction.verify_only,
                    topic.name,
                    topic.topic_id,
                    index,
                )
                found[key] = VerifiedTransaction(ErrorCode(p.partition_error_code), result.transaction_number)
    return found
