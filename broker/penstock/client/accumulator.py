"""Records on their way to becoming batches: one queue for each partition, and the memory that all of them share.

Sans-io: `producer` appends, `sender` takes. A batch stays open until it is full or taken, so that records gather for
as long as the broker is busy.
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

SEQUENCES = 1 << 31


class BatchResult(NamedTuple):
    """Where a batch was written; -1 for what is not known."""

    base_offset: int
    append_time_ms: int


class ProducerBatch:
    """The records of one partition that travel, succeed and fail together.

    `order` rises along a partition's batches. `sequence` is the first record's (KIP-98), -1 until the batch is first
    sent. `maybe_written` says that an attempt ended without an answer. `rejected` has the errors of single records that
    the broker refused (KIP-467), by their index; `kept` the indices of the others, None while there are none.
    """

    __slots__ = (
        "attempts",
        "builder",
        "created",
        "future",
        "kept",
        "last_error",
        "maybe_written",
        "order",
        "rejected",
        "reserved_bytes",
        "sequence",
        "stamped",
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
        self.stamped: tuple[int, int, int] | None = None
        self.rejected: dict[int, DeliveryFailed] = {}
        self.kept: list[int] | None = None

    def reject(self, messages: dict[int, str], cause: BrokerError) -> None:
        """Takes out the records at these places of the batch; the broker refused it because of them."""
        before = self.kept or list(range(self.builder.count))
        wire = memoryview(self.builder.build())
        self.kept, self.builder, self.wire = [], BatchBuilder(), None
        for place, record in enumerate(iterate_records(wire, read_header(wire), len(wire))):
            if place in messages:
                refused = f"{self.tp}: a record was refused: {cause.code.name}: {messages[place]}"
                self.rejected[before[place]] = DeliveryFailed(refused, cause)
            else:
                self.kept.append(before[place])
                self.builder.append(record.key, record.value, record.headers, record.timestamp_ms)

    def encode(self, codec: int, producer_id: int, producer_epoch: int) -> bytes:
        """The batch as it goes out; the same bytes again while nothing in it changed."""
        stamp = (producer_id, producer_epoch, self.sequence)
        if self.wire is None or self.stamped != stamp:
            self.wire = self.builder.build(
                codec=codec, producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=self.sequence
            )
            self.stamped = stamp
        return self.wire


class Delivery:
    """The fate of one record. Await it, or look at it once `done`; it costs no future of its own until then."""

    __slots__ = ("_batch", "_index", "_timestamp_ms")

    def __init__(self, batch: ProducerBatch, index: int, timestamp_ms: int) -> None:
        self._batch, self._index, self._timestamp_ms = batch, index, timestamp_ms

    def done(self) -> bool:
        return self._batch.future.done()

    def result(self) -> RecordMetadata:
        """Where the record is. Raises `DeliveryFailed`, or InvalidStateError before it is `done`."""
        if self._batch.rejected and self.done() and self._index in self._batch.rejected:
            raise self._batch.rejected[self._index]
        found = self._batch.future.result()
        kept = self._batch.kept
        place = self._index if kept is None else bisect_left(kept, self._index)
        offset = found.base_offset + place if found.base_offset >= 0 else -1
        timestamp_ms = found.append_time_ms if found.append_time_ms >= 0 else self._timestamp_ms
        return RecordMetadata(self._batch.tp.topic, self._batch.tp.partition, offset, timestamp_ms)

    def exception(self) -> BaseException | None:
        """Why the record was not written, None where it was; InvalidStateError before the delivery is `done`."""
        error = self._batch.future.exception()
        return self._batch.rejected.get(self._index, error)

    def add_done_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Calls `callback` with this delivery, from the event loop, once it is done."""
        self._batch.future.add_done_callback(lambda _: callback(self))

    def __await__(self) -> Generator[object, None, RecordMetadata]:
        if not self._batch.future.done():
            with contextlib.suppress(DeliveryFailed):
                yield from asyncio.shield(self._batch.future).__await__()
        return self.result()


