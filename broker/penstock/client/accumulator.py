"""Collects records into batches: one queue per partition, and a memory limit for all of them.

No I/O: `producer` appends, `sender` pops batches. A batch stays open until it is full or popped, so that records
accumulate while the broker is busy.
"""

from __future__ import annotations

import asyncio
import contextlib
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Generator
from typing import NamedTuple

from penstock.client.errors import BrokerError, DeliveryFailed
from penstock.client.types import Headers, RecordMetadata, TopicPartition
from penstock.wire.batch import read_header
from penstock.wire.batch_builder import BatchBuilder
from penstock.wire.records import iterate_records

SEQUENCE_MODULUS = 1 << 31


class BatchResult(NamedTuple):
    """Where a batch was written; -1 if unknown."""

    base_offset: int
    append_time_ms: int


class ProducerBatch:
    """Records of one partition that are sent, acknowledged and failed together.

    `order` increases along a partition's batches. `sequence` is the first record's sequence number (KIP-98), -1 until
    the batch is first sent. `maybe_written` means that an attempt ended without a response. `rejected` has errors of
    single records by index (KIP-467); `kept` has the indexes of the others, None if no record was rejected.
    """

    __slots__ = (
        "attempts",
        "builder",
        "created",
        "encoded_for",
        "future",
        "kept",
        "last_error",
        "maybe_written",
        "order",
        "rejected",
        "reserved_bytes",
        "sequence",
        "tp",
        "wire",
    )  # fmt: skip

    def __init__(self, tp: TopicPartition, order: int, created: float, future: asyncio.Future[BatchResult]) -> None:
        self.tp, self.order, self.created, self.future = tp, order, created, future
        self.builder = BatchBuilder()
        self.reserved_bytes = self.attempts = 0
        self.sequence = -1
        self.maybe_written = False
        self.last_error: BaseException | None = None
        self.wire: bytes | None = None
        self.encoded_for: tuple[int, int, int] | None = None
        self.rejected: dict[int, DeliveryFailed] = {}
        self.kept: list[int] | None = None

    def reject(self, messages: dict[int, str], cause: BrokerError) -> None:
        """Remove the records at these indexes, which the broker rejected."""
        before = self.kept or list(range(self.builder.count))
        wire = memoryview(self.builder.build())
        self.kept, self.builder, self.wire = [], BatchBuilder(), None
        for index, record in enumerate(iterate_records(wire, read_header(wire), len(wire))):
            if index in messages:
                message = f"{self.tp}: a record was rejected: {cause.code.name}: {messages[index]}"
                self.rejected[before[index]] = DeliveryFailed(message, cause)
            else:
                self.kept.append(before[index])
                self.builder.append(record.key, record.value, record.headers, record.timestamp_ms)

    def encode(self, codec: int, producer_id: int, producer_epoch: int, attributes: int = 0) -> bytes:
        """Return the encoded batch; cached until it changes."""
        stamp = (producer_id, producer_epoch, self.sequence)
        if self.wire is None or self.encoded_for != stamp:
            self.wire = self.builder.build(
                codec=codec,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=self.sequence,
                attributes=attributes,
            )
            self.encoded_for = stamp
        return self.wire


