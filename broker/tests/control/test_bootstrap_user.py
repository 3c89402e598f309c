"""The first administrator is created once in the life of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.control.bootstrap_user import BootstrapUser, ensure_security
from penstock.security.scram_keys import new_credential, salted_password, stored_key
from penstock.state import keys
from penstock.state.embedded import EmbeddedStore
from penstock.state.records import decode, encode
from penstock.state.security_records import ScramCredentialRecord
from penstock.state.store import DeleteOp, PutOp

ADMIN = BootstrapUser("admin", "secret")
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest.fixture
async def store() -> AsyncIterator[EmbeddedStore]:
    made = EmbeddedStore(":memory:")
    yield made
    await made.close()


async def credentials(store: EmbeddedStore) -> list[ScramCredentialRecord]:
    entries = (await store.range(keys.SCRAM_CREDENTIALS)).entries
    return [decode(ScramCredentialRecord, entry.key, entry.value) for entry in entries]


async def test_the_administrator_has_credentials_of_both_mechanisms_that_verify_the_password(
    store: EmbeddedStore,
) -> None:
    _, revision = await ensure_security(store, ADMIN)
    found = await credentials(store)
    assert revision
    assert [(each.user, each.mechanism) for each in found] == [("admin", name) for name in MECHANISMS]
    for each in found:
        assert stored_key(each.mechanism, salted_password(each.mechanism, b"secret", each.salt, each.iterations)) == (
            each.stored_key
        )


async def test_all_brokers_have_the_same_secret_and_one_creates_the_administrator(store: EmbeddedStore) -> None:
    found = await asyncio.gather(*(ensure_security(store, ADMIN) for _ in range(5)))
    assert len({secret for secret, _ in found}) == 1
    assert len([revision for _, revision in found if revision]) == 1
    assert len(found[0][0]) == 32


async def test_a_deleted_administrator_does_not_return_at_the_next_start(store: EmbeddedStore) -> None:
    await ensure_security(store, ADMIN)
    await store.txn([], [DeleteOp(keys.SCRAM_CREDENTIALS, prefix=True)])
    assert (await ensure_security(store, ADMIN))[1] == 0
    assert await credentials(store) == []


async def test_a_user_of_that_name_keeps_its_password(store: EmbeddedStore) -> None:
    present = new_credential("admin", "SCRAM-SHA-512", "other")
    await store.txn([], [PutOp(keys.scram_credential("admin", "SCRAM-SHA-512"), encode(present))])
    await ensure_security(store, ADMIN)
    assert await credentials(store) == [present]


async def test_an_administrator_can_be_added_to_a_cluster_that_has_none(store: EmbeddedStore) -> None:
    secret, revision = await ensure_security(store, None)
    assert revision == 0
    assert (await ensure_security(store, ADMIN))[0] == secret
    assert len(await credentials(store)) == 2


def test_the_password_and_the_keys_are_in_no_text() -> None:
    assert "secret" not in repr(ADMIN)
    record = new_credential("admin", "SCRAM-SHA-256", "secret")
    assert repr(record) == "ScramCredentialRecord(user='admin', mechanism='SCRAM-SHA-256')"


async def test_a_restored_store_keeps_its_administrator_and_one_older_than_the_first_start_gets_it(
    store: EmbeddedStore,
) -> None:
    """A backup is restored as the entries that it had: with the security record of then, or without one."""
    secret, _ = await ensure_security(store, ADMIN)
    backup = [PutOp(entry.key, entry.value) for entry in (await store.range("")).entries]
    changed = await asyncio.to_thread(new_credential, "admin", MECHANISMS[0], "changed later")
    await store.txn([], [PutOp(keys.scram_credential("admin", MECHANISMS[0]), encode(changed))])
    restored, older = EmbeddedStore(":memory:"), EmbeddedStore(":memory:")
    try:
        await restored.txn([], backup)
        before = await credentials(restored)
        again = await ensure_security(restored, BootstrapUser("admin", "another"))
        assert (again, await credentials(restored)) == ((secret, 0), before)
        renewed, revision = await ensure_security(older, ADMIN)
        assert renewed != secret
        assert revision
        assert len(await credentials(older)) == len(MECHANISMS)
    finally:
        await restored.close()
        await older.close()
