"""The store on etcd beyond the contract: pages, fragments, leases from a thread, maintenance."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from etcd_kit import DEADLINE_S, Proxy, eventually
from etcd_process import EtcdCluster

from penstock.config.broker import BrokerConfig
from penstock.control.membership import FEATURE_LEVEL, SCHEMA_VERSION, ensure_cluster
from penstock.state import keys
from penstock.state.etcd import store as store_module
from penstock.state.etcd.options import EtcdOptions
from penstock.state.etcd.store import EtcdStore
from penstock.state.etcd.watch import RevisionAssembler
from penstock.state.records import ClusterRecord, PartitionRecord, TopicNameRecord, TopicRecord, encode
from penstock.state.store import (
    Compacted,
    DeleteOp,
    Operation,
    PutOp,
    Store,
    StoreChanges,
    StoreError,
    StoreUnavailable,
)
from penstock.state.view import ClusterView
from penstock.state.watcher import Watcher

pytestmark = pytest.mark.integration

TOPIC = UUID(int=7)


async def collect(stream: AsyncIterator[StoreChanges], until: int) -> list[StoreChanges]:
    found = []
    async with asyncio.timeout(DEADLINE_S):
        async for changes in stream:
            found.append(changes)
            if changes.revision >= until:
                break
    return found


async def fill(store: Store, count: int, prefix: str = "/k/") -> int:
    """Write keys in as few transactions as possible; return the last revision."""
    puts = [PutOp(f"{prefix}{i:06}", b"%d" % i) for i in range(count)]
    results = await asyncio.gather(*[store.txn([], puts[i : i + 128]) for i in range(0, count, 128)])
    return max(result.revision for result in results)


async def test_25000_keys_are_listed_as_of_one_revision_while_they_are_written_to(
    etcd_store: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = []
    await fill(etcd_store, 25_000)
    state = {f"/k/{i:06}": b"%d" % i for i in range(25_000)}
    log: list[tuple[int, Operation]] = []
    is_listed = False

    async def write(worker: int) -> None:
        n = worker
        while not is_listed:
            key = f"/k/{n * 7919 % 25_000:06}"
            operations: list[Operation] = [PutOp(key, b"new %d" % n), DeleteOp(key), PutOp(key + "/more", b"")]
            operation = operations[n // 4 % 3]
            log.append(((await etcd_store.txn([], [operation])).revision, operation))
            n += 4

    call = etcd_store.caller.call

    async def counted(pick: Any, request: Any, **options: Any) -> Any:
        if pick is store_module.pick_range:
            pages.append(request.limit)
        return await call(pick, request, **options)

    monkeypatch.setattr(etcd_store.caller, "call", counted)
    writing = [asyncio.ensure_future(write(i)) for i in range(4)]
    await eventually(lambda: len(log) > 20)
    listing = await etcd_store.range("/k/")
    is_listed = True
    await asyncio.gather(*writing)
    assert len(pages) > 10
    assert max(pages) == store_module.PAGE_KEYS
    for revision, operation in sorted(log, key=lambda item: item[0]):
        if revision > listing.revision:
            continue
        if isinstance(operation, PutOp):
            state[operation.key] = operation.value
        else:
            state.pop(operation.key, None)
    assert {e.key: e.value for e in listing.entries} == state
    assert [e.key for e in listing.entries] == sorted(state)
    assert min(log)[0] < listing.revision < max(revision for revision, _ in log), "nothing was written meanwhile"


async def test_pages_of_large_values_have_fewer_keys(etcd_store: EtcdStore, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"/large/{i:02}" for i in range(40)]
    for name in names:
        await etcd_store.txn([], [PutOp(name, bytes(1 << 20))])
    call, keys_of_pages = etcd_store.caller.call, []

    async def counted(pick: Any, request: Any, **options: Any) -> Any:
        response = await call(pick, request, **options)
        keys_of_pages.append(len(response.kvs))
        return response

    monkeypatch.setattr(etcd_store.caller, "call", counted)
    assert [e.key for e in (await etcd_store.range("/large/")).entries] == names
    assert max(keys_of_pages) < 16, "a page was larger than a message may be"
    assert set(keys_of_pages[1:]) == {1}


async def test_a_list_whose_revision_is_compacted_under_it_begins_again(
    etcd_store: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "PAGE_KEYS", 10)
    await fill(etcd_store, 100)
    call, pages = etcd_store.caller.call, 0

    async def compacting_after_the_first_page(pick: Any, request: Any, **options: Any) -> Any:
        nonlocal pages
        response = await call(pick, request, **options)
        if pick is not store_module.pick_range or not request.limit:
            return response
        pages += 1
        if pages == 1:
            await etcd_store.txn([], [PutOp("/k/000099", b"a")])
            last = await etcd_store.txn([], [PutOp("/k/000099", b"b")])
            await etcd_store.compact(last.revision)
        return response

    monkeypatch.setattr(etcd_store.caller, "call", compacting_after_the_first_page)
    listing = await etcd_store.range("/k/")
    assert len(listing.entries) == 100
    assert listing.entries[-1].value == b"b"
    assert pages == 11, "one page before the compaction, ten after it"


async def test_a_revision_of_128_events_arrives_whole(etcd_store: EtcdStore) -> None:
    start = await etcd_store.revision()
    stream = aiter(etcd_store.watch("/k/", start + 1))
    arriving = asyncio.ensure_future(anext(stream))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    revision = await fill(etcd_store, 128)
    changes = await arriving
    assert changes.revision == revision
    assert [e.key for e in changes.events] == [f"/k/{i:06}" for i in range(128)]


async def test_revisions_that_etcd_sends_in_fragments_are_joined(
    etcd_store: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fragments = []
    add = RevisionAssembler.add

    def noted(self: RevisionAssembler, response: Any) -> StoreChanges | None:
        fragments.append(response.fragment)
        return add(self, response)

    monkeypatch.setattr(RevisionAssembler, "add", noted)
    start = await etcd_store.revision()
    revisions = []
    for _ in range(6):
        puts = [PutOp(f"/k/{i}", bytes(9000)) for i in range(128)]
        revisions.append((await etcd_store.txn([], puts)).revision)
    found = await collect(etcd_store.watch("/k/", start + 1), revisions[-1])
    assert True in fragments, "etcd did not send fragments"
    seen = []
    for changes in found:
        numbers = [e.entry.mod_revision for e in changes.events if e.entry]
        assert numbers[-1] == changes.revision
        assert all(numbers.count(number) == 128 for number in set(numbers)), "a revision came in parts"
        seen += sorted(set(numbers))
    assert seen == revisions


async def test_a_watch_that_resumes_from_what_was_compacted_meanwhile_says_so(
    etcd: EtcdCluster, etcd_store: EtcdStore
) -> None:
    async with Proxy(etcd.members[0].client_port) as proxy:
        store = EtcdStore(EtcdOptions(endpoints=(proxy.url,)))
        start = (await etcd_store.txn([], [PutOp("/k", b"")])).revision
        stream = aiter(store.watch("/k", start))
        await anext(stream)
        waiting = asyncio.ensure_future(anext(stream))  # type: ignore[arg-type]
        proxy.is_refusing = True
        proxy.cut()
        for i in range(5):
            last = (await etcd_store.txn([], [PutOp("/k", b"%d" % i)])).revision
        await etcd_store.compact(last)
        proxy.is_refusing = False
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(Compacted, match="was compacted"):
                await waiting
        await store.close()


async def test_a_watch_of_what_does_not_change_resumes_although_its_beginning_was_compacted(tmp_path: Path) -> None:
    with EtcdCluster(tmp_path, arguments=["--experimental-watch-progress-notify-interval=200ms"]) as etcd:
        async with Proxy(etcd.members[0].client_port) as proxy:
            writer = EtcdStore(EtcdOptions(endpoints=etcd.endpoints))
            store = EtcdStore(EtcdOptions(endpoints=(proxy.url,)))
            start = (await writer.txn([], [PutOp("/quiet", b"1")])).revision
            stream = aiter(store.watch("/quiet", start))
            await anext(stream)
            waiting = asyncio.ensure_future(anext(stream))  # type: ignore[arg-type]
            for i in range(20):
                last = (await writer.txn([], [PutOp("/busy", b"%d" % i)])).revision
            [watch] = store._watches
            await eventually(lambda: watch._revisions.next_revision > last)
            await writer.compact(last)
            connections = proxy.connections
            proxy.cut()
            await eventually(lambda: proxy.connections > connections)
            revision = (await writer.txn([], [PutOp("/quiet", b"2")])).revision
            async with asyncio.timeout(DEADLINE_S):
                assert (await waiting).revision == revision
            await store.close()
            await writer.close()


async def test_a_brokers_view_follows_etcd_through_a_cut_and_through_compaction(
    etcd: EtcdCluster, etcd_store: EtcdStore
) -> None:
    async def lead(epoch: int) -> int:
        record = PartitionRecord(replicas=[1], leader=1, leader_epoch=epoch, isr=[1])
        return (await etcd_store.txn([], [PutOp(keys.partition(TOPIC, 0), encode(record))])).revision

    topic = TopicRecord(name="t", topic_id=TOPIC, partition_count=1)
    await lead(0)
    named = PutOp(keys.topic_name("t"), encode(TopicNameRecord(topic_id=TOPIC)))
    await etcd_store.txn([], [PutOp(keys.topic(TOPIC), encode(topic)), named])
    async with Proxy(etcd.members[0].client_port) as proxy, asyncio.timeout(DEADLINE_S):
        store = EtcdStore(EtcdOptions(endpoints=(proxy.url,)))
        view = ClusterView()
        watcher = Watcher(store, view, BrokerConfig())
        await watcher.start()
        for epoch in range(1, 6):
            proxy.is_refusing = True
            proxy.cut()
            for earlier in range(3):
                await lead(10 * epoch - earlier)
            revision = await lead(epoch)
            if epoch % 2:
                await etcd_store.compact(revision)
            proxy.is_refusing = False
            await watcher.applied(revision)
            assert view.topics["t"].partitions[0].leader_epoch == epoch
        assert watcher.loads > 1, "it was never told to list again"
        await watcher.stop()
        await store.close()


async def test_a_watch_that_is_closed_ends_its_stream(etcd: EtcdCluster) -> None:
    store = EtcdStore(EtcdOptions(endpoints=etcd.endpoints))
    revision = (await store.txn([], [PutOp("/k", b"")])).revision
    for _ in range(3):
        stream = store.watch("/k", revision)
        await anext(aiter(stream))
        [watch] = store._watches
        call = watch._call
        assert not call.done()
        await stream.aclose()  # type: ignore[attr-defined]
        assert call.done()
        assert not store._watches
    await store.close()


async def test_a_lease_is_renewed_from_a_thread_while_the_main_loop_stands_still(etcd: EtcdCluster) -> None:
    options = EtcdOptions(endpoints=etcd.endpoints)
    store = EtcdStore(options)
    lease = await store.grant_lease(5)
    await store.txn([], [PutOp("/alive", b"", lease)])
    stop, renewals = threading.Event(), []

    async def renew() -> None:
        own = EtcdStore(options)
        while not stop.is_set():
            await own.keep_alive(lease)
            renewals.append(lease)
            await asyncio.sleep(0.2)
        await own.close()

    thread = threading.Thread(target=lambda: asyncio.run(renew()))
    thread.start()
    await eventually(lambda: bool(renewals))
    time.sleep(8)
    stop.set()
    await asyncio.to_thread(thread.join)
    assert await store.get("/alive") is not None
    assert len(renewals) > 5
    await store.close()


async def test_an_etcd_that_is_ours_is_looked_after(tmp_path: Path) -> None:
    with EtcdCluster(tmp_path, arguments=["--quota-backend-bytes=16777216"]) as etcd:
        store = EtcdStore(EtcdOptions(endpoints=etcd.endpoints))
        care, [url] = store.maintenance(), etcd.endpoints
        with pytest.raises(StoreUnavailable, match="quota"):  # noqa: PT012
            for _ in range(100):
                await store.txn([], [PutOp("/fat", bytes(1 << 20))])
        [alarm] = await care.alarms()
        assert alarm.kind == "NOSPACE"
        full = await care.status(url)
        assert full.revision == await store.revision()
        assert full.leader_id == full.member_id == alarm.member_id
        assert full.version.startswith("3.")
        assert full.errors
        await store.compact(full.revision)
        async with asyncio.timeout(DEADLINE_S):
            while (await care.status(url)).db_size_bytes > full.db_size_bytes // 2:
                await care.defragment(url)  # compaction continues after its response
        await care.disarm(alarm)
        assert await care.alarms() == []
        assert (await store.txn([], [PutOp("/fat", b"thin")])).succeeded
        [member] = await care.members()
        assert (member.member_id, member.name, member.client_urls) == (full.member_id, "m0", (url,))
        with pytest.raises(ValueError, match="not one of the etcd endpoints"):
            await care.status("http://127.0.0.1:1")
        etcd.kill()
        with pytest.raises(StoreUnavailable, match=url):
            await care.status(url)
        await store.close()


@pytest.mark.parametrize("newer", [{"schema_version": SCHEMA_VERSION + 1}, {"feature_level": FEATURE_LEVEL + 1}])
async def test_a_store_of_a_newer_version_is_refused(store: Store, newer: dict[str, int]) -> None:
    record = ClusterRecord(cluster_id="abc", **newer)
    await store.txn([], [PutOp(keys.CLUSTER, encode(record))])
    with pytest.raises(StoreError, match="; upgrade"):
        await ensure_cluster(store, uuid4)
    entry = await store.get(keys.CLUSTER)
    assert entry is not None
    assert entry.value == encode(record), "it was written to"


def test_a_broker_that_needs_no_etcd_does_not_load_grpc() -> None:
    code = (
        "import sys, penstock.node.process, penstock.state.etcd.options, penstock.state.etcd.binary;"
        "loaded = {m.split('.')[0] for m in sys.modules} & {'grpc', 'aetcd', 'google'};"
        "sys.exit(f'{loaded} were loaded' if loaded else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (0, "")
