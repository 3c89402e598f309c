"""Tells everybody how a transaction was decided, until all know: groups whose offsets it brought, and partitions.

One for each transaction that is decided and not complete; driven by `coordinator`, which starts it anew after a
restart. All that it does may be done twice.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from penstock.runtime.logging import get_logger
from penstock.state.records import TransactionRecord
from penstock.txn.markers import MarkerSender, Place
from penstock.txn.shards import Transaction
from penstock.txn.state_machine import Producer, TxnState, state_of
from penstock.wire.control_batch import Marker
from penstock.wire.errors import ErrorCode

log = get_logger(__name__)

FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 1.0


class OffsetDecider(Protocol):
    """Where a group's pending offsets are: `offsets.TxnOffsets`, or what asks the group's coordinator for it."""

    async def decide(self, group_id: str, producer: Producer, committed: bool) -> bool:
        """Folds them in or drops them; True when that is durable."""


class Completion:
    """What is left to do for one transaction."""

    def __init__(
        self,
        transaction: Transaction,
        record: TransactionRecord,
        markers: MarkerSender,
        offsets: OffsetDecider,
    ) -> None:
        self.transaction, self.markers, self.offsets = transaction, markers, offsets
        self.committed = state_of(record) is TxnState.PREPARE_COMMIT
        self.producer = Producer(record.producer_id, record.epoch)
        self.marker = Marker(record.producer_id, record.epoch, self.committed, transaction.shard.epoch)
        self.groups = list(record.groups)
        self.places = [Place(topic_id, index) for topic_id, indexes in record.partitions.items() for index in indexes]

    async def run(self) -> bool:
        """Returns when all are told; False where another coordinator has the shard."""
        pause_s = FIRST_PAUSE_S
        while True:
            _, fenced = await asyncio.gather(self.tell_groups(), self.tell_partitions())
            if fenced or self.transaction.shard.is_lost:
                return False
            if not self.groups and not self.places:
                return True
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    async def tell_groups(self) -> None:
        groups, self.groups = self.groups, []
        for group_id in groups:
            if not await self.offsets.decide(group_id, self.producer, self.committed):
                self.groups.append(group_id)

    async def tell_partitions(self) -> bool:
        """Whether a partition has heard of a newer coordinator of the shard."""
        if not self.places:
            return False
        errors = await self.markers.send(self.marker, self.places)
        self.places = []
        for place, error in errors.items():
            if error == ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                log.warning("another coordinator has written to a partition", partition=str(place))
                return True
            if error == ErrorCode.INVALID_PRODUCER_EPOCH:
                # Its producer is in a later epoch there: somebody ended this transaction by hand.
                log.warning("a marker came too late", partition=str(place), producer=self.marker.producer_id)
            elif error:
                self.places.append(place)
        return False
