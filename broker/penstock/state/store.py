"""The metadata store: a subset of etcd's semantics, as a protocol. Implementations: `embedded` (SQLite) and `etcd`.

Both pass one contract test suite. Keys are strings, values bytes. Each successful writing transaction has one revision,
greater than all before it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StoreEntry:
    """A key at some revision. `version` counts its writes since creation; `lease` 0 is none."""

    key: str
    value: bytes = field(repr=False)
    create_revision: int
    mod_revision: int
    version: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class StoreListing:
    """Entries in key order, all as of one revision."""

    entries: list[StoreEntry]
    revision: int


class CompareTarget(Enum):
    """What a condition compares. A missing key has 0 for the numbers, and no value."""

    MOD_REVISION = "mod"
    CREATE_REVISION = "create"
    VERSION = "version"
    VALUE = "value"


@dataclass(frozen=True, slots=True)
class Compare:
    """A condition: the key's `target` equals `value` (or with `op` "!=", "<", ">")."""

    key: str
    target: CompareTarget
    value: int | bytes
    op: str = "="

    @classmethod
    def absent(cls, key: str) -> Compare:
        """Return the condition that the key does not exist."""
        return cls(key, CompareTarget.CREATE_REVISION, 0)

    @classmethod
    def unchanged(cls, entry: StoreEntry) -> Compare:
        """Return the condition that the key has not been written since `entry`."""
        return cls(entry.key, CompareTarget.MOD_REVISION, entry.mod_revision)


@dataclass(frozen=True, slots=True)
class PutOp:
    """Writes a key. With a lease, the key is deleted when the lease ends."""

    key: str
    value: bytes = field(repr=False)
    lease: int = 0


@dataclass(frozen=True, slots=True)
class DeleteOp:
    """Deletes a key, or with `prefix` all keys that start with it."""

    key: str
    prefix: bool = False


Operation = PutOp | DeleteOp


@dataclass(frozen=True, slots=True)
class TxnResult:
    """Whether the conditions held, and the store's revision afterwards."""

    succeeded: bool
    revision: int


@dataclass(frozen=True, slots=True)
class StoreEvent:
    """A change of one key: its new entry, None if it was deleted."""

    key: str
    entry: StoreEntry | None


@dataclass(frozen=True, slots=True)
class StoreChanges:
    """All changes of one or more complete revisions up to `revision`, in order."""

    revision: int
    events: list[StoreEvent]


class StoreError(Exception):
    """A store operation failed; the message has the reason and the fix."""


class StoreUnavailable(StoreError):
    """The store did not respond: whether a write took effect is unknown. A retry may succeed."""


class Compacted(StoreError):
    """The requested revision has been compacted: list again, and watch from there."""


class LeaseExpired(StoreError):
    """The lease does not exist or has expired."""


MAX_TXN_OPERATIONS = 128
"""Maximum number of conditions, and of operations, per transaction (etcd's default)."""


class Store(Protocol):
    """Writes are durable when a call returns. Every method can raise `StoreUnavailable`."""

    async def get(self, key: str) -> StoreEntry | None:
        """Return the entry of a key, linearizably."""

    async def range(self, prefix: str, revision: int = 0) -> StoreListing:
        """Return all entries with a prefix, as of `revision` (0: now). Raises `Compacted`."""

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TxnResult:
        """Apply `then` if all conditions hold, else `otherwise`, atomically. Raises ValueError beyond the limits."""

    def watch(self, prefix: str, from_revision: int) -> AsyncIterator[StoreChanges]:
        """Yield changes from `from_revision` on, in order, forever. Raises `Compacted` from the iterator."""

    async def grant_lease(self, ttl_s: float) -> int:
        """Grant a lease; return its id."""

    async def keep_alive(self, lease: int) -> None:
        """Renew a lease for its full TTL. Raises `LeaseExpired`."""

    async def revoke_lease(self, lease: int) -> None:
        """End a lease and delete its keys."""

    async def compact(self, revision: int) -> None:
        """Drop history before `revision`; current entries stay."""

    async def close(self) -> None:
        """Close the store."""
