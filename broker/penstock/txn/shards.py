"""The shards of transactional ids that a broker coordinates, and how their records are written. Used by `coordinator`.

Every write compares the shard's epoch, where the store has one, and the record's own revision: a coordinator that lost
its shard can write nothing, whatever it believes.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from penstock.state import keys, records
from penstock.state.records import TransactionRecord
from penstock.state.store import Compare, CompareTarget, DeleteOp, PutOp, Store, StoreEntry, StoreError
from penstock.wire.errors import ErrorCode


@dataclass(slots=True)
class TransactionState:
    """A transactional id in memory: the record as it is in the store at `revision`, 0 where it is not there.

    `lock` is held while a request for it is decided and written. `is_known` is False after a write of which nobody
    knows whether it took effect: it is read again before anything else. `deadline` is the number of the transaction
    in hand, and when it has taken too long: on the loop's clock, in s, as the wall clock may be set meanwhile.
    """

    transactional_id: str
    shard: TxnShard
    record: TransactionRecord | None = None
    revision: int = 0
    is_known: bool = True
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    finishing: asyncio.Task[None] | None = None
    deadline: tuple[int, float] | None = None

    @property
    def key(self) -> str:
        return keys.transaction(self.transactional_id)

    def take(self, entry: StoreEntry | None) -> None:
        """What the store says. Raises BadRecord."""
        if entry is None:
            self.record, self.revision = None, 0
        else:
            self.record = records.decode(TransactionRecord, entry.key, entry.value)
            self.revision = entry.mod_revision
        self.is_known = True

    def left_s(self, now_ms: int, now_s: float) -> float:
        """How long the transaction in hand may still take, by its record when this was first asked of it; `now_ms` is
        the wall clock, `now_s` the loop's. A wall clock that was set back gives it no more than its timeout."""
        record = self.record
        assert record is not None, "a transaction in hand has a record"
        if self.deadline is None or self.deadline[0] != record.number:
            left_ms = min(max(record.started_ms + record.timeout_ms - now_ms, 0), record.timeout_ms)
            self.deadline = record.number, now_s + left_ms / 1000
        return self.deadline[1] - now_s


@dataclass(slots=True)
class TxnShard:
    """A part of all transactional ids. `epoch` goes into markers; `guard` holds as long as the shard is this broker's,
    and is None where there is no other broker."""

    number: int
    epoch: int
    guard: Compare | None
    transactions: dict[str, TransactionState] = field(default_factory=dict)
    is_lost: bool = False


class ShardLost(Exception):
    """Another broker coordinates the shard now."""


class StateOvertaken(StoreError):
    """A record is not what it was taken for: an earlier write that got no answer took effect after all."""


class TxnShardOwnership(Protocol):
    """Which shards are this broker's: the group coordinator's `TxnShardOwnership`, as both kinds are owned together."""

    @property
    def is_loading(self) -> bool: ...

    def error(self, number: int) -> ErrorCode:
        """Why this broker cannot answer for a shard, or NONE."""

    def handle_lost(self, number: int) -> None:
        """The store says that a shard is another's."""


async def write(store: Store, transaction: TransactionState, record: TransactionRecord | None) -> None:
    """Makes a record durable, or deletes it (None). Raises ShardLost, StoreError; then what is there is unknown."""
    key, shard = transaction.key, transaction.shard
    compares = [Compare(key, CompareTarget.MOD_REVISION, transaction.revision)]
    if shard.guard is not None:
        compares.append(shard.guard)
    operation = DeleteOp(key) if record is None else PutOp(key, records.encode(record))
    transaction.is_known = False
    result = await store.txn(compares, [operation])
    if not result.succeeded:
        await confirm(store, shard)
        raise StateOvertaken(f"the record of {transaction.transactional_id} has changed")
    transaction.is_known = True
    transaction.record = record
    transaction.revision = 0 if record is None else result.revision


async def confirm(store: Store, shard: TxnShard) -> None:
    """Returns when the shard is known to be this broker's, as of now. Raises ShardLost, StoreError."""
    if shard.guard is not None and not (await store.txn([shard.guard], [])).succeeded:
        raise ShardLost(f"transaction shard {shard.number} in epoch {shard.epoch} is another's")
