"""Offsets that producers commit within transactions (KIP-98): stored as pending until the transaction ends, then
committed to the group or dropped. Implements `group.listeners.PendingOffsets`.

Pending offsets and their completion go through the group's shard writer, which orders them with the group's own
commits. Completion is idempotent: after a failure, the coordinator or its successor repeats it, based on the pending
offsets in the store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.group.coordinator_shard import LoadedKey
from penstock.group.offset_table import OffsetKey
from penstock.group.offsets import OffsetCommit, Offsets, OffsetWrite
from penstock.group.shard_writer import ShardWriter
from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock.state import keys, records
from penstock.state.records import BadRecord, OffsetRecord, TxnOffsetRecord
from penstock.state.store import DeleteOp, Operation, PutOp, StoreEntry, StoreError
from penstock.txn.state_machine import ProducerIdentity
from penstock.txn.transaction_partitions import UNNUMBERED, TransactionEnding
from penstock.wire.errors import ErrorCode

log = get_logger(__name__)

Writer = ShardWriter[OffsetWrite | None]
Writes = list[tuple[Operation, OffsetWrite | None]]


class TxnCommit(NamedTuple):
    """The source of a transactional commit."""

    group_id: str
    transactional_id: str
    producer: ProducerIdentity
    number: int


@dataclass(slots=True)
class PendingShard:
    """The pending offsets of a shard by producer id, and by group the number of producers per partition."""

    by_producer: dict[int, dict[OffsetKey, TxnOffsetRecord]] = field(default_factory=dict)
    by_group: dict[str, dict[OffsetKey, int]] = field(default_factory=dict)

    def add(self, producer_id: int, key: OffsetKey, record: TxnOffsetRecord) -> None:
        """Add or replace a pending offset."""
        known = self.by_producer.setdefault(producer_id, {})
        if key not in known:
            counts = self.by_group.setdefault(key.group_id, {})
            counts[key] = counts.get(key, 0) + 1
        known[key] = record

    def remove(self, producer_id: int, key: OffsetKey, record: TxnOffsetRecord) -> None:
        """Remove a pending offset, unless another record has replaced it."""
        known = self.by_producer.get(producer_id, {})
        if known.get(key) is not record:
            return
        del known[key]
        if not known:
            del self.by_producer[producer_id]
        counts = self.by_group[key.group_id]
        counts[key] -= 1
        if not counts[key]:
            del counts[key]
            if not counts:
                del self.by_group[key.group_id]


class TxnOffsets:
    """The pending offsets of the owned shards.

    `error` returns the error that prevents serving a shard, or NONE. `confirm` returns whether this broker owns the
    shard, by a linearizable read; it raises StoreError.
    """

    def __init__(
        self,
        offsets: Offsets,
        clock: Clock,
        error: Callable[[int], ErrorCode],
        confirm: Callable[[int], Awaitable[bool]],
    ) -> None:
        self._offsets, self._clock = offsets, clock
        self._error, self._confirm = error, confirm
        self._shards: dict[int, PendingShard] = {}

    # --- shards

    def load_shard(self, number: int, entries: Iterable[StoreEntry]) -> None:
        """Load an acquired shard from its store entries."""
        assert number not in self._shards, f"the pending offsets of shard {number} are loaded already"
        shard = self._shards[number] = PendingShard()
        with LoadedKey() as loading:
            for entry in entries:
                loading.key = entry.key
                try:
                    group_id, producer_id, topic_id, index = keys.parse_txn_offset(entry.key)
                    record = records.decode(TxnOffsetRecord, entry.key, entry.value)
                except (BadRecord, ValueError) as e:
                    log.error("skipping an unreadable offset of a transaction", key=entry.key, error=str(e))
                    continue
                shard.add(producer_id, OffsetKey(group_id, topic_id, index), record)

    def drop_shard(self, number: int) -> None:
        """Drop a resigned shard, if loaded."""
        self._shards.pop(number, None)

    # --- PendingOffsets

    def pending(self, group_id: str) -> Container[OffsetKey]:
        """Return the partitions with pending offsets of the group."""
        shard = self._shards.get(keys.shard_of(group_id))
        return () if shard is None else shard.by_group.get(group_id, ())

    def has_pending(self, group_id: str) -> bool:
        """Return whether the group has pending offsets."""
        shard = self._shards.get(keys.shard_of(group_id))
        return shard is not None and group_id in shard.by_group

    def forget_group(self, group_id: str) -> None:
        """Delete the pending offsets of a deleted group."""
        number = keys.shard_of(group_id)
        shard = self._shards.get(number)
        if shard is None or group_id not in shard.by_group:
            return
        for producer_id, pending in list(shard.by_producer.items()):
            self.discard(number, producer_id, {k: record for k, record in pending.items() if k.group_id == group_id})

    # --- TxnOffsetCommit

    def writer(self, group_id: str) -> Writer:
        """Return the group's writer. Must be called before verification: the writer is closed when the ownership term
        ends, and offsets verified in one term must not be written in another, which may know that the transaction has
        ended."""
        return self._offsets.writers.for_group(group_id)

    async def commit(self, writer: Writer, txn: TxnCommit, commits: Sequence[OffsetCommit]) -> list[int]:
        """Write pending offsets. Returns the indexes of offsets that did not become durable. Performs no checks."""
        shard = self._shards.get(keys.shard_of(txn.group_id))
        if writer.is_closed or shard is None:
            return list(range(len(commits)))
        now_ms = self._clock.wall_ms()
        producer_id = txn.producer.producer_id
        writes: Writes = []
        for topic_id, index, offset, leader_epoch, metadata in commits:
            record = TxnOffsetRecord(
                transactional_id=txn.transactional_id,
                epoch=txn.producer.epoch,
                record=OffsetRecord(offset=offset, leader_epoch=leader_epoch, metadata=metadata, commit_ms=now_ms),
                number=txn.number,
            )
            # Added before it is durable, so that a concurrent completion covers it.
            shard.add(producer_id, OffsetKey(txn.group_id, topic_id, index), record)
            writes.append(
                (PutOp(keys.txn_offset(txn.group_id, producer_id, topic_id, index), records.encode(record)), None)
            )
        failed: list[int] = await writer.submit(writes)
        return failed

    # --- completion of transactions

    async def complete_transaction(self, number: int, ending: TransactionEnding) -> ErrorCode:
        """Commit or drop the producer's pending offsets in a shard. Returns NONE once durable.

        Idempotent. Offsets of a later transaction are left alone. Implements `markers.OffsetCompleter`.
        """
        shard = self._shards.get(number)
        error = self._error(number)
        if error or shard is None:
            return error or ErrorCode.NOT_COORDINATOR
        marker = ending.marker
        pending = {
            key: offset_record
            for key, offset_record in shard.by_producer.get(marker.producer_id, {}).items()
            if ending.number == UNNUMBERED or offset_record.number <= ending.number
        }
        if not pending:
            return await self._confirm_nothing_pending(number)
        writes: Writes = []
        ties: list[tuple[str, str]] = []
        for key, offset_record in pending.items():
            if marker.committed and is_of_transaction(offset_record, ending):
                # Tied, because a repetition must not write the offset again and undo a later commit.
                ties.append((keys.offset(*key), pending_key(marker.producer_id, key)))
                writes.append(
                    (PutOp(keys.offset(*key), records.encode(offset_record.record)), (key, offset_record.record))
                )
            writes.append(deletion(marker.producer_id, key))
        if await self._offsets.writers.for_shard(number).submit(writes, ties):
            return self._error(number) or ErrorCode.COORDINATOR_NOT_AVAILABLE
        for key, offset_record in pending.items():
            shard.remove(marker.producer_id, key, offset_record)
        return ErrorCode.NONE

    async def _confirm_nothing_pending(self, number: int) -> ErrorCode:
        """Confirm the ownership: the pending offsets may be at the shard's new owner."""
        try:
            is_owned = await self._confirm(number)
        except StoreError as e:
            log.warning("cannot confirm the owner of a coordinator shard", shard=number, reason=str(e))
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return self._error(number) or (ErrorCode.NONE if is_owned else ErrorCode.NOT_COORDINATOR)

    # --- orphaned offsets

    def pending_by_producer(self, number: int) -> dict[int, dict[OffsetKey, TxnOffsetRecord]]:
        """Return the shard's pending offsets by producer id. The caller must not modify them."""
        shard = self._shards.get(number)
        return {} if shard is None else shard.by_producer

    def discard(self, number: int, producer_id: int, offsets: dict[OffsetKey, TxnOffsetRecord]) -> None:
        """Delete orphaned pending offsets."""
        shard = self._shards[number]
        self._offsets.writers.for_shard(number).submit([deletion(producer_id, key) for key in offsets])
        for key, record in offsets.items():
            shard.remove(producer_id, key, record)


def is_of_transaction(record: TxnOffsetRecord, ending: TransactionEnding) -> bool:
    """Return whether a pending offset belongs to the transaction that ends. In transactions v2, the marker has a later
    epoch than the offset."""
    if ending.number == UNNUMBERED:
        return record.epoch == ending.marker.producer_epoch
    return record.number == ending.number


def deletion(producer_id: int, key: OffsetKey) -> tuple[Operation, OffsetWrite | None]:
    """Return the write that deletes a pending offset."""
    return DeleteOp(pending_key(producer_id, key)), None


def pending_key(producer_id: int, key: OffsetKey) -> str:
    """Return the store key of a pending offset."""
    return keys.txn_offset(key.group_id, producer_id, key.topic_id, key.partition)
