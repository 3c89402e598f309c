"""The `Store` on etcd, for a cluster of brokers. Created by `node` if an etcd is configured; importing it loads gRPC.

A store belongs to the event loop that first uses it. A thread with its own loop (for lease renewal while the main loop
is busy) creates its own store: two stores share nothing, not even connections.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

from aetcd.rpc import rpc_pb2

from penstock.state.etcd import messages
from penstock.state.etcd.auth import Authenticator
from penstock.state.etcd.calls import EtcdCaller
from penstock.state.etcd.channels import PROBE_KEY, Endpoints, EtcdEndpoint
from penstock.state.etcd.errors import MessageTooLarge
from penstock.state.etcd.leases import Leases
from penstock.state.etcd.maintenance import EtcdMaintenance
from penstock.state.etcd.options import EtcdOptions
from penstock.state.etcd.watch import Watch
from penstock.state.limits import check_key, check_txn
from penstock.state.store import Compacted, Compare, Operation, StoreChanges, StoreEntry, StoreListing, TxnResult

PAGE_KEYS = 2000
PAGE_BYTES = 1 << 20
"""Target size of a page: the number of requested keys follows the size of the last page."""
MAX_RELISTS = 3
"""Attempts of a range whose revision is compacted before its last page."""
CLOSE_GRACE_S = 2.0


def pick_range(endpoint: EtcdEndpoint) -> Any:
    """Return the endpoint's Range method."""
    return endpoint.kv.Range


def pick_txn(endpoint: EtcdEndpoint) -> Any:
    """Return the endpoint's Txn method."""
    return endpoint.kv.Txn


def pick_compact(endpoint: EtcdEndpoint) -> Any:
    """Return the endpoint's Compact method."""
    return endpoint.kv.Compact


class EtcdStore:
    """`Store` on an etcd cluster (3.4 or newer). Connects on first use; raises `InvalidEtcdOption` before that."""

    def __init__(self, options: EtcdOptions) -> None:
        self.endpoints = Endpoints(options)
        self.auth = Authenticator(options)
        self.caller = EtcdCaller(self.endpoints, self.auth)
        self._leases = Leases(self.caller)
        self._watches: set[Watch] = set()
        self.on_connect = self.endpoints.identity.on_connect

    @property
    def cluster_id(self) -> str:
        """The etcd cluster's id, which changes after a restore; "" before the first response."""
        return self.endpoints.identity.cluster_id

    async def get(self, key: str) -> StoreEntry | None:
        """Return the entry of a key, linearizably."""
        check_key(key)
        response = await self.caller.call(pick_range, rpc_pb2.RangeRequest(key=key.encode()), repeatable=True)
        return messages.entry_of(response.kvs[0]) if response.kvs else None

    async def range(self, prefix: str, revision: int = 0) -> StoreListing:
        """Return the entries with a prefix, in pages as of one revision; only the first page is linearizable."""
        if revision:
            return await self._pages(prefix, revision)
        for _ in range(MAX_RELISTS):
            try:
                return await self._pages(prefix, 0)
            except Compacted as e:
                compacted = e
        raise compacted

    async def _pages(self, prefix: str, revision: int) -> StoreListing:
        first, end = messages.prefix_range(prefix)
        limit = PAGE_KEYS
        entries: list[StoreEntry] = []
        while True:
            request = rpc_pb2.RangeRequest(key=first, range_end=end, limit=limit, revision=revision)
            try:
                response = await self.caller.call(pick_range, request, repeatable=True)
            except MessageTooLarge:
                if limit == 1:
                    raise
                limit = max(1, limit // 8)
                continue
            revision = revision or response.header.revision
            entries += [messages.entry_of(kv) for kv in response.kvs]
            if not response.more or not response.kvs:
                return StoreListing(entries, revision)
            first = response.kvs[-1].key + b"\x00"
            size_bytes = max(1, response.ByteSize())
            limit = max(1, min(PAGE_KEYS, len(response.kvs) * PAGE_BYTES // size_bytes))

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TxnResult:
        """Run a transaction; it is not retried if its outcome is unknown, except one without writes."""
        check_txn(compares, then, otherwise)
        request = messages.txn_request(compares, then, otherwise)
        response = await self.caller.call(pick_txn, request, repeatable=not then and not otherwise)
        return TxnResult(response.succeeded, response.header.revision)

    async def watch(self, prefix: str, from_revision: int) -> AsyncIterator[StoreChanges]:
        """Yield changes with a prefix. A broken stream resumes on another endpoint without loss."""
        if from_revision < 1:
            raise ValueError(f"a watch must start at revision 1 or later, not at {from_revision}")
        self.endpoints.check_open()
        watch = Watch(self.caller, prefix, from_revision)
        self._watches.add(watch)
        try:
            async with aclosing(watch.changes()) as stream:
                async for changes in stream:
                    yield changes
        finally:
            self._watches.discard(watch)

    async def grant_lease(self, ttl_s: float) -> int:
        """Grant a lease; return its id."""
        return await self._leases.grant(ttl_s)

    async def keep_alive(self, lease: int) -> None:
        """Renew a lease."""
        await self._leases.keep_alive(lease)

    async def revoke_lease(self, lease: int) -> None:
        """End a lease and delete its keys."""
        await self._leases.revoke(lease)

    async def compact(self, revision: int) -> None:
        """Compact history before `revision`; etcd frees the space gradually.

        etcd gets the revision before it: members before 3.5.16 drop deletions at the compacted revision itself, and a
        watch from there would silently miss them.
        """
        current = await self.revision()
        if revision > current:
            raise ValueError(f"revision {revision} is in the future: the store is at {current}")
        if revision <= 2:
            return
        try:
            request = rpc_pb2.CompactionRequest(revision=revision - 1, physical=False)
            await self.caller.call(pick_compact, request, repeatable=True)
        except Compacted:
            return  # compacted already

    async def revision(self) -> int:
        """Return the store's revision, linearizably."""
        request = rpc_pb2.RangeRequest(key=PROBE_KEY, count_only=True)
        response = await self.caller.call(pick_range, request, repeatable=True)
        revision: int = response.header.revision
        return revision

    def maintenance(self) -> EtcdMaintenance:
        """Return the maintenance API, for the controller."""
        return EtcdMaintenance(self.caller, self.endpoints)

    async def close(self) -> None:
        """End watches with `StoreUnavailable`, give calls under way a grace period, and close the connections."""
        if self.endpoints.is_closed:
            return
        self.endpoints.is_closed = True
        for watch in list(self._watches):
            watch.close()
        await self.auth.close()
        await self.endpoints.close(CLOSE_GRACE_S)
