"""The transaction requests that the transaction service sends to brokers (KIP-98), with retries.

Runs on the loop of a link. Each run of a batch gets its own epoch from InitProducerId, which aborts what an earlier
driver or run left open and fences it: it can append nothing more. For the same reason a failed run is ended by a new
epoch, not by EndTxn: EndTxn keeps the epoch valid, and a task that does not know of the failure could still write. That
request names the old epoch, so that a replaced driver cannot fence its successor.

The batch number is committed as an offset within the batch's transaction: group = transactional id, offset = batch + 1,
metadata = query and row count. It exists if and only if the rows do, so a restarted driver can tell.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple, TypeVar

from penstock.client.cluster import COORDINATOR, ClusterConnections
from penstock.client.errors import BrokerError, ClientError, check
from penstock.client.group_protocol import by_topic
from penstock.client.offsets import check_group, fetch_committed
from penstock.client.types import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from penstock.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from penstock.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from penstock.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from penstock.wire.schema import Payload
from penstock_spark.model.errors import PenstockSparkError, Unavailable
from penstock_spark.sink.attempts import LastBatch
from penstock_spark.sink.messages import Partition

T = TypeVar("T")
R = TypeVar("R", bound=Payload)

TRANSACTION = 1
"""Key type of transactional ids in FindCoordinator."""
MANY_COORDINATORS = 4
MAX_ADD_VERSION, MAX_ADD_OFFSETS_VERSION, MAX_OFFSETS_VERSION, MAX_END_VERSION = 3, 3, 4, 4
"""Highest versions that do not imply transactions v2 (KIP-890), in which each EndTxn changes the epoch. Here each
InitProducerId changes it."""
NOT_ATTEMPTED = ErrorCode.OPERATION_NOT_ATTEMPTED
MOVED = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
FENCED = (
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTION_ABORTABLE,
)
BUSY_DELAYS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
"""Delays while the markers of an earlier transaction are written; the last one repeats."""


METADATA = re.compile(r"(?P<query>\S*)(?: rows=(?P<rows>[0-9]{1,18}))?")


class ProducerFenced(PenstockSparkError):
    """Another driver uses the transactional id, or the brokers aborted the transaction because it took too long."""


class ProducerSession(NamedTuple):
    """The producer id and epoch of a run."""

    producer_id: int
    epoch: int


class TransactionClient:
    """Transactions of one transactional id. Each method raises `Unavailable` after `give_up_ms`."""

    def __init__(self, cluster: ClusterConnections, transactional_id: str, timeout_ms: int, give_up_ms: int) -> None:
        self.cluster, self.transactional_id = cluster, transactional_id
        self.timeout_ms, self.give_up_ms = timeout_ms, give_up_ms
        self._node = -1

    async def start(self) -> ProducerSession:
        """Start a new epoch; an open transaction of the id is aborted."""
        request = InitProducerIdRequest(transactional_id=self.transactional_id, transaction_timeout_ms=self.timeout_ms)

        async def send() -> ProducerSession:
            answer = await self._call(request, InitProducerIdResponse)
            self._check(answer.error_code)
            return ProducerSession(answer.producer_id, answer.producer_epoch)

        try:
            return await self._retry(send)
        except BrokerError as e:
            if e.code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
                raise PenstockSparkError(
                    f'option "kafka.transaction.timeout.ms": {self.timeout_ms} ms is more than the brokers allow; '
                    "lower it, or raise transaction.max.timeout.ms of the brokers"
                ) from None
            raise

    async def fence(self, producer: ProducerSession) -> None:
        """Abort the epoch's transaction and end the epoch; does nothing if a newer epoch exists."""
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
        )

        async def send() -> None:
            self._check((await self._call(request, InitProducerIdResponse)).error_code)

        with contextlib.suppress(ProducerFenced):
            await self._retry(send)

    async def add(self, producer: ProducerSession, partitions: Iterable[Partition]) -> None:
        """Add partitions to the transaction."""
        topics = [
            AddPartitionsToTxnTopic(name=name, partitions=p)
            for name, p in by_topic(topic_partitions(partitions)).items()
        ]
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=topics,
        )

        async def send() -> None:
            answer = await self._call(request, AddPartitionsToTxnResponse, MAX_ADD_VERSION)
            codes = {
                (topic.name, p.partition_index): p.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for p in topic.results_by_partition
                if p.partition_error_code
            }
            # OPERATION_NOT_ATTEMPTED only says that another partition failed: report that one.
            for (name, partition), code in sorted(codes.items(), key=lambda item: item[1] == NOT_ATTEMPTED):
                self._check(code, f"{name}-{partition}")

        await self._retry(send)

    async def record_batch(
        self, producer: ProducerSession, partition: Partition, batch: LastBatch, query_id: str
    ) -> None:
        """Commit the batch number and row count within the transaction."""
        group = self.transactional_id
        add = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            group_id=group,
        )

        async def send_add() -> None:
            answer = await self._call(add, AddOffsetsToTxnResponse, MAX_ADD_OFFSETS_VERSION)
            self._check(answer.error_code)

        await self._retry(send_add)
        offset = TxnOffsetCommitRequestPartition(
            partition_index=partition[1],
            committed_offset=batch.batch_id + 1,
            committed_metadata=encode_metadata(query_id, batch.rows),
        )
        commit = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            topics=[TxnOffsetCommitRequestTopic(name=partition[0], partitions=[offset])],
        )

        async def send_commit() -> None:
            node = await self.cluster.coordinator(group)
            connection = await self.cluster.connection(node, COORDINATOR)
            answer = await connection.call(commit, TxnOffsetCommitResponse, max_version=MAX_OFFSETS_VERSION)
            for topic in answer.topics:
                for p in topic.partitions:
                    check_group(self.cluster, group, p.error_code, f'group "{group}"')

        await self._retry(send_commit)

    async def commit(self, producer: ProducerSession) -> None:
        """Commit the transaction; returns once the commit is decided."""
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            committed=True,
        )

        async def send() -> None:
            answer = await self._call(request, EndTxnResponse, MAX_END_VERSION)
            self._check(answer.error_code)

        await self._retry(send)

    async def last_batch(self, query_id: str) -> LastBatch | None:
        """Return the query's last committed batch. After `start`, no other driver can commit one."""
        group = self.transactional_id
        found = await self._retry(lambda: fetch_committed(self.cluster, group, None))
        batches = [(one.offset - 1, rows_in_metadata(one.metadata, query_id)) for one in found.values()]
        return max((LastBatch(batch_id, rows) for batch_id, rows in batches if rows is not None), default=None)

    # --- inside

    def _check(self, code: int, about: str = "") -> None:
        if code in MOVED:
            self._node = -1
        if code in FENCED:
            raise ProducerFenced(
                f'transactional id "{self.transactional_id}": {ErrorCode(code).name}: another driver has taken it '
                f"over, or the transaction took longer than kafka.transaction.timeout.ms ({self.timeout_ms} ms)"
            )
        check(code, " ".join(filter(None, [f'transactional id "{self.transactional_id}"', about])))

    async def _call(self, request: Payload, response: type[R], max_version: int | None = None) -> R:
        try:
            if self._node < 0:
                self._node = await self.coordinator()
            connection = await self.cluster.connection(self._node, COORDINATOR)
            return await connection.call(request, response, max_version=max_version)
        except ClientError:
            self._node = -1
            raise

    async def coordinator(self) -> int:
        """Find the transaction coordinator of the id; not cached. Raises `ClientError`."""
        connection = await self.cluster.any_connection()
        name = self.transactional_id
        if connection.version(FindCoordinatorRequest) >= MANY_COORDINATORS:
            request = FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=[name])
            answer = await connection.call(request, FindCoordinatorResponse)
            found = next((c for c in answer.coordinators if c.key == name), None)
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE if found is None else found.error_code
            node = -1 if found is None else found.node_id
        else:
            request = FindCoordinatorRequest(key=name, key_type=TRANSACTION)
            answer = await connection.call(request, FindCoordinatorResponse)
            code, node = answer.error_code, answer.node_id
        check(code, f'coordinator of transactional id "{name}"')
        if node not in self.cluster.metadata.brokers:
            await self.cluster.refresh()
        if node not in self.cluster.metadata.brokers:
            raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f'transactional id "{name}"')
        return node

    async def _retry(self, send: Callable[[], Awaitable[T]]) -> T:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.give_up_ms / 1000
        attempt = 0
        while True:
            try:
                return await send()
            except ClientError as e:
                if isinstance(e, BrokerError) and e.code in FENCED:
                    self._check(e.code)
                is_busy = isinstance(e, BrokerError) and e.code == ErrorCode.CONCURRENT_TRANSACTIONS
                delay_s = BUSY_DELAYS_S[min(attempt, len(BUSY_DELAYS_S) - 1)] if is_busy else None
                if delay_s is None:
                    delay_s = self.cluster.backoff.delay_s(attempt)
                if not e.retriable:
                    raise
                if loop.time() + delay_s >= deadline:
                    raise Unavailable(f"gave up after {self.give_up_ms} ms: {e}") from e
                await asyncio.sleep(delay_s)
                attempt += 1


def encode_metadata(query_id: str, rows: int) -> str:
    """Return the offset metadata of a batch."""
    return f"{query_id} rows={rows}"


def rows_in_metadata(metadata: str, query_id: str) -> int | None:
    """Return the row count in offset metadata; -1 if it has none (older versions); None for another query."""
    matched = METADATA.fullmatch(metadata)
    if matched is None or matched["query"] != query_id:
        return None
    return -1 if matched["rows"] is None else int(matched["rows"])


def topic_partitions(partitions: Iterable[Partition]) -> list[TopicPartition]:
    """Convert partitions to the client's type."""
    return [TopicPartition(*partition) for partition in partitions]
