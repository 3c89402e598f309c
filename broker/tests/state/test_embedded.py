"""The embedded store beyond the contract: durability, shared commits, refusal of damaged files."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from penstock.state.database import SCHEMA_VERSION, DiskFull
from penstock.state.embedded import EmbeddedStore
from penstock.state.history import MAX_DELIVERY
from penstock.state.store import Compacted, Compare, DeleteOp, LeaseExpired, PutOp, StoreError, StoreUnavailable


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "state.db")


async def filled(path: str) -> int:
    """Fill a store with a few hundred keys and close it; return its revision."""
    store = EmbeddedStore(path)
    for i in range(4):
        await store.txn([], [PutOp(f"/k/{i}/{j}", b"value %d" % j) for j in range(100)])
    revision = (await store.txn([], [DeleteOp("/k/0/", prefix=True)])).revision
    await store.close()
    return revision


async def test_a_reopened_store_has_everything_and_goes_on_counting(path: str) -> None:
    revision = await filled(path)
    store = EmbeddedStore(path)
    listing = await store.range("/")
    assert listing.revision == revision
    assert len(listing.entries) == 300
    assert listing.entries[0].value == b"value 0"
    assert (await store.txn([], [PutOp("/new", b"")])).revision == revision + 1
    await store.close()


@pytest.mark.integration
async def test_a_process_that_is_killed_loses_nothing_that_was_answered(path: str) -> None:
    code = """
import asyncio, os, sys
from penstock.state.embedded import EmbeddedStore
from penstock.state.store import PutOp
async def main():
    store = EmbeddedStore(sys.argv[1])
    for i in range(50):
        await asyncio.gather(*[store.txn([], [PutOp(f"/{i}/{j}", b"")]) for j in range(4)])
    os.kill(os.getpid(), 9)
