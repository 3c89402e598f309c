"""AddPartitionsToTxn, AddOffsetsToTxn and EndTxn for transactional producers (KIP-98), and DescribeTransactions and
ListTransactions for operators (KIP-664).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection
from uuid import UUID

from penstock.api.routes import RequestContext, Route
from penstock.control.features import TRANSACTIONS_V2_LEVEL
from penstock.control.group_settings import MAX_GROUP_ID_CHARS
from penstock.runtime.clock import Clock
from penstock.state.records import TransactionRecord, TxnState
from penstock.state.view import ClusterView
from penstock.txn.coordinator import TransactionCoordinator
from penstock.txn.state_machine import FATAL_ERRORS, MAX_PARTITIONS, ProducerIdentity, VerifiedTransaction
from penstock.txn.transaction_partitions import OFFSETS_TOPIC, OFFSETS_TOPIC_ID
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from penstock.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from penstock.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
)
from penstock.wire.messages.describe_transactions import TransactionState as DescribedTransaction
from penstock.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from penstock.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from penstock.wire.messages.list_transactions import TransactionState as ListedTransaction
from penstock.wire.primitives import ZERO_UUID

BATCHED_VERSION = 4
"""The AddPartitionsToTxn version that brokers use, for several transactions at a time."""
FENCED_VERSION = 2
"""The version from which clients know PRODUCER_FENCED; earlier ones get INVALID_PRODUCER_EPOCH (KIP-588)."""
BUMPING_VERSION = 5
"""The EndTxn version that raises the producer's epoch (KIP-890, part 2)."""
MAX_DESCRIBED = 10_000
MAX_PATTERN_LENGTH = 256


