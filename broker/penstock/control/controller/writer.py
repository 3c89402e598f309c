"""Writes many partitions in few transactions, each on the condition that the partition has not changed.

A failed transaction is split, so that one changed partition does not block the others.
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

MAX_BATCH_PARTITIONS = MAX_TXN_OPERATIONS - 1
"""Partitions in one transaction; the controller's key takes one of its conditions."""


@dataclass(frozen=True, slots=True)
class StoreProposal:
    """The new record of a partition, on the condition that its present one has `revision`."""

    key: PartitionId
    revision: int
    record: PartitionRecord


class ProposalOutcome(Enum):
    """The result of a proposal."""

    WRITTEN = "written"
    STALE = "stale"
    """The partition has changed."""
    UNKNOWN = "unknown"
    """The store did not respond."""


OutcomeCallback = Callable[[StoreProposal, ProposalOutcome, int], None]
"""(proposal, outcome, revision if written)."""


class ProposalWriter:
    """The controller's transactions on partitions."""

    def __init__(self, store: Store, leadership: Leadership) -> None:
        self.store, self.leadership = store, leadership
        self.transactions = 0
        self.written = 0

    async def write(self, proposals: Sequence[StoreProposal], on_outcome: OutcomeCallback) -> None:
        """Write the proposals and call `on_outcome` for each. Sets `leadership.lost` and stops if the leadership is
        over."""
        assert len(proposals) <= MAX_BATCH_PARTITIONS, f"{len(proposals)} partitions do not fit into one transaction"
        if not proposals or self.leadership.lost.is_set():
            return
        compares = [self.leadership.condition, *map(unchanged, proposals)]
        puts: list[Operation] = [PutOp(keys.partition(*p.key), encode(p.record)) for p in proposals]
        self.transactions += 1
        try:
            result = await self.store.txn(compares, puts)
        except StoreUnavailable as e:
            log.warning("partition changes not written; retrying", partitions=len(proposals), reason=str(e))
            for proposal in proposals:
                on_outcome(proposal, ProposalOutcome.UNKNOWN, 0)
            return
        if result.succeeded:
            self.written += len(proposals)
            for proposal in proposals:
                on_outcome(proposal, ProposalOutcome.WRITTEN, result.revision)
        elif len(proposals) > 1:
            middle = len(proposals) // 2
            await self.write(proposals[:middle], on_outcome)
            await self.write(proposals[middle:], on_outcome)
        elif await self._is_over():
            self.leadership.lost.set()
        else:
            on_outcome(proposals[0], ProposalOutcome.STALE, 0)

    async def _is_over(self) -> bool:
        try:
            entry = await self.store.get(keys.CONTROLLER)
        except StoreUnavailable:
            return False
        return entry is None or entry.mod_revision != self.leadership.revision


def unchanged(proposal: StoreProposal) -> Compare:
    """Return the condition that the partition still has the proposal's revision."""
    return Compare(keys.partition(*proposal.key), CompareTarget.MOD_REVISION, proposal.revision)
