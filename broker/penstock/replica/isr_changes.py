"""Writes ISR changes to the store. Only the leader proposes them (KIP-497), one at a time per partition.

Many partitions shrink at once when a follower fails, so changes share transactions. Each is conditional on the
partition's record, the leader's registration, and the registrations of joining members. A failed transaction is split
until the failing change is found. Created by `IsrKeeper`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple
from uuid import UUID

from penstock.replica.isr import IsrChange, Member
from penstock.runtime.logging import get_logger
from penstock.runtime.tasks import spawn
from penstock.state import keys
from penstock.state.records import BadRecord, BrokerRecord, PartitionRecord, decode, encode
from penstock.state.store import MAX_TXN_OPERATIONS, Compare, CompareTarget, Operation, PutOp, Store, StoreError

logger = get_logger("penstock.replica")

RETRY_S = 0.2
MAX_RETRY_S = 5.0
BATCH_DELAY_S = 0.01
"""Delay before pending changes are written: changes mostly come together, and every broker sees each transaction."""
MAX_LOGGED_CHANGES = 4
"""Changes per transaction up to which each is logged."""
MAX_BATCH_PARTITIONS = 96
"""Partitions per transaction; leaves room for the conditions on registrations."""

OnRefused = Callable[[IsrChange], None]


class IsrProposal(NamedTuple):
    """A proposed ISR change."""

    change: IsrChange
    on_refused: OnRefused
    """Called if the change was not made and the record is unchanged."""


class IsrChanges:
    """The proposals in progress, by (topic id, partition). A leader has at most one."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.pending: dict[tuple[UUID, int], IsrProposal] = {}
        self.task: asyncio.Task[None] | None = None
        self.closed = False
        self.transactions = 0

    def submit(self, change: IsrChange, on_refused: OnRefused) -> None:
        """Schedule a change. The view reports its success; `on_refused` is called if it cannot be made.

        Replaces a pending change of the same partition, which is based on an outdated record or role.
        """
        self.pending.pop((change.topic_id, change.index), None)
        self.pending[change.topic_id, change.index] = IsrProposal(change, on_refused)
        if self.task is None and not self.closed:
            self.task = spawn(self.run(), "isr-changes")

    async def close(self) -> None:
        """Stop writing changes."""
        self.closed = True
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])

    async def run(self) -> None:
        """Write pending changes in batches until none are left."""
        try:
            while self.pending and not self.closed:
                await asyncio.sleep(BATCH_DELAY_S)
                batch = [self.pending.pop(place) for place in list(islice(self.pending, MAX_BATCH_PARTITIONS))]
                await self.write(batch)
        finally:
            self.task = None

    async def write(self, batch: list[IsrProposal]) -> None:
        """Write the changes that can be made; return when all are decided.

        Retries while the store is unavailable: the changes may have been made, and the leader counts both ISRs
        meanwhile.
        """
        backoff_s = RETRY_S
        while True:
            try:
                await self.try_write(batch)
                return
            except StoreError as e:
                logger.warning("cannot write ISR changes: retrying", count=len(batch), reason=str(e))
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, MAX_RETRY_S)

    async def try_write(self, batch: list[IsrProposal]) -> None:
        """Attempt one transaction. Removes decided changes from `batch`. Raises StoreError."""
        joined = dict.fromkeys(m for p in batch for m in p.change.joined)
        registered = {m: await self.registration(m) for m in joined}
        for proposal in list(batch):
            if any(registered[m] is None for m in proposal.change.joined):
                # An earlier attempt without a response may have made the change.
                await self.check_outcome(proposal)
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
            await self.check_outcome(batch[0])
            batch.clear()

    async def split(self, batch: list[IsrProposal]) -> None:
        """Write both halves. Removes decided changes from `batch`."""
        half = len(batch) // 2
        for part in (batch[:half], batch[half:]):
            done = list(part)
            await self.write(part)
            batch[:] = [p for p in batch if p not in done]

    async def check_outcome(self, proposal: IsrProposal) -> None:
        """Check the outcome of a change that cannot be made. If the record has changed, the view reports it."""
        change = proposal.change
        entry = await self.store.get(keys.partition(change.topic_id, change.index))
        if entry is not None and entry.mod_revision == change.before.revision:
            proposal.on_refused(change)

    async def registration(self, member: Member) -> Compare | None:
        """Return the condition that a joining broker is still registered; None if it may not join."""
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
    """Return the condition that this incarnation of a broker is registered."""
    return Compare(keys.broker(member[0]), CompareTarget.CREATE_REVISION, member[1])


def record_of(change: IsrChange) -> PartitionRecord:
    """Return the partition record with the changed ISR."""
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
    """Log each change, or one line for many."""
    if len(batch) > MAX_LOGGED_CHANGES:
        joined = sorted({broker_id for p in batch for broker_id, _ in p.change.joined})
        logger.info("ISRs changed", partitions=len(batch), joined=joined)
        return
    for change in (p.change for p in batch):
        before, after = change.before.isr, [broker_id for broker_id, _ in change.isr]
        logger.info("ISR changed", topic_id=str(change.topic_id), partition=change.index, before=before, after=after)
