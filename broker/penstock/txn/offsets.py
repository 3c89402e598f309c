"""Offsets that producers commit within transactions (KIP-98): written first, theirs alone until the transaction is
decided, then folded into the group's or dropped. Implements `group.listeners.PendingOffsets`.

They are written through the group's own shard writer, as is what becomes of them: so nothing that was sent before the
decision can appear after it, and a later commit of the group stays later. Being folded in is idempotent: a coordinator
that ended in the middle does it again, and so does the next one of the shard, which finds what is pending in the store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

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
    """Who commits within which transaction."""

    group_id: str
    transactional_id: str
    producer: ProducerIdentity
    number: int


@dataclass(slots=True)
class PendingShard:
    """What is pending for the groups of a shard, by producer id; and for each group's partitions, of how many."""

    of_producer: dict[int, dict[OffsetKey, TxnOffsetRecord]] = field(default_factory=dict)
    of_group: dict[str, dict[OffsetKey, int]] = field(default_factory=dict)

    def note(self, producer_id: int, key: OffsetKey, record: TxnOffsetRecord) -> None:
        known = self.of_producer.setdefault(producer_id, {})
        if key not in known:
            counts = self.of_group.setdefault(key.group_id, {})
            counts[key] = counts.get(key, 0) + 1
        known[key] = record

    def forget(self, producer_id: int, key: OffsetKey, record: TxnOffsetRecord) -> None:
        """Nothing where another record has taken the place of this one."""
        known = self.of_producer.get(producer_id, {})
        if known.get(key) is not record:
            return
        del known[key]
        if not known:
            del self.of_producer[producer_id]
        counts = self.of_group[key.group_id]
        counts[key] -= 1
        if not counts[key]:
            del counts[key]
            if not counts:
                del self.of_group[key.group_id]


