"""The settings of share groups at a leader: loaded once, kept while partitions are open."""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from penstock.config.broker import BrokerConfig
from penstock.share.group_settings import ShareGroupSettings
from penstock.state import keys
from penstock.state.embedded import EmbeddedStore
from penstock.state.records import GroupSettingsRecord, encode
from penstock.state.store import DeleteOp, PutOp, StoreEntry, StoreUnavailable


class SlowStore(EmbeddedStore):
    """A store whose reads wait for `released`, and fail while it `is_away`."""

    def __init__(self) -> None:
        super().__init__(":memory:")
        self.reads = 0
        self.is_away = False
        self.released = asyncio.Event()

    async def get(self, key: str) -> StoreEntry | None:
        self.reads += 1
        await self.released.wait()
        if self.is_away:
            raise StoreUnavailable("away")
        return await super().get(key)


@pytest.fixture
async def store() -> AsyncIterator[SlowStore]:
    made = SlowStore()
    record = GroupSettingsRecord(settings={"share.delivery.count.limit": "7"})
    await made.txn([], [PutOp(keys.group_settings("g"), encode(record))])
    yield made
    await made.close()


@pytest.fixture
async def settings(store: SlowStore) -> AsyncIterator[ShareGroupSettings]:
    made = ShareGroupSettings(store, BrokerConfig.from_texts({}), lambda group_id: None)
    yield made
    made.close()


async def test_concurrent_loads_share_one_read(store: SlowStore, settings: ShareGroupSettings) -> None:
    loads = asyncio.gather(settings.load("g"), settings.load("g"))
    store.released.set()
    assert [found.max_delivery_count for found in await loads] == [7, 7]
    assert (await settings.load("g")).max_delivery_count == 7
    assert store.reads == 1


async def test_a_read_that_fails_for_nobody_is_no_unexpected_error(
    store: SlowStore, settings: ShareGroupSettings
) -> None:
    problems: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, problem: problems.append(problem))
    claim = asyncio.ensure_future(settings.load("g"))
    await until(lambda: store.reads == 1)
    claim.cancel()
    store.is_away = True
    store.released.set()
    await until(claim.done)
    await until(lambda: not settings._loading)
    del claim  # its frames refer to the read
    gc.collect()
    assert problems == []
    store.is_away = False
    assert (await settings.load("g")).max_delivery_count == 7


async def test_a_group_that_was_removed_during_its_read_is_not_kept(
    store: SlowStore, settings: ShareGroupSettings
) -> None:
    claim = asyncio.ensure_future(settings.load("g"))
    await until(lambda: store.reads == 1)
    settings.remove("g")
    store.released.set()
    await until(claim.done)
    assert settings.get("g") is None
    assert (await settings.load("g")).max_delivery_count == 7


async def test_groups_get_their_changed_settings_until_they_are_removed(
    store: SlowStore, settings: ShareGroupSettings
) -> None:
    store.released.set()
    names = (f"h{number}" for number in itertools.count())
    same_shard = (name for name in names if keys.shard_of(name) == keys.shard_of("g"))
    kept, *others = itertools.islice(same_shard, 4)

    async def set_limits(**limits: str) -> None:
        """Change settings, and load one more group of the shard, which reads the settings of all."""
        puts = [
            PutOp(
                keys.group_settings(name), encode(GroupSettingsRecord(settings={"share.delivery.count.limit": limit}))
            )
            for name, limit in limits.items()
        ]
        await store.txn([], puts)
        await settings.load(others.pop())

    def limits_of(*groups: str) -> list[int | None]:
        return [known and known.max_delivery_count for known in map(settings.get, groups)]

    await settings.load("g")
    await settings.load(kept)
    await until(lambda: limits_of("g", kept) == [7, 5])
    await set_limits(g="9")
    await until(lambda: limits_of("g", kept) == [9, 5])
    await store.txn([], [DeleteOp(keys.group_settings("g"))])
    await set_limits(**{kept: "8"})
    await until(lambda: limits_of("g", kept) == [5, 8])
    settings.remove("g")
    await set_limits(g="4", **{kept: "6"})
    await until(lambda: limits_of("g", kept) == [None, 6])


async def until(is_true: Callable[[], bool]) -> None:
    """Wait for turns of the event loop until a condition holds."""
    while not is_true():
        await asyncio.sleep(0)
