"""The transaction coordinator of a broker: decides transactions, writes them to the store, tells everybody (KIP-98).

`api` calls it. What a request means is in `state_machine`; this holds the records of the shards that are this
broker's, one lock for each transactional id in use, one timer for all, and one task for each transaction that is
being completed. The record of PrepareCommit or PrepareAbort is the decision; whatever fails after it is tried again,
also by the next coordinator of the shard.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Protocol
from uuid import UUID

from penstock.config.broker import BrokerConfig
from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock.state import keys
from penstock.state.records import BadRecord, TransactionRecord
from penstock.state.store import Compare, Store, StoreEntry, StoreError
from penstock.txn import shards, state_machine
from penstock.txn.completion import Completion
from penstock.txn.router import MarkerSender
from penstock.txn.shards import ShardLost, TransactionState, TxnShard, TxnShardOwnership
from penstock.txn.state_machine import (
    AT_REST,
    PREPARED,
    ProducerIdentity,
    TxnState,
    TxnTransition,
    VerifiedTransaction,
    state_of,
)
from penstock.txn.timer_wheel import TimerWheel
from penstock.wire.errors import ErrorCode

log = get_logger(__name__)

MAX_TRANSACTIONAL_ID = 1024
"""Characters."""
RELOAD_S = 1.0
"""How soon a record of which nobody knows what was written is read again."""
PAUSED_S = 600.0
"""How soon an id that may not be used any more is looked at again while the wall clock cannot be trusted."""
NO_PRODUCER = ProducerIdentity(-1, -1)

Work = Awaitable[ErrorCode]


class IdSource(Protocol):
    """`producer_ids.ProducerIds`."""

    async def next_id(self) -> int: ...


def never() -> bool:
    return False


class TransactionCoordinator:
    """Has the shards that it was told to `take`, until it is told to `drop` them. `owner_of` tells which broker has a
    shard, -1 where none has; without it, and without an `ownership`, there is no other broker. `is_paused` tells that
    the wall clock cannot be trusted now: no id is forgotten then."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        config: BrokerConfig,
        ids: IdSource,
        markers: MarkerSender,
        owner_of: Callable[[int], int] | None = None,
        ownership: TxnShardOwnership | None = None,
        is_paused: Callable[[], bool] = never,
    ) -> None:
        self.config = config
        self._store, self._clock, self._ids = store, clock, ids
        self._markers = markers
        self._owner_of, self._ownership, self._is_paused = owner_of, ownership, is_paused
        self._shards: dict[int, TxnShard] = {}
        self._wheel = TimerWheel(self._due)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    # --- life

    def take(self, number: int, epoch: int, guard: Compare | None, entries: Iterable[StoreEntry]) -> None:
        """A shard is this broker's, with what the store holds of it: goes on with what is decided there."""
        assert number not in self._shards, f"shard {number} of transactions has two tenures at once"
        shard = TxnShard(number, epoch, guard)
        for entry in entries:
            transaction = TransactionState("", shard)
            try:
                _, transaction.transactional_id = keys.parse_transaction(entry.key)
                transaction.take(entry)
                assert transaction.record is not None, "the key is there"
                state_of(transaction.record)
            except (BadRecord, ValueError) as e:
                log.error("a transactional id is unreadable and stays unusable", key=entry.key, error=str(e))
                continue
            shard.transactions[transaction.transactional_id] = transaction
        self._shards[number] = shard
        for transaction in shard.transactions.values():
            self._arm(transaction)

    def drop(self, number: int) -> None:
        """The shard is another's: what is under way ends without being written. Nothing where it was not here."""
        shard = self._shards.pop(number, None)
        if shard is None:
            return
        shard.is_lost = True
        for transaction in shard.transactions.values():
            self._wheel.cancel(transaction.transactional_id)
            if transaction.finishing is not None:
                transaction.finishing.cancel()

    async def close(self) -> None:
        self._closed = True
        for number in list(self._shards):
            self.drop(number)
        self._wheel.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- requests

    def coordinator_of(self, transactional_id: str) -> int:
        """The id of the broker that coordinates a transactional id; -1 where nobody does just now."""
        if self._owner_of is None:
            return self.config.node_id
        return self._owner_of(keys.shard_of(transactional_id))

    async def init_producer_id(
        self, transactional_id: str, timeout_ms: int, claimed: ProducerIdentity | None
    ) -> tuple[ErrorCode, ProducerIdentity]:
        """A producer id and epoch that fence whoever had the transactional id before."""
        if not 0 < len(transactional_id) <= MAX_TRANSACTIONAL_ID:
            return ErrorCode.INVALID_REQUEST, NO_PRODUCER
        if not 0 < timeout_ms <= self.config.transaction_max_timeout_ms:
            return ErrorCode.INVALID_TRANSACTION_TIMEOUT, NO_PRODUCER
        shard, error = self._shard(transactional_id)
        if shard is None:
            return error, NO_PRODUCER
        transaction = shard.transactions.get(transactional_id)
        if transaction is None:
            transaction = shard.transactions[transactional_id] = TransactionState(transactional_id, shard)

        async def work() -> ErrorCode:
            # It may have been forgotten while this waited: who asks for the id from here on is to find this one.
            shard.transactions.setdefault(transactional_id, transaction)
            record = transaction.record
            new_id = await self._ids.next_id() if state_machine.needs_new_id(record) else None
            step = state_machine.init_producer(record, claimed, timeout_ms, self._clock.wall_ms(), new_id)
            return await self._write(transaction, step)

        error = await self._locked(transaction, work)
        if transaction.record is None and transaction.is_known and not transaction.lock.locked():
            shard.transactions.pop(transactional_id, None)
        if error or transaction.record is None:
            return error, NO_PRODUCER
        return error, ProducerIdentity(transaction.record.producer_id, transaction.record.epoch)

    async def add(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Mapping[UUID, Iterable[int]],
        groups: Iterable[str] = (),
    ) -> ErrorCode:
        """Makes partitions, and the offsets of groups, part of the transaction in hand; begins it where there is none.
        Returns when that is durable."""
        now = self._clock.wall_ms
        return await self._change(
            transactional_id, lambda record: state_machine.add(record, producer, partitions, groups, now())
        )

    async def end(self, transactional_id: str, producer: ProducerIdentity, committed: bool) -> ErrorCode:
        """Commits or aborts: returns when that is decided for good. Its markers follow."""
        now = self._clock.wall_ms
        return await self._change(
            transactional_id, lambda record: state_machine.end(record, producer, committed, now())
        )

    def verify(
        self, transactional_id: str, producer: ProducerIdentity, topic_id: UUID, index: int
    ) -> VerifiedTransaction:
        """Whether a partition is part of the producer's transaction in hand (KIP-890)."""
        transaction, error = self._find(transactional_id)
        if error or transaction is None:
            return VerifiedTransaction(error)
        record = transaction.record
        includes = record is not None and index in record.partitions.get(topic_id, ())
        return state_machine.verify(record, producer, includes)

    def verify_group(self, transactional_id: str, producer: ProducerIdentity, group_id: str) -> VerifiedTransaction:
        """Whether a group's offsets are."""
        transaction, error = self._find(transactional_id)
        if error or transaction is None:
            return VerifiedTransaction(error)
        record = transaction.record
        return state_machine.verify(record, producer, record is not None and group_id in record.groups)

    def verify_group_shard(self, transactional_id: str, producer: ProducerIdentity, shard: int) -> VerifiedTransaction:
        """Whether a group of a coordinator shard is: so other brokers ask, which name shards as partitions."""
        transaction, error = self._find(transactional_id)
        if error or transaction is None:
            return VerifiedTransaction(error)
        record = transaction.record
        includes = record is not None and any(keys.shard_of(group_id) == shard for group_id in record.groups)
        return state_machine.verify(record, producer, includes)

    async def confirmed(self, transactional_id: str) -> ErrorCode:
        """NONE where the store says, as of now, that this broker coordinates the id; else an error to be tried again.

        A lease is no proof: a broker renews it while it hears nothing of shards that move. So what `verify` refuses for
        good (`state_machine.FINAL`) is told after this.
        """
        shard, error = self._shard(transactional_id)
        if shard is None:
            return error
        try:
            await shards.confirm(self._store, shard)
        except ShardLost as e:
            log.warning("a shard of transactions is lost", reason=str(e))
            self._lose(shard)
            return ErrorCode.NOT_COORDINATOR
        except StoreError as e:
            log.info("whose a shard is cannot be found out", id=transactional_id, reason=str(e))
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE

    async def confirm_shards(self) -> ErrorCode:
        """Drop the shards that are another broker's by now, so that no transaction is reported by two coordinators.

        One linearizable read for all shards. Returns an error if the store cannot be read.
        """
        guarded = [(shard, shard.guard) for shard in self._shards.values() if shard.guard is not None]
        if not guarded:
            return ErrorCode.NONE
        try:
            entries = (await self._store.range(keys.SHARDS)).entries
        except StoreError as e:
            log.info("owners of transaction shards cannot be read", reason=str(e))
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        revisions = {entry.key: entry.mod_revision for entry in entries}
        for shard, guard in guarded:
            if revisions.get(guard.key) != guard.value:
                self._lose(shard)
        return ErrorCode.NONE

    def describe(self, transactional_id: str) -> tuple[ErrorCode, TransactionRecord | None]:
        transaction, error = self._find(transactional_id)
        if transaction is None or transaction.record is None:
            unknown = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
            return (unknown if error in (0, ErrorCode.INVALID_PRODUCER_ID_MAPPING) else error), None
        return ErrorCode.NONE, transaction.record

    def __iter__(self) -> Iterator[tuple[str, TransactionRecord]]:
        """All transactional ids of this broker's shards."""
        for shard in self._shards.values():
            for transactional_id, transaction in shard.transactions.items():
                if transaction.record is not None:
                    yield transactional_id, transaction.record

    @property
    def unavailable(self) -> ErrorCode:
        """Why a list of all transactions would not be whole."""
        is_loading = self._ownership is not None and self._ownership.is_loading
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_loading else ErrorCode.NONE

    # --- inside

    def _shard(self, transactional_id: str) -> tuple[TxnShard | None, ErrorCode]:
        number = keys.shard_of(transactional_id)
        error = ErrorCode.NONE if self._ownership is None else self._ownership.error(number)
        shard = self._shards.get(number)
        return (None, error or ErrorCode.NOT_COORDINATOR) if error or shard is None else (shard, ErrorCode.NONE)

    def _lose(self, shard: TxnShard) -> None:
        """The store says that the shard is another's."""
        if self._shards.get(shard.number) is shard:
            self.drop(shard.number)
            if self._ownership is not None:
                self._ownership.handle_lost(shard.number)

    def _find(self, transactional_id: str) -> tuple[TransactionState | None, ErrorCode]:
        if not transactional_id:
            return None, ErrorCode.INVALID_REQUEST
        shard, error = self._shard(transactional_id)
        if shard is None:
            return None, error
        transaction = shard.transactions.get(transactional_id)
        if transaction is None:
            return None, ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return transaction, ErrorCode.NONE if transaction.is_known else ErrorCode.CONCURRENT_TRANSACTIONS

    async def _change(
        self, transactional_id: str, decide: Callable[[TransactionRecord | None], TxnTransition]
    ) -> ErrorCode:
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        shard, error = self._shard(transactional_id)
        if shard is None:
            return error
        transaction = shard.transactions.get(transactional_id)
        if transaction is None:
            return await self.confirmed(transactional_id) or ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return await self._locked(transaction, lambda: self._write(transaction, decide(transaction.record)))

    async def _locked(self, transaction: TransactionState, work: Callable[[], Work]) -> ErrorCode:
        """Does `work` on a record that is known, while nobody else does; its error, or why it could not be done."""
        async with transaction.lock:
            shard = transaction.shard
            if shard.is_lost:
                return ErrorCode.NOT_COORDINATOR
            try:
                if not transaction.is_known:
                    await self._reload(transaction)
                return await work()
            except ShardLost as e:
                log.warning("a shard of transactions is lost", reason=str(e))
                self._lose(shard)
                return ErrorCode.NOT_COORDINATOR
            except (StoreError, BadRecord) as e:
                log.warning("a transaction cannot be written", id=transaction.transactional_id, error=str(e))
                if not transaction.is_known and not shard.is_lost:
                    self._wheel.schedule(transaction.transactional_id, RELOAD_S)
                return ErrorCode.COORDINATOR_NOT_AVAILABLE

    async def _reload(self, transaction: TransactionState) -> None:
        """Reads what the last write came to. Raises StoreError, BadRecord."""
        transaction.take(await self._store.get(transaction.key))
        self._arm(transaction)

    async def _write(self, transaction: TransactionState, step: TxnTransition) -> ErrorCode:
        """The error of a step, once that is true in the store: a producer does not come back after what is final."""
        if step.record is not None:
            await shards.write(self._store, transaction, step.record)
            self._arm(transaction)
        elif step.error is not ErrorCode.CONCURRENT_TRANSACTIONS:
            await shards.confirm(self._store, transaction.shard)
        return step.error

    def _arm(self, transaction: TransactionState) -> None:
        """Sees to what is to happen by itself to a transactional id in its present state."""
        record = transaction.record
        if record is None or transaction.shard.is_lost:
            return
        state, now_ms = state_of(record), self._clock.wall_ms()
        if state in PREPARED:
            self._wheel.cancel(transaction.transactional_id)
            if transaction.finishing is None:
                transaction.finishing = self._spawn(self._finish(transaction))
        elif state is TxnState.ONGOING:
            self._wheel.schedule(transaction.transactional_id, transaction.left_s(now_ms, now_s()))
        elif state in AT_REST:
            due_ms = record.updated_ms + self.config.transactional_id_expiration_ms
            self._wheel.schedule(transaction.transactional_id, (due_ms - now_ms) / 1000)

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _due(self, transactional_id: str) -> None:
        transaction, _ = self._find(transactional_id)
        if transaction is not None and not self._closed:
            self._spawn(self._on_due(transaction))

    async def _on_due(self, transaction: TransactionState) -> None:
        """The time has come to look at a transactional id: it took too long, was not used for long, or is unknown."""

        async def work() -> ErrorCode:
            record, now_ms = transaction.record, self._clock.wall_ms()
            if record is None:
                transaction.shard.transactions.pop(transaction.transactional_id, None)
                return ErrorCode.NONE
            state = state_of(record)
            if state is TxnState.ONGOING and transaction.left_s(now_ms, now_s()) <= 0:
                log.info("a transaction took too long and is aborted", id=transaction.transactional_id)
                return await self._write(transaction, state_machine.timed_out(record, now_ms))
            unused_ms = now_ms - record.updated_ms
            if state in AT_REST and unused_ms >= self.config.transactional_id_expiration_ms:
                if self._is_paused():
                    self._wheel.schedule(transaction.transactional_id, PAUSED_S)
                    return ErrorCode.NONE
                await shards.write(self._store, transaction, None)
                transaction.shard.transactions.pop(transaction.transactional_id, None)
                return ErrorCode.NONE
            self._arm(transaction)
            return ErrorCode.NONE

        if await self._locked(transaction, work) == ErrorCode.COORDINATOR_NOT_AVAILABLE:
            self._wheel.schedule(transaction.transactional_id, RELOAD_S)

    async def _finish(self, transaction: TransactionState) -> None:
        """Tells everybody, then writes that it is complete."""
        shard = transaction.shard
        try:
            record = transaction.record
            assert record is not None, "a decided transaction has a record"
            await Completion(transaction, record, self._markers, lambda: shards.confirm(self._store, shard)).run()
        except ShardLost as e:
            log.warning("a shard of transactions is lost", reason=str(e))
            self._lose(shard)
            return
        finally:
            transaction.finishing = None

        async def work() -> ErrorCode:
            if transaction.record is None or state_of(transaction.record) not in PREPARED:
                return ErrorCode.NONE
            done = state_machine.completed(transaction.record, self._clock.wall_ms())
            return await self._write(transaction, TxnTransition(ErrorCode.NONE, done))

        await self._locked(transaction, work)


def now_s() -> float:
    """On the loop's clock."""
    return asyncio.get_running_loop().time()
