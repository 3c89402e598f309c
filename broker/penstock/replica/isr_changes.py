"""Writes changes of ISRs into the store: only a partition's leader proposes them (KIP-497), one at a time for each.

Many partitions shrink at once when a follower dies, so proposals are collected into transactions; each is held against
its own record as the leader knew it, the leader's registration, and those of who joins. A transaction that fails is
split until it is known which of them cannot be. Made by `IsrKeeper`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple
from uuid import UUID

from penstock.replica.isr import IsrChange, Member
from penstock.runtime.logging import get_logger
from penstock.state import keys
from penstock.state.records import BadRecord, BrokerRecord, PartitionRecord, decode, encode
from penstock.state.store import MAX_TXN_OPERATIONS, Compare, CompareTarget, Operation, PutOp, Store, StoreError

logger = get_logger("penstock.replica")

RETRY_S = 0.2
MAX_RETRY_S = 5.0
GATHER_S = 0.01
"""Before what waits is written: where one changes, mostly others do, and each transaction is seen by every broker."""
LINES = 4
"""Changes in a transaction that are logged one by one."""
BATCH = 96
"""Partitions in a transaction: leaves room for the conditions on registrations."""

Refused = Callable[[IsrChange], None]


class IsrProposal(NamedTuple):
    change: IsrChange
    refused: Refused
    """Called where the change was not made and the record is as it was."""


class IsrChanges:
    """Proposals under way. `key` of a proposal is (topic id, partition); its leader has no other meanwhile."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.waiting: dict[tuple[UUID, int], IsrProposal] = {}
        self.task: asyncio.Task[None] | None = None
        self.closed = False
        self.transactions = 0

    def submit(self, change: IsrChange, refused: Refused) -> None:
        """Has a change written soon. The view tells when it was; `refused` is called where it cannot be.

        An earlier one of the same partition that still waits is of an earlier record or role: it could not succeed.
        """
        self.waiting.pop((change.topic_id, change.index), None)
        self.waiting[change.topic_id, change.index] = IsrProposal(change, refused)
        if self.task is None and not self.closed:
            self.task = asyncio.get_running_loop().create_task(self.work(), name="isr-changes")

    async def close(self) -> None:
        self.closed = True
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])

    async def work(self) -> None:
        try:
            while self.waiting and not self.closed:
                await asyncio.sleep(GATHER_S)
                batch = [self.waiting.pop(place) for place in list(islice(self.waiting, BATCH))]
                await self.write(batch)
        finally:
            self.task = None

    async def write(self, batch: list[IsrProposal]) -> None:
        """Makes the changes that can be made; returns when each is decided.

        Where the store does not answer, the same is tried again: until then the change may have been made, and the
        leader counts with both.
        """
        pause_s = RETRY_S
        while True:
            try:
                await self.attempt(batch)
                return
            except StoreError as e:
                logger.warning("changes of ISRs wait for the store", count=len(batch), reason=str(e))
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, MAX_RETRY_S)

    async def attempt(self, batch: list[IsrProposal]) -> None:
        joined = dict.fromkeys(m for p in batch for m in p.change.joined)
        registered = {m: await self.registration(m) for m in joined}
        for proposal in list(batch):
            if any(registered[m] is None for m in proposal.change.joined):
                # An attempt without an answer may have made it while the member was still registered.
                await self.decide(proposal)
                batch.remove(proposal)
        if not batch:
            return
        compares = [c for m in joined if (c := registered[m]) is not None]
        compares += [registration_of(m) for m in dict.fromkeys(p.change.leader for p in batch) if m[1] >= 0]
        puts: list[Operation] = []
        for proposal in batch:
            change = proposal.change
            key = keys.partition(change.topic_id, change.index)
            compares.append(Compare(key, CompareTarget.MOD_REVISION, change.before.revision))
            puts.append(PutOp(key, encode(record_of(change))))
        if len(compares) > MAX_TXN_OPERATIONS:
            await self.split(batch)
            return
        self.transactions += 1
        result = await self.store.txn(compares, puts)
        if result.succeeded:
            log_changes(batch)
            batch.clear()
        elif len(batch) > 1:
            await self.split(batch)
        else:
            await self.decide(batch[0])
            batch.clear()

    async def split(self, batch: list[IsrProposal]) -> None:
        """Halves are done one after the other; what is decided is taken out of `batch`."""
        half = len(batch) // 2
        for part in (batch[:half], batch[half:]):
            done = list(part)
            await self.write(part)
            batch[:] = [p for p in batch if p not in done]

    async def decide(self, proposal: IsrProposal) -> None:
        """Finds out what became of a change that cannot be made. Where the record has changed, by this change or by
        another, the view will tell of it."""
        change = proposal.change
        entry = await self.store.get(keys.partition(change.topic_id, change.index))
        if entry is not None and entry.mod_revision == change.before.revision:
            proposal.refused(change)

    async def registration(self, member: Member) -> Compare | None:
        """The condition that a broker that joins is registered as it is now; None where it may not join."""
        key = keys.broker(member[0])
        entry = await self.store.get(key)
        if entry is None or entry.create_revision != member[1]:
            return None
        try:
            if decode(BrokerRecord, key, entry.value).draining:
                return None
        except BadRecord:
            return None
        return Compare.unchanged(entry)


def registration_of(member: Member) -> Compare:
    """That a broker is registered in this incarnation."""
    return Compare(keys.broker(member[0]), CompareTarget.CREATE_REVISION, member[1])


def record_of(change: IsrChange) -> PartitionRecord:
    placed = change.before
    return PartitionRecord(
        replicas=placed.replicas,
        leader=placed.leader,
        leader_epoch=placed.leader_epoch,
        isr=[broker_id for broker_id, _ in change.isr],
        adding=placed.adding,
        removing=placed.removing,
        isr_epochs=[epoch for _, epoch in change.isr],
        eligible=change.eligible,
    )


def log_changes(batch: list[IsrProposal]) -> None:
    """One line where there are few, one for all where a broker came or went."""
    if len(batch) > LINES:
        joined = sorted({broker_id for p in batch for broker_id, _ in p.change.joined})
        logger.info("ISRs change", partitions=len(batch), joined=joined)
        return
    for change in (p.change for p in batch):
        before, after = change.before.isr, [broker_id for broker_id, _ in change.isr]
        logger.info("an ISR changes", topic_id=str(change.topic_id), partition=change.index, before=before, after=after)
