"""Tells everybody how a transaction was decided, until all know: partitions, and the coordinators of the groups whose
offsets it brought.

One for each transaction that is decided and not complete; driven by `coordinator`, which starts it anew after a
restart, or when the shard has come from another broker. All that it does may be done twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from penstock.runtime.logging import get_logger
from penstock.state import keys
from penstock.state.records import TransactionRecord
from penstock.state.store import StoreError
from penstock.txn.router import MarkerSender
from penstock.txn.shards import TransactionState
from penstock.txn.state_machine import TxnState, state_of
from penstock.txn.transaction_partitions import OFFSETS_TOPIC_ID, TransactionEnding, TransactionPartition
from penstock.wire.control_batch import Marker
from penstock.wire.errors import ErrorCode

log = get_logger(__name__)

FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 1.0


class Completion:
    """What is left to do for one transaction. `confirm` returns while the shard is this broker's; it raises ShardLost,
    StoreError."""

    def __init__(
        self,
        transaction: TransactionState,
        record: TransactionRecord,
        markers: MarkerSender,
        confirm: Callable[[], Awaitable[None]],
    ) -> None:
        self.transaction, self.markers, self.confirm = transaction, markers, confirm
        committed = state_of(record) is TxnState.PREPARE_COMMIT
        marker = Marker(record.producer_id, record.epoch, committed, transaction.shard.epoch)
        self.ending = TransactionEnding(marker, record.number)
        self.places = [
            TransactionPartition(topic_id, index)
            for topic_id, indexes in record.partitions.items()
            for index in indexes
        ]
        self.places += [
            TransactionPartition(OFFSETS_TOPIC_ID, number) for number in sorted(set(map(keys.shard_of, record.groups)))
        ]

    async def run(self) -> None:
        """Returns when all are told. Raises ShardLost where another coordinator has the shard."""
        pause_s = FIRST_PAUSE_S
        while self.places:
            errors = await self.markers.send(self.ending, self.places)
            told = {place for place in self.places if self.is_told(place, errors[place])}
            self.places = [place for place in self.places if place not in told]
            if ErrorCode.TRANSACTION_COORDINATOR_FENCED in errors.values():
                await self.check()
            if self.places:
                await asyncio.sleep(pause_s)
                pause_s = FIRST_PAUSE_S if told else min(pause_s * 2, LONGEST_PAUSE_S)

    def is_told(self, place: TransactionPartition, error: ErrorCode) -> bool:
        if error == ErrorCode.INVALID_PRODUCER_EPOCH:
            # Its producer is in a later epoch there: somebody ended this transaction by hand.
            log.warning("a marker came too late", place=str(place), producer=self.ending.marker.producer_id)
            return True
        return not error

    async def check(self) -> None:
        """Somebody has heard of a newer coordinator. Whether there is one, the store knows."""
        try:
            await self.confirm()
        except StoreError as e:
            log.info("whose a shard is cannot be found out yet", reason=str(e))
        else:
            transactional_id = self.transaction.transactional_id
            log.error("a marker is refused as by a coordinator that does not exist", id=transactional_id)