asyncio.run(main())
"""
    killed = subprocess.run([sys.executable, "-c", code, path], check=False, timeout=60)
    assert killed.returncode == -9
    store = EmbeddedStore(path)
    assert len((await store.range("/")).entries) == 200
    await store.close()


async def test_leases_end_with_the_process(path: str) -> None:
    store = EmbeddedStore(path)
    lease = await store.grant_lease(3600)
    revision = (await store.txn([], [PutOp("/leased", b"", lease), PutOp("/stays", b"")])).revision
    await store.close()
    store = EmbeddedStore(path)
    listing = await store.range("/")
    assert [e.key for e in listing.entries] == ["/stays"]
    assert listing.revision == revision + 1
    await store.close()


async def test_a_watch_from_before_the_opening_is_told_to_list_again(path: str) -> None:
    revision = await filled(path)
    store = EmbeddedStore(path)
    with pytest.raises(Compacted):
        await anext(store.watch("/", revision))
    await store.close()


async def test_transactions_that_arrive_together_share_a_commit_and_keep_their_revisions(path: str) -> None:
    store = EmbeddedStore(path)
    results = await asyncio.gather(*[store.txn([], [PutOp(f"/{i}", b"")]) for i in range(100)])
    assert len({r.revision for r in results}) == 100
    assert store.commits <= 3
    await store.close()


async def test_history_is_bounded_and_a_watch_that_fell_behind_is_told(path: str) -> None:
    store = EmbeddedStore(path, history_events=10)
    first = (await store.txn([], [PutOp("/k", b"0")])).revision
    watch = store.watch("/", first)
    assert (await anext(watch)).revision == first
    for i in range(30):
        await store.txn([], [PutOp("/k", str(i).encode())])
    with pytest.raises(Compacted):
        await anext(watch)
    await store.close()


async def test_what_a_watch_has_to_catch_up_with_comes_in_bounded_parts(path: str) -> None:
    store = EmbeddedStore(path)
    puts = [[PutOp(f"/{i}/{j}", b"") for j in range(128)] for i in range(100)]
    results = await asyncio.gather(*[store.txn([], part) for part in puts])
    first, last = results[0].revision, results[-1].revision
    parts = []
    async for changes in store.watch("/", first):
        parts.append(changes)
        if changes.revision == last:
            break
    assert len(parts) > 1
    assert max(len(p.events) for p in parts) < MAX_DELIVERY + 128
    assert [e.key for p in parts for e in p.events] == [put.key for part in puts for put in part]
    await store.close()


async def test_history_is_bounded_in_bytes_too(path: str) -> None:
    store = EmbeddedStore(path, history_bytes=10_000)
    first = (await store.txn([], [PutOp("/k", bytes(4000))])).revision
    for _ in range(3):
        await store.txn([], [PutOp("/k", bytes(4000))])
    with pytest.raises(Compacted):
        await anext(store.watch("/", first))
    await store.close()


async def test_reads_do_not_see_what_is_not_yet_on_disk(path: str) -> None:
    store = EmbeddedStore(path)
    writing = asyncio.ensure_future(store.txn([], [PutOp("/k", b"")]))
    await asyncio.sleep(0)
    assert await store.get("/k") is None
    await writing
    assert await store.get("/k") is not None
    await store.close()


async def test_a_refusal_that_rests_on_a_write_waits_for_it(path: str) -> None:
    store = EmbeddedStore(path)
    winner = asyncio.ensure_future(store.txn([Compare.absent("/k")], [PutOp("/k", b"")]))
    await asyncio.sleep(0)
    assert not (await store.txn([Compare.absent("/k")], [PutOp("/k", b"")])).succeeded
    assert winner.done()
    assert await store.get("/k") is not None
    await store.close()


async def test_a_full_disk_fails_the_writes_leaves_the_state_and_recovers(path: str) -> None:
    store = EmbeddedStore(path)
    await store.txn([], [PutOp("/small", b"1")])
    limit = store._database._connection.execute("PRAGMA page_count").fetchone()[0] + 2
    store._database._connection.execute(f"PRAGMA max_page_count = {limit}")
    first = asyncio.ensure_future(store.txn([], [PutOp("/large", bytes(200_000)), PutOp("/small", b"2")]))
    second = asyncio.ensure_future(store.txn([], [PutOp("/after", b"")]))
    for refused in (first, second):
        with pytest.raises(StoreUnavailable, match="the disk is full"):
            await refused
    entry = await store.get("/small")
    assert entry is not None
    assert entry.value == b"1"
    assert len((await store.range("/")).entries) == 1
    store._database._connection.execute("PRAGMA max_page_count = 100000")
    result = await store.txn([Compare.unchanged(entry)], [PutOp("/large", bytes(200_000))])
    assert result.succeeded
    assert result.revision == entry.mod_revision + 1
    await store.close()
    store = EmbeddedStore(path)
    assert [e.key for e in (await store.range("/")).entries] == ["/large", "/small"]
    await store.close()


async def test_keys_of_a_lease_that_ends_on_a_full_disk_go_when_there_is_space(
    path: str, advance: Callable[[float], Awaitable[None]]
) -> None:
    store = EmbeddedStore(path)
    lease = await store.grant_lease(5)
    start = (await store.txn([], [PutOp("/leased", b"", lease)])).revision
    write, full = store._database.write, [True]

    def failing(*arguments: object) -> None:
        if full[0]:
            raise DiskFull("no space")
        write(*arguments)  # type: ignore[arg-type]

    store._database.write = failing  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        await store.revoke_lease(lease)
    assert await store.get("/leased") is not None
    full[0] = False
    await advance(2)
    async with asyncio.timeout(60):
        assert (await anext(store.watch("/", start + 1))).events[0].entry is None
    await store.close()


async def test_a_renewed_lease_lasts_to_the_end_of_its_time_and_no_longer(
    path: str, advance: Callable[[float], Awaitable[None]]
) -> None:
    store = EmbeddedStore(path)
    lease = await store.grant_lease(10)
    await store.txn([], [PutOp("/leased", b"", lease)])
    for _ in range(5):
        await advance(9)
        await store.keep_alive(lease)
    await advance(9)
    assert await store.get("/leased") is not None
    await advance(2)
    while (await store.range("/")).entries:
        await asyncio.sleep(0)
    with pytest.raises(LeaseExpired):
        await store.keep_alive(lease)
    await store.close()


async def test_an_io_error_stops_the_store_for_good(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = EmbeddedStore(path)
    await store.txn([], [PutOp("/k", b"1")])
    watch = store.watch("/", 3)
    watching = asyncio.ensure_future(anext(watch))  # type: ignore[arg-type]
    await asyncio.sleep(0)

    def fails(*arguments: object) -> None:
        raise StoreError("disk I/O error")

    monkeypatch.setattr(store._database, "write", fails)
    with pytest.raises(StoreUnavailable, match="I/O"):
        await store.txn([], [PutOp("/k", b"2")])
    monkeypatch.undo()
    for call in (store.txn([], [PutOp("/k", b"3")]), store.get("/k"), store.range("/"), watching):
        with pytest.raises(StoreUnavailable, match="I/O"):
            await call
    await store.close()
    store = EmbeddedStore(path)
    entry = await store.get("/k")
    assert entry is not None
    assert entry.value == b"1"
    await store.close()


async def test_a_closed_store_says_so(path: str) -> None:
    store = EmbeddedStore(path)
    await store.txn([], [PutOp("/k", b"")])
    watching = asyncio.ensure_future(anext(store.watch("/", 5)))  # type: ignore[arg-type]
    writing = asyncio.ensure_future(store.txn([], [PutOp("/last", b"")]))
    await asyncio.sleep(0)
    await store.close()
    assert (await writing).succeeded
    with pytest.raises(StoreUnavailable, match="closed"):
        await watching
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.get("/k")
    await store.close()


async def test_a_second_process_is_refused(path: str) -> None:
    store = EmbeddedStore(path)
    with pytest.raises(StoreError, match="in use by another process"):
        EmbeddedStore(path)
    await store.close()


async def test_a_newer_format_is_refused(path: str) -> None:
    await filled(path)
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.commit()
    connection.close()
    with pytest.raises(StoreError, match=f"format {SCHEMA_VERSION + 1}.*run the version that wrote it"):
        EmbeddedStore(path)


def test_a_file_that_is_no_database_is_refused(path: str) -> None:
    Path(path).write_bytes(b"something else entirely" * 100)
    with pytest.raises(StoreError, match="cannot read"):
        EmbeddedStore(path)
    assert Path(path).read_bytes().startswith(b"something else")


def test_another_programs_database_is_refused(path: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (x)")
    connection.commit()
    connection.close()
    with pytest.raises(StoreError, match="another program"):
        EmbeddedStore(path)


@pytest.mark.parametrize("before", [None, 0o644])
async def test_only_the_owner_can_read_the_files_which_have_credentials(path: str, before: int | None) -> None:
    if before is not None:
        await filled(path)
        Path(path).chmod(before)
    store = EmbeddedStore(path)
    await store.txn([], [PutOp("/new", b"")])
    modes = {file.name: file.stat().st_mode & 0o777 for file in Path(path).parent.iterdir()}
    await store.close()
    assert modes.keys() >= {"state.db", "state.db-wal"}
    assert set(modes.values()) == {0o600}


async def test_a_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot open"):
        EmbeddedStore(str(tmp_path / "absent" / "state.db"))


def with_a_flipped_bit(content: bytes, count: int) -> Iterator[tuple[int, bytes]]:
    """Yield `count` copies, each with one flipped bit, as (bit, copy)."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")  # noqa: T201
    chooser = random.Random(seed)
    for _ in range(count):
        bit = chooser.randrange(len(content) * 8)
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        yield bit, damaged


