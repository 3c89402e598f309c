"""Producers of a partition whose batch was rejected with a retriable error: disk full, too few in-sync replicas, or not
the leader yet. Used by `leader` and `manager`.

The producer's next batches cannot be accepted before the rejected one is retried. OUT_OF_ORDER_SEQUENCE_NUMBER would
make librdkafka bump the epoch for all partitions and resend batches that other partitions may have written already. The
next batches therefore get the same retriable error. A batch of a producer that is new to the partition would even be
accepted, because such a producer may start at any sequence number; the first batch could then never be appended.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple
from uuid import UUID

from penstock.replica.producer_state import precedes
from penstock.wire.batch import HEADER_SIZE, BatchHeader, read_header
from penstock.wire.errors import ErrorCode

BLOCK_DURATION_MS = 30_000
"""How long after a rejection the next batches get the same error. A gap that persists is the producer's fault."""
MAX_BLOCKED_PRODUCERS = 1000
"""Maximum number of tracked producers per partition. Further ones get OUT_OF_ORDER_SEQUENCE_NUMBER."""
MAX_PARTITIONS = 1000
"""Maximum number of partitions in `RejectedBatches`."""
MAX_REJECTED_PRODUCERS = 20_000
"""Maximum number of producers in `RejectedBatches`, over all partitions."""
MAX_NAME_CHARS = 249
"""Maximum length of a topic name."""


class RefusedBatch(NamedTuple):
    """The first of a producer's consecutive rejected batches."""

    code: ErrorCode
    epoch: int
    sequence: int
    at_ms: int
    """Time of the producer's last rejection, since boot."""


class BlockedProducers:
    """The blocked producers of one partition, by producer id."""

    __slots__ = ("refused",)

    def __init__(self) -> None:
        self.refused: dict[int, RefusedBatch] = {}

    def record(self, header: BatchHeader, code: ErrorCode, now_ms: int) -> None:
        """Record a rejected batch."""
        is_behind = self.code_before(header, now_ms) is not None
        before = self.refused.pop(header.producer_id, None)
        sequence = before.sequence if before is not None and is_behind else header.base_sequence
        if len(self.refused) >= MAX_BLOCKED_PRODUCERS:
            del self.refused[next(iter(self.refused))]
        self.refused[header.producer_id] = RefusedBatch(code, header.producer_epoch, sequence, now_ms)

    def code_for(self, producer_id: int, now_ms: int) -> ErrorCode | None:
        """Return the error for an out-of-order batch if the producer is blocked, else None."""
        refused = self.refused.get(producer_id)
        return refused.code if refused is not None and now_ms - refused.at_ms <= BLOCK_DURATION_MS else None

    def code_before(self, header: BatchHeader, now_ms: int) -> ErrorCode | None:
        """Return the error for a new producer's batch if an earlier one was rejected and not retried, else None."""
        refused = self.refused.get(header.producer_id)
        if (
            refused is None
            or refused.epoch != header.producer_epoch
            or not precedes(refused.sequence, header.base_sequence)
        ):
            return None
        return self.code_for(header.producer_id, now_ms)

    def unblock(self, producer_id: int) -> None:
        """Unblock a producer after an accepted batch."""
        self.refused.pop(producer_id, None)


class RejectedBatches:
    """Blocked producers of partitions that this broker does not lead yet, by (topic name or id, index).

    A client may learn of a new topic or leader from another broker before the leader does.
    """

    def __init__(self) -> None:
        self.partitions: dict[tuple[Hashable, int], BlockedProducers] = {}
        self.producers = 0

    def record(self, topic: str | UUID, index: int, batch: memoryview, code: ErrorCode, now_ms: int) -> None:
        """Record a rejected batch as received from the socket."""
        if len(batch) < HEADER_SIZE or (isinstance(topic, str) and len(topic) > MAX_NAME_CHARS):
            return
        header = read_header(batch)
        if header.producer_id < 0:
            return
        blocked = self.partitions.pop((topic, index), None) or BlockedProducers()
        self.partitions[topic, index] = blocked
        known = len(blocked.refused)
        blocked.record(header, code, now_ms)
        self.producers += len(blocked.refused) - known
        while len(self.partitions) > MAX_PARTITIONS or self.producers > MAX_REJECTED_PRODUCERS:
            self.remove(next(iter(self.partitions)))

    def pop_partition(self, name: str, topic_id: UUID, index: int) -> BlockedProducers:
        """Remove and return the blocked producers of a partition that this broker now leads."""
        blocked = BlockedProducers()
        if self.partitions:
            for topic in (name, topic_id):
                blocked.refused.update(self.remove((topic, index)))
        return blocked

    def remove(self, key: tuple[Hashable, int]) -> dict[int, RefusedBatch]:
        """Remove a partition. Returns its rejected batches by producer id."""
        blocked = self.partitions.pop(key, None)
        if blocked is None:
            return {}
        self.producers -= len(blocked.refused)
        return blocked.refused
