"""The coordinated shards of transactional ids, and the writes of their records. Used by `coordinator`.

In a cluster, each write compares the shard's record and the transaction record's revision: a coordinator that lost the
shard cannot write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from penstock.group.shard_writer import ShardGuard
from penstock.state import keys, records
from penstock.state.records import TransactionRecord
from penstock.state.store import Compare, CompareTarget, DeleteOp, PutOp, Store, StoreEntry, StoreError
from penstock.wire.errors import ErrorCode


@dataclass(slots=True)
class TransactionState:
    """A transactional id in memory. `record` is the stored record at `revision`, which is 0 if there is none.

    `lock` is held while a request is decided and written. `is_known` is False after a write with an unknown outcome;
    the record is then read again first. `deadline` is the number of the ongoing transaction and the end of its timeout,
    on the loop's clock in seconds, because the wall clock may be adjusted.
    """

    transactional_id: str
    shard: TxnShard
    record: TransactionRecord | None = None
    revision: int = 0
    is_known: bool = True
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    completion_task: asyncio.Task[None] | None = None
    deadline: tuple[int, float] | None = None

    @property
    def key(self) -> str:
        """The record's key in the store."""
        return keys.transaction(self.transactional_id)

    def load_entry(self, entry: StoreEntry | None) -> None:
        """Replace the record by the store's. Raises BadRecord."""
        if entry is None:
            self.record, self.revision = None, 0
        else:
            self.record = records.decode(TransactionRecord, entry.key, entry.value)
            self.revision = entry.mod_revision
        self.is_known = True

    def remaining_s(self, now_ms: int, now_s: float) -> float:
        """Return the remaining time of the ongoing transaction.

        The first call computes the deadline from the record's wall-clock start; `now_ms` is the wall clock, `now_s` the
        loop's. A wall clock that was set back does not extend the timeout.
        """
        record = self.record
        assert record is not None, "an ongoing transaction has a record"
        if self.deadline is None or self.deadline[0] != record.number:
            left_ms = min(max(record.started_ms + record.timeout_ms - now_ms, 0), record.timeout_ms)
            self.deadline = record.number, now_s + left_ms / 1000
        return self.deadline[1] - now_s


@dataclass(slots=True)
class TxnShard:
    """A shard of the transactional ids. The epoch of its `guard` is written into markers."""

    number: int
    guard: ShardGuard
    transactions: dict[str, TransactionState] = field(default_factory=dict)
    is_lost: bool = False


class ShardLost(Exception):
    """Another broker coordinates the shard."""


class RecordConflict(StoreError):
    """A record has changed: an earlier write with an unknown outcome took effect."""


class TxnShardOwnership(Protocol):
    """The owned shards: `group.ownership.ShardOwnership`, since groups and transactional ids share shards."""

    @property
    def loading_error(self) -> ErrorCode:
        """The error of requests that need all owned shards, or NONE."""

    def owner_of(self, number: int) -> int:
        """Return the id of the broker that owns a shard, -1 if none does now."""

    async def read_revisions(self) -> Mapping[int, int]:
        """Return the revisions of the shards' records, by a linearizable read. Raises StoreError."""

    def error(self, number: int) -> ErrorCode:
        """Return the error that prevents this broker from serving the shard, or NONE."""

    def handle_lost(self, number: int) -> None:
        """Resign a shard that the store assigns to another broker."""


async def write_record(store: Store, transaction: TransactionState, record: TransactionRecord | None) -> None:
    """Write a record, or delete it (None). Raises ShardLost or StoreError; the outcome is then unknown."""
    key, shard, before = transaction.key, transaction.shard, transaction.record
    assert transaction.lock.locked(), f"{key} is written without its lock"
    assert transaction.is_known, f"{key} is written while its record is unknown"
    if record is not None and before is not None:
        assert record.number >= before.number, f"transaction {record.number} of {key} follows {before.number}"
    compares = [Compare(key, CompareTarget.MOD_REVISION, transaction.revision), *shard.guard.ownership_compares()]
    operation = DeleteOp(key) if record is None else PutOp(key, records.encode(record))
    transaction.is_known = False
    result = await store.txn(compares, [operation])
    if not result.succeeded:
        await confirm_ownership(store, shard)
        raise RecordConflict(f'the record of transactional id "{transaction.transactional_id}" has changed')
    transaction.is_known = True
    transaction.record = record
    transaction.revision = 0 if record is None else result.revision


async def confirm_ownership(store: Store, shard: TxnShard) -> None:
    """Return if this broker owns the shard, by a linearizable read. Raises ShardLost, StoreError."""
    if not await shard.guard.is_current(store):
        raise ShardLost(f"another broker owns transaction shard {shard.number}; its epoch {shard.guard.epoch} is over")
