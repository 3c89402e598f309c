"""Writes many partitions in few transactions, each on the condition that it is still what was looked at.

A transaction that fails is split, so that one partition that somebody else changed does not hold up the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from penstock.control.controller.index import PartitionId
from penstock.control.controller.leadership import Leadership
from penstock.runtime.logging import get_logger
from penstock.state import keys
from penstock.state.records import PartitionRecord, encode
from penstock.state.store import MAX_TXN_OPERATIONS, Compare, CompareTarget, Operation, PutOp, Store, StoreUnavailable

log = get_logger("penstock.control")

BATCH = MAX_TXN_OPERATIONS - 1
"""Partitions in one transaction: the controller's key takes one of its conditions."""


@dataclass(frozen=True, slots=True)
class StoreProposal:
    """What a partition is to be, where its record is still the one of `revision`."""

    key: PartitionId
    revision: int
    record: PartitionRecord


class ProposalOutcome(Enum):
    """What became of a proposal."""

    WRITTEN = "written"
    STALE = "stale"
    """The partition is not what was looked at."""
    UNKNOWN = "unknown"
    """The store did not answer."""


Told = Callable[[StoreProposal, ProposalOutcome, int], None]
"""(proposal, fate, revision if written)."""


class ProposalWriter:
    """The controller's transactions on partitions, for as long as it is controller."""

    def __init__(self, store: Store, leadership: Leadership) -> None:
        self.store, self.leadership = store, leadership
        self.transactions = 0
        self.written = 0

    async def write(self, proposals: Sequence[StoreProposal], told: Told) -> None:
        """Tells the fate of each proposal; when the leadership is found to be over, it says so there and stops."""
        assert len(proposals) <= BATCH, f"{len(proposals)} partitions do not fit into one transaction"
        if not proposals or self.leadership.lost.is_set():
            return
        compares = [self.leadership.condition, *map(unchanged, proposals)]
        puts: list[Operation] = [PutOp(keys.partition(*p.key), encode(p.record)) for p in proposals]
        self.transactions += 1
        try:
            result = await self.store.txn(compares, puts)
        except StoreUnavailable as e:
            log.warning("partitions could not be written", partitions=len(proposals), reason=str(e))
            for proposal in proposals:
                told(proposal, ProposalOutcome.UNKNOWN, 0)
            return
        if result.succeeded:
            self.written += len(proposals)
            for proposal in proposals:
                told(proposal, ProposalOutcome.WRITTEN, result.revision)
        elif len(proposals) > 1:
            middle = len(proposals) // 2
            await self.write(proposals[:middle], told)
            await self.write(proposals[middle:], told)
        elif await self._is_over():
            self.leadership.lost.set()
        else:
            told(proposals[0], ProposalOutcome.STALE, 0)

    async def _is_over(self) -> bool:
        try:
            entry = await self.store.get(keys.CONTROLLER)
        except StoreUnavailable:
            return False
        return entry is None or entry.mod_revision != self.leadership.revision


def unchanged(proposal: StoreProposal) -> Compare:
    return Compare(keys.partition(*proposal.key), CompareTarget.MOD_REVISION, proposal.revision)
