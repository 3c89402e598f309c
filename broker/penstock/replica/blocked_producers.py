"""Producers of a partition whose batch was refused for a reason that passes: no space, too few replicas in sync, or a
partition that this broker does not lead yet.

What such a producer had sent behind that batch cannot be taken either. Answered as out of order, it would have
librdkafka begin a new epoch for all partitions, and send again what other partitions may have written already; so it is
answered as the first was, which every client just tries again. Of a producer that is new to the partition it would even
be taken, since such a one may start anywhere: then the first batch could never come after it. Used by `leader`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple
from uuid import UUID

from penstock.replica.producer_state import precedes
from penstock.wire.batch import HEADER_SIZE, BatchHeader, read_header
from penstock.wire.errors import ErrorCode

HELD_UP_MS = 30_000
"""How long after a refusal what follows is answered in the same way: a gap that stays is an error of the producer."""
MOST = 1000
"""Producers that are remembered in one partition; the others' batches are out of order, as they are."""
MOST_PARTITIONS = 1000
"""Partitions that are not led here of which producers are remembered, and:"""
MOST_TURNED_AWAY = 20_000
"""How many producers in all of them together."""
MAX_NAME_CHARS = 249
"""What is longer is no topic's name."""


class RefusedBatch(NamedTuple):
    """The first batch that was refused of those that a producer sent one after the other."""

    code: ErrorCode
    epoch: int
    sequence: int
    at_ms: int
    """When a batch of the producer was refused last, by the clock since boot."""


class BlockedProducers:
    """By producer id."""

    __slots__ = ("refused",)

    def __init__(self) -> None:
        self.refused: dict[int, RefusedBatch] = {}

    def note(self, header: BatchHeader, code: ErrorCode, now_ms: int) -> None:
        """A batch of a producer was refused."""
        is_behind = self.code_before(header, now_ms) is not None
        before = self.refused.pop(header.producer_id, None)
        sequence = before.sequence if before is not None and is_behind else header.base_sequence
        if len(self.refused) >= MOST:
            del self.refused[next(iter(self.refused))]
        self.refused[header.producer_id] = RefusedBatch(code, header.producer_epoch, sequence, now_ms)

    def code_for(self, producer_id: int, now_ms: int) -> ErrorCode | None:
        """What to answer to a batch that is out of order, if that is because the one before it was refused."""
        refused = self.refused.get(producer_id)
        return refused.code if refused is not None and now_ms - refused.at_ms <= HELD_UP_MS else None

    def code_before(self, header: BatchHeader, now_ms: int) -> ErrorCode | None:
        """What to answer to the first batch here of a producer, if one before it was refused and has not come again."""
        refused = self.refused.get(header.producer_id)
        if (
            refused is None
            or refused.epoch != header.producer_epoch
            or not precedes(refused.sequence, header.base_sequence)
        ):
            return None
        return self.code_for(header.producer_id, now_ms)

    def over(self, producer_id: int) -> None:
        """A batch of a producer was taken."""
        self.refused.pop(producer_id, None)


class RejectedBatches:
    """Those of partitions that this broker does not lead, by (topic name or id, index), until it does.

    A client may learn of a new topic, or a new leader, from one broker before the leader itself has.
    """

    def __init__(self) -> None:
        self.partitions: dict[tuple[Hashable, int], BlockedProducers] = {}
        self.producers = 0

    def note(self, topic: str | UUID, index: int, batch: memoryview, code: ErrorCode, now_ms: int) -> None:
        """A batch, as it came from the socket, was refused."""
        if len(batch) < HEADER_SIZE or (isinstance(topic, str) and len(topic) > MAX_NAME_CHARS):
            return
        header = read_header(batch)
        if header.producer_id < 0:
            return
        held_up = self.partitions.pop((topic, index), None) or BlockedProducers()
        self.partitions[topic, index] = held_up
        known = len(held_up.refused)
        held_up.note(header, code, now_ms)
        self.producers += len(held_up.refused) - known
        while len(self.partitions) > MOST_PARTITIONS or self.producers > MOST_TURNED_AWAY:
            self.forget(next(iter(self.partitions)))

    def take(self, name: str, topic_id: UUID, index: int) -> BlockedProducers:
        """What the leader of a partition begins with."""
        held_up = BlockedProducers()
        if self.partitions:
            for topic in (name, topic_id):
                held_up.refused.update(self.forget((topic, index)))
        return held_up

    def forget(self, key: tuple[Hashable, int]) -> dict[int, RefusedBatch]:
        held_up = self.partitions.pop(key, None)
        if held_up is None:
            return {}
        self.producers -= len(held_up.refused)
        return held_up.refused