class TransactionsApi:
    """Serves transactions at their coordinator."""

    def __init__(self, coordinator: TransactionCoordinator, view: ClusterView, clock: Clock) -> None:
        self.coordinator, self.view, self.clock = coordinator, view, clock

    def routes(self) -> list[Route]:
        """Return the routes of these APIs."""
        return [
            Route(AddPartitionsToTxnRequest, self.add_partitions, add_failed),
            Route(AddOffsetsToTxnRequest, self.add_offsets, offsets_failed),
            Route(EndTxnRequest, self.end_txn, end_failed),
            Route(DescribeTransactionsRequest, self.describe, describe_failed),
            Route(ListTransactionsRequest, self.list_transactions, list_failed),
        ]

    async def add_partitions(
        self, request: AddPartitionsToTxnRequest, context: RequestContext
    ) -> AddPartitionsToTxnResponse:
        """Serve AddPartitionsToTxn 0 to 5."""
        if context.version >= BATCHED_VERSION:
            results = await asyncio.gather(*(self.add_batched(one, context.version) for one in request.transactions))
            return AddPartitionsToTxnResponse(results_by_transaction=list(results))
        producer = ProducerIdentity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        topics, _ = await self.add_topics(
            request.v3_and_below_transactional_id, producer, request.v3_and_below_topics, context.version
        )
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)

    async def add_batched(self, requested: AddPartitionsToTxnTransaction, version: int) -> AddPartitionsToTxnResult:
        """Add or verify the partitions of one transaction of a batched request."""
        producer = ProducerIdentity(requested.producer_id, requested.producer_epoch)
        if requested.verify_only:
            return await self.verify(requested, producer)
        topics, number = await self.add_topics(
            requested.transactional_id, producer, requested.topics, version, requested.groups
        )
        return AddPartitionsToTxnResult(
            transactional_id=requested.transactional_id, topic_results=topics, transaction_number=number
        )

    async def add_topics(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        topics: list[AddPartitionsToTxnTopic],
        version: int,
        groups: Collection[str] = (),
    ) -> tuple[list[AddPartitionsToTxnTopicResult], int]:
        """Add all partitions and groups, or none; if one is unknown, the others get OPERATION_NOT_ATTEMPTED. Returns
        the results and the number of the transaction."""
        partitions: dict[UUID, list[int]] = {}
        unknown: set[tuple[str, int]] = set()
        number = -1
        for topic in topics:
            if groups and topic.topic_id == OFFSETS_TOPIC_ID:
                continue
            by_id = topic.topic_id != ZERO_UUID
            found = self.view.topics_by_id.get(topic.topic_id) if by_id else self.view.topics.get(topic.name)
            for index in topic.partitions:
                if found is None or not 0 <= index < len(found.partitions):
                    unknown.add((topic.name, index))
                else:
                    partitions.setdefault(found.topic_id, []).append(index)
        if unknown:
            error = ErrorCode.OPERATION_NOT_ATTEMPTED
        elif sum(map(len, partitions.values())) > MAX_PARTITIONS or not all(map(is_group_id, groups)):
            error = ErrorCode.INVALID_REQUEST
        else:
            found_error, number = await self.coordinator.add_and_verify(transactional_id, producer, partitions, groups)
            error = client_error(found_error, version)
        results = [
            topic_result(
                topic,
                [
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if (topic.name, i) in unknown else error
                    for i in topic.partitions
                ],
            )
            for topic in topics
        ]
        return results, number

    async def verify(
        self, requested: AddPartitionsToTxnTransaction, producer: ProducerIdentity
    ) -> AddPartitionsToTxnResult:
        """Return whether partitions belong to the ongoing transaction, and its number.

        Partitions of the offsets topic stand for groups. A final error is returned only once the store confirms this
        coordinator.
        """
        if any(self.is_unknown(topic, index) for topic in requested.topics for index in topic.partitions):
            return AddPartitionsToTxnResult(
                transactional_id=requested.transactional_id,
                topic_results=[
                    topic_result(
                        topic,
                        [
                            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                            if self.is_unknown(topic, index)
                            else ErrorCode.OPERATION_NOT_ATTEMPTED
                            for index in topic.partitions
                        ],
                    )
                    for topic in requested.topics
                    if topic.partitions
                ],
            )
        answers = [
            [self.verify_one(requested.transactional_id, producer, topic, index) for index in topic.partitions]
            for topic in requested.topics
        ]
        if any(answer.error in FATAL_ERRORS for of_topic in answers for answer in of_topic):
            error = await self.coordinator.confirm_ownership(requested.transactional_id)
            if error:
                answers = [[VerifiedTransaction(error)] * len(of_topic) for of_topic in answers]
        return AddPartitionsToTxnResult(
            transactional_id=requested.transactional_id,
            topic_results=[
                topic_result(topic, [verification_error(answer.error) for answer in of_topic])
                for topic, of_topic in zip(requested.topics, answers, strict=True)
                if of_topic
            ],
            transaction_number=max((answer.number for of_topic in answers for answer in of_topic), default=-1),
        )

    def is_unknown(self, topic: AddPartitionsToTxnTopic, index: int) -> bool:
        """Return whether a partition named without a topic id does not exist. Penstock's brokers send topic ids."""
        if topic.topic_id != ZERO_UUID or topic.name == OFFSETS_TOPIC:
            return False
        return self.view.topic_partition(topic.name, index) is None

    def verify_one(
        self, transactional_id: str, producer: ProducerIdentity, topic: AddPartitionsToTxnTopic, index: int
    ) -> VerifiedTransaction:
        """Verify one partition. Penstock's brokers name the topic by id."""
        topic_id: UUID | None = topic.topic_id
        if topic_id == ZERO_UUID:
            found = self.view.topics.get(topic.name)
            by_name = OFFSETS_TOPIC_ID if topic.name == OFFSETS_TOPIC else None
            topic_id = found.topic_id if found is not None else by_name
        if topic_id is None:
            return VerifiedTransaction(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if topic_id == OFFSETS_TOPIC_ID:
            return self.coordinator.verify_group_shard(transactional_id, producer, index)
        return self.coordinator.verify(transactional_id, producer, topic_id, index)

    async def add_offsets(self, request: AddOffsetsToTxnRequest, context: RequestContext) -> AddOffsetsToTxnResponse:
        """Serve AddOffsetsToTxn 0 to 4."""
        if len(request.group_id) > MAX_GROUP_ID_CHARS:
            return offsets_failed(request, ErrorCode.INVALID_GROUP_ID)
        producer = ProducerIdentity(request.producer_id, request.producer_epoch)
        error = await self.coordinator.add_to_transaction(request.transactional_id, producer, {}, [request.group_id])
        return AddOffsetsToTxnResponse(error_code=client_error(error, context.version))

    async def end_txn(self, request: EndTxnRequest, context: RequestContext) -> EndTxnResponse:
        """Serve EndTxn 0 to 5. From version 5, the response has the producer's next id and epoch."""
        producer = ProducerIdentity(request.producer_id, request.producer_epoch)
        if context.version >= BUMPING_VERSION:
            return await self.end_and_bump(request, producer)
        error = await self.coordinator.end_transaction(request.transactional_id, producer, request.committed)
        return EndTxnResponse(error_code=client_error(error, context.version))

    async def end_and_bump(self, request: EndTxnRequest, producer: ProducerIdentity) -> EndTxnResponse:
        """Serve EndTxn 5, if all brokers can complete a transaction whose epoch was raised at its end."""
        error, after, level = ErrorCode.NONE, producer, TRANSACTIONS_V2_LEVEL
        if self.view.feature_level < level:
            # A client that has seen `transaction.version` at another broker may be ahead of this broker's view.
            error = await self.coordinator.check_feature_level(level)
        if not error:
            error, after = await self.coordinator.end_and_bump(request.transactional_id, producer, request.committed)
        if error:
            return end_failed(request, error)
        return EndTxnResponse(producer_id=after.producer_id, producer_epoch=after.epoch)

    async def describe(
        self, request: DescribeTransactionsRequest, context: RequestContext
    ) -> DescribeTransactionsResponse:
        """Serve DescribeTransactions 0."""
        requested = list(dict.fromkeys(request.transactional_ids))
        if len(requested) > MAX_DESCRIBED:
            return describe_failed(request, ErrorCode.INVALID_REQUEST)
        error = await self.coordinator.confirm_shards()
        if error:
            return describe_failed(request, error)
        return DescribeTransactionsResponse(transaction_states=[self.describe_one(one) for one in requested])

    def describe_one(self, transactional_id: str) -> DescribedTransaction:
        """Describe a transaction, or return the error."""
        error, record = self.coordinator.describe(transactional_id)
        if record is None:
            return DescribedTransaction(transactional_id=transactional_id, error_code=error)
        return DescribedTransaction(
            transactional_id=transactional_id,
            transaction_state=record.state,
            transaction_timeout_ms=record.timeout_ms,
            transaction_start_time_ms=record.started_ms,
            producer_id=record.producer_id,
            producer_epoch=record.epoch,
            topics=self.topics_of(record),
        )

    def topics_of(self, record: TransactionRecord) -> list[TopicData]:
        """Return the partitions of a transaction, for topics that exist."""
        found = []
        for topic_id, indexes in record.partitions.items():
            topic = self.view.topics_by_id.get(topic_id)
            if topic is not None:
                found.append(TopicData(topic=topic.name, partitions=list(indexes)))
        return found

    async def list_transactions(
        self, request: ListTransactionsRequest, context: RequestContext
    ) -> ListTransactionsResponse:
        """Serve ListTransactions 0 to 2: the transactions of this broker's shards that match the filters."""
        error = self.coordinator.unavailable or await self.coordinator.confirm_shards()
        if error:
            return list_failed(request, error)
        names = {state.value for state in TxnState}
        states, ids = set(request.state_filters), set(request.producer_id_filters)
        pattern = None
        if request.transactional_id_pattern:
            try:
                pattern = simple_pattern(request.transactional_id_pattern)
            except ValueError:
                return list_failed(request, ErrorCode.INVALID_REGULAR_EXPRESSION)
        now_ms = self.clock.wall_ms()
        listed = []
        for transactional_id, record in self.coordinator:
            if (states and record.state not in states) or (ids and record.producer_id not in ids):
                continue
            # As in Kafka, a transaction without a start time counts as older than any.
            if request.duration_filter >= 0 and now_ms - record.started_ms <= request.duration_filter:
                continue
            if pattern is None or pattern.fullmatch(transactional_id):
                listed.append(
                    ListedTransaction(
                        transactional_id=transactional_id,
                        producer_id=record.producer_id,
                        transaction_state=record.state,
                    )
                )
        return ListTransactionsResponse(unknown_state_filters=sorted(states - names), transaction_states=listed)


def simple_pattern(text: str) -> re.Pattern[str]:
    """Compile a pattern of literal characters, `.` and `.*`. Raises ValueError for any other.

    General expressions may backtrack exponentially, which would block the event loop.
    """
    if len(text) > MAX_PATTERN_LENGTH or re.search(r"[][\\^$|?+(){}]", text) or re.search(r"(?<!\.)\*", text):
        raise ValueError(f'pattern "{text}" is not supported; use literal characters, . and .*')
    parts = [re.escape(part).replace(r"\.", ".") for part in re.split(r"(?:\.\*)+", text)]
    if len(parts) > 4:
        raise ValueError(f'pattern "{text}" is not supported; use at most three .*')
    return re.compile(".*".join(parts), re.DOTALL)


def client_error(error: ErrorCode, version: int) -> ErrorCode:
    """Map an error to one that the client's version knows."""
    if error is ErrorCode.PRODUCER_FENCED and version < FENCED_VERSION:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


def verification_error(error: ErrorCode) -> ErrorCode:
    """Map a verification result to an error that the requesting broker knows."""
    return ErrorCode.TRANSACTION_ABORTABLE if error is ErrorCode.INVALID_TXN_STATE else error


def is_group_id(group_id: str) -> bool:
    """Return whether a group id may be stored."""
    return 0 < len(group_id) <= MAX_GROUP_ID_CHARS


def topic_result(topic: AddPartitionsToTxnTopic, errors: list[ErrorCode]) -> AddPartitionsToTxnTopicResult:
    """Return a topic's result with an error for each partition."""
    return AddPartitionsToTxnTopicResult(
        name=topic.name,
        results_by_partition=[
            AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=error)
            for index, error in zip(topic.partitions, errors, strict=True)
        ],
    )


