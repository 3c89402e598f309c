"""Sends the outcome of a transaction to its partitions and group coordinators until all have acknowledged it.

One per prepared transaction. `coordinator` restarts it after a restart or when it acquires the shard. All requests are
idempotent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from penstock.runtime.logging import get_logger
from penstock.state import keys
from penstock.state.records import TransactionRecord, TxnState
from penstock.state.store import StoreError
from penstock.txn.router import MarkerSender
from penstock.txn.shards import TransactionState
from penstock.txn.state_machine import PREPARED, state_of
from penstock.txn.transaction_partitions import OFFSETS_TOPIC_ID, TransactionEnding, TransactionPartition
from penstock.wire.control_batch import Marker
from penstock.wire.errors import ErrorCode

log = get_logger(__name__)

INITIAL_BACKOFF_S = 0.02
MAX_BACKOFF_S = 1.0


class Completion:
    """The remaining work of one transaction. `confirm` returns if this broker owns the shard; it raises ShardLost or
    StoreError."""

    def __init__(
        self,
        transaction: TransactionState,
        record: TransactionRecord,
        markers: MarkerSender,
        confirm: Callable[[], Awaitable[None]],
    ) -> None:
        self.transaction, self.markers, self.confirm = transaction, markers, confirm
        state = state_of(record)
        assert state in PREPARED, f"{transaction.key} is {state.value}: its outcome is not decided"
        committed = state is TxnState.PREPARE_COMMIT
        marker = Marker(record.producer_id, record.epoch, committed, transaction.shard.guard.epoch)
        self.ending = TransactionEnding(marker, record.number)
        self.partitions = [
            TransactionPartition(topic_id, index)
            for topic_id, indexes in record.partitions.items()
            for index in indexes
        ]
        self.partitions += [
            TransactionPartition(OFFSETS_TOPIC_ID, number) for number in sorted(set(map(keys.shard_of, record.groups)))
        ]

    async def run(self) -> None:
        """Return when all partitions have acknowledged. Raises ShardLost if another coordinator owns the shard."""
        backoff_s = INITIAL_BACKOFF_S
        while self.partitions:
            errors = await self.markers.send(self.ending, self.partitions)
            acknowledged = {
                partition for partition in self.partitions if self.is_acknowledged(partition, errors[partition])
            }
            self.partitions = [partition for partition in self.partitions if partition not in acknowledged]
            if ErrorCode.TRANSACTION_COORDINATOR_FENCED in errors.values():
                await self.check_ownership()
            if self.partitions:
                await asyncio.sleep(backoff_s)
                backoff_s = INITIAL_BACKOFF_S if acknowledged else min(backoff_s * 2, MAX_BACKOFF_S)

    def is_acknowledged(self, partition: TransactionPartition, error: ErrorCode) -> bool:
        """Return whether the partition needs no further marker."""
        if error == ErrorCode.INVALID_PRODUCER_EPOCH:
            # The producer has a later epoch there: an administrator ended this transaction.
            log.warning(
                "transaction marker rejected: the producer has a later epoch",
                place=str(partition),
                producer=self.ending.marker.producer_id,
            )
            return True
        return not error

    async def check_ownership(self) -> None:
        """Check the store after a partition reported a newer coordinator epoch."""
        try:
            await self.confirm()
        except StoreError as e:
            log.info("cannot confirm the owner of a coordinator shard: retrying", reason=str(e))
        else:
            transactional_id = self.transaction.transactional_id
            log.error("transaction marker rejected by the epoch of an unknown coordinator", id=transactional_id)