class TxnOffsets:
    """What is pending in the shards that are this broker's. `error` tells why it cannot answer for a shard, `confirm`
    returns whether the shard is this broker's as of now, by a linearizable read; it raises StoreError."""

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

    def take(self, number: int, entries: Iterable[StoreEntry]) -> None:
        """A shard is this broker's, with what the store holds of it."""
        shard = self._shards[number] = PendingShard()
        for entry in entries:
            try:
                group_id, producer_id, topic_id, index = keys.parse_txn_offset(entry.key)
                record = records.decode(TxnOffsetRecord, entry.key, entry.value)
            except (BadRecord, ValueError) as e:
                log.error("skipping an unreadable offset of a transaction", key=entry.key, error=str(e))
                continue
            shard.note(producer_id, OffsetKey(group_id, topic_id, index), record)

    def drop(self, number: int) -> None:
        """The shard is another's. Nothing where it was never this broker's."""
        self._shards.pop(number, None)

    # --- what the group coordinator asks

    def pending(self, group_id: str) -> Container[OffsetKey]:
        shard = self._shards.get(keys.shard_of(group_id))
        return () if shard is None else shard.of_group.get(group_id, ())

    def has_pending(self, group_id: str) -> bool:
        shard = self._shards.get(keys.shard_of(group_id))
        return shard is not None and group_id in shard.of_group

    def forget_group(self, group_id: str) -> None:
        number = keys.shard_of(group_id)
        shard = self._shards.get(number)
        if shard is None or group_id not in shard.of_group:
            return
        for producer_id, pending in list(shard.of_producer.items()):
            self.discard(number, producer_id, {k: record for k, record in pending.items() if k.group_id == group_id})

    # --- what TxnOffsetCommit asks

    def writer(self, group_id: str) -> Writer:
        """The group's writer, to be asked for before anything is verified: it ends with the shard's tenure, and what
        was verified in one tenure must not be written in another, which may have been told of the end already."""
        return self._offsets.writers.for_group(group_id)

    async def commit(self, writer: Writer, who: TxnCommit, commits: Sequence[OffsetCommit]) -> list[int]:
        """Makes pending offsets durable; returns by index those that are not. Nothing is checked here."""
        shard = self._shards.get(keys.shard_of(who.group_id))
        if writer.is_closed or shard is None:
            return list(range(len(commits)))
        now_ms = self._clock.wall_ms()
        producer_id = who.producer.producer_id
        writes: Writes = []
        for topic_id, index, offset, leader_epoch, metadata in commits:
            record = TxnOffsetRecord(
                transactional_id=who.transactional_id,
                epoch=who.producer.epoch,
                record=OffsetRecord(offset=offset, leader_epoch=leader_epoch, metadata=metadata, commit_ms=now_ms),
                number=who.number,
            )
            # Noted before it is durable: a decision that comes meanwhile follows it to the store.
            shard.note(producer_id, OffsetKey(who.group_id, topic_id, index), record)
            writes.append(
                (PutOp(keys.txn_offset(who.group_id, producer_id, topic_id, index), records.encode(record)), None)
            )
        failed: list[int] = await writer.submit(writes)
        return failed

    # --- what transactions' coordinators ask

    async def decide(self, number: int, ending: TransactionEnding) -> ErrorCode:
        """Folds in what a producer has pending in the groups of a shard, or drops it; NONE when that is durable.

        May be repeated. What the producer has brought in a later transaction is left alone. Implements
        `markers.OffsetDecider`.
        """
        shard = self._shards.get(number)
        error = self._error(number)
        if error or shard is None:
            return error or ErrorCode.NOT_COORDINATOR
        marker = ending.marker
        pending = {
            key: pended
            for key, pended in shard.of_producer.get(marker.producer_id, {}).items()
            if ending.number == UNNUMBERED or pended.number <= ending.number
        }
        if not pending:
            return await self._nothing(number)
        writes: Writes = []
        ties: list[tuple[str, str]] = []
        for key, pended in pending.items():
            if marker.committed and pended.epoch == marker.producer_epoch:
                # Never parted: what is still pending is put once more, which must not undo what is committed later.
                ties.append((keys.offset(*key), pending_key(marker.producer_id, key)))
                writes.append((PutOp(keys.offset(*key), records.encode(pended.record)), (key, pended.record)))
            writes.append(deletion(marker.producer_id, key))
        if await self._offsets.writers.for_shard(number).submit(writes, ties):
            return self._error(number) or ErrorCode.COORDINATOR_NOT_AVAILABLE
        for key, pended in pending.items():
            shard.forget(marker.producer_id, key, pended)
        return ErrorCode.NONE

    async def _nothing(self, number: int) -> ErrorCode:
        """Nothing is pending, as far as this broker knows: it may be that all of it came to the next coordinator."""
        try:
            is_owned = await self._confirm(number)
        except StoreError as e:
            log.warning("whose a shard is cannot be confirmed", shard=number, reason=str(e))
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return self._error(number) or (ErrorCode.NONE if is_owned else ErrorCode.NOT_COORDINATOR)

    # --- what `orphans` asks

    def of_shard(self, number: int) -> dict[int, dict[OffsetKey, TxnOffsetRecord]]:
        """What is pending, by producer id; not to be changed."""
        shard = self._shards.get(number)
        return {} if shard is None else shard.of_producer

    def discard(self, number: int, producer_id: int, those: dict[OffsetKey, TxnOffsetRecord]) -> None:
        """Deletes what belongs to nothing any more."""
        shard = self._shards[number]
        self._offsets.writers.for_shard(number).submit([deletion(producer_id, key) for key in those])
        for key, record in those.items():
            shard.forget(producer_id, key, record)


def deletion(producer_id: int, key: OffsetKey) -> tuple[Operation, OffsetWrite | None]:
    return DeleteOp(pending_key(producer_id, key)), None


def pending_key(producer_id: int, key: OffsetKey) -> str:
    return keys.txn_offset(key.group_id, producer_id, key.topic_id, key.partition)