def add_failed(request: AddPartitionsToTxnRequest, error: int) -> AddPartitionsToTxnResponse:
    """Return the response to AddPartitionsToTxn with an error for each partition."""
    code = ErrorCode(error)
    return AddPartitionsToTxnResponse(
        error_code=code,
        results_by_topic_v3_and_below=[
            topic_result(t, [code] * len(t.partitions)) for t in request.v3_and_below_topics
        ],
    )


def offsets_failed(request: AddOffsetsToTxnRequest, error: int) -> AddOffsetsToTxnResponse:
    """Return the response to AddOffsetsToTxn with an error."""
    return AddOffsetsToTxnResponse(error_code=error)


def end_failed(request: EndTxnRequest, error: int) -> EndTxnResponse:
    """Return the response to EndTxn with an error."""
    return EndTxnResponse(error_code=error)


def describe_failed(request: DescribeTransactionsRequest, error: int) -> DescribeTransactionsResponse:
    """Return the response to DescribeTransactions with an error for each transactional id."""
    states = [DescribedTransaction(transactional_id=one, error_code=error) for one in request.transactional_ids]
    return DescribeTransactionsResponse(transaction_states=states)


def list_failed(request: ListTransactionsRequest, error: int) -> ListTransactionsResponse:
    """Return the response to ListTransactions with an error."""
    return ListTransactionsResponse(error_code=error)
