"""The batches of one partition in order, and the memory budget of all lanes. Sans-io; driven by `batch_sender`."""

from __future__ import annotations

import struct
import threading
from collections import deque

from crc32c import crc32c

from penstock.client import TopicPartition
from penstock.client.batches import CRC, CRC_START
from penstock_spark.encode.ports import EncodedBatch
from penstock_spark.sink.grants import SEQUENCES

CRC_OFFSET, SEQUENCE_OFFSET = 17, 53
SEQUENCE = struct.Struct(">i")
MAX_IN_FLIGHT_BATCHES = 5
"""Batches of a producer that a broker remembers by partition: no more may be unacknowledged."""


class EncodedBytesBudget:
    """Bytes that are encoded and not acknowledged; the only state that two threads share."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._failure: BaseException | None = None
        self._changed = threading.Condition()

    def acquire(self, size_bytes: int) -> None:
        """Wait for free bytes; raise the sender's failure. A batch above the limit passes if it is the only one."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._failure or not self.used_bytes or self.used_bytes + size_bytes <= self.limit_bytes
            )
            if self._failure is not None:
                raise self._failure
            self.used_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Free the bytes of a batch."""
        with self._changed:
            self.used_bytes -= size_bytes
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Make all waits raise `error`."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()


class PendingBatch:
    """A batch that is not acknowledged; `order` increases along a lane."""

    __slots__ = ("data", "failing_since", "order", "records", "sequence", "tp")

    def __init__(self, tp: TopicPartition, batch: EncodedBatch, order: int) -> None:
        self.tp, self.data, self.records, self.order = tp, batch.data, batch.records, order
        self.sequence = -1
        self.failing_since = -1.0

    def stamp(self, sequence: int) -> None:
        """Write the grant's sequence number and the CRC."""
        self.sequence = sequence
        SEQUENCE.pack_into(self.data, SEQUENCE_OFFSET, sequence)
        CRC.pack_into(self.data, CRC_OFFSET, crc32c(memoryview(self.data)[CRC_START:]))


class PartitionLane:
    """The batches of one partition.

    `recovering`: one batch at a time, after a failure and at the start, because a broker that does not know the
    producer yet accepts any sequence number. `is_granted`: the lane sends only while the transaction service grants it
    the partition (`held`). `quota`: batches that may be sent under the current grant.
    """

    __slots__ = (
        "acquiring", "held", "in_flight", "is_granted", "next_order", "next_sequence", "quota", "recovering", "tp",
        "waiting",
    )  # fmt: skip

    def __init__(self, tp: TopicPartition, is_granted: bool) -> None:
        self.tp, self.is_granted = tp, is_granted
        self.waiting: deque[PendingBatch] = deque()
        self.in_flight: list[PendingBatch] = []
        self.held, self.acquiring, self.recovering = not is_granted, False, True
        self.next_order = self.quota = self.next_sequence = 0

    def append(self, batch: EncodedBatch) -> None:
        """Add a batch at the end."""
        self.waiting.append(PendingBatch(self.tp, batch, self.next_order))
        self.next_order += 1

    @property
    def is_ready(self) -> bool:
        """Whether the next batch may be sent."""
        if not self.held or not self.waiting or len(self.in_flight) >= MAX_IN_FLIGHT_BATCHES:
            return False
        if self.is_granted and self.quota <= 0 and self.waiting[0].sequence < 0:
            return False
        return not self.in_flight or (not self.recovering and self.waiting[0].order > self.in_flight[-1].order)

    def peek_size_bytes(self) -> int:
        """Return the size of the next batch."""
        return len(self.waiting[0].data)

    def pop_batch(self) -> PendingBatch:
        """Move the next batch in flight and return it; under a grant it gets its sequence number."""
        batch = self.waiting.popleft()
        if self.is_granted and batch.sequence < 0:
            batch.stamp(self.next_sequence)
            self.next_sequence = (self.next_sequence + batch.records) % SEQUENCES
            self.quota -= 1
        self.in_flight.append(batch)
        return batch

    @property
    def is_spent(self) -> bool:
        """Whether all batches of the current grant are acknowledged."""
        is_repeated = bool(self.waiting) and self.waiting[0].sequence >= 0
        return self.is_granted and self.held and not self.in_flight and self.quota <= 0 and not is_repeated

    def put_back(self, batch: PendingBatch) -> None:
        """Return a batch from in flight to waiting, in order."""
        self.in_flight.remove(batch)
        position = sum(other.order < batch.order for other in self.waiting)
        self.waiting.insert(position, batch)
        self.recovering = True