async def test_no_flipped_bit_changes_what_is_read(path: str) -> None:
    await filled(path)
    content = Path(path).read_bytes()
    store = EmbeddedStore(path)
    expected = await store.range("/")
    await store.close()
    refused = 0
    for bit, damaged in with_a_flipped_bit(content, 120):
        Path(path).write_bytes(damaged)
        try:
            store = EmbeddedStore(path)
        except StoreError:
            refused += 1
        else:
            assert await store.range("/") == expected, f"bit {bit} changed what is read"
            await store.close()
        for extra in ("-wal", "-shm"):
            Path(path + extra).unlink(missing_ok=True)
    assert refused > 20


async def test_a_flipped_bit_in_any_byte_of_the_schema_is_refused_or_harmless(path: str) -> None:
    """SQLite's error message quotes the damaged schema, which may not be valid UTF-8."""
    await filled(path)
    content = Path(path).read_bytes()
    page = content[:4096]
    first = page.index(b"tablestate")
    last = page.index(b"version INTEGER NOT NULL")
    refused = 0
    for position in range(first, last):
        Path(path).write_bytes(content[:position] + bytes([content[position] ^ 0x80]) + content[position + 1 :])
        try:
            store = EmbeddedStore(path)
        except StoreError:
            refused += 1
        else:
            await store.close()
        for extra in ("-wal", "-shm"):
            Path(path + extra).unlink(missing_ok=True)
    assert refused > 50


