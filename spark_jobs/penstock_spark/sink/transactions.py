"""The transaction requests that the transaction service sends to brokers.

Runs on the loop of a link. Each run of a batch gets its own epoch from InitProducerId, which aborts what an earlier
driver or run left open and fences it: it can append nothing more. For the same reason a failed run is ended by a new
epoch, not by EndTxn: EndTxn keeps the epoch valid, and a task that does not know of the failure could still write. That
request names the old epoch, so that a replaced driver cannot fence its successor.

The batch number is committed as an offset within the batch's transaction: group = transactional id, offset = batch + 1,
metadata = NO_POSITION, query and row count. It exists if and only if the rows do, so a restarted driver can tell.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator

from penstock.client import (
    NO_POSITION,
    BrokerError,
    ClientError,
    ClusterConnections,
    ConsumerGroupMetadata,
    ErrorCode,
    OffsetAndMetadata,
    ProducerFenced,
    ProducerSession,
    TopicPartition,
    TransactionRequests,
    fetch_committed,
)
from penstock_spark.model.errors import PenstockSparkError, Unavailable
from penstock_spark.sink.attempts import LastBatch
from penstock_spark.sink.messages import Partition

EPOCH_ENDED = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)
METADATA = re.compile(r"(?P<query>\S*)(?: rows=(?P<rows>[0-9]{1,18}))?")


class EpochEnded(PenstockSparkError):
    """Another driver uses the transactional id, or the brokers aborted the transaction because it took too long."""


class TransactionClient:
    """Transactions of one transactional id. Each method raises `Unavailable` after `give_up_ms`."""

    def __init__(self, cluster: ClusterConnections, transactional_id: str, timeout_ms: int, give_up_ms: int) -> None:
        self.cluster, self.transactional_id = cluster, transactional_id
        self.timeout_ms, self.give_up_ms = timeout_ms, give_up_ms
        self._requests = TransactionRequests(cluster, transactional_id, timeout_ms, give_up_ms)

    async def start(self) -> ProducerSession:
        """Start a new epoch; an open transaction of the id is aborted."""
        with self._explained():
            return await self._requests.start_session()

    async def fence(self, producer: ProducerSession) -> None:
        """Abort the epoch's transaction and end the epoch; does nothing if a newer epoch exists."""
        with contextlib.suppress(EpochEnded), self._explained():
            await self._requests.start_session(producer)

    async def add(self, producer: ProducerSession, partitions: Iterable[Partition]) -> None:
        """Add partitions to the transaction."""
        with self._explained():
            await self._requests.add_partitions(producer, [TopicPartition(*partition) for partition in partitions])

    async def record_batch(
        self, producer: ProducerSession, partition: Partition, batch: LastBatch, query_id: str
    ) -> None:
        """Commit the batch number and row count within the transaction."""
        offset = OffsetAndMetadata(batch.batch_id + 1, encode_metadata(query_id, batch.rows))
        with self._explained():
            await self._requests.commit_offsets(
                producer, ConsumerGroupMetadata(self.transactional_id), {TopicPartition(*partition): offset}
            )

    async def commit(self, producer: ProducerSession) -> None:
        """Commit the transaction; returns once the commit is decided."""
        with self._explained():
            await self._requests.end_transaction(producer, committed=True)

    async def last_batch(self, query_id: str) -> LastBatch | None:
        """Return the query's last committed batch. After `start`, no other driver can commit one."""
        with self._explained():
            found = await fetch_committed(self.cluster, self.transactional_id, None, timeout_ms=self.give_up_ms)
        batches = [(one.offset - 1, rows_in_metadata(one.metadata, query_id)) for one in found.values()]
        return max((LastBatch(batch_id, rows) for batch_id, rows in batches if rows is not None), default=None)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise the errors of the requests in the terms of the sink's options."""
        try:
            yield
        except ClientError as e:
            code = e.code if isinstance(e, BrokerError) else None
            if isinstance(e, ProducerFenced) or code in EPOCH_ENDED:
                raise EpochEnded(
                    f"{e}: another driver has taken it over, or the transaction took longer than "
                    f"kafka.transaction.timeout.ms ({self.timeout_ms} ms)"
                ) from e
            if code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
                raise PenstockSparkError(
                    f'option "kafka.transaction.timeout.ms": {self.timeout_ms} ms is more than the brokers allow; '
                    "lower it, or raise transaction.max.timeout.ms of the brokers"
                ) from None
            if e.retriable:
                raise Unavailable(f"gave up after {self.give_up_ms} ms: {e}") from e
            raise


def encode_metadata(query_id: str, rows: int) -> str:
    """Return the offset metadata of a batch."""
    return f"{NO_POSITION}{query_id} rows={rows}"


def rows_in_metadata(metadata: str, query_id: str) -> int | None:
    """Return the row count in offset metadata; -1 if it has none (older versions, whose metadata also
    lacks NO_POSITION); None for another query."""
    matched = METADATA.fullmatch(metadata.removeprefix(NO_POSITION))
    if matched is None or matched["query"] != query_id:
        return None
    return -1 if matched["rows"] is None else int(matched["rows"])
