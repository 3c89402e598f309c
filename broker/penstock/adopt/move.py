"""Moves a broker's records from its data directory into an etcd without a cluster. Called by the command line.

In small transactions, the cluster's own record last, so that a store where this was interrupted is no cluster. Until
then a key of its own says that a move is under way: brokers refuse to begin a cluster beside it
(`control.membership.ensure_cluster`), and whoever runs the same move again finishes it, whatever came through before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from uuid import UUID

from penstock.adopt.files import STATE_FILE
from penstock.adopt.records import AdoptedRecords, carry, past_of
from penstock.adopt.source import AdoptedState, AdoptionSource, CannotAdopt
from penstock.control.members import history_key
from penstock.state import keys
from penstock.state.records import ClusterRecord, StoredRecord, decode, encode
from penstock.state.store import (
    MAX_TXN_OPERATIONS,
    Compare,
    DeleteOp,
    Operation,
    PutOp,
    Store,
    StoreEntry,
)

TXN_BYTES = 1 << 20
CURE_FOREIGN = f"give an etcd without them, or delete them: etcdctl del --prefix {keys.ROOT}"


class AdoptionRecord(StoredRecord, frozen=True, kw_only=True):
    """A move that is under way: of which directory."""

    cluster_id: str
    broker_id: int
    directory_id: UUID


@dataclass(frozen=True, slots=True)
class AdoptionPlan:
    """What would be moved, and what an earlier attempt has left to do."""

    contents: AdoptedState
    wanted: AdoptedRecords
    is_done: bool = False
    """The etcd has the cluster already: nothing is left to do."""
    is_resumed: bool = False


class Adoption:
    """One move. `plan` looks and writes nothing, `run` does it; both raise CannotAdopt and StoreError."""

    def __init__(self, source: AdoptionSource, store: Store) -> None:
        self.source, self.store = source, store

    async def plan(self) -> AdoptionPlan:
        contents = await self.source.read()
        wanted = carry(contents.entries, contents.broker_id, epoch=0)
        present = (await self.store.range(keys.ROOT)).entries
        by_key = {entry.key: entry for entry in present}
        if keys.CLUSTER in by_key:
            self._check_same(by_key[keys.CLUSTER], contents)
            return AdoptionPlan(contents, wanted, is_done=True)
        if keys.ADOPTION in by_key:
            self._check_mine(by_key[keys.ADOPTION], contents)
            return AdoptionPlan(contents, wanted, is_resumed=True)
        if self.source.is_retired:
            raise CannotAdopt(
                f"{self.source.path} was moved into a cluster, which this etcd does not hold: give that one's. Only if"
                f" that was never finished and its etcd is gone, rename {self.source.store_path} back to {STATE_FILE}"
            )
        if present:
            raise CannotAdopt(
                f"this etcd holds no cluster, but {len(present):,} keys under {keys.ROOT}, such as {present[0].key}:"
                f" {CURE_FOREIGN}"
            )
        return AdoptionPlan(contents, wanted)

    def _check_same(self, entry: StoreEntry, contents: AdoptedState) -> None:
        found = decode(ClusterRecord, entry.key, entry.value).cluster_id
        mine = contents.cluster.cluster_id
        if found != mine:
            raise CannotAdopt(
                f"this etcd holds the cluster {found} already, and {self.source.path} is of {mine}: clusters cannot be"
                " joined. Give another etcd; or keep that cluster, start a broker of it elsewhere, and copy topics"
            )
        if not self.source.is_retired:
            raise CannotAdopt(
                f"this etcd holds the cluster {mine}, and {self.source.path} is from before it was moved there, from a"
                " backup perhaps. What came in the cluster since then is not in it. To go back to it for good, delete"
                f" the cluster (etcdctl del --prefix {keys.ROOT}), then run this again"
            )

    def _check_mine(self, entry: StoreEntry, contents: AdoptedState) -> None:
        found = decode(AdoptionRecord, entry.key, entry.value)
        if found.directory_id != contents.directory_id:
            raise CannotAdopt(
                f"the move of another directory into this etcd was begun (broker {found.broker_id} of cluster"
                f" {found.cluster_id}) and not finished: finish that, or delete it: etcdctl del --prefix {keys.ROOT}"
            )

    async def run(self, plan: AdoptionPlan, on_written: Callable[[int], None] = lambda count: None) -> None:
        """Returns when the etcd has the cluster. `on_written` is told how many keys are there.

        Raises StoreUnavailable where that is not known; the same move may be run again then.
        """
        if plan.is_done:
            return
        contents = plan.contents
        claim, epoch = await self._claim(contents)
        wanted = carry(contents.entries, contents.broker_id, epoch).values
        await self._write(claim, wanted, on_written)
        # From here on the directory is the cluster's or nobody's: never a broker's that is alone, and the cluster's.
        self.source.retire()
        try:
            await self._txn(claim, [PutOp(keys.CLUSTER, encode(contents.cluster)), DeleteOp(keys.ADOPTION)])
        except CannotAdopt:
            self.source.reinstate()
            raise

    async def _claim(self, contents: AdoptedState) -> tuple[StoreEntry, int]:
        """Writes that this move is under way, and the broker's past; returns the former and the epoch of the latter."""
        entry = await self.store.get(keys.ADOPTION)
        record = AdoptionRecord(
            cluster_id=contents.cluster.cluster_id, broker_id=contents.broker_id, directory_id=contents.directory_id
        )
        unchanged = Compare.absent(keys.ADOPTION) if entry is None else Compare.unchanged(entry)
        await self.store.txn(
            [Compare.absent(keys.CLUSTER), unchanged],
            [
                PutOp(keys.ADOPTION, encode(record)),
                PutOp(history_key(contents.broker_id), past_of(contents.directory_id)),
            ],
        )
        claim, past = await self.store.get(keys.ADOPTION), await self.store.get(history_key(contents.broker_id))
        if claim is None or past is None or claim.mod_revision != past.mod_revision:
            raise CannotAdopt("somebody else writes to this etcd: see who, and run this again")
        self._check_mine(claim, contents)
        return claim, past.mod_revision

    async def _write(self, claim: StoreEntry, wanted: dict[str, bytes], on_written: Callable[[int], None]) -> None:
        kept = {claim.key, history_key(decode(AdoptionRecord, claim.key, claim.value).broker_id)}
        present = {e.key: e.value for e in (await self.store.range(keys.ROOT)).entries if e.key not in kept}
        operations: list[Operation] = [DeleteOp(key) for key in present if key not in wanted]
        operations += [PutOp(key, value) for key, value in wanted.items() if present.get(key) != value]
        written = len(wanted) - sum(isinstance(operation, PutOp) for operation in operations)
        for batch in batches(operations):
            await self._txn(claim, batch)
            written += sum(isinstance(operation, PutOp) for operation in batch)
            on_written(written)

    async def _txn(self, claim: StoreEntry, operations: list[Operation]) -> None:
        conditions = [Compare.absent(keys.CLUSTER), Compare.unchanged(claim)]
        if not (await self.store.txn(conditions, operations)).succeeded:
            raise CannotAdopt(
                "somebody else began a cluster in this etcd, or another move: see who, and run this again"
            )


def batches(operations: list[Operation]) -> Iterator[list[Operation]]:
    """In order, each small enough for one transaction."""
    batch: list[Operation] = []
    size_bytes = 0
    for operation in operations:
        size = len(operation.key.encode()) + (len(operation.value) if isinstance(operation, PutOp) else 0)
        if batch and (len(batch) == MAX_TXN_OPERATIONS or size_bytes + size > TXN_BYTES):
            yield batch
            batch, size_bytes = [], 0
        batch.append(operation)
        size_bytes += size
    if batch:
        yield batch