class Delivery:
    """The result of one record. Await it, or read it once `done`; it has no future of its own."""

    __slots__ = ("_batch", "_index", "_timestamp_ms")

    def __init__(self, batch: ProducerBatch, index: int, timestamp_ms: int) -> None:
        self._batch, self._index, self._timestamp_ms = batch, index, timestamp_ms

    def done(self) -> bool:
        """Return whether the record was acknowledged or failed."""
        return self._batch.future.done()

    def result(self) -> RecordMetadata:
        """Return where the record was written. Raises `DeliveryFailed`, or InvalidStateError before it is `done`."""
        if self._batch.rejected and self.done() and self._index in self._batch.rejected:
            raise self._batch.rejected[self._index]
        found = self._batch.future.result()
        kept = self._batch.kept
        position = self._index if kept is None else bisect_left(kept, self._index)
        offset = found.base_offset + position if found.base_offset >= 0 else -1
        timestamp_ms = found.append_time_ms if found.append_time_ms >= 0 else self._timestamp_ms
        return RecordMetadata(self._batch.tp.topic, self._batch.tp.partition, offset, timestamp_ms)

    def exception(self) -> BaseException | None:
        """Return why the record failed, None if it was written. Raises InvalidStateError before it is `done`."""
        error = self._batch.future.exception()
        return self._batch.rejected.get(self._index, error)

    def add_done_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Call `callback` with this delivery from the event loop once it is done."""
        self._batch.future.add_done_callback(lambda _: callback(self))

    def __await__(self) -> Generator[object, None, RecordMetadata]:
        if not self._batch.future.done():
            with contextlib.suppress(DeliveryFailed):
                yield from asyncio.shield(self._batch.future).__await__()
        return self.result()


class PartitionQueue:
    """Batches of one partition: waiting ones, oldest first, and in-flight ones.

    `due` means that the open batch must not wait longer. While `recovering`, one batch is sent at a time, which keeps
    order: after a failure, and initially, because a broker without state for a producer accepts any sequence number,
    also a later batch before an earlier one. A batch of a transaction waits until the partition is `admitted` to it.
    """

    __slots__ = ("admitted", "closed", "due", "in_flight", "linger", "next_sequence", "open", "recovering", "tp")

    def __init__(self, tp: TopicPartition, admitted: bool = True) -> None:
        self.tp, self.admitted = tp, admitted
        self.closed: deque[ProducerBatch] = deque()
        self.open: ProducerBatch | None = None
        self.in_flight: list[ProducerBatch] = []
        self.due = False
        self.recovering = True
        self.next_sequence = 0
        self.linger: asyncio.TimerHandle | None = None

    @property
    def is_empty(self) -> bool:
        """Return whether no batch waits or is in flight."""
        return not self.closed and self.open is None and not self.in_flight

    @property
    def is_ready(self) -> bool:
        """Return whether `pop_batch` can be called."""
        if not self.closed and not (self.due and self.open is not None):
            return False
        if not self.in_flight:
            return self.admitted
        return not self.recovering and not (self.closed and self.closed[0].order < self.in_flight[-1].order)

    def peek_size_bytes(self) -> int:
        """Return the uncompressed size of the batch that `pop_batch` would return."""
        batch = self.closed[0] if self.closed else self.open
        return batch.builder.size_bytes if batch is not None else 0

    def pop_batch(self, idempotent: bool) -> ProducerBatch:
        """Move the oldest batch in flight and return it, with a sequence number if `idempotent`."""
        assert self.is_ready, f"{self.tp}: no batch is ready"
        if self.closed:
            batch = self.closed.popleft()
        else:
            assert self.open is not None, f"{self.tp}: no open batch"
            batch = self.open
            self.close_open(append=False)
        if idempotent and batch.sequence < 0:
            batch.sequence = self.next_sequence
            self.next_sequence = (self.next_sequence + batch.builder.count) % SEQUENCE_MODULUS
        assert not self.in_flight or self.in_flight[-1].order < batch.order, f"{self.tp}: batches out of order"
        self.in_flight.append(batch)
        return batch

    def close_open(self, append: bool = True) -> None:
        """Close the open batch: no more records are appended to it."""
        if self.open is not None and append:
            self.closed.append(self.open)
        self.open = None
        self.due = False
        if self.linger is not None:
            self.linger.cancel()
            self.linger = None

    def put_back(self, batch: ProducerBatch) -> None:
        """Queue a failed batch again, in its original order."""
        self.in_flight.remove(batch)
        self.recovering = True
        later: list[ProducerBatch] = []
        while self.closed and self.closed[0].order < batch.order:
            later.append(self.closed.popleft())
        self.closed.appendleft(batch)
        self.closed.extendleft(reversed(later))

    def has_unresolved_before(self, batch: ProducerBatch) -> bool:
        """Return whether an earlier batch is not resolved yet."""
        return any(b.order < batch.order for b in (*self.in_flight, *self.closed))


class MemoryBudget:
    """A limit on bytes, with a queue of waiters."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.used_bytes = 0
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    def try_acquire(self, size_bytes: int) -> bool:
        """Acquire memory if it is available and no task waits. Returns whether it was acquired."""
        if self._waiters or self.used_bytes + size_bytes > self.size_bytes:
            return False
        self.used_bytes += size_bytes
        return True

    async def acquire(self, size_bytes: int) -> None:
        """Acquire memory, waiting in order until it is available."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size_bytes, future)
        self._waiters.append(entry)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.release(size_bytes)  # granted and cancelled at the same time
            else:
                if entry in self._waiters:  # unless `_grant` has removed it
                    self._waiters.remove(entry)
                self._grant()
            raise

    def release(self, size_bytes: int) -> None:
        """Release memory."""
        self.used_bytes -= size_bytes
        assert self.used_bytes >= 0, "more memory released than acquired"
        self._grant()

    def _grant(self) -> None:
        while self._waiters and self.used_bytes + self._waiters[0][0] <= self.size_bytes:
            size_bytes, future = self._waiters.popleft()
            if not future.done():
                self.used_bytes += size_bytes
                future.set_result(None)


class Accumulator:
    """The queues of all partitions; with `transactional`, none is admitted to the transaction yet."""

    def __init__(self, batch_size_bytes: int, memory: MemoryBudget, transactional: bool = False) -> None:
        self.batch_size_bytes, self.transactional = batch_size_bytes, transactional
        self.memory = memory
        self.queues: dict[TopicPartition, PartitionQueue] = {}
        self.outstanding: dict[ProducerBatch, None] = {}
        self._loop = asyncio.get_running_loop()
        self._order = 0

    def append(
        self, tp: TopicPartition, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int,
        size_bound: int,
    ) -> tuple[Delivery, PartitionQueue, bool]:  # fmt: skip
        """Append a record whose memory is acquired. Returns its delivery, its queue, and whether a batch was opened."""
        queue = self.queues.get(tp)
        if queue is None:
            queue = self.queues[tp] = PartitionQueue(tp, admitted=not self.transactional)
        batch = queue.open
        opened = False
        if batch is not None and batch.builder.size_bytes + size_bound > self.batch_size_bytes:
            queue.close_open()
            batch = None
        if batch is None:
            batch = queue.open = self._new_batch(tp)
            opened = True
        index = batch.builder.append(key, value, headers, timestamp_ms)
        batch.reserved_bytes += size_bound
        return Delivery(batch, index, timestamp_ms), queue, opened

    def _new_batch(self, tp: TopicPartition) -> ProducerBatch:
        self._order += 1
        batch = ProducerBatch(tp, self._order, self._loop.time(), self._loop.create_future())
        self.outstanding[batch] = None
        return batch

    def finish(self, batch: ProducerBatch, result: BatchResult | BaseException) -> None:
        """Resolve a batch: release its memory and complete its deliveries."""
        del self.outstanding[batch]
        self.memory.release(batch.reserved_bytes)
        if isinstance(result, BaseException):
            batch.future.set_exception(result)
            batch.future.exception()  # mark as retrieved: the producer reports failures itself
        else:
            batch.future.set_result(result)
