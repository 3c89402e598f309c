"""A view whose ACLs were not confirmed for the time of a lease is no ground to allow anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.config.broker import BrokerConfig
from penstock.control.acl_admin import AclService
from penstock.control.acl_confirmation import AclConfirmation
from penstock.runtime.clock import SystemClock
from penstock.state import keys
from penstock.state.embedded import EmbeddedStore
from penstock.state.security_records import AclRecord
from penstock.state.store import MAX_TXN_OPERATIONS, StoreChanges, StoreUnavailable
from penstock.state.view import ClusterView
from penstock.state.watcher import Watcher

LEASE_MS = 300
VALID_MS = 270
"""A confirmation ends a tenth of the lease early, because clocks drift."""


class HandClock(SystemClock):
    now_ms = 1_000

    def boot_ms(self) -> int:
        return self.now_ms


class LateStore(EmbeddedStore):
    """Does not respond while it `is_away`; its watches deliver no changes before they `may_deliver`."""

    def __init__(self) -> None:
        super().__init__(":memory:")
        self.is_away = False
        self.may_deliver = asyncio.Event()
        self.may_deliver.set()

    def _check_open(self) -> None:
        super()._check_open()
        if self.is_away:
            raise StoreUnavailable("etcd does not answer")

    async def watch(self, prefix: str, from_revision: int) -> AsyncIterator[StoreChanges]:
        async for changes in super().watch(prefix, from_revision):
            await self.may_deliver.wait()
            yield changes


class Broker:
    def __init__(self) -> None:
        self.store, self.view, self.clock = LateStore(), ClusterView(), HandClock()
        self.watcher = Watcher(self.store, self.view, BrokerConfig.from_texts({}))
        self.acls = AclService(self.store, self.view, self.watcher)
        self.confirmation = AclConfirmation(self.store, self.watcher, self.clock, LEASE_MS)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    opened = Broker()
    await opened.watcher.start()
    yield opened
    await opened.confirmation.close()
    await opened.watcher.stop()
    await opened.store.close()


def acl(name: str) -> AclRecord:
    return AclRecord(
        resource_type="TOPIC", pattern_type="LITERAL", name=name, principal="User:ana", host="*", operation="READ",
        permission="ALLOW",
    )  # fmt: skip


async def test_a_confirmation_is_valid_for_nearly_the_lease(broker: Broker) -> None:
    assert not broker.confirmation.is_valid()
    await broker.confirmation.start()
    broker.clock.now_ms += VALID_MS - 1
    assert broker.confirmation.is_valid()
    broker.clock.now_ms += 1
    assert not broker.confirmation.is_valid()


async def test_it_is_renewed_while_the_store_responds(broker: Broker) -> None:
    await broker.acls.create([acl("t")])
    assert await broker.confirmation.confirm() == LEASE_MS / 3 / 1000
    broker.clock.now_ms += VALID_MS
    await broker.confirmation.confirm()
    assert broker.confirmation.is_valid()


async def test_it_is_not_renewed_while_the_store_does_not_respond(broker: Broker) -> None:
    broker.store.is_away = True
    assert await broker.confirmation.confirm() == LEASE_MS / 15 / 1000
    assert not broker.confirmation.is_valid()
    broker.store.is_away = False
    await broker.confirmation.confirm()
    assert broker.confirmation.is_valid()


async def test_it_waits_until_the_view_has_the_last_change(broker: Broker) -> None:
    broker.store.may_deliver.clear()
    changing = asyncio.ensure_future(broker.acls.create([acl("t")]))
    while await broker.store.get(keys.ACL_CHANGE) is None:
        await asyncio.sleep(0)
    await broker.confirmation.confirm()
    assert not broker.confirmation.is_valid(), "the view lacks the ACL"
    broker.store.may_deliver.set()
    await changing
    await broker.confirmation.confirm()
    assert broker.confirmation.is_valid()


async def test_each_transaction_of_many_acls_marks_the_change(broker: Broker) -> None:
    await broker.acls.create([acl(f"t{number}") for number in range(MAX_TXN_OPERATIONS)])
    entry = await broker.store.get(keys.ACL_CHANGE)
    newest = max(e.mod_revision for e in (await broker.store.range(keys.ACLS)).entries)
    assert entry is not None
    assert entry.mod_revision == newest
