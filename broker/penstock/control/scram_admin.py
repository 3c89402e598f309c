"""Describes and changes SCRAM credentials (KIP-554). Any broker serves them; a user's changes are one transaction."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.control.results import VIEW_TIMEOUT_S, AdminError, store_error
from penstock.security.scram_keys import MAX_ITERATIONS, MIN_ITERATIONS, credential_of
from penstock.state import keys
from penstock.state.records import encode
from penstock.state.security_records import ScramCredentialRecord
from penstock.state.store import Compare, CompareTarget, DeleteOp, Operation, PutOp, Store, StoreError
from penstock.state.view import ClusterView
from penstock.state.watcher import Watcher
from penstock.wire.errors import ErrorCode

MECHANISM_NUMBERS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
"""Mechanisms by their number in requests."""
SALTED_PASSWORD_BYTES = {"SCRAM-SHA-256": 32, "SCRAM-SHA-512": 64}
MAX_ALTERATIONS = 1000
"""Maximum number of changes per request."""
MAX_CREDENTIALS = 100_000
"""Maximum number of credentials in the cluster."""
MAX_USER_CHARS = 255
MAX_SALT_BYTES = 256
MAX_CONCURRENT_WRITES = 16


@dataclass(frozen=True, slots=True)
class CredentialDeletion:
    """A credential to delete. `mechanism` is what the client sent and can be unknown."""

    user: str
    mechanism: int


@dataclass(frozen=True, slots=True)
class CredentialUpsertion:
    """A credential to create or replace. The client has salted the password, which does not leave it."""

    user: str
    mechanism: int
    iterations: int
    salt: bytes = field(repr=False)
    salted_password: bytes = field(repr=False)


Alteration = CredentialDeletion | CredentialUpsertion


class ScramAdmin:
    """Reads credentials from the view and writes them to the store."""

    def __init__(self, store: Store, view: ClusterView, watcher: Watcher) -> None:
        self._store, self._view, self._watcher = store, view, watcher

    def describe(self, users: Sequence[str] | None) -> dict[str, list[ScramCredentialRecord] | AdminError]:
        """Return the credentials of each user, or the error for it; all users with None or an empty list."""
        by_user: dict[str, list[ScramCredentialRecord]] = {}
        for record in self._view.security.credentials.values():
            by_user.setdefault(record.user, []).append(record)
        if not users:
            return dict(sorted(by_user.items()))
        counts = Counter(users)
        return {user: describe_user(user, by_user.get(user), counts[user]) for user in counts}

    async def alter(self, alterations: Sequence[Alteration]) -> dict[str, AdminError | None]:
        """Apply the changes of each user, all or none; return the error for each user, None on success."""
        by_user: dict[str, list[Alteration]] = {}
        for alteration in alterations:
            by_user.setdefault(alteration.user, []).append(alteration)
        slots = asyncio.Semaphore(MAX_CONCURRENT_WRITES)

        async def apply(user: str, changes: list[Alteration]) -> AdminError | None:
            async with slots:
                try:
                    check_request(alterations)
                    await self._alter_user(changes)
                except AdminError as e:
                    return e
                except StoreError as e:
                    return AdminError(store_error(e), f"The metadata store is unavailable: {e}")
                return None

        results = await asyncio.gather(*(apply(user, changes) for user, changes in by_user.items()))
        return dict(zip(by_user, results, strict=True))

    async def _alter_user(self, changes: list[Alteration]) -> None:
        """Write the changes of one user and return when the view has them. Raises `AdminError`, `StoreError`."""
        if len({change.mechanism for change in changes}) < len(changes):
            raise AdminError(
                ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request"
            )
        compares: list[Compare] = []
        operations: list[Operation] = []
        for change in changes:
            mechanism = check_alteration(change)
            key = keys.scram_credential(change.user, mechanism)
            if isinstance(change, CredentialDeletion):
                compares.append(Compare(key, CompareTarget.CREATE_REVISION, 0, ">"))
                operations.append(DeleteOp(key))
            else:
                if len(self._view.security.credentials) >= MAX_CREDENTIALS:
                    raise AdminError(ErrorCode.POLICY_VIOLATION, f"The cluster has {MAX_CREDENTIALS} credentials")
                record = credential_of(change.user, mechanism, change.salt, change.iterations, change.salted_password)
                operations.append(PutOp(key, encode(record)))
        result = await self._store.txn(compares, operations)
        if not result.succeeded:
            raise AdminError(ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
        await self._watcher.applied(result.revision, VIEW_TIMEOUT_S)


def describe_user(
    user: str, records: list[ScramCredentialRecord] | None, count: int
) -> list[ScramCredentialRecord] | AdminError:
    """Return a requested user's credentials, or the error if there are none or it is requested more than once."""
    if count > 1:
        return AdminError(
            ErrorCode.DUPLICATE_RESOURCE,
            f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}",
        )
    if records is None:
        return AdminError(
            ErrorCode.RESOURCE_NOT_FOUND, f"Attempt to describe a user credential that does not exist: {user}"
        )
    return records


def check_request(alterations: Sequence[Alteration]) -> None:
    """Raise `AdminError` for a request of too many changes."""
    if len(alterations) > MAX_ALTERATIONS:
        raise AdminError(
            ErrorCode.INVALID_REQUEST,
            f"{len(alterations)} changes exceed the limit of {MAX_ALTERATIONS} per request; split the request",
        )


def check_alteration(change: Alteration) -> str:
    """Return the mechanism's name. Raises `AdminError`, with Kafka's error codes."""
    if not change.user:
        raise AdminError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if len(change.user) > MAX_USER_CHARS or "\0" in change.user:
        raise AdminError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL, f"Username must have at most {MAX_USER_CHARS} characters and no NUL"
        )
    mechanism = MECHANISM_NUMBERS.get(change.mechanism)
    if mechanism is None:
        raise AdminError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if isinstance(change, CredentialUpsertion):
        check_upsertion(change, mechanism)
    return mechanism


def check_upsertion(change: CredentialUpsertion, mechanism: str) -> None:
    """Raise `AdminError` for parameters that are too weak or too expensive."""
    if change.iterations < MIN_ITERATIONS:
        raise AdminError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL, f"Too few iterations: {change.iterations}; at least {MIN_ITERATIONS}"
        )
    if change.iterations > MAX_ITERATIONS:
        raise AdminError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL, f"Too many iterations: {change.iterations}; at most {MAX_ITERATIONS}"
        )
    if not 0 < len(change.salt) <= MAX_SALT_BYTES:
        raise AdminError(ErrorCode.UNACCEPTABLE_CREDENTIAL, f"The salt must have 1 to {MAX_SALT_BYTES} bytes")
    if len(change.salted_password) != SALTED_PASSWORD_BYTES[mechanism]:
        raise AdminError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"The salted password of {mechanism} must have {SALTED_PASSWORD_BYTES[mechanism]} bytes",
        )
