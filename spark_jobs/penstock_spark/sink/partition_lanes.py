"""What goes to one partition, in order, and the memory that all of it may take. Sans-io; `sending` drives it."""

from __future__ import annotations

import struct
import threading
from collections import deque

from crc32c import crc32c

from penstock.wire.batch import CRC, CRC_START
from penstock_spark.encode.ports import EncodedBatch
from penstock_spark.sink.messages import Partition

CRC_AT, SEQUENCE_AT = 17, 53
SEQUENCE = struct.Struct(">i")
REMEMBERED = 5
"""Batches of a producer that a broker remembers by partition: no more may be in doubt."""


class EncodedBytesBudget:
    """Bytes that are encoded and not acknowledged; the only thing that two threads share."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._failure: BaseException | None = None
        self._changed = threading.Condition()

    def take(self, size_bytes: int) -> None:
        """Waits for room; raises what sending failed with. One batch larger than all passes when it is alone."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._failure or not self.used_bytes or self.used_bytes + size_bytes <= self.limit_bytes
            )
            if self._failure is not None:
                raise self._failure
            self.used_bytes += size_bytes

    def give(self, size_bytes: int) -> None:
        with self._changed:
            self.used_bytes -= size_bytes
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()


class PendingBatch:
    """A batch that is not acknowledged; `order` rises along a lane."""

    __slots__ = ("data", "doubtful_since", "order", "records", "sequence")

    def __init__(self, batch: EncodedBatch, order: int) -> None:
        self.data, self.records, self.order = batch.data, batch.records, order
        self.sequence = -1
        self.doubtful_since = -1.0

    def stamp(self, sequence: int) -> None:
        """Writes the sequence that a grant gave, and the CRC that follows from it."""
        self.sequence = sequence
        SEQUENCE.pack_into(self.data, SEQUENCE_AT, sequence)
        CRC.pack_into(self.data, CRC_AT, crc32c(memoryview(self.data)[CRC_START:]))


class PartitionLane:
    """`recovering`: one batch at a time, after a failure and at first, because a broker that does not know a producer
    yet takes any sequence from it. `quota`: batches that may be sent under the present grant."""

    __slots__ = ("held", "in_flight", "next_sequence", "partition", "puts", "quota", "recovering", "waiting", "wanting")

    def __init__(self, partition: Partition, held: bool) -> None:
        self.partition = partition
        self.waiting: deque[PendingBatch] = deque()
        self.in_flight: list[PendingBatch] = []
        self.held, self.wanting, self.recovering = held, False, True
        self.puts = self.quota = self.next_sequence = 0

    def may_send(self, granted: bool) -> bool:
        if not self.held or not self.waiting or len(self.in_flight) >= REMEMBERED:
            return False
        if granted and self.quota <= 0 and self.waiting[0].sequence < 0:
            return False
        return not self.in_flight or (not self.recovering and self.waiting[0].order > self.in_flight[-1].order)

    @property
    def is_spent(self) -> bool:
        """Whether all that a grant was for is acknowledged."""
        is_repeated = bool(self.waiting) and self.waiting[0].sequence >= 0
        return self.held and not self.in_flight and self.quota <= 0 and not is_repeated

    def put_back(self, batch: PendingBatch) -> None:
        self.in_flight.remove(batch)
        position = sum(other.order < batch.order for other in self.waiting)
        self.waiting.insert(position, batch)
        self.recovering = True
