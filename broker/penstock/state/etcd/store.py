"""The store on etcd: `Store` for a cluster of brokers. Made by `node` where an etcd is named; importing it loads gRPC.

A store belongs to the event loop that uses it first. A thread with a loop of its own (to renew a lease while the main
loop is busy) makes a store of its own there: nothing is shared between two, not even connections.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

from aetcd.rpc import rpc_pb2

from penstock.state.etcd import messages
from penstock.state.etcd.auth import Authenticator
from penstock.state.etcd.calls import EtcdCaller
from penstock.state.etcd.channels import NEVER_KEY, Endpoints, EtcdEndpoint
from penstock.state.etcd.errors import MessageTooLarge
from penstock.state.etcd.leases import Leases
from penstock.state.etcd.maintenance import EtcdMaintenance
from penstock.state.etcd.options import EtcdOptions
from penstock.state.etcd.watch import Watch
from penstock.state.limits import check_key, check_txn
from penstock.state.store import Compacted, Compare, Operation, StoreChanges, StoreEntry, StoreListing, TxnResult

PAGE_KEYS = 2000
PAGE_BYTES = 1 << 20
"""What a page should have: the number of keys asked for follows the size of those that came."""
RELISTS = 3
"""How often a range is begun again when what it was reading is compacted before its end."""
CLOSE_GRACE_S = 2.0


def pick_range(endpoint: EtcdEndpoint) -> Any:
    return endpoint.kv.Range


def pick_txn(endpoint: EtcdEndpoint) -> Any:
    return endpoint.kv.Txn


def pick_compact(endpoint: EtcdEndpoint) -> Any:
    return endpoint.kv.Compact


class EtcdStore:
    """`Store` on an etcd cluster (3.4 or newer). Connects when first used; raises `InvalidEtcdOption` before that."""

    def __init__(self, options: EtcdOptions) -> None:
        self.endpoints = Endpoints(options)
        self.auth = Authenticator(options)
        self.caller = EtcdCaller(self.endpoints, self.auth)
        self._leases = Leases(self.caller)
        self._watches: set[Watch] = set()
        self.on_connect = self.endpoints.identity.on_connect

    @property
    def cluster_id(self) -> str:
        """Which etcd this is, another after it was restored from a backup; "" before it has answered."""
        return self.endpoints.identity.cluster_id

    async def get(self, key: str) -> StoreEntry | None:
        check_key(key)
        response = await self.caller.call(pick_range, rpc_pb2.RangeRequest(key=key.encode()), repeatable=True)
        return messages.entry_of(response.kvs[0]) if response.kvs else None

    async def range(self, prefix: str, revision: int = 0) -> StoreListing:
        """In pages, all as of one revision; only the first decides which, and is linearizable."""
        if revision:
            return await self._pages(prefix, revision)
        for _ in range(RELISTS):
            try:
                return await self._pages(prefix, 0)
            except Compacted as e:
                compacted = e
        raise compacted

    async def _pages(self, prefix: str, revision: int) -> StoreListing:
        first, end = messages.span(prefix)
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
        """Not repeated where the outcome is unknown, except one that writes nothing."""
        check_txn(compares, then, otherwise)
        request = messages.txn_request(compares, then, otherwise)
        response = await self.caller.call(pick_txn, request, repeatable=not then and not otherwise)
        return TxnResult(response.succeeded, response.header.revision)

    async def watch(self, prefix: str, from_revision: int) -> AsyncIterator[StoreChanges]:
        """A broken stream is resumed on another endpoint; of the changes, the consumer notices at most a delay."""
        if from_revision < 1:
            raise ValueError(f"a watch begins at revision 1 or later, not at {from_revision}")
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
        return await self._leases.grant(ttl_s)

    async def keep_alive(self, lease: int) -> None:
        await self._leases.keep_alive(lease)

    async def revoke_lease(self, lease: int) -> None:
        await self._leases.revoke(lease)

    async def compact(self, revision: int) -> None:
        """Has etcd forget what was overwritten or deleted before `revision`; it frees the space by and by.

        etcd is told the revision before: members before 3.5.16 drop deletions of the very revision they compact to, and
        a watch from there would miss them without a word.
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
            return  # to there or further already

    async def revision(self) -> int:
        """The store's revision, linearizable."""
        request = rpc_pb2.RangeRequest(key=NEVER_KEY, count_only=True)
        response = await self.caller.call(pick_range, request, repeatable=True)
        revision: int = response.header.revision
        return revision

    def maintenance(self) -> EtcdMaintenance:
        """For the controller, which looks after an etcd that is ours."""
        return EtcdMaintenance(self.caller, self.endpoints)

    async def close(self) -> None:
        """Ends watches with `StoreUnavailable`, gives calls under way a moment, and closes the connections."""
        if self.endpoints.is_closed:
            return
        self.endpoints.is_closed = True
        for watch in list(self._watches):
            watch.end()
        await self.auth.close()
        await self.endpoints.close(CLOSE_GRACE_S)
