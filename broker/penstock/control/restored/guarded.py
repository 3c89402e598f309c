"""A store that can refuse transactions. All writers of a broker in a cluster use one.

While etcd is a restored one, no in-memory state of this broker may be written. Writers then see the store as
unavailable, and return retriable errors to clients.
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
    """Wraps a `Store`. `refusal` is why transactions are refused; None if they are not."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.refusal: str | None = None

    async def get(self, key: str) -> StoreEntry | None:
        """Return the entry of a key."""
        return await self.store.get(key)

    async def range(self, prefix: str, revision: int = 0) -> StoreListing:
        """Return the entries with a prefix."""
        return await self.store.range(prefix, revision)

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TxnResult:
        """Run a transaction; only one without writes is allowed while writes are refused."""
        if self.refusal is not None and (then or otherwise):
            raise StoreUnavailable(self.refusal)
        return await self.store.txn(compares, then, otherwise)

    def watch(self, prefix: str, from_revision: int) -> AsyncIterator[StoreChanges]:
        """Watch a prefix."""
        return self.store.watch(prefix, from_revision)

    async def grant_lease(self, ttl_s: float) -> int:
        """Grant a lease."""
        return await self.store.grant_lease(ttl_s)

    async def keep_alive(self, lease: int) -> None:
        """Renew a lease."""
        await self.store.keep_alive(lease)

    async def revoke_lease(self, lease: int) -> None:
        """Revoke a lease."""
        await self.store.revoke_lease(lease)

    async def compact(self, revision: int) -> None:
        """Compact revisions."""
        await self.store.compact(revision)

    async def close(self) -> None:
        """Close the store."""
        await self.store.close()
