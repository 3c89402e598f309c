"""The cluster's secret for authentication, and its first administrator. Called by `node` at each start.

The administrator is created once in the life of a cluster, and only if there is no user of that name: a user that was
deleted, or whose password was changed, stays so when brokers restart with the same options (as
`kafka-storage format --add-scram`, which runs once).
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field

from msgspec.structs import replace

from penstock.runtime.logging import get_logger
from penstock.security.scram_keys import DIGESTS, new_credential
from penstock.state import keys
from penstock.state.records import decode, encode
from penstock.state.security_records import SecurityRecord
from penstock.state.store import Compare, Operation, PutOp, Store, StoreError

SECRET_BYTES = 32
ATTEMPTS = 10

log = get_logger("penstock.control")


@dataclass(frozen=True, slots=True)
class BootstrapUser:
    """Name and password of the first administrator."""

    name: str
    password: str = field(repr=False)


async def ensure_security(store: Store, user: BootstrapUser | None) -> tuple[bytes, int]:
    """Return the secret of the cluster, and the revision of the administrator's credentials if this call wrote them.

    Raises `StoreError`, `BadRecord`.
    """
    for _ in range(ATTEMPTS):
        entry = await store.get(keys.SECURITY)
        if entry is None:
            record, unchanged = SecurityRecord(secret=secrets.token_bytes(SECRET_BYTES)), Compare.absent(keys.SECURITY)
        else:
            record, unchanged = decode(SecurityRecord, entry.key, entry.value), Compare.unchanged(entry)
        compares, operations = [unchanged], list[Operation]()
        if user is not None and not record.bootstrap_user:
            record = replace(record, bootstrap_user=user.name)
            created = await credentials_of(store, user)
            compares += [Compare.absent(each.key) for each in created]
            operations += created
        elif entry is not None:
            return record.secret, 0
        result = await store.txn(compares, [PutOp(keys.SECURITY, encode(record)), *operations])
        if result.succeeded:
            if operations and user is not None:
                log.info("created the first administrator", user=user.name, mechanisms=", ".join(DIGESTS))
            return record.secret, result.revision if operations else 0
    raise StoreError("the cluster's security record changes too often; start the broker again")


async def credentials_of(store: Store, user: BootstrapUser) -> list[PutOp]:
    """Return the writes of the administrator's credentials; none if there is a user of that name."""
    for mechanism in DIGESTS:
        if await store.get(keys.scram_credential(user.name, mechanism)) is not None:
            return []
    created = []
    for mechanism in DIGESTS:
        credential = await asyncio.to_thread(new_credential, user.name, mechanism, user.password)
        created.append(PutOp(keys.scram_credential(user.name, mechanism), encode(credential)))
    return created
