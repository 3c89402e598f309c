"""The producer: `send` appends a record to its partition's batch and returns its delivery.

Public API; also used by `penstock produce`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import Literal

from penstock.client.accumulator import Accumulator, Delivery, MemoryBudget, PartitionQueue
from penstock.client.cluster import ClusterConnections
from penstock.client.errors import BufferFull, Closed, DeliveryFailed, IllegalState, RecordTooLarge
from penstock.client.partitioner import PartitionFunction, make_partitioner
from penstock.client.producer_transaction import ProducerTransaction
from penstock.client.security import Security
from penstock.client.sender import Sender
from penstock.client.transaction_manager import TransactionManager
from penstock.client.transaction_requests import TransactionRequests
from penstock.client.types import ConsumerGroupMetadata, Headers, OffsetAndMetadata, TopicPartition
from penstock.runtime.clock import Clock, SystemClock
from penstock.wire.batch_builder import record_size_bound
from penstock.wire.compression import Codec

Acks = Literal[0, 1, "all", -1]
MAX_IN_FLIGHT_IDEMPOTENT = 5


class Producer:
    """Sends records, in batches, to the leaders of their partitions.

    ```python
    async with Producer("127.0.0.1:9092") as producer:
        delivery = await producer.send("flights", b"EWR-IAH", key=b"UA")
        print(await delivery)           # RecordMetadata(topic, partition, offset, timestamp_ms)
    ```

    - `acks`: "all" (on disk on every in-sync replica; the default), 1 (written by the leader) or 0 (no response).
    - `idempotent`: brokers discard duplicates, and retries keep the order. Default: whether `acks` is "all".
    - `linger_ms`, `batch_size`: a batch is sent after this time, or once it has this many bytes (before
      compression). `compression`: "none", "gzip", "snappy", "lz4", "zstd".
    - `buffer_memory`: maximum bytes of buffered records. If it is exceeded, `send` waits for up to `max_block_ms`.
    - `partitioner`: "murmur2" (by key, as other Kafka clients; records without a key use one partition per batch),
      "round_robin", "sticky", or a function that maps (topic, key, value, partition count) to a partition.
    - `security`: TLS and SASL; by default connections are plain text.
    - `delivery_timeout_ms`: timeout of a record including retries; `request_timeout_ms`: timeout of one attempt.
    - `transactional_id`: send records in transactions (`begin`, `commit`, `abort`, `transaction`). At most one producer
      at a time uses an id: a newer one fences this one. `transaction_timeout_ms`: time after which the coordinator
      aborts a transaction.

    Safe for concurrent use by tasks of one event loop.
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str] = "127.0.0.1:9092",
        *,
        acks: Acks = "all",
        idempotent: bool | None = None,
        linger_ms: float = 5,
        batch_size: int = 64 * 1024,
        buffer_memory: int = 32 * 1024 * 1024,
        max_request_size: int = 1024 * 1024,
        max_in_flight: int = 5,
        compression: str = "none",
        partitioner: str | PartitionFunction = "murmur2",
        request_timeout_ms: float = 30_000,
        delivery_timeout_ms: float = 120_000,
        max_block_ms: float = 60_000,
        metadata_max_age_ms: float = 60_000,
        auto_create_topics: bool = True,
        client_id: str = "penstock-producer",
        clock: Clock | None = None,
        security: Security | None = None,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = 60_000,
    ) -> None:
        if acks not in (0, 1, -1, "all"):
            raise ValueError(f'invalid acks "{acks}"; use 0, 1 or "all"')
        self._acks = -1 if acks in (-1, "all") else int(acks)
        self._idempotent = self._acks == -1 if idempotent is None else idempotent
        if self._idempotent and self._acks != -1:
            raise ValueError('an idempotent producer needs acks="all"; set it, or idempotent=False')
        if max_in_flight < 1 or (self._idempotent and max_in_flight > MAX_IN_FLIGHT_IDEMPOTENT):
            raise ValueError(
                f'invalid max_in_flight "{max_in_flight}"; use 1 or more, at most 5 for an idempotent producer'
            )
        if transactional_id is not None and not (transactional_id and self._idempotent):
            raise ValueError(
                f'invalid transactional_id "{transactional_id}"; use a name that is not empty, with acks="all" and'
                " without idempotent=False"
            )
        self._transactional_id, self._transaction_timeout_ms = transactional_id, transaction_timeout_ms
        self._transactions: TransactionManager | None = None
        try:
            self._codec = Codec[compression.upper()]
        except KeyError:
            names = ", ".join(codec.name.lower() for codec in Codec)
            raise ValueError(f'unknown compression "{compression}"; use one of {names}') from None
        self._partitioner = make_partitioner(partitioner)
        self._linger_s = max(linger_ms, 0) / 1000
        self._batch_size, self._buffer_memory = batch_size, buffer_memory
        self._max_in_flight, self._max_request_size = max_in_flight, max_request_size
        self._max_record_size = min(max_request_size, buffer_memory)
        self._request_timeout_ms, self._delivery_timeout_ms = request_timeout_ms, delivery_timeout_ms
        self._max_block_ms = max_block_ms
        self._clock = clock or SystemClock()
        self._cluster = ClusterConnections(
            bootstrap,
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            metadata_max_age_ms=metadata_max_age_ms,
            auto_create_topics=auto_create_topics,
            security=security,
        )
        self._started = self._closed = False

    async def __aenter__(self) -> Producer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close(flush=kind is None or issubclass(kind, Exception))
        except DeliveryFailed:
            if kind is None:  # otherwise the original exception is raised
                raise

    async def start(self) -> None:
        """Connect to the cluster. Raises `NoBrokerAvailable`.

        With a `transactional_id`, get its next epoch, which fences an earlier producer and aborts its transaction.
        Raises `ClientError`.
        """
        try:
            await self._cluster.start()
            self._create_sender()
            if self._transactions is not None:
                await self._transactions.start()
        except BaseException:
            await self._cluster.close()
            raise
        self._started = True

    def _create_sender(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._memory = MemoryBudget(self._buffer_memory)
        name = self._transactional_id
        transaction = None if name is None else ProducerTransaction(name)
        batch_bytes = min(self._batch_size, self._max_request_size)
        self._accumulator = Accumulator(batch_bytes, self._memory, transactional=transaction is not None)
        self._sender = Sender(
            self._cluster,
            self._accumulator,
            acks=self._acks,
            codec=self._codec,
            idempotent=self._idempotent,
            max_in_flight=self._max_in_flight,
            max_request_bytes=self._max_request_size,
            request_timeout_ms=self._request_timeout_ms,
            delivery_timeout_ms=self._delivery_timeout_ms,
            transaction=transaction,
        )
        if name is not None and transaction is not None:
            requests = TransactionRequests(self._cluster, name, self._transaction_timeout_ms, self._delivery_timeout_ms)
            self._transactions = TransactionManager(requests, transaction, self._sender)

    async def close(self, *, flush: bool = True, timeout_ms: float | None = None) -> None:
        """Send buffered records unless `flush` is false, then close. Idempotent.

        With a `transactional_id`, abort an open transaction instead; if `flush` is false, leave it to its timeout.
        Raises `DeliveryFailed` if flushing does; everything is closed nevertheless.
        """
        if self._closed:
            return
        self._closed = True
        if not self._started:
            return
        try:
            if flush:
                async with asyncio.timeout((self._delivery_timeout_ms if timeout_ms is None else timeout_ms) / 1000):
                    if self._transactions is not None:
                        await self._transactions.abort_if_open()
                    else:
                        await self._flush()
        except TimeoutError:
            count = len(self._accumulator.outstanding)
            raise DeliveryFailed(f"{count} batches were not acknowledged in time") from None
        finally:
            if self._transactions is not None:
                await self._transactions.close()
            await self._sender.close()
            await self._cluster.close()

    async def partitions(self, topic: str) -> int:
        """Return the topic's number of partitions. Raises `UnknownTopic`."""
        self._check_open()
        return len((await self._cluster.topic(topic)).partitions)

    async def send(
        self,
        topic: str,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Buffer a record and return its `Delivery`, which can be awaited for its offset.

        Strings are sent as UTF-8. Waits only for the topic's metadata and for buffer memory. Raises `UnknownTopic`,
        `RecordTooLarge`, `BufferFull`, `Closed`, and ValueError if the partition does not exist; with a
        `transactional_id` also `IllegalState` outside a transaction, `TransactionAbortable`, `ProducerFenced`.
        """
        self._check_open()
        count = self._cluster.metadata.partition_count(topic)
        if not count:
            count = len((await self._cluster.topic(topic, self._max_block_ms)).partitions)
            self._check_open()
        key = key.encode() if isinstance(key, str) else key
        value = value.encode() if isinstance(value, str) else value
        size_bound = record_size_bound(key, value, headers)
        if size_bound > self._max_record_size:
            raise RecordTooLarge(
                f'record for topic "{topic}" is too large: about {size_bound} bytes, at most {self._max_record_size}; '
                "increase max_request_size and buffer_memory"
            )
        if not self._memory.try_acquire(size_bound):
            await self._wait_for_memory(size_bound)
        try:
            if self._transactions is not None:
                self._transactions.transaction.require_open()
            if partition is None:
                partition = self._partitioner.choose(topic, key, value, count)
            elif not 0 <= partition < count:
                raise ValueError(f'partition "{partition}" does not exist: topic "{topic}" has {count}')
            when = self._clock.wall_ms() if timestamp_ms is None else timestamp_ms
            tp = TopicPartition(topic, partition)
            delivery, queue, opened = self._accumulator.append(tp, key, value, headers, when, size_bound)
        except BaseException:
            self._memory.release(size_bound)
            raise
        if opened:
            if self._transactions is not None:
                self._transactions.request_partition(queue)
            await self._batch_opened(queue, count)
        return delivery

    @property
    def is_transactional(self) -> bool:
        """Return whether the producer has a `transactional_id`."""
        return self._transactional_id is not None

    def begin(self) -> None:
        """Start a transaction. Raises `IllegalState` if one is open, and `ProducerFenced`."""
        self._transaction_manager().transaction.start()

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], group: ConsumerGroupMetadata | str
    ) -> None:
        """Commit offsets of a group with the transaction: the next offset to read of each partition.

        With `Consumer.group_metadata` as `group`, the coordinator rejects a consumer that its group has replaced; with
        a name, it does not check. Raises `TransactionAbortable`, `ProducerFenced`, `IllegalState`.
        """
        await self._transaction_manager().commit_offsets(
            {tp: OffsetAndMetadata(o) if isinstance(o, int) else o for tp, o in offsets.items()},
            ConsumerGroupMetadata(group) if isinstance(group, str) else group,
        )

    async def commit(self) -> None:
        """Send buffered records and commit the transaction. Returns once the commit is decided.

        Raises `TransactionAbortable` if a record or an offset failed: call `abort`. Raises `ProducerFenced`,
        `IllegalState`, and a retriable `ClientError` if the coordinator did not answer within `delivery_timeout_ms`:
        the outcome is unknown until `commit` is called again.
        """
        transactions = self._transaction_manager()
        self._close_lingers()
        await transactions.commit()

    async def abort(self) -> None:
        """Abort the transaction: drop buffered records and wait for those in flight. Their deliveries fail if they are
        not acknowledged.

        Raises `ProducerFenced`, `IllegalState`, and a retriable `ClientError` if the coordinator did not answer within
        `delivery_timeout_ms`: call `abort` again.
        """
        await self._transaction_manager().abort()

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Producer]:
        """Begin a transaction; commit it at the end of the `async with` block, or abort it on an exception."""
        self.begin()
        try:
            yield self
            await self.commit()
        except BaseException:
            await self._transaction_manager().abort_if_open()
            raise

    def _transaction_manager(self) -> TransactionManager:
        self._check_open()
        if self._transactions is None:
            raise IllegalState("transactions need a transactional_id; set it")
        return self._transactions

    async def flush(self) -> None:
        """Send buffered records and wait until all are acknowledged.

        Raises `DeliveryFailed` if a record has failed since the last `flush`.
        """
        self._check_open()
        await self._flush()

    @property
    def failure(self) -> BaseException | None:
        """Return the first failed delivery since the last `flush`, which the next `flush` raises."""
        return self._sender.first_failure if self._started else None

    async def _batch_opened(self, queue: PartitionQueue, partition_count: int) -> None:
        if queue.closed:
            self._partitioner.batch_closed(queue.tp.topic, queue.tp.partition, partition_count)
            self._sender.poke(queue)
        if queue.open is None:  # popped already
            return
        if self._linger_s:
            queue.linger = self._loop.call_later(self._linger_s, self._close_linger, queue)
        else:
            self._close_linger(queue)
        # Yield, so that a caller that never waits does not keep the event loop from sending.
        await asyncio.sleep(0)

    def _close_lingers(self) -> None:
        for queue in self._accumulator.queues.values():
            if queue.open is not None:
                self._close_linger(queue)

    def _close_linger(self, queue: PartitionQueue) -> None:
        queue.linger = None
        queue.due = True
        topic, partition = queue.tp
        self._partitioner.batch_closed(topic, partition, self._cluster.metadata.partition_count(topic))
        self._sender.poke(queue)

    async def _wait_for_memory(self, size_bound: int) -> None:
        self._close_lingers()
        try:
            async with asyncio.timeout(self._max_block_ms / 1000):
                await self._memory.acquire(size_bound)
        except TimeoutError:
            raise BufferFull(
                f"the producer's buffer of {self._buffer_memory} bytes stayed full for {self._max_block_ms:.0f} ms: "
                "records are sent faster than the brokers accept them"
            ) from None
        if self._closed:
            self._memory.release(size_bound)
            raise Closed("the producer is closed")

    async def _flush(self) -> None:
        self._close_lingers()
        await self._sender.wait_until_idle()
        failed, first = self._sender.pop_failures()
        if first is not None:
            raise DeliveryFailed(f"{failed} batches were not acknowledged; the first: {first}", first)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the producer is closed")
        if not self._started:
            raise Closed("the producer is not started; use `async with Producer(...)`, or await start()")
