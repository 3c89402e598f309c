"""A store that takes no transactions while it must not be written to. All writers of a broker go through one.

While etcd is one that was restored, nothing that this broker knows may become a write: every room is then told what it
is told when etcd does not answer, and answers its clients with an error that may be tried again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from penstock.state.store import (
    Compare,
    Operation,
    Store,
    StoreChanges,
    StoreEntry,
    StoreListing,
    StoreUnavailable,
    TxnResult,
)


class GuardedStore:
    """`Store` over another. `refusal` is why transactions are refused; None where they are not."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.refusal: str | None = None

    async def get(self, key: str) -> StoreEntry | None:
        return await self.store.get(key)

    async def range(self, prefix: str, revision: int = 0) -> StoreListing:
        return await self.store.range(prefix, revision)

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TxnResult:
        """One that writes nothing is a read."""
        if self.refusal is not None and (then or otherwise):
            raise StoreUnavailable(self.refusal)
        return await self.store.txn(compares, then, otherwise)

    def watch(self, prefix: str, from_revision: int) -> AsyncIterator[StoreChanges]:
        return self.store.watch(prefix, from_revision)

    async def grant_lease(self, ttl_s: float) -> int:
        return await self.store.grant_lease(ttl_s)

    async def keep_alive(self, lease: int) -> None:
        await self.store.keep_alive(lease)

    async def revoke_lease(self, lease: int) -> None:
        await self.store.revoke_lease(lease)

    async def compact(self, revision: int) -> None:
        await self.store.compact(revision)

    async def close(self) -> None:
        await self.store.close()