class PartitionQueue:
    """What waits for one partition, oldest first, and what is under way to it.

    `due` says that the open batch need not wait for more. `recovering` sends one batch at a time, and none while others
    are under way, so that order is kept: after a failure, and at first, because a broker that does not know a producer
    yet takes any sequence from it, a later batch before an earlier one too.
    """

    __slots__ = ("closed", "due", "in_flight", "linger", "next_sequence", "open", "recovering", "tp")

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.closed: deque[ProducerBatch] = deque()
        self.open: ProducerBatch | None = None
        self.in_flight: list[ProducerBatch] = []
        self.due = False
        self.recovering = True
        self.next_sequence = 0
        self.linger: asyncio.TimerHandle | None = None

    @property
    def empty(self) -> bool:
        return not self.closed and self.open is None and not self.in_flight

    @property
    def ready(self) -> bool:
        """Whether a batch may be taken now."""
        if not self.closed and not (self.due and self.open is not None):
            return False
        if not self.in_flight:
            return True
        return not self.recovering and not (self.closed and self.closed[0].order < self.in_flight[-1].order)

    def peek_size_bytes(self) -> int:
        """The size, before compression, of what `take` would return."""
        batch = self.closed[0] if self.closed else self.open
        return batch.builder.size_bytes if batch is not None else 0

    def take(self, idempotent: bool) -> ProducerBatch:
        """Moves the oldest batch to those in flight, giving it a sequence where it has none."""
        assert self.ready, f"{self.tp}: nothing to take"
        if self.closed:
            batch = self.closed.popleft()
        else:
            assert self.open is not None, f"{self.tp}: no open batch"
            batch = self.open
            self.close_open(append=False)
        if idempotent and batch.sequence < 0:
            batch.sequence = self.next_sequence
            self.next_sequence = (self.next_sequence + batch.builder.count) % SEQUENCES
        assert not self.in_flight or self.in_flight[-1].order < batch.order, f"{self.tp}: batches out of order"
        self.in_flight.append(batch)
        return batch

    def close_open(self, append: bool = True) -> None:
        """No more records for the open batch."""
        if self.open is not None and append:
            self.closed.append(self.open)
        self.open = None
        self.due = False
        if self.linger is not None:
            self.linger.cancel()
            self.linger = None

    def put_back(self, batch: ProducerBatch) -> None:
        """A batch that failed waits again, in its place."""
        self.in_flight.remove(batch)
        self.recovering = True
        later: list[ProducerBatch] = []
        while self.closed and self.closed[0].order < batch.order:
            later.append(self.closed.popleft())
        self.closed.appendleft(batch)
        self.closed.extendleft(reversed(later))

    def unresolved_before(self, batch: ProducerBatch) -> bool:
        """Whether an earlier batch has not been answered for good."""
        return any(b.order < batch.order for b in (*self.in_flight, *self.closed))


class MemoryBudget:
    """A bound on bytes, with a queue of those who wait for room."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.used_bytes = 0
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def wanted(self) -> bool:
        """Whether somebody waits."""
        return bool(self._waiters)

    def take_now(self, size_bytes: int) -> bool:
        """Reserves where there is room and nobody waits."""
        if self._waiters or self.used_bytes + size_bytes > self.size_bytes:
            return False
        self.used_bytes += size_bytes
        return True

    async def take(self, size_bytes: int) -> None:
        """Reserves once there is room, in turn. Cancelling gives up the place."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size_bytes, future)
        self._waiters.append(entry)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.give_back(size_bytes)  # it was granted in the moment of cancelling
            else:
                if entry in self._waiters:  # unless it was passed over already
                    self._waiters.remove(entry)
                self._grant()
            raise

    def give_back(self, size_bytes: int) -> None:
        self.used_bytes -= size_bytes
        assert self.used_bytes >= 0, "more memory given back than taken"
        self._grant()

    def _grant(self) -> None:
        while self._waiters and self.used_bytes + self._waiters[0][0] <= self.size_bytes:
            size_bytes, future = self._waiters.popleft()
            if not future.done():
                self.used_bytes += size_bytes
                future.set_result(None)


class Accumulator:
    """The queues of all partitions."""

    def __init__(self, batch_size_bytes: int, memory: MemoryBudget) -> None:
        self.batch_size_bytes = batch_size_bytes
        self.memory = memory
        self.queues: dict[TopicPartition, PartitionQueue] = {}
        self.outstanding: dict[ProducerBatch, None] = {}
        self._loop = asyncio.get_running_loop()
        self._order = 0

    def append(
        self, tp: TopicPartition, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int,
        size_bound: int,
    ) -> tuple[Delivery, PartitionQueue, bool]:  # fmt: skip
        """Adds a record whose memory is reserved; returns its fate, its queue, and whether a batch was opened."""
        queue = self.queues.get(tp)
        if queue is None:
            queue = self.queues[tp] = PartitionQueue(tp)
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
        """A batch has met its fate: memory goes back, whoever awaits it is told."""
        del self.outstanding[batch]
        self.memory.give_back(batch.reserved_bytes)
        if isinstance(result, BaseException):
            batch.future.set_exception(result)
            batch.future.exception()  # the producer reports failures itself; asyncio need not complain
        else:
            batch.future.set_result(result)
