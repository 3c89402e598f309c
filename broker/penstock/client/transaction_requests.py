"""The requests of a transactional producer (KIP-98), each retried until a deadline.

`transaction_manager` drives them for `Producer`. They are public for programs that share a transaction between
processes: one process starts a session and ends the transaction, others write with the session's producer id and epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from penstock.client.cluster import TRANSACTION, ClusterConnections
from penstock.client.errors import BrokerError, ClientError, ProducerFenced, check
from penstock.client.group_protocol import by_topic
from penstock.client.identity import NO_EPOCH, NO_ID, ProducerSession
from penstock.client.offsets import COORDINATOR_MOVED, check_group
from penstock.client.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from penstock.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from penstock.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from penstock.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from penstock.wire.schema import Payload

T = TypeVar("T")
R = TypeVar("R", bound=Payload)

NEWEST_PRODUCE, NEWEST_ADD_PARTITIONS, NEWEST_ADD_OFFSETS, NEWEST_OFFSET_COMMIT, NEWEST_END = 11, 3, 3, 4, 4
"""Newest versions that do not imply transactions v2 (KIP-890), in which each EndTxn changes the epoch."""
FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
BUSY_DELAYS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
"""Delays while the markers of the previous transaction are written; the last one repeats."""
NO_SESSION = ProducerSession(NO_ID, NO_EPOCH)


class TransactionRequests:
    """The requests of one transactional id. Methods retry retriable errors for `retry_ms`, then raise the last one.

    They raise `ProducerFenced`, and `BrokerError` for other errors of the coordinator. `timeout_ms` is the time after
    which the coordinator aborts an open transaction.
    """

    def __init__(self, cluster: ClusterConnections, transactional_id: str, timeout_ms: int, retry_ms: float) -> None:
        self.cluster, self.transactional_id = cluster, transactional_id
        self.timeout_ms, self.retry_ms = timeout_ms, retry_ms

    async def start_session(self, previous: ProducerSession = NO_SESSION) -> ProducerSession:
        """Start a new epoch (InitProducerId). Aborts an open transaction of the id and fences other producers.

        With `previous`, only the producer with this session starts a new epoch; another one gets `ProducerFenced`
        (KIP-360).
        """
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms,
            producer_id=previous.producer_id,
            producer_epoch=previous.epoch,
        )

        async def send() -> ProducerSession:
            answer = await self._call(request, InitProducerIdResponse)
            self._check(answer.error_code, f"with a transaction timeout of {self.timeout_ms} ms")
            return ProducerSession(answer.producer_id, answer.producer_epoch)

        return await self._retry(send)

    async def add_partitions(self, session: ProducerSession, partitions: Iterable[TopicPartition]) -> None:
        """Add partitions to the transaction, which starts with the first one (AddPartitionsToTxn)."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=session.producer_id,
            v3_and_below_producer_epoch=session.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=name, partitions=numbers) for name, numbers in by_topic(partitions).items()
            ],
        )

        async def send() -> None:
            answer = await self._call(request, AddPartitionsToTxnResponse, NEWEST_ADD_PARTITIONS)
            codes = {
                f"{topic.name}-{p.partition_index}": p.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for p in topic.results_by_partition
                if p.partition_error_code
            }
            # OPERATION_NOT_ATTEMPTED means that another partition failed; that one has the reason.
            for about, code in sorted(codes.items(), key=lambda item: item[1] == ErrorCode.OPERATION_NOT_ATTEMPTED):
                self._check(code, about)

        await self._retry(send)

    async def commit_offsets(
        self,
        session: ProducerSession,
        group: ConsumerGroupMetadata,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
    ) -> None:
        """Commit a group's offsets with the transaction (AddOffsetsToTxn, TxnOffsetCommit)."""
        add = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=session.producer_id,
            producer_epoch=session.epoch,
            group_id=group.group_id,
        )

        async def send_add() -> None:
            self._check((await self._call(add, AddOffsetsToTxnResponse, NEWEST_ADD_OFFSETS)).error_code)

        await self._retry(send_add)
        commit = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group.group_id,
            producer_id=session.producer_id,
            producer_epoch=session.epoch,
            generation_id=group.generation,
            member_id=group.member_id,
            group_instance_id=group.group_instance_id,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[offset_entry(p, offsets[TopicPartition(topic, p)]) for p in numbers],
                )
                for topic, numbers in by_topic(offsets).items()
            ],
        )

        async def send_commit() -> None:
            answer = await self.cluster.call_coordinator(
                group.group_id, commit, TxnOffsetCommitResponse, newest=NEWEST_OFFSET_COMMIT
            )
            for topic in answer.topics:
                for p in topic.partitions:
                    self._check_fenced(p.error_code)
                    check_group(self.cluster, group.group_id, p.error_code)

        await self._retry(send_commit)

    async def end_transaction(self, session: ProducerSession, *, committed: bool) -> None:
        """Commit or abort the transaction (EndTxn). Returns once the outcome is decided."""
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=session.producer_id,
            producer_epoch=session.epoch,
            committed=committed,
        )

        async def send() -> None:
            self._check((await self._call(request, EndTxnResponse, NEWEST_END)).error_code)

        await self._retry(send)

    def _check_fenced(self, code: int) -> None:
        if code in FENCED:
            raise ProducerFenced(
                f'transactional id "{self.transactional_id}": {ErrorCode(code).name}: a newer producer uses the id, or '
                f"the transaction took longer than its timeout of {self.timeout_ms} ms"
            )

    def _check(self, code: int, about: str = "") -> None:
        self._check_fenced(code)
        if code in COORDINATOR_MOVED:
            self.cluster.forget_coordinator(self.transactional_id, TRANSACTION)
        check(code, " ".join(filter(None, [f'transactional id "{self.transactional_id}"', about])))

    async def _call(self, request: Payload, response: type[R], newest: int | None = None) -> R:
        return await self.cluster.call_coordinator(
            self.transactional_id, request, response, key_type=TRANSACTION, newest=newest
        )

    async def _retry(self, send: Callable[[], Awaitable[T]]) -> T:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.retry_ms / 1000
        attempt = 0
        while True:
            try:
                return await send()
            except ClientError as e:
                is_busy = isinstance(e, BrokerError) and e.code == ErrorCode.CONCURRENT_TRANSACTIONS
                delay_s = (
                    BUSY_DELAYS_S[min(attempt, len(BUSY_DELAYS_S) - 1)] if is_busy
                    else self.cluster.backoff.delay_s(attempt)
                )  # fmt: skip
                if not e.retriable or loop.time() + delay_s >= deadline:
                    raise
            await asyncio.sleep(delay_s)
            attempt += 1


def offset_entry(partition: int, offset: OffsetAndMetadata) -> TxnOffsetCommitRequestPartition:
    """Return the request's entry for a partition."""
    return TxnOffsetCommitRequestPartition(
        partition_index=partition,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        committed_metadata=offset.metadata,
    )
