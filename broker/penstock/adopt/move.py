"""Copies a single broker's records from its data directory into an etcd without a cluster. Called by the command line.

It writes small transactions, the cluster record last, so an interrupted move leaves no cluster. Until then, a claim key
marks the move: brokers refuse to create a cluster next to it (`control.membership.ensure_cluster`), and running the
same move again completes it, whatever was written before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from uuid import UUID

from penstock.adopt.files import STATE_FILE
from penstock.adopt.records import AdoptedRecords, convert_records, history_record
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

MAX_TXN_BYTES = 1 << 20
FOREIGN_KEYS_FIX = f"use an etcd without them, or delete them: etcdctl del --prefix {keys.ROOT}"


class AdoptionRecord(StoredRecord, frozen=True, kw_only=True):
    """A move in progress, with the identity of its directory."""

    cluster_id: str
    broker_id: int
    directory_id: UUID


@dataclass(frozen=True, slots=True)
class AdoptionPlan:
    """The records to move, and the progress of an earlier attempt."""

    state: AdoptedState
    records: AdoptedRecords
    is_done: bool = False
    """Whether the etcd already holds the cluster: there is nothing to do."""
    is_resumed: bool = False


class Adoption:
    """One move. `plan` only reads, `run` writes; both raise CannotAdopt and StoreError."""

    def __init__(self, source: AdoptionSource, store: Store) -> None:
        self.source, self.store = source, store

    async def plan(self) -> AdoptionPlan:
        """Read the directory and the etcd, and return what is left to do."""
        state = await self.source.read()
        records = convert_records(state.entries, state.broker_id, epoch=0)
        present = (await self.store.range(keys.ROOT)).entries
        by_key = {entry.key: entry for entry in present}
        if keys.CLUSTER in by_key:
            self._check_same_cluster(by_key[keys.CLUSTER], state)
            return AdoptionPlan(state, records, is_done=True)
        if keys.ADOPTION in by_key:
            self._check_claim(by_key[keys.ADOPTION], state)
            return AdoptionPlan(state, records, is_resumed=True)
        if self.source.is_retired:
            raise CannotAdopt(
                f'"{self.source.path}" was moved into a cluster that this etcd does not hold; use the etcd of that'
                " cluster. Only if that move never finished and its etcd is lost, rename"
                f' "{self.source.store_path}" back to {STATE_FILE}'
            )
        if present:
            raise CannotAdopt(
                f"this etcd holds no cluster, but {len(present):,} keys under {keys.ROOT}, such as"
                f' "{present[0].key}"; {FOREIGN_KEYS_FIX}'
            )
        return AdoptionPlan(state, records)

    def _check_same_cluster(self, entry: StoreEntry, state: AdoptedState) -> None:
        found = decode(ClusterRecord, entry.key, entry.value).cluster_id
        own = state.cluster.cluster_id
        if found != own:
            raise CannotAdopt(
                f'this etcd already holds cluster "{found}", and "{self.source.path}" belongs to cluster "{own}":'
                " clusters cannot be merged; use another etcd, or add a broker to that cluster and copy the topics"
            )
        if not self.source.is_retired:
            raise CannotAdopt(
                f'this etcd holds cluster "{own}", and "{self.source.path}" is from before its move there, perhaps a'
                " backup: it lacks what the cluster has received since. To return to it, delete the cluster"
                f" (etcdctl del --prefix {keys.ROOT}), then run this command again"
            )

    def _check_claim(self, entry: StoreEntry, state: AdoptedState) -> None:
        found = decode(AdoptionRecord, entry.key, entry.value)
        if found.directory_id != state.directory_id:
            raise CannotAdopt(
                f"the move of another directory into this etcd has not finished (broker {found.broker_id} of cluster"
                f' "{found.cluster_id}"); finish it, or delete it: etcdctl del --prefix {keys.ROOT}'
            )

    async def run(self, plan: AdoptionPlan, on_written: Callable[[int], None] = lambda count: None) -> None:
        """Run the move; return when the etcd holds the cluster. `on_written` gets the number of records written so far.

        Raises StoreUnavailable if the outcome is unknown; the same move may be run again then.
        """
        if plan.is_done:
            return
        state = plan.state
        claim, epoch = await self._claim(state)
        records = convert_records(state.entries, state.broker_id, epoch).values
        await self._write(claim, records, on_written)
        # From here on the directory belongs to the cluster or is unused: never to a single broker and the cluster.
        self.source.retire()
        try:
            await self._txn(claim, [PutOp(keys.CLUSTER, encode(state.cluster)), DeleteOp(keys.ADOPTION)])
        except CannotAdopt:
            self.source.reinstate()
            raise

    async def _claim(self, state: AdoptedState) -> tuple[StoreEntry, int]:
        """Write the claim and the broker's history; return the claim and the history's epoch."""
        entry = await self.store.get(keys.ADOPTION)
        record = AdoptionRecord(
            cluster_id=state.cluster.cluster_id, broker_id=state.broker_id, directory_id=state.directory_id
        )
        unchanged = Compare.absent(keys.ADOPTION) if entry is None else Compare.unchanged(entry)
        await self.store.txn(
            [Compare.absent(keys.CLUSTER), unchanged],
            [
                PutOp(keys.ADOPTION, encode(record)),
                PutOp(history_key(state.broker_id), history_record(state.directory_id)),
            ],
        )
        claim, history = await self.store.get(keys.ADOPTION), await self.store.get(history_key(state.broker_id))
        if claim is None or history is None or claim.mod_revision != history.mod_revision:
            raise CannotAdopt("another client writes to this etcd; stop it and run this command again")
        self._check_claim(claim, state)
        return claim, history.mod_revision

    async def _write(self, claim: StoreEntry, records: dict[str, bytes], on_written: Callable[[int], None]) -> None:
        kept = {claim.key, history_key(decode(AdoptionRecord, claim.key, claim.value).broker_id)}
        present = {e.key: e.value for e in (await self.store.range(keys.ROOT)).entries if e.key not in kept}
        operations: list[Operation] = [DeleteOp(key) for key in present if key not in records]
        operations += [PutOp(key, value) for key, value in records.items() if present.get(key) != value]
        written = len(records) - sum(isinstance(operation, PutOp) for operation in operations)
        for batch in batches(operations):
            await self._txn(claim, batch)
            written += sum(isinstance(operation, PutOp) for operation in batch)
            on_written(written)

    async def _txn(self, claim: StoreEntry, operations: list[Operation]) -> None:
        conditions = [Compare.absent(keys.CLUSTER), Compare.unchanged(claim)]
        if not (await self.store.txn(conditions, operations)).succeeded:
            raise CannotAdopt("another cluster or move was started in this etcd; check it and run this command again")


def batches(operations: list[Operation]) -> Iterator[list[Operation]]:
    """Split the operations, in order, into batches that each fit into one transaction."""
    batch: list[Operation] = []
    size_bytes = 0
    for operation in operations:
        size = len(operation.key.encode()) + (len(operation.value) if isinstance(operation, PutOp) else 0)
        if batch and (len(batch) == MAX_TXN_OPERATIONS or size_bytes + size > MAX_TXN_BYTES):
            yield batch
            batch, size_bytes = [], 0
        batch.append(operation)
        size_bytes += size
    if batch:
        yield batch