KILLED = """
import asyncio, os, sys
from penstock.state.embedded import EmbeddedStore
from penstock.state.store import PutOp
async def main():
    store = EmbeddedStore(sys.argv[1])
    for i in range(int(sys.argv[2])):
        await store.txn([], [PutOp(f"/{i}", b"value")])
    os.kill(os.getpid(), 9)
asyncio.run(main())
"""


async def keys_in(path: str) -> list[str]:
    store = EmbeddedStore(path)
    found = [e.key for e in (await store.range("/")).entries]
    await store.close()
    return found


@pytest.fixture
def crashed(path: str) -> tuple[str, Path, bytes, bytes]:
    """Return (database, its write-ahead log, their contents) after a kill; the log has all 20 transactions."""
    subprocess.run([sys.executable, "-c", KILLED, path, "20"], check=False, timeout=60)
    log = Path(path + "-wal")
    return path, log, Path(path).read_bytes(), log.read_bytes()


@pytest.mark.integration
async def test_no_flipped_bit_in_the_log_loses_more_than_a_torn_write_could(
    crashed: tuple[str, Path, bytes, bytes],
) -> None:
    path, log, content, log_content = crashed
    everything = sorted(f"/{i}" for i in range(20))
    refused = 0
    for bit, damaged in with_a_flipped_bit(log_content, 60):
        Path(path).write_bytes(content)
        log.write_bytes(damaged)
        try:
            found = await keys_in(path)
        except StoreError:
            refused += 1
        else:
            assert found in (everything, sorted(f"/{i}" for i in range(19))), f"bit {bit} lost transactions silently"
    assert refused > 30


@pytest.mark.integration
async def test_a_log_cut_short_loses_only_what_was_cut(crashed: tuple[str, Path, bytes, bytes]) -> None:
    path, log, content, log_content = crashed
    lengths = []
    for size in (len(log_content), len(log_content) - 1, len(log_content) // 2, 33, 32, 31, 0):
        Path(path).write_bytes(content)
        log.write_bytes(log_content[:size])
        try:
            lengths.append(len(await keys_in(path)))
        except StoreError:
            lengths.append(-1)  # before the tables were created
    assert lengths[0] == 20
    assert lengths == sorted(lengths, reverse=True)


async def test_a_file_cut_short_is_refused(path: str) -> None:
    await filled(path)
    content = Path(path).read_bytes()
    Path(path).write_bytes(content[: len(content) // 2])
    with pytest.raises(StoreError, match=r"cannot read|damaged"):
        EmbeddedStore(path)
