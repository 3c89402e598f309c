"""The relay of one sealed partition, without I/O: an idempotent producer whose state is stored every few batches.

`relay` drives it. A batch keeps its records, and its sequence follows from the position and the sequence that are
stored. A leader that continues from the stored state therefore sends the same batches with the same sequences, and the
target partition recognises those that it has, as long as no more than `MAX_UNSTORED_BATCHES` are sent without a write.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from penstock.state.shrink_records import RelayRecord
from penstock.wire.batch import (
    CODEC_MASK,
    CRC,
    CRC_OFFSET,
    HEADER,
    BatchHeader,
    checksum,
)

MAX_UNSTORED_BATCHES = 5
"""Batches that may be sent beyond the stored position: a partition remembers so many of a producer."""
SEQUENCE_MODULUS = 1 << 31
"""Sequence numbers wrap to 0 here."""
MAX_PRODUCER_EPOCH = (1 << 15) - 1


class RelayBatch(NamedTuple):
    """A batch of the sealed partition that is to be relayed."""

    header: BatchHeader
    data: bytes

    @property
    def end_offset(self) -> int:
        """The offset after the batch."""
        return self.header.last_offset + 1

    @property
    def sequence_count(self) -> int:
        """Number of sequence numbers that the batch takes."""
        return self.header.last_offset_delta + 1


def start_relay(seal: int, target: int, before: RelayRecord | None, new_producer_id: int) -> RelayRecord:
    """Return the state of a relay that starts at a seal. Another target gets a new producer epoch."""
    if before is None or needs_producer(before):
        return RelayRecord(seal=seal, target=target, position=seal, producer_id=new_producer_id)
    position = max(before.position, seal)
    if before.target == target:
        return replaced(before, seal=seal, position=position)
    return RelayRecord(
        seal=seal,
        target=target,
        position=position,
        producer_id=before.producer_id,
        producer_epoch=before.producer_epoch + 1,
    )


def needs_producer(state: RelayRecord) -> bool:
    """Return whether no producer epoch is left, so that the relay needs another producer id."""
    return state.producer_epoch >= MAX_PRODUCER_EPOCH - 1


def advanced(state: RelayRecord, batch: RelayBatch) -> RelayRecord:
    """Return the state after a batch that all in-sync replicas of the target have."""
    sequence = (state.sequence + batch.sequence_count) % SEQUENCE_MODULUS
    return replaced(state, position=batch.end_offset, sequence=sequence)


def skipped_to(state: RelayRecord, position: int) -> RelayRecord:
    """Return the state after batches that are not relayed: markers, aborted records, and records that are deleted."""
    return replaced(state, position=max(state.position, position))


def restarted(state: RelayRecord, new_producer_id: int) -> RelayRecord:
    """Return the state with a new producer epoch: the target has lost the batches that came before."""
    if needs_producer(state):
        return replaced(state, producer_id=new_producer_id, producer_epoch=0, sequence=0)
    return replaced(state, producer_epoch=state.producer_epoch + 1, sequence=0)


def replaced(state: RelayRecord, **changes: int) -> RelayRecord:
    """Return the state with changed fields."""
    fields = {name: getattr(state, name) for name in RelayRecord.__struct_fields__}
    return RelayRecord(**(fields | changes))


def select_batches(
    batches: Iterable[RelayBatch], position: int, aborted: Sequence[tuple[int, int]]
) -> Iterator[RelayBatch]:
    """Yield the batches with committed records from `position` on.

    `aborted` are (producer id, first offset) of aborted transactions in the range, as for a read_committed consumer.
    """
    starts: dict[int, list[int]] = {}
    for producer_id, first_offset in aborted:
        starts.setdefault(producer_id, []).append(first_offset)
    aborting: set[int] = set()
    for batch in batches:
        header = batch.header
        producer_id = header.producer_id
        pending = starts.get(producer_id, [])
        if any(first <= header.last_offset for first in pending):
            starts[producer_id] = [first for first in pending if first > header.last_offset]
            aborting.add(producer_id)
        if header.is_control:
            aborting.discard(producer_id)
        elif header.base_offset >= position and not (header.is_transactional and producer_id in aborting):
            yield batch


def relayed_batch(batch: RelayBatch, state: RelayRecord) -> bytes:
    """Return the batch as the relay sends it: with its own producer, outside of any transaction."""
    data = bytearray(batch.data)
    fields = list(batch.header)
    fields[5] = batch.header.attributes & CODEC_MASK
    fields[9:12] = state.producer_id, state.producer_epoch, state.sequence
    HEADER.pack_into(data, 0, *fields)
    CRC.pack_into(data, CRC_OFFSET, checksum(memoryview(data), 0, len(data)))
    return bytes(data)
