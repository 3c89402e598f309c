"""ISR changes in the store: their conditions and their batching."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest
from replica_kit import until

from penstock.replica.isr import IsrChange, Member
from penstock.replica.isr_changes import IsrChanges
from penstock.state import keys
from penstock.state.embedded import EmbeddedStore
from penstock.state.records import BrokerRecord, PartitionRecord, decode, encode
from penstock.state.store import DeleteOp, PutOp, StoreUnavailable, TxnResult
from penstock.state.view import PartitionView

TOPIC = UUID(int=5)


class Unreliable(EmbeddedStore):
    """A store that loses its next responses: one per entry of `lost`, true if the write takes effect."""

    def __init__(self) -> None:
        super().__init__(":memory:")
        self.lost: list[bool] = []

    async def txn(self, *arguments: Any, **more: Any) -> TxnResult:
        if not self.lost:
            return await super().txn(*arguments, **more)
        if self.lost.pop(0):
            await super().txn(*arguments, **more)
        raise StoreUnavailable("planted")


class Kit:
    def __init__(self) -> None:
        self.store = Unreliable()
        self.changes = IsrChanges(self.store)
        self.refused: list[int] = []

    async def register(self, broker_id: int, **more: Any) -> Member:
        record = BrokerRecord(broker_id=broker_id, incarnation=UUID(int=broker_id), endpoints=[], **more)
        await self.store.txn([], [PutOp(keys.broker(broker_id), encode(record))])
        entry = await self.store.get(keys.broker(broker_id))
        assert entry is not None
        return broker_id, entry.create_revision

    async def place(self, index: int, isr: list[Member]) -> PartitionView:
        record = PartitionRecord(
            replicas=[1, 2, 3], leader=1, leader_epoch=7, isr=[i for i, _ in isr], isr_epochs=[e for _, e in isr]
        )
        revision = (await self.store.txn([], [PutOp(keys.partition(TOPIC, index), encode(record))])).revision
        return PartitionView(index, [1, 2, 3], 1, 7, record.isr, record.isr_epochs, revision=revision)

    def submit(
        self, before: PartitionView, leader: Member, isr: list[Member], joined: list[Member] | None = None
    ) -> None:
        change = IsrChange(TOPIC, before.index, before, leader, isr, [], joined or [])
        self.changes.submit(change, lambda change: self.refused.append(change.index))

    async def done(self) -> None:
        await until(lambda: self.changes.task is None)

    async def isr(self, index: int = 0) -> list[Member]:
        entry = await self.store.get(keys.partition(TOPIC, index))
        assert entry is not None
        record = decode(PartitionRecord, entry.key, entry.value)
        return list(zip(record.isr, record.isr_epochs, strict=True))


@pytest.fixture
async def kit() -> AsyncIterator[Kit]:
    made = Kit()
    yield made
    await made.changes.close()
    await made.store.close()


async def test_many_partitions_that_lose_a_follower_share_transactions(kit: Kit) -> None:
    one, two = await kit.register(1), await kit.register(2)
    views = [await kit.place(i, [one, two]) for i in range(300)]
    for view in views:
        kit.submit(view, one, [one])
    await kit.done()
    assert [await kit.isr(i) for i in range(300)] == [[one]] * 300
    assert kit.changes.transactions <= 5
    assert kit.refused == []


async def test_one_that_cannot_be_made_does_not_keep_the_others(kit: Kit) -> None:
    one, two = await kit.register(1), await kit.register(2)
    views = [await kit.place(i, [one, two]) for i in range(50)]
    await kit.place(17, [one, two])
    for view in views:
        kit.submit(view, one, [one])
    await kit.done()
    assert [await kit.isr(i) for i in range(50)] == [[one, two] if i == 17 else [one] for i in range(50)]
    assert kit.refused == [], "the record has changed, so the view will tell"
    assert kit.changes.transactions <= 20


async def test_who_joins_must_be_registered_as_this_incarnation(kit: Kit) -> None:
    one, two = await kit.register(1), await kit.register(2)
    view = await kit.place(0, [one])
    await kit.store.txn([], [DeleteOp(keys.broker(2))])
    await kit.register(2)
    kit.submit(view, one, [one, two], [two])
    await kit.done()
    assert (await kit.isr(), kit.refused) == ([one], [0])


async def test_a_draining_broker_does_not_join(kit: Kit) -> None:
    one, two = await kit.register(1), await kit.register(2, draining=True)
    view = await kit.place(0, [one])
    kit.submit(view, one, [one, two], [two])
    await kit.done()
    assert (await kit.isr(), kit.refused) == ([one], [0])


async def test_a_registration_that_goes_between_the_look_and_the_write_is_noticed(kit: Kit) -> None:
    one, two = await kit.register(1), await kit.register(2)
    view = await kit.place(0, [one])
    real = kit.changes.registration

    async def look(member: Member) -> Any:
        found = await real(member)
        if found is not None:
            await kit.register(2, draining=True)
        return found

    kit.changes.registration = look  # type: ignore[method-assign]
    kit.submit(view, one, [one, two], [two])
    await kit.done()
    assert (await kit.isr(), kit.refused) == ([one], [0])


async def test_a_leader_that_is_not_registered_any_more_changes_nothing(kit: Kit) -> None:
    one, two = await kit.register(1), await kit.register(2)
    view = await kit.place(0, [one, two])
    await kit.store.txn([], [DeleteOp(keys.broker(1))])
    await kit.register(1)
    kit.submit(view, one, [one])
    await kit.done()
    assert (await kit.isr(), kit.refused) == ([one, two], [0])


@pytest.mark.parametrize("done", [False, True])
async def test_where_the_store_does_not_answer_it_is_asked_until_it_is_known(kit: Kit, done: bool) -> None:
    one, two = await kit.register(1), await kit.register(2)
    view = await kit.place(0, [one, two])
    kit.store.lost = [done]
    kit.submit(view, one, [one])
    await asyncio.sleep(0)
    assert kit.refused == []
    await kit.done()
    assert (await kit.isr(), kit.refused) == ([one], [])


@pytest.mark.parametrize("done", [False, True])
async def test_of_a_change_without_an_answer_the_record_tells_also_where_who_joined_is_gone(
    kit: Kit, done: bool
) -> None:
    """A leader that assumed a failed change would acknowledge records that an ISR member lacks."""
    one, two = await kit.register(1), await kit.register(2)
    view = await kit.place(0, [one])
    kit.store.lost = [done]
    kit.submit(view, one, [one, two], [two])
    await until(lambda: not kit.store.lost)
    await kit.store.txn([], [DeleteOp(keys.broker(2))])
    await kit.done()
    assert (await kit.isr(), kit.refused) == (([one, two], []) if done else ([one], [0]))
