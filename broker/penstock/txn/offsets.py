"""Offsets that producers commit within transactions (KIP-98): written first, theirs alone until the transaction is
decided, then folded into the group's or dropped. Implements `group.pending.PendingOffsets`.

They are written through the group's own shard writer, as is what becomes of them: so nothing that was sent before the
decision can appear after it, and a later commit of the group stays later. Being folded in is idempotent: a coordinator
that ended in the middle does it again.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence

from penstock.group.offset_table import OffsetKey
from penstock.group.offsets import Commit, Offsets, OffsetWrite
from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock.state import keys, records
from penstock.state.records import BadRecord, OffsetRecord, TxnOffsetRecord
from penstock.state.store import Delete, Entry, Operation, Put
from penstock.txn.state_machine import Producer

log = get_logger(__name__)

Mine = tuple[str, int]
"""(group id, producer id)."""


class TxnOffsets:
    """What is pending, by group and producer."""

    def __init__(self, offsets: Offsets, clock: Clock) -> None:
        self._offsets, self._clock = offsets, clock
        self._of_producer: dict[Mine, dict[OffsetKey, TxnOffsetRecord]] = {}
        self._of_group: dict[str, dict[OffsetKey, int]] = {}
        """How many producers have something pending for a partition."""

    def load(self, entries: Iterable[Entry]) -> None:
        """Takes in what the store holds; comes before the transaction coordinator starts."""
        for entry in entries:
            try:
                group_id, producer_id, topic_id, index = keys.parse_txn_offset(entry.key)
                record = records.decode(TxnOffsetRecord, entry.key, entry.value)
            except (BadRecord, ValueError) as e:
                log.error("skipping an unreadable offset of a transaction", key=entry.key, error=str(e))
                continue
            self._note((group_id, producer_id), OffsetKey(group_id, topic_id, index), record)

    def drop_orphans(self, is_open: Callable[[str, int], bool]) -> None:
        """Deletes what belongs to no transaction (transactional id, producer id) that is open, or decided and not
        complete: it was left by a write that came too late."""
        for mine, pending in list(self._of_producer.items()):
            those = [key for key, record in pending.items() if not is_open(record.transactional_id, mine[1])]
            if those:
                log.warning("dropping offsets of a transaction that has ended", group=mine[0], partitions=len(those))
                self._drop(mine, those)

    # --- what the group coordinator asks

    def pending(self, group_id: str) -> Container[OffsetKey]:
        return self._of_group.get(group_id, ())

    def forget_group(self, group_id: str) -> None:
        for mine in [m for m in self._of_producer if m[0] == group_id]:
            self._drop(mine, list(self._of_producer[mine]))

    # --- what the transaction's coordinator and TxnOffsetCommit ask

    async def commit(
        self, group_id: str, transactional_id: str, producer: Producer, commits: Sequence[Commit]
    ) -> list[int]:
        """Makes pending offsets durable; returns by index those that are not. Nothing is checked here."""
        now_ms = self._clock.wall_ms()
        mine = group_id, producer.producer_id
        writes: list[tuple[Operation, OffsetWrite | None]] = []
        for topic_id, index, offset, leader_epoch, metadata in commits:
            record = TxnOffsetRecord(
                transactional_id=transactional_id,
                epoch=producer.epoch,
                record=OffsetRecord(offset=offset, leader_epoch=leader_epoch, metadata=metadata, commit_ms=now_ms),
            )
            # Noted before it is durable: a decision that comes meanwhile follows it to the store.
            self._note(mine, OffsetKey(group_id, topic_id, index), record)
            key = keys.txn_offset(group_id, producer.producer_id, topic_id, index)
            writes.append((Put(key, records.encode(record)), None))
        failed: list[int] = await self._offsets.writers.of_group(group_id).submit(writes)
        return failed

    async def decide(self, group_id: str, producer: Producer, committed: bool) -> bool:
        """Folds a producer's pending offsets in, or drops them; True when that is durable. May be repeated."""
        mine = group_id, producer.producer_id
        pending = dict(self._of_producer.get(mine, {}))
        writes: list[tuple[Operation, OffsetWrite | None]] = []
        for key, pended in pending.items():
            if committed and pended.epoch == producer.epoch:
                put = Put(keys.offset(*key), records.encode(pended.record))
                writes.append((put, (key, pended.record)))
            # Behind the offset itself: should a crash part the two, the offset is put once more.
            writes.append((Delete(keys.txn_offset(group_id, mine[1], key.topic_id, key.partition)), None))
        failed = await self._offsets.writers.of_group(group_id).submit(writes)
        if failed:
            return False
        for key, pended in pending.items():
            self._forget(mine, key, pended)
        return True

    # --- inside

    def _drop(self, mine: Mine, those: list[OffsetKey]) -> None:
        group_id, producer_id = mine
        writes: list[tuple[Operation, OffsetWrite | None]] = []
        for key in those:
            writes.append((Delete(keys.txn_offset(group_id, producer_id, key.topic_id, key.partition)), None))
            self._forget(mine, key, self._of_producer[mine][key])
        self._offsets.writers.of_group(group_id).submit(writes)

    def _note(self, mine: Mine, key: OffsetKey, record: TxnOffsetRecord) -> None:
        known = self._of_producer.setdefault(mine, {})
        if key not in known:
            counts = self._of_group.setdefault(mine[0], {})
            counts[key] = counts.get(key, 0) + 1
        known[key] = record

    def _forget(self, mine: Mine, key: OffsetKey, record: TxnOffsetRecord) -> None:
        known = self._of_producer.get(mine, {})
        if known.get(key) is not record:
            return
        del known[key]
        if not known:
            del self._of_producer[mine]
        counts = self._of_group[mine[0]]
        counts[key] -= 1
        if not counts[key]:
            del counts[key]
            if not counts:
                del self._of_group[mine[0]]
