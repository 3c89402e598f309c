"""The contract of every `Store`, on which brokers rely."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock.state.store import (
    MAX_TXN_OPERATIONS,
    Compacted,
    Compare,
    CompareTarget,
    DeleteOp,
    LeaseExpired,
    PutOp,
    Store,
    StoreChanges,
)

pytestmark = pytest.mark.integration


async def put(store: Store, key: str, value: bytes = b"v") -> int:
    result = await store.txn([], [PutOp(key, value)])
    assert result.succeeded
    return result.revision


async def collect(store: Store, prefix: str, from_revision: int, until: int) -> list[StoreChanges]:
    """Return the changes that a watch yields up to revision `until`."""
    found = []
    async with asyncio.timeout(60):
        async for changes in store.watch(prefix, from_revision):
            found.append(changes)
            if changes.revision >= until:
                break
    return found


def flat(found: list[StoreChanges]) -> list[tuple[str, bytes | None]]:
    return [(e.key, e.entry.value if e.entry else None) for changes in found for e in changes.events]


async def test_a_key_that_was_never_written_is_not_there(store: Store) -> None:
    assert await store.get("/nothing") is None


async def test_an_entry_tells_its_value_revisions_and_version(store: Store) -> None:
    first = await put(store, "/k", b"one")
    second = await put(store, "/k", b"two")
    entry = await store.get("/k")
    assert entry is not None
    assert (entry.value, entry.create_revision, entry.mod_revision, entry.version) == (b"two", first, second, 2)


async def test_a_deleted_and_recreated_key_begins_again(store: Store) -> None:
    await put(store, "/k")
    await store.txn([], [DeleteOp("/k")])
    again = await put(store, "/k")
    entry = await store.get("/k")
    assert entry is not None
    assert (entry.create_revision, entry.mod_revision, entry.version) == (again, again, 1)


async def test_a_key_that_comes_and_goes_is_listed_once_or_not_at_all(store: Store) -> None:
    for _ in range(3):
        await asyncio.gather(*[store.txn([], [op]) for op in (PutOp("/k", b""), DeleteOp("/k"), PutOp("/k", b""))])
        # Concurrent transactions have no order: the key exists once, or it was deleted last.
        assert [e.key for e in (await store.range("/")).entries] in (["/k"], [])
        await put(store, "/k")
        assert [e.key for e in (await store.range("/")).entries] == ["/k"]
        await store.txn([], [DeleteOp("/k")])
        assert (await store.range("/")).entries == []
    await put(store, "/k")
    deleted = await store.txn([], [DeleteOp("/", prefix=True)])
    found = await collect(store, "/", deleted.revision, deleted.revision)
    assert flat(found) == [("/k", None)]


async def test_each_writing_transaction_has_a_greater_revision(store: Store) -> None:
    revisions = [await put(store, f"/k{i}") for i in range(5)]
    assert revisions == sorted(set(revisions))


async def test_a_transaction_that_writes_nothing_has_no_revision_of_its_own(store: Store) -> None:
    revision = await put(store, "/k")
    assert (await store.txn([], [])).revision == revision
    assert (await store.txn([], [DeleteOp("/absent")])).revision == revision
    assert (await store.txn([], [DeleteOp("/absent/", prefix=True)])).revision == revision
    assert await put(store, "/k2") == revision + 1


async def test_all_operations_of_a_transaction_have_one_revision(store: Store) -> None:
    await put(store, "/old")
    result = await store.txn([], [PutOp("/a", b"1"), PutOp("/b", b"2"), DeleteOp("/old")])
    listing = await store.range("/")
    assert [(e.key, e.mod_revision) for e in listing.entries] == [("/a", result.revision), ("/b", result.revision)]


async def test_conditions_that_hold_choose_the_first_branch_else_the_second(store: Store) -> None:
    result = await store.txn([Compare.absent("/k")], [PutOp("/k", b"then")], [PutOp("/k", b"otherwise")])
    assert result.succeeded
    result = await store.txn([Compare.absent("/k")], [PutOp("/k", b"then")], [PutOp("/k", b"otherwise")])
    assert not result.succeeded
    entry = await store.get("/k")
    assert entry is not None
    assert entry.value == b"otherwise"
    assert entry.mod_revision == result.revision


async def test_all_conditions_must_hold(store: Store) -> None:
    await put(store, "/a")
    result = await store.txn([Compare.absent("/b"), Compare.absent("/a")], [PutOp("/b", b"")])
    assert not result.succeeded
    assert await store.get("/b") is None


@pytest.mark.parametrize(
    ("target", "op", "value", "holds"),
    [
        (CompareTarget.VERSION, "=", 2, True),
        (CompareTarget.VERSION, "=", 1, False),
        (CompareTarget.VERSION, "!=", 1, True),
        (CompareTarget.VERSION, ">", 1, True),
        (CompareTarget.VERSION, "<", 2, False),
        (CompareTarget.MOD_REVISION, ">", 0, True),
        (CompareTarget.CREATE_REVISION, "=", 0, False),
        (CompareTarget.VALUE, "=", b"two", True),
        (CompareTarget.VALUE, "=", b"one", False),
        (CompareTarget.VALUE, "<", b"twp", True),
        (CompareTarget.VALUE, ">", b"two", False),
    ],
)
async def test_a_condition_compares_one_thing_of_a_key(
    store: Store, target: CompareTarget, op: str, value: int | bytes, holds: bool
) -> None:
    await put(store, "/k", b"one")
    await put(store, "/k", b"two")
    assert (await store.txn([Compare("/k", target, value, op)], [])).succeeded is holds


@pytest.mark.parametrize("target", [CompareTarget.MOD_REVISION, CompareTarget.CREATE_REVISION, CompareTarget.VERSION])
async def test_the_numbers_of_an_absent_key_are_zero(store: Store, target: CompareTarget) -> None:
    assert (await store.txn([Compare("/k", target, 0)], [])).succeeded
    assert not (await store.txn([Compare("/k", target, 0, ">")], [])).succeeded


async def test_no_condition_on_the_value_of_an_absent_key_holds(store: Store) -> None:
    for op in ("=", "!=", "<", ">"):
        assert not (await store.txn([Compare("/k", CompareTarget.VALUE, b"", op)], [])).succeeded


async def test_unchanged_fails_after_any_write_of_the_key(store: Store) -> None:
    await put(store, "/k")
    entry = await store.get("/k")
    assert entry is not None
    await put(store, "/k", entry.value)
    assert not (await store.txn([Compare.unchanged(entry)], [PutOp("/k", b"lost update")])).succeeded


async def test_of_many_concurrent_creators_one_wins(store: Store) -> None:
    results = await asyncio.gather(
        *[store.txn([Compare.absent("/k")], [PutOp("/k", str(i).encode())]) for i in range(50)]
    )
    winners = [i for i, result in enumerate(results) if result.succeeded]
    assert len(winners) == 1
    entry = await store.get("/k")
    assert entry is not None
    assert entry.value == str(winners[0]).encode()


async def test_concurrent_increments_by_compare_and_swap_are_all_counted(store: Store) -> None:
    await put(store, "/count", b"0")

    async def increment() -> None:
        for _ in range(10):
            while True:
                entry = await store.get("/count")
                assert entry is not None
                value = str(int(entry.value) + 1).encode()
                if (await store.txn([Compare.unchanged(entry)], [PutOp("/count", value)])).succeeded:
                    break

    await asyncio.gather(*[increment() for _ in range(5)])
    entry = await store.get("/count")
    assert entry is not None
    assert entry.value == b"50"


async def test_a_cancelled_call_leaves_the_store_in_order(store: Store) -> None:
    tasks = [asyncio.ensure_future(store.txn([], [PutOp(f"/k{i}", b"")])) for i in range(10)]
    await asyncio.sleep(0)
    tasks[3].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[3], asyncio.CancelledError)
    await put(store, "/after")
    assert await store.get("/k9") is not None
    assert await store.get("/after") is not None


async def test_a_range_is_in_the_order_of_the_keys_bytes(store: Store) -> None:
    names = ["/b", "/a/2", "/a/10", "/a", "/ä", "/a/", "/Z", "/\U0001f600", "/\uffff"]
    for name in names:
        await put(store, name)
    listing = await store.range("/")
    assert [e.key for e in listing.entries] == sorted(names, key=str.encode)


async def test_a_range_has_the_prefix_and_nothing_else(store: Store) -> None:
    for key in ("/a", "/a/1", "/a/2", "/a0", "/b"):
        await put(store, key)
    assert [e.key for e in (await store.range("/a/")).entries] == ["/a/1", "/a/2"]
    assert [e.key for e in (await store.range("/a")).entries] == ["/a", "/a/1", "/a/2", "/a0"]
    assert (await store.range("/c")).entries == []


async def test_a_range_can_be_read_as_of_an_earlier_revision(store: Store) -> None:
    await put(store, "/a", b"1")
    await put(store, "/b", b"1")
    then = await store.range("/")
    await put(store, "/a", b"2")
    await put(store, "/a", b"3")
    await put(store, "/c", b"1")
    await store.txn([], [DeleteOp("/b")])
    assert await store.range("/", then.revision) == then
    assert [(e.key, e.value) for e in (await store.range("/")).entries] == [("/a", b"3"), ("/c", b"1")]


async def test_a_range_of_a_revision_to_come_is_refused(store: Store) -> None:
    revision = await put(store, "/a")
    with pytest.raises(ValueError, match="future"):
        await store.range("/", revision + 1)


async def test_deleting_a_prefix_deletes_its_keys_alone(store: Store) -> None:
    for key in ("/a/1", "/a/2", "/a", "/ab", "/b"):
        await put(store, key)
    await store.txn([], [DeleteOp("/a/", prefix=True)])
    assert [e.key for e in (await store.range("/")).entries] == ["/a", "/ab", "/b"]


async def test_a_transaction_takes_128_conditions_and_operations_and_not_one_more(store: Store) -> None:
    assert MAX_TXN_OPERATIONS == 128
    puts = [PutOp(f"/k{i}", b"") for i in range(129)]
    absent = [Compare.absent(p.key) for p in puts]
    assert (await store.txn(absent[:128], puts[:128], puts[:128])).succeeded
    for arguments in (([], puts), (absent, []), ([], [], puts)):
        with pytest.raises(ValueError, match="128"):
            await store.txn(*arguments)
    assert len((await store.range("/k")).entries) == 128


async def test_a_transaction_cannot_write_a_key_twice(store: Store) -> None:
    with pytest.raises(ValueError, match="twice"):
        await store.txn([], [PutOp("/k", b"1"), PutOp("/k", b"2")])
    with pytest.raises(ValueError, match="both"):
        await store.txn([], [DeleteOp("/", prefix=True), PutOp("/k", b"2")])
    assert await store.get("/k") is None


async def test_large_values_are_kept_and_too_large_ones_refused(store: Store) -> None:
    value = bytes(range(256)) * 4096
    await put(store, "/large", value)
    entry = await store.get("/large")
    assert entry is not None
    assert entry.value == value
    with pytest.raises(ValueError, match="bytes"):
        await put(store, "/larger", bytes(1_572_865))
    assert await store.get("/larger") is None


@pytest.mark.parametrize("key", ["", "\ud800"])
async def test_a_key_that_cannot_be_stored_is_refused(store: Store, key: str) -> None:
    with pytest.raises(ValueError, match="key"):
        await put(store, key)


async def test_a_watch_brings_changes_as_they_come(store: Store) -> None:
    start = await put(store, "/before")
    watching = asyncio.ensure_future(collect(store, "/", start + 1, start + 3))
    await asyncio.sleep(0)
    await put(store, "/a", b"1")
    await put(store, "/a", b"2")
    await store.txn([], [DeleteOp("/a")])
    found = await watching
    assert flat(found) == [("/a", b"1"), ("/a", b"2"), ("/a", None)]
    assert found[-1].revision == start + 3


async def test_a_watch_can_begin_in_the_past(store: Store) -> None:
    first = await put(store, "/a", b"1")
    await put(store, "/a", b"2")
    await put(store, "/other", b"x")
    last = await put(store, "/a", b"3")
    assert flat(await collect(store, "/a", first + 1, last)) == [("/a", b"2"), ("/a", b"3")]


async def test_a_watch_can_begin_in_the_future(store: Store) -> None:
    start = await put(store, "/a", b"1")
    watching = asyncio.ensure_future(collect(store, "/a", start + 2, start + 2))
    await asyncio.sleep(0)
    await put(store, "/a", b"2")
    await put(store, "/a", b"3")
    assert flat(await watching) == [("/a", b"3")]


async def test_a_watch_brings_whole_revisions_in_order(store: Store) -> None:
    start = await put(store, "/before")
    results = await asyncio.gather(
        *[store.txn([], [PutOp(f"/w/{i}/a", b""), PutOp(f"/w/{i}/b", b"")]) for i in range(40)]
    )
    last = max(r.revision for r in results)
    found = await collect(store, "/w/", start + 1, last)
    events = [e for changes in found for e in changes.events]
    revisions = [e.entry.mod_revision for e in events if e.entry]
    assert len(revisions) == 80
    assert revisions == sorted(revisions)
    for changes in found:
        assert all(e.entry is not None and e.entry.mod_revision <= changes.revision for e in changes.events)
        assert changes.events[-1].entry is not None
        assert [e.entry.mod_revision for e in changes.events if e.entry].count(
            changes.events[-1].entry.mod_revision
        ) == 2, "a revision came in parts"


async def test_what_a_transaction_wrote_can_be_read_when_a_watch_brings_it(store: Store) -> None:
    start = await put(store, "/before")

    async def reader() -> None:
        async for changes in store.watch("/w", start + 1):
            for event in changes.events:
                assert event.entry is not None
                entry = await store.get(event.key)
                assert entry is not None
                assert entry.mod_revision >= event.entry.mod_revision
            if changes.revision >= start + 20:
                return

    reading = asyncio.ensure_future(reader())
    for i in range(20):
        await put(store, "/w", str(i).encode())
    async with asyncio.timeout(60):
        await reading


async def test_after_a_list_a_watch_from_the_next_revision_misses_nothing(store: Store) -> None:
    stop = asyncio.Event()

    async def writer() -> int:
        i = 0
        while not stop.is_set():
            i += 1
            await store.txn([], [PutOp(f"/k/{i % 7}", str(i).encode())])
        return i

    writing = asyncio.ensure_future(writer())
    await asyncio.sleep(0.02)
    listing = await store.range("/k/")
    state = {e.key: e.value for e in listing.entries}
    await asyncio.sleep(0.02)
    stop.set()
    await writing
    end = await store.range("/k/")
    if end.revision > listing.revision:
        state.update((k, v) for k, v in flat(await collect(store, "/k/", listing.revision + 1, end.revision)) if v)
    assert state == {e.key: e.value for e in end.entries}


async def test_two_watches_do_not_disturb_each_other(store: Store) -> None:
    start = await put(store, "/before")
    slow = store.watch("/", start + 1)
    await put(store, "/a")
    last = await put(store, "/b")
    assert flat(await collect(store, "/b", start + 1, last)) == [("/b", b"v")]
    async with asyncio.timeout(60):
        assert (await anext(slow)).events[0].key == "/a"


async def test_compaction_forgets_history_and_keeps_what_is_current(store: Store) -> None:
    await put(store, "/a", b"1")
    await put(store, "/a", b"2")
    await put(store, "/b", b"1")
    last = await put(store, "/a", b"3")
    await store.compact(last)
    assert [(e.key, e.value) for e in (await store.range("/")).entries] == [("/a", b"3"), ("/b", b"1")]
    with pytest.raises(Compacted):
        await store.range("/", last - 2)
    with pytest.raises(Compacted):
        await collect(store, "/", last - 2, last)
    assert flat(await collect(store, "/", last, last)) == [("/a", b"3")]


async def test_a_deletion_at_the_revision_that_was_compacted_to_is_still_brought(store: Store) -> None:
    await put(store, "/a", b"1")
    await put(store, "/a", b"2")
    deleted = (await store.txn([], [DeleteOp("/a")])).revision
    last = await put(store, "/b", b"1")
    await store.compact(deleted)
    assert flat(await collect(store, "/", deleted, last)) == [("/a", None), ("/b", b"1")]


async def test_compacting_twice_or_less_changes_nothing_and_the_future_is_refused(store: Store) -> None:
    await put(store, "/a", b"1")
    last = await put(store, "/a", b"2")
    await store.compact(last)
    await store.compact(last)
    await store.compact(last - 1)
    assert flat(await collect(store, "/", last, last)) == [("/a", b"2")]
    with pytest.raises(ValueError, match="future"):
        await store.compact(last + 1)


async def test_a_lease_takes_its_keys_with_it_when_it_ends(
    store: Store, advance: Callable[[float], Awaitable[None]]
) -> None:
    lease = await store.grant_lease(10)
    start = (await store.txn([], [PutOp("/leased", b"", lease), PutOp("/stays", b"")])).revision
    entry = await store.get("/leased")
    assert entry is not None
    assert entry.lease == lease
    await advance(3)
    assert await store.get("/leased") is not None
    await advance(8)
    assert flat(await collect(store, "/", start + 1, start + 1)) == [("/leased", None)]
    assert await store.get("/stays") is not None
    with pytest.raises(LeaseExpired):
        await store.keep_alive(lease)
    with pytest.raises(LeaseExpired):
        await store.txn([], [PutOp("/late", b"", lease)])
    assert await store.get("/late") is None


async def test_keeping_a_lease_alive_renews_it_for_its_whole_time(
    store: Store, advance: Callable[[float], Awaitable[None]]
) -> None:
    lease = await store.grant_lease(10)
    await store.txn([], [PutOp("/leased", b"", lease)])
    for _ in range(5):
        await advance(3)
        await store.keep_alive(lease)
    assert await store.get("/leased") is not None


async def test_a_revoked_lease_is_gone_at_once(store: Store) -> None:
    lease = await store.grant_lease(60)
    await store.txn([], [PutOp("/leased", b"", lease)])
    await store.revoke_lease(lease)
    assert await store.get("/leased") is None
    with pytest.raises(LeaseExpired):
        await store.keep_alive(lease)
    with pytest.raises(LeaseExpired):
        await store.revoke_lease(lease)


async def test_a_key_put_again_without_the_lease_outlives_it(store: Store) -> None:
    lease = await store.grant_lease(60)
    await store.txn([], [PutOp("/k", b"1", lease)])
    await store.txn([], [PutOp("/k", b"2")])
    await store.revoke_lease(lease)
    entry = await store.get("/k")
    assert entry is not None
    assert entry.value == b"2"


async def test_an_expired_lease_refuses_its_transaction_whole(store: Store) -> None:
    lease = await store.grant_lease(60)
    await store.revoke_lease(lease)
    with pytest.raises(LeaseExpired):
        await store.txn([], [PutOp("/a", b""), PutOp("/b", b"", lease)])
    assert (await store.range("/")).entries == []
