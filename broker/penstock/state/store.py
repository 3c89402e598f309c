"""The store of what brokers must agree on: a small part of etcd's semantics, as a protocol.

Implementations: `embedded` (SQLite, one broker) and later etcd. Both pass one contract suite.

Keys are strings, values bytes. Each successful writing transaction has one revision, greater than all before it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StoreEntry:
    """A key as it stands at some revision. `version` counts its writes since it was created; `lease` 0 is none."""

    key: str
    value: bytes
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
    """What of a key a transaction compares; a key that is not there has 0 for each, and no value."""

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
        return cls(key, CompareTarget.CREATE_REVISION, 0)

    @classmethod
    def unchanged(cls, entry: StoreEntry) -> Compare:
        return cls(entry.key, CompareTarget.MOD_REVISION, entry.mod_revision)


@dataclass(frozen=True, slots=True)
class PutOp:
    """Writes a key; with a lease it goes when that ends."""

    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class DeleteOp:
    """Deletes a key, or, with `prefix`, all keys that start with it."""

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
    """A change of one key: what it is now, or None where it was deleted."""

    key: str
    entry: StoreEntry | None


@dataclass(frozen=True, slots=True)
class StoreChanges:
    """All changes of one or more whole revisions, the last of which is `revision`, in order."""

    revision: int
    events: list[StoreEvent]


class StoreError(Exception):
    """The store could not do it; the message names it and the cure."""


class StoreUnavailable(StoreError):
    """No answer for now: whether a write took effect is unknown. The same call may succeed later."""


class Compacted(StoreError):
    """The revision asked for is no longer kept: list again, and watch from there."""


class LeaseExpired(StoreError):
    """The lease is not there, or not any more."""


MAX_TXN_OPERATIONS = 128
"""Conditions, and operations, that one transaction may have each (etcd's default)."""


class Store(Protocol):
    """Durable when a call returns. Every method may raise `StoreUnavailable`."""

    async def get(self, key: str) -> StoreEntry | None:
        """Linearizable."""

    async def range(self, prefix: str, revision: int = 0) -> StoreListing:
        """All keys with the prefix, as of `revision` (0: now). Raises `Compacted`."""

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TxnResult:
        """Does `then` if all conditions hold, else `otherwise`; atomic. Raises ValueError past MAX_TXN_OPERATIONS."""

    def watch(self, prefix: str, from_revision: int) -> AsyncIterator[StoreChanges]:
        """Changes at `from_revision` and later, in revision order, for ever. Raises `Compacted` from the iterator."""

    async def grant_lease(self, ttl_s: float) -> int:
        """A new lease's id."""

    async def keep_alive(self, lease: int) -> None:
        """Renews a lease for its whole time. Raises `LeaseExpired`."""

    async def revoke_lease(self, lease: int) -> None:
        """Ends a lease now and deletes its keys."""

    async def compact(self, revision: int) -> None:
        """Forgets history before `revision`; what is current stays."""

    async def close(self) -> None: ...
