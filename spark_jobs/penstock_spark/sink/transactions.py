"""The requests of a transaction, repeated while that can help (KIP-98): what the transaction service asks of brokers.

Runs on the loop of a link. Each run of a batch gets an epoch of its own from InitProducerId, which aborts what an
earlier driver, or an earlier run, left open, and fences it: nothing of theirs can be appended any more. For the same
reason a run that failed is ended by asking for a new epoch, not by EndTxn: that would leave the epoch valid, and a task
that does not know yet could still write with it. That request names the old epoch, so that a driver that was replaced
does not fence the one that replaced it.

The number of a batch is committed as an offset within its transaction: group = transactional id, offset = batch + 1,
note = query and number of rows. It is there if and only if the rows are, so a restarted driver can tell.
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
"""The key type of FindCoordinator."""
MANY_COORDINATORS = 4
NEWEST_ADD, NEWEST_ADD_OFFSETS, NEWEST_OFFSETS, NEWEST_END = 3, 3, 4, 4
"""The newest versions by which a producer does not claim to speak transactions v2 (KIP-890), whose epochs change with
every EndTxn: here they change with every InitProducerId."""
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
"""While an earlier transaction's markers are written; the last one is repeated."""


NOTE = re.compile(r"(?P<query>\S*)(?: rows=(?P<rows>[0-9]{1,18}))?")


class ProducerFenced(PenstockSparkError):
    """Another driver has the transactional id, or the brokers aborted the transaction because it took too long."""


class ProducerSession(NamedTuple):
    producer_id: int
    epoch: int


class TransactionClient:
    """The transactions of one transactional id. `give_up_ms` bounds each method; then `Unavailable` is raised."""

    def __init__(self, cluster: ClusterConnections, transactional_id: str, timeout_ms: int, give_up_ms: int) -> None:
        self.cluster, self.transactional_id = cluster, transactional_id
        self.timeout_ms, self.give_up_ms = timeout_ms, give_up_ms
        self._node = -1

    async def begin(self) -> ProducerSession:
        """A new epoch; what was open under the id is aborted."""
        request = InitProducerIdRequest(transactional_id=self.transactional_id, transaction_timeout_ms=self.timeout_ms)

        async def ask() -> ProducerSession:
            answer = await self._call(request, InitProducerIdResponse)
            self._check(answer.error_code)
            return ProducerSession(answer.producer_id, answer.producer_epoch)

        try:
            return await self._persist(ask)
        except BrokerError as e:
            if e.code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
                raise PenstockSparkError(
                    f"option 'kafka.transaction.timeout.ms': the brokers allow less than {self.timeout_ms} ms "
                    "(their transaction.max.timeout.ms)"
                ) from None
            raise

    async def fence(self, producer: ProducerSession) -> None:
        """Aborts what is open under this epoch and ends the epoch; nothing where another has followed it already."""
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
        )

        async def ask() -> None:
            self._check((await self._call(request, InitProducerIdResponse)).error_code)

        with contextlib.suppress(ProducerFenced):
            await self._persist(ask)

    async def add(self, producer: ProducerSession, partitions: Iterable[Partition]) -> None:
        """Makes partitions part of the transaction in hand."""
        topics = [AddPartitionsToTxnTopic(name=name, partitions=p) for name, p in by_topic(places(partitions)).items()]
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=topics,
        )

        async def ask() -> None:
            answer = await self._call(request, AddPartitionsToTxnResponse, NEWEST_ADD)
            codes = {
                (topic.name, p.partition_index): p.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for p in topic.results_by_partition
                if p.partition_error_code
            }
            # what was "not attempted" is so because of another, which says more
            for (name, partition), code in sorted(codes.items(), key=lambda item: item[1] == NOT_ATTEMPTED):
                self._check(code, f"{name}-{partition}")

        await self._persist(ask)

    async def mark(self, producer: ProducerSession, place: Partition, batch: LastBatch, query_id: str) -> None:
        """Commits the number of the batch, and that of its rows, within the transaction."""
        group = self.transactional_id
        add = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            group_id=group,
        )

        async def ask_add() -> None:
            answer = await self._call(add, AddOffsetsToTxnResponse, NEWEST_ADD_OFFSETS)
            self._check(answer.error_code)

        await self._persist(ask_add)
        offset = TxnOffsetCommitRequestPartition(
            partition_index=place[1],
            committed_offset=batch.batch_id + 1,
            committed_metadata=note_of(query_id, batch.rows),
        )
        commit = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            topics=[TxnOffsetCommitRequestTopic(name=place[0], partitions=[offset])],
        )

        async def ask_commit() -> None:
            node = await self.cluster.coordinator(group)
            connection = await self.cluster.connection(node, COORDINATOR)
            answer = await connection.call(commit, TxnOffsetCommitResponse, max_version=NEWEST_OFFSETS)
            for topic in answer.topics:
                for p in topic.partitions:
                    check_group(self.cluster, group, p.error_code, f"group {group!r}")

        await self._persist(ask_commit)

    async def end(self, producer: ProducerSession) -> None:
        """Commits: returns when that is decided for good."""
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            committed=True,
        )

        async def ask() -> None:
            answer = await self._call(request, EndTxnResponse, NEWEST_END)
            self._check(answer.error_code)

        await self._persist(ask)

    async def last_batch(self, query_id: str) -> LastBatch | None:
        """The last batch of this query that was committed. Asked after `begin`, nobody else can commit one any more."""
        group = self.transactional_id
        found = await self._persist(lambda: fetch_committed(self.cluster, group, None))
        notes = [(place.offset - 1, rows_in(place.metadata, query_id)) for place in found.values()]
        return max((LastBatch(batch_id, rows) for batch_id, rows in notes if rows is not None), default=None)

    # --- inside

    def _check(self, code: int, about: str = "") -> None:
        if code in MOVED:
            self._node = -1
        if code in FENCED:
            raise ProducerFenced(
                f"transactional id {self.transactional_id!r}: {ErrorCode(code).name}: another driver has taken it, or "
                f"the transaction took longer than kafka.transaction.timeout.ms = {self.timeout_ms}"
            )
        check(code, " ".join(filter(None, [f"transactional id {self.transactional_id!r}", about])))

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
        """The broker that has the transactional id, asked for now. Raises `ClientError`."""
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
        check(code, f"coordinator of transactional id {name!r}")
        if node not in self.cluster.metadata.brokers:
            await self.cluster.refresh()
        if node not in self.cluster.metadata.brokers:
            raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"transactional id {name!r}")
        return node

    async def _persist(self, ask: Callable[[], Awaitable[T]]) -> T:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.give_up_ms / 1000
        attempt = 0
        while True:
            try:
                return await ask()
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
                    raise Unavailable(f"given up after {self.give_up_ms} ms: {e}") from e
                await asyncio.sleep(delay_s)
                attempt += 1


def note_of(query_id: str, rows: int) -> str:
    return f"{query_id} rows={rows}"


def rows_in(note: str, query_id: str) -> int | None:
    """The rows of a note, -1 where it does not tell (older ones name the query alone); None for another query's."""
    matched = NOTE.fullmatch(note)
    if matched is None or matched["query"] != query_id:
        return None
    return -1 if matched["rows"] is None else int(matched["rows"])


def places(partitions: Iterable[Partition]) -> list[TopicPartition]:
    return [TopicPartition(*partition) for partition in partitions]
