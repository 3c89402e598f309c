"""Creates and deletes ACLs in the store. Used by `api.acls`.

Requests with many ACLs are written in several transactions; one that fails leaves those before it. Each transaction
writes `keys.ACL_CHANGE` too, by which brokers know whether they have all changes (`acl_confirmation`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence

from penstock.control.results import VIEW_TIMEOUT_S, ConfigOutcome, store_error
from penstock.security.acl_filters import InvalidAcl, StoredAclFilter
from penstock.state import keys
from penstock.state.limits import MAX_TXN_BYTES
from penstock.state.records import BadRecord, decode, encode
from penstock.state.security_records import AclRecord
from penstock.state.store import MAX_TXN_OPERATIONS, DeleteOp, Operation, PutOp, Store, StoreError
from penstock.state.view import ClusterView
from penstock.state.watcher import Watcher
from penstock.wire.errors import ErrorCode

MAX_ACLS = 50_000
"""ACLs of a cluster: every broker holds them in memory, and a restart of the watch reads all of them."""
ACLS_PER_SLICE = 2_000
"""ACLs to match before yielding to the event loop."""
OK = ConfigOutcome()
MARK_CHANGE = PutOp(keys.ACL_CHANGE, b"")
TOO_MANY = ConfigOutcome(
    ErrorCode.POLICY_VIOLATION,
    f"the cluster would have more than {MAX_ACLS} ACLs; use prefixed or wildcard patterns, or delete unused ACLs",
)


class AclService:
    """Changes ACLs, and waits until this broker's view has the changes."""

    def __init__(self, store: Store, view: ClusterView, watcher: Watcher) -> None:
        self.store, self.view, self.watcher = store, view, watcher

    async def create(self, acls: Sequence[AclRecord]) -> list[ConfigOutcome]:
        """Create ACLs and return their outcomes. An ACL that exists is a success (KIP-140).

        Existing ACLs are written too: the view may not have the deletion by another broker yet.
        """
        known = self.view.security.acls
        added = {key: acl for acl in acls if (key := keys.acl(acl)) not in known}
        room = max(MAX_ACLS - len(known), 0)
        rejected = set(list(added)[room:])
        puts = {key: PutOp(key, encode(acl)) for acl in acls if (key := keys.acl(acl)) not in rejected}
        failures = await self.write(list(puts.values()))
        outcomes = ((TOO_MANY if key in rejected else failures.get(key, OK)) for key in map(keys.acl, acls))
        return list(outcomes)

    async def delete(
        self, filters: Sequence[StoredAclFilter]
    ) -> list[tuple[ConfigOutcome, list[tuple[AclRecord, ConfigOutcome]]]]:
        """Delete the ACLs that filters match. Returns each filter's outcome with the ACLs and their outcomes."""
        try:
            acls = await self.stored()
        except StoreError as e:
            return [(ConfigOutcome(store_error(e), str(e)), []) for _ in filters]
        matches: list[tuple[ConfigOutcome, list[AclRecord]]] = []
        for each in filters:
            try:
                each.check()
                matches.append((OK, await matching(each, acls)))
            except InvalidAcl as e:
                matches.append((ConfigOutcome(ErrorCode.INVALID_REQUEST, str(e)), []))
        deleted = dict.fromkeys(keys.acl(acl) for _, found in matches for acl in found)
        failures = await self.write([DeleteOp(key) for key in deleted])
        return [(outcome, [(acl, failures.get(keys.acl(acl), OK)) for acl in found]) for outcome, found in matches]

    async def stored(self) -> dict[str, AclRecord]:
        """Return the ACLs in the store: the view may not have those that another broker has created."""
        listing, known = await self.store.range(keys.ACLS), self.view.security.acls
        acls = {}
        for entry in listing.entries:
            record = known.get(entry.key)
            if record is None:
                try:
                    record = decode(AclRecord, entry.key, entry.value)
                except BadRecord:
                    continue
            acls[entry.key] = record
        return acls

    async def write(self, operations: Sequence[Operation]) -> dict[str, ConfigOutcome]:
        """Apply operations, and return the outcomes of failed ones by key."""
        failures: dict[str, ConfigOutcome] = {}
        revision = 0
        for batch in batches(operations):
            try:
                revision = (await self.store.txn([], [*batch, MARK_CHANGE])).revision
            except StoreError as e:
                failures.update(dict.fromkeys((op.key for op in batch), ConfigOutcome(store_error(e), str(e))))
        if revision:
            await self.await_view(revision, failures, operations)
        return failures

    async def await_view(
        self, revision: int, failures: dict[str, ConfigOutcome], operations: Sequence[Operation]
    ) -> None:
        """Wait until the view has the changes; otherwise they are failures, although they were made."""
        try:
            await self.watcher.applied(revision, VIEW_TIMEOUT_S)
        except StoreError as e:
            outcome = ConfigOutcome(store_error(e), str(e))
            for operation in operations:
                failures.setdefault(operation.key, outcome)


async def matching(wanted: StoredAclFilter, acls: dict[str, AclRecord]) -> list[AclRecord]:
    """Return the ACLs that a filter matches."""
    exact = wanted.exact()
    if exact is not None:
        return [exact] if keys.acl(exact) in acls else []
    found = []
    for number, acl in enumerate(acls.values()):
        if number % ACLS_PER_SLICE == 0:
            await asyncio.sleep(0)
        if wanted.matches(acl):
            found.append(acl)
    return found


def batches(operations: Iterable[Operation]) -> Iterator[list[Operation]]:
    """Yield the operations in batches that fit into one transaction with `MARK_CHANGE`."""
    batch: list[Operation] = []
    size_bytes = 0
    for operation in operations:
        added_bytes = len(operation.key) + (len(operation.value) if isinstance(operation, PutOp) else 0)
        if batch and (len(batch) == MAX_TXN_OPERATIONS - 1 or size_bytes + added_bytes > MAX_TXN_BYTES // 2):
            yield batch
            batch, size_bytes = [], 0
        batch.append(operation)
        size_bytes += added_bytes
    if batch:
        yield batch
