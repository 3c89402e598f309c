"""The transaction coordinator of a broker: decides transactions, stores them and completes them (KIP-98).

Called by `api`. `state_machine` has the transitions; this module holds the records of the owned shards, a lock per
transactional id in use, one timer for all, and a task per transaction being completed. The record of PrepareCommit or
PrepareAbort is the commit point; every later failure is retried, also by the next coordinator of the shard.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Protocol
from uuid import UUID

from penstock.config.broker import BrokerConfig
from penstock.group.coordinator_shard import LoadedKey
from penstock.group.shard_writer import ShardGuard
from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock.runtime.tasks import spawn
from penstock.state import keys, records
from penstock.state.records import BadRecord, ClusterRecord, TransactionRecord, TxnState
from penstock.state.store import Store, StoreEntry, StoreError
from penstock.txn import shards, state_machine
from penstock.txn.completion import Completion
from penstock.txn.router import MarkerSender
from penstock.txn.shards import ShardLost, TransactionState, TxnShard, TxnShardOwnership
from penstock.txn.state_machine import (
    IDLE,
    PREPARED,
    ProducerIdentity,
    TxnTransition,
    VerifiedTransaction,
    state_of,
)
from penstock.txn.timer_wheel import TimerWheel
from penstock.wire.errors import ErrorCode

log = get_logger(__name__)

MAX_TRANSACTIONAL_ID = 1024
"""Maximum length of a transactional id, in characters."""
RELOAD_DELAY_S = 1.0
"""Delay until a record with an unknown write outcome is read again."""
PAUSED_RECHECK_S = 600.0
"""Delay until an expired id is checked again while the wall clock is unreliable."""
NO_PRODUCER = ProducerIdentity(-1, -1)

Work = Awaitable[ErrorCode]


class IdSource(Protocol):
    """Source of producer ids: `producer_ids.ProducerIds`."""

    async def next_id(self) -> int:
        """Return a new producer id. Raises StoreError, BadRecord."""


class TransactionCoordinator:
    """Coordinates the transactional ids of the loaded shards.

    `is_paused` returns whether the wall clock is unreliable: no id expires then.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        config: BrokerConfig,
        ids: IdSource,
        markers: MarkerSender,
        ownership: TxnShardOwnership,
        is_paused: Callable[[], bool],
    ) -> None:
        self.config = config
        self._store, self._clock, self._ids = store, clock, ids
        self._markers = markers
        self._ownership, self._is_paused = ownership, is_paused
        self._shards: dict[int, TxnShard] = {}
        self._wheel = TimerWheel(self._on_timer)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    # --- lifecycle

    def load_shard(self, number: int, guard: ShardGuard, entries: Iterable[StoreEntry]) -> None:
        """Load an acquired shard from its store entries, and resume the completion of prepared transactions."""
        assert number not in self._shards, f"transaction shard {number} is loaded already"
        shard = TxnShard(number, guard)
        with LoadedKey() as loading:
            for entry in entries:
                loading.key = entry.key
                transaction = TransactionState("", shard)
                try:
                    _, transaction.transactional_id = keys.parse_transaction(entry.key)
                    transaction.load_entry(entry)
                except (BadRecord, ValueError) as e:
                    log.error("unreadable transactional id: it cannot be used", key=entry.key, error=str(e))
                    continue
                shard.transactions[transaction.transactional_id] = transaction
        self._shards[number] = shard
        for transaction in shard.transactions.values():
            self._arm(transaction)

    def drop_shard(self, number: int) -> None:
        """Drop a resigned shard, if loaded. Requests in progress fail without being written."""
        shard = self._shards.pop(number, None)
        if shard is None:
            return
        shard.is_lost = True
        for transaction in shard.transactions.values():
            self._wheel.cancel(transaction.transactional_id)
            if transaction.completion_task is not None:
                transaction.completion_task.cancel()

    async def close(self) -> None:
        """Drop all shards and cancel all tasks."""
        self._closed = True
        for number in list(self._shards):
            self.drop_shard(number)
        self._wheel.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- requests

    def coordinator_of(self, transactional_id: str) -> int:
        """Return the id of the broker that coordinates the transactional id, -1 if none does now."""
        return self._ownership.owner_of(keys.shard_of(transactional_id))

    async def init_producer_id(
        self, transactional_id: str, timeout_ms: int, claimed: ProducerIdentity | None
    ) -> tuple[ErrorCode, ProducerIdentity]:
        """Return a producer id and epoch that fence the previous producer of the transactional id."""
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
            # It may have been removed while this waited for the lock.
            shard.transactions.setdefault(transactional_id, transaction)
            record = transaction.record
            new_id = await self._ids.next_id() if state_machine.needs_new_id(record) else None
            transition = state_machine.init_producer(record, claimed, timeout_ms, self._clock.wall_ms(), new_id)
            return await self._write(transaction, transition)

        error = await self._locked(transaction, work)
        if transaction.record is None and transaction.is_known and not transaction.lock.locked():
            shard.transactions.pop(transactional_id, None)
        if error or transaction.record is None:
            return error, NO_PRODUCER
        return error, ProducerIdentity(transaction.record.producer_id, transaction.record.epoch)

    async def add_to_transaction(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Mapping[UUID, Iterable[int]],
        groups: Iterable[str] = (),
    ) -> ErrorCode:
        """Add partitions and groups to the ongoing transaction, or start one. Durable on return."""
        return (await self.add_and_verify(transactional_id, producer, partitions, groups)).error

    async def add_and_verify(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Mapping[UUID, Iterable[int]],
        groups: Iterable[str] = (),
    ) -> VerifiedTransaction:
        """Do what `add_to_transaction` does. Returns the number of the transaction, too (KIP-890, part 2)."""
        number = -1

        def decide(record: TransactionRecord | None) -> TxnTransition:
            nonlocal number
            now_ms = self._clock.wall_ms()
            transition = state_machine.add_to_transaction(record, producer, partitions, groups, now_ms)
            after = transition.record or record
            number = -1 if after is None else after.number
            return transition

        return VerifiedTransaction(await self._update(transactional_id, decide), number)

    async def end_transaction(self, transactional_id: str, producer: ProducerIdentity, committed: bool) -> ErrorCode:
        """Commit or abort the transaction. Returns when the decision is durable; markers follow."""
        now = self._clock.wall_ms
        return await self._update(
            transactional_id, lambda record: state_machine.end_transaction(record, producer, committed, now())
        )

    async def end_and_bump(
        self, transactional_id: str, producer: ProducerIdentity, committed: bool
    ) -> tuple[ErrorCode, ProducerIdentity]:
        """Do what `end_transaction` does, and return the producer's next identity (EndTxn 5)."""
        next_identity = NO_PRODUCER

        async def work(transaction: TransactionState) -> ErrorCode:
            nonlocal next_identity
            record = transaction.record
            new_id = await self._ids.next_id() if state_machine.needs_new_id_to_end(record, producer) else None
            now_ms = self._clock.wall_ms()
            transition = state_machine.end_and_bump(record, producer, committed, now_ms, new_id)
            error = await self._write(transaction, transition)
            if not error and transaction.record is not None:
                next_identity = state_machine.identity_after(transaction.record)
            return error

        return await self._work(transactional_id, work), next_identity

    def verify(
        self, transactional_id: str, producer: ProducerIdentity, topic_id: UUID, index: int
    ) -> VerifiedTransaction:
        """Return whether a partition is part of the producer's ongoing transaction (KIP-890)."""
        transaction, error = self._find(transactional_id)
        if error or transaction is None:
            return VerifiedTransaction(error)
        record = transaction.record
        includes = record is not None and index in record.partitions.get(topic_id, ())
        return state_machine.verify(record, producer, includes)

    def verify_group(self, transactional_id: str, producer: ProducerIdentity, group_id: str) -> VerifiedTransaction:
        """Return whether a group is part of the producer's ongoing transaction."""
        transaction, error = self._find(transactional_id)
        if error or transaction is None:
            return VerifiedTransaction(error)
        record = transaction.record
        return state_machine.verify(record, producer, record is not None and group_id in record.groups)

    def verify_group_shard(self, transactional_id: str, producer: ProducerIdentity, shard: int) -> VerifiedTransaction:
        """Return whether any group of a coordinator shard is part of the ongoing transaction. Other brokers name groups
        by their shard."""
        transaction, error = self._find(transactional_id)
        if error or transaction is None:
            return VerifiedTransaction(error)
        record = transaction.record
        includes = record is not None and any(keys.shard_of(group_id) == shard for group_id in record.groups)
        return state_machine.verify(record, producer, includes)

    async def confirm_ownership(self, transactional_id: str) -> ErrorCode:
        """Return NONE if the store confirms that this broker coordinates the id, else a retriable error.

        Called before any of `state_machine.FATAL_ERRORS` is returned. A valid lease is not enough: a broker renews it
        even while it misses shard reassignments.
        """
        shard, error = self._shard(transactional_id)
        if shard is None:
            return error
        try:
            await shards.confirm_ownership(self._store, shard)
        except ShardLost as e:
            log.warning("transaction shard lost to another broker", reason=str(e))
            self._handle_lost(shard)
            return ErrorCode.NOT_COORDINATOR
        except StoreError as e:
            log.info("cannot confirm the owner of a coordinator shard", id=transactional_id, reason=str(e))
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE

    async def check_feature_level(self, level: int) -> ErrorCode:
        """Return NONE if the cluster has at least this feature level, by a linearizable read."""
        try:
            entry = await self._store.get(keys.CLUSTER)
            stored = 0 if entry is None else records.decode(ClusterRecord, entry.key, entry.value).feature_level
        except (StoreError, BadRecord) as e:
            log.warning("cannot read the feature level", reason=str(e))
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE if stored >= level else ErrorCode.UNSUPPORTED_VERSION

    async def confirm_shards(self) -> ErrorCode:
        """Drop the shards that are another broker's by now, so that no transaction is reported by two coordinators.

        One linearizable read for all shards. Returns an error if the store cannot be read.
        """
        owned = list(self._shards.values())
        if not owned:
            return ErrorCode.NONE
        try:
            revisions = await self._ownership.read_revisions()
        except StoreError as e:
            log.info("cannot read the owners of coordinator shards", reason=str(e))
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        for shard in owned:
            if revisions.get(shard.number, 0) != shard.guard.revision:
                self._handle_lost(shard)
        return ErrorCode.NONE

    def describe(self, transactional_id: str) -> tuple[ErrorCode, TransactionRecord | None]:
        """Return the record of a transactional id, or an error."""
        transaction, error = self._find(transactional_id)
        if transaction is None or transaction.record is None:
            unknown = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
            return (unknown if error in (0, ErrorCode.INVALID_PRODUCER_ID_MAPPING) else error), None
        return ErrorCode.NONE, transaction.record

    def __iter__(self) -> Iterator[tuple[str, TransactionRecord]]:
        """Iterate over all transactional ids of the loaded shards."""
        for shard in self._shards.values():
            for transactional_id, transaction in shard.transactions.items():
                if transaction.record is not None:
                    yield transactional_id, transaction.record

    @property
    def unavailable(self) -> ErrorCode:
        """The error that makes a list of all transactions incomplete, or NONE."""
        return self._ownership.loading_error

    # --- internal

    def _shard(self, transactional_id: str) -> tuple[TxnShard | None, ErrorCode]:
        number = keys.shard_of(transactional_id)
        error = self._ownership.error(number)
        shard = self._shards.get(number)
        return (None, error or ErrorCode.NOT_COORDINATOR) if error or shard is None else (shard, ErrorCode.NONE)

    def _handle_lost(self, shard: TxnShard) -> None:
        """Drop a shard that the store assigns to another broker."""
        if self._shards.get(shard.number) is shard:
            self.drop_shard(shard.number)
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

    async def _update(
        self, transactional_id: str, decide: Callable[[TransactionRecord | None], TxnTransition]
    ) -> ErrorCode:
        return await self._work(transactional_id, lambda one: self._write(one, decide(one.record)))

    async def _work(self, transactional_id: str, work: Callable[[TransactionState], Work]) -> ErrorCode:
        """Run `work` for a known transactional id; see `_locked`."""
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        shard, error = self._shard(transactional_id)
        if shard is None:
            return error
        transaction = shard.transactions.get(transactional_id)
        if transaction is None:
            return await self.confirm_ownership(transactional_id) or ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return await self._locked(transaction, lambda: work(transaction))

    async def _locked(self, transaction: TransactionState, work: Callable[[], Work]) -> ErrorCode:
        """Run `work` with the id's lock held and its record known. Returns its error, or why it did not run."""
        async with transaction.lock:
            shard = transaction.shard
            if shard.is_lost:
                return ErrorCode.NOT_COORDINATOR
            try:
                if not transaction.is_known:
                    await self._reload(transaction)
                return await work()
            except ShardLost as e:
                log.warning("transaction shard lost to another broker", reason=str(e))
                self._handle_lost(shard)
                return ErrorCode.NOT_COORDINATOR
            except (StoreError, BadRecord) as e:
                log.warning("cannot write transaction", id=transaction.transactional_id, error=str(e))
                if not transaction.is_known and not shard.is_lost:
                    self._wheel.schedule(transaction.transactional_id, RELOAD_DELAY_S)
                return ErrorCode.COORDINATOR_NOT_AVAILABLE

    async def _reload(self, transaction: TransactionState) -> None:
        """Read the record after a write with an unknown outcome. Raises StoreError, BadRecord."""
        transaction.load_entry(await self._store.get(transaction.key))
        self._arm(transaction)

    async def _write(self, transaction: TransactionState, transition: TxnTransition) -> ErrorCode:
        """Write the transition's record and return its error. Errors without a record are returned only after the
        ownership is confirmed, because clients do not retry fatal ones."""
        if transition.record is not None:
            await shards.write_record(self._store, transaction, transition.record)
            self._arm(transaction)
        elif transition.error is not ErrorCode.CONCURRENT_TRANSACTIONS:
            await shards.confirm_ownership(self._store, transaction.shard)
        return transition.error

    def _arm(self, transaction: TransactionState) -> None:
        """Schedule the timeout, expiry or completion that the record's state requires."""
        record = transaction.record
        if record is None or transaction.shard.is_lost:
            return
        state, now_ms = state_of(record), self._clock.wall_ms()
        if state in PREPARED:
            self._wheel.cancel(transaction.transactional_id)
            if transaction.completion_task is None:
                transaction.completion_task = self._spawn(self._complete(transaction))
        elif state is TxnState.ONGOING:
            self._wheel.schedule(transaction.transactional_id, transaction.remaining_s(now_ms, now_s()))
        elif state in IDLE:
            due_ms = record.updated_ms + self.config.transactional_id_expiration_ms
            self._wheel.schedule(transaction.transactional_id, (due_ms - now_ms) / 1000)

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = spawn(work, "transaction")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _on_timer(self, transactional_id: str) -> None:
        transaction, _ = self._find(transactional_id)
        if transaction is not None and not self._closed:
            self._spawn(self._handle_timeout(transaction))

    async def _handle_timeout(self, transaction: TransactionState) -> None:
        """Abort, expire or reload a transactional id whose timer has fired."""

        async def work() -> ErrorCode:
            record, now_ms = transaction.record, self._clock.wall_ms()
            if record is None:
                transaction.shard.transactions.pop(transaction.transactional_id, None)
                return ErrorCode.NONE
            state = state_of(record)
            if state is TxnState.ONGOING and transaction.remaining_s(now_ms, now_s()) <= 0:
                log.info("transaction timed out: aborting", id=transaction.transactional_id)
                return await self._write(transaction, state_machine.abort_timed_out(record, now_ms))
            unused_ms = now_ms - record.updated_ms
            if state in IDLE and unused_ms >= self.config.transactional_id_expiration_ms:
                if self._is_paused():
                    self._wheel.schedule(transaction.transactional_id, PAUSED_RECHECK_S)
                    return ErrorCode.NONE
                await shards.write_record(self._store, transaction, None)
                transaction.shard.transactions.pop(transaction.transactional_id, None)
                return ErrorCode.NONE
            self._arm(transaction)
            return ErrorCode.NONE

        if await self._locked(transaction, work) == ErrorCode.COORDINATOR_NOT_AVAILABLE:
            self._wheel.schedule(transaction.transactional_id, RELOAD_DELAY_S)

    async def _complete(self, transaction: TransactionState) -> None:
        """Send the outcome to all partitions and groups, then store the completion."""
        shard = transaction.shard
        try:
            record = transaction.record
            assert record is not None, "a prepared transaction has a record"
            await Completion(
                transaction, record, self._markers, lambda: shards.confirm_ownership(self._store, shard)
            ).run()
        except ShardLost as e:
            log.warning("transaction shard lost to another broker", reason=str(e))
            self._handle_lost(shard)
            return
        finally:
            transaction.completion_task = None

        async def work() -> ErrorCode:
            if transaction.record is None or state_of(transaction.record) not in PREPARED:
                return ErrorCode.NONE
            completed = state_machine.complete(transaction.record, self._clock.wall_ms())
            return await self._write(transaction, TxnTransition(ErrorCode.NONE, completed))

        await self._locked(transaction, work)


def now_s() -> float:
    """Return the event loop's time."""
    return asyncio.get_running_loop().time()
