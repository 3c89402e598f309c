"""The store on etcd when members, connections or responses are lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest
from etcd_kit import DEADLINE_S, Proxy, eventually, persistently
from etcd_process import EtcdCluster, EtcdMember, ReservedPorts

from penstock.state.etcd.errors import ForeignCluster
from penstock.state.etcd.options import EtcdOptions
from penstock.state.etcd.store import EtcdStore
from penstock.state.store import Compare, CompareTarget, PutOp, StoreUnavailable

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path_factory.mktemp("three"), members=3) as running:
        yield running


SHORT_S = 1.0
"""Timeout of requests that a test leaves without a response, or repeats until they succeed."""


@asynccontextmanager
async def opened(*endpoints: str, timeout_s: float = DEADLINE_S, patience_s: float = 0.2) -> AsyncIterator[EtcdStore]:
    options = EtcdOptions(
        endpoints=endpoints,
        request_timeout_s=timeout_s,
        connect_timeout_s=timeout_s,
        patience_s=patience_s,
        keepalive_s=5.0,
    )
    store = EtcdStore(options)
    try:
        yield store
    finally:
        await store.close()


class Following:
    """A watch that records each revision with its keys while it runs."""

    def __init__(self, store: EtcdStore, prefix: str, from_revision: int) -> None:
        self.seen: list[tuple[int, tuple[str, ...]]] = []
        self._task = asyncio.ensure_future(self._follow(store, prefix, from_revision))

    async def _follow(self, store: EtcdStore, prefix: str, from_revision: int) -> None:
        async for changes in store.watch(prefix, from_revision):
            by_revision: dict[int, list[str]] = {}
            for event in changes.events:
                assert event.entry is not None
                by_revision.setdefault(event.entry.mod_revision, []).append(event.key)
            self.seen += [(revision, tuple(keys)) for revision, keys in by_revision.items()]

    async def until(self, revision: int) -> None:
        await eventually(lambda: self._task.done() or (bool(self.seen) and self.seen[-1][0] >= revision))
        if self._task.done():
            await self._task

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def member_in_use(store: EtcdStore, etcd: EtcdCluster) -> EtcdMember:
    return next(member for member in etcd.members if member.url == store.endpoints.current.url)


async def test_a_write_goes_to_the_next_endpoint_when_the_first_cannot_be_reached(etcd: EtcdCluster) -> None:
    with ReservedPorts(1) as [unused]:
        async with opened(f"http://127.0.0.1:{unused}", *etcd.endpoints) as store:
            assert (await store.txn([], [PutOp("/f/first", b"")])).succeeded
            assert store.endpoints.failovers == 1
            assert await store.get("/f/first") is not None
            assert store.endpoints.failovers == 1, "it stays where it was answered"


async def test_no_endpoint_that_answers_is_an_error_that_names_them_and_the_reason() -> None:
    with ReservedPorts(2) as ports:
        async with opened(*[f"http://127.0.0.1:{port}" for port in ports]) as store:
            for call in (store.get("/k"), store.txn([], [PutOp("/k", b"")]), store.grant_lease(5), store.range("/")):
                with pytest.raises(StoreUnavailable, match=rf"{ports[0]}.*{ports[1]}.*refused.*check that a majority"):
                    await call


async def test_a_write_whose_answer_is_lost_is_reported_and_not_done_twice(etcd: EtcdCluster) -> None:
    async with Proxy(etcd.members[0].client_port) as proxy, opened(proxy.url, *etcd.endpoints) as store:
        await store.txn([], [PutOp("/f/other", b"")])
        before = await store.get("/f/once")
        proxy.is_swallowing = True
        writing = asyncio.ensure_future(store.txn([], [PutOp("/f/once", b"")]))
        version = before.version if before else 0
        async with opened(*etcd.endpoints) as other:
            while (written := await other.get("/f/once")) is None or written.version == version:
                await asyncio.sleep(0.01)
        proxy.cut()
        with pytest.raises(StoreUnavailable, match="unknown"):
            await writing
        entry = await store.get("/f/once")
        assert entry is not None
        assert entry.version == version + 1
        assert store.endpoints.current.url == etcd.endpoints[0]


async def test_a_write_that_is_not_answered_in_time_is_reported_and_the_next_goes_elsewhere(etcd: EtcdCluster) -> None:
    async with Proxy(etcd.members[0].client_port) as proxy, opened(proxy.url, *etcd.endpoints) as store:
        await store.get("/f/warm")
        proxy.is_swallowing = True
        store.caller.timeout_s = 0.2
        with pytest.raises(StoreUnavailable, match="unknown"):
            await store.txn([], [PutOp("/f/late", b"")])
        store.caller.timeout_s = DEADLINE_S
        assert (await store.txn([Compare.absent("/f/none")], [PutOp("/f/late", b"2")])).succeeded


async def test_a_read_whose_answer_is_lost_is_asked_again_elsewhere(etcd: EtcdCluster) -> None:
    async with Proxy(etcd.members[0].client_port) as proxy, opened(proxy.url, *etcd.endpoints) as store:
        await store.txn([], [PutOp("/f/read", b"here")])
        proxy.is_swallowing = True
        reading = asyncio.ensure_future(store.get("/f/read"))
        await eventually(lambda: proxy.swallowed_bytes > 0)
        proxy.cut()
        entry = await reading
        assert entry is not None
        assert entry.value == b"here"


async def test_leases_are_granted_renewed_and_ended_although_answers_are_lost(etcd: EtcdCluster) -> None:
    async with Proxy(etcd.members[0].client_port) as proxy, opened(proxy.url, *etcd.endpoints) as store:

        async def losing_the_answer() -> None:
            """Drop the first endpoint's response to the next request."""
            await eventually(lambda: proxy.swallowed_bytes > 0)
            proxy.cut()
            proxy.swallowed_bytes = 0

        async def prepared() -> None:
            proxy.is_swallowing = False
            store.endpoints.fail_over(store.endpoints.current)
            while store.endpoints.current.url != proxy.url:
                store.endpoints.fail_over(store.endpoints.current)
            await store.get("/f/warm")
            proxy.swallowed_bytes = 0
            proxy.is_swallowing = True

        await prepared()
        lease, _ = await asyncio.gather(store.grant_lease(60), losing_the_answer())
        await store.txn([], [PutOp("/f/leased", b"", lease)])
        await prepared()
        await asyncio.gather(store.keep_alive(lease), losing_the_answer())
        await prepared()
        await asyncio.gather(store.revoke_lease(lease), losing_the_answer())
        assert await store.get("/f/leased") is None


class Failing:
    """A method of etcd's API that fails `times` times."""

    def __init__(self, times: int, details: str) -> None:
        self.calls, self._times, self._details = 0, times, details

    async def __call__(self, request: object, **_: object) -> str:
        self.calls += 1
        if self.calls <= self._times:
            raise grpc.aio.AioRpcError(
                grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), self._details
            )
        return "done"


@pytest.mark.parametrize("repeatable", [True, False])
async def test_a_call_that_was_not_done_outlasts_an_election(etcd: EtcdCluster, repeatable: bool) -> None:
    async with opened(*etcd.endpoints, patience_s=DEADLINE_S) as store:
        method = Failing(5, "etcdserver: no leader")
        assert await store.caller.call(lambda _: method, None, repeatable=repeatable) == "done"
        assert method.calls == 6


async def test_only_what_may_be_done_twice_is_sent_again_when_its_outcome_is_unknown(etcd: EtcdCluster) -> None:
    async with opened(*etcd.endpoints, patience_s=DEADLINE_S) as store:
        read, write = Failing(3, "etcdserver: leader changed"), Failing(1, "etcdserver: leader changed")
        assert await store.caller.call(lambda _: read, None, repeatable=True) == "done"
        with pytest.raises(StoreUnavailable, match=r"leader changed.*unknown"):
            await store.caller.call(lambda _: write, None, repeatable=False)
        assert write.calls == 1


async def test_a_watch_resumes_after_its_connection_was_cut_and_misses_nothing(etcd: EtcdCluster) -> None:
    async with (
        Proxy(etcd.members[0].client_port) as proxy,
        opened(proxy.url) as store,
        opened(*etcd.endpoints) as writer,
    ):
        start = (await writer.txn([], [PutOp("/cut/start", b"")])).revision
        following = Following(store, "/cut/", start + 1)
        written = []
        for i in range(60):
            revision = (await writer.txn([], [PutOp(f"/cut/{i}/a", b""), PutOp(f"/cut/{i}/b", b"")])).revision
            written.append((revision, (f"/cut/{i}/a", f"/cut/{i}/b")))
            if i % 12 == 5:
                await following.until(written[-3][0])
                connections = proxy.connections
                proxy.is_refusing = i % 24 == 5
                proxy.cut()
                await eventually(lambda seen=connections: proxy.connections > seen)  # type: ignore[misc]
                proxy.is_refusing = False
        await following.until(written[-1][0])
        assert following.seen == written
        assert proxy.connections > 5
        await following.close()


async def test_a_watch_goes_on_while_etcd_is_killed_and_comes_back(tmp_path: Path) -> None:
    with EtcdCluster(tmp_path) as etcd:
        async with opened(*etcd.endpoints) as store:
            start = (await store.txn([], [PutOp("/k/0", b"")])).revision
            following = Following(store, "/k/", start)
            await following.until(start)
            etcd.members[0].kill()
            with pytest.raises(StoreUnavailable):
                await store.get("/k/0")
            etcd.members[0].start()
            await asyncio.to_thread(etcd.members[0].wait_ready)
            assert await persistently(lambda: store.get("/k/0")) is not None
            last = (await persistently(lambda: store.txn([], [PutOp("/k/1", b"")]))).revision
            await following.until(last)
            # The store repeated a put that etcd had applied before the timeout.
            assert (following.seen[0], following.seen[-1]) == ((start, ("/k/0",)), (last, ("/k/1",)))
            assert {names for _, names in following.seen[1:]} == {("/k/1",)}
            await following.close()


@pytest.mark.parametrize("how", ["paused", "killed"])
async def test_reads_writes_and_watches_move_on_when_the_member_in_use_is(three: EtcdCluster, how: str) -> None:
    async with opened(*three.endpoints, timeout_s=SHORT_S) as store:
        start = (await persistently(lambda: store.txn([], [PutOp(f"/move/{how}", b"0")]))).revision
        following = Following(store, f"/move/{how}", start)
        await following.until(start)
        lost = member_in_use(store, three)
        if how == "paused":
            lost.pause()
        else:
            lost.kill()
        try:
            entry = await persistently(lambda: store.get(f"/move/{how}"))
            assert entry is not None
            assert entry.value == b"0"
            assert store.endpoints.failovers >= 1
            last = (await persistently(lambda: store.txn([], [PutOp(f"/move/{how}", b"1")]))).revision
            await following.until(last)
            assert following.seen[0][0] == start
            assert following.seen[-1][0] == last
        finally:
            if how == "paused":
                lost.resume()
            else:
                lost.start()
            await asyncio.to_thread(lost.wait_ready)
            await following.close()


async def test_nothing_is_decided_by_a_member_that_has_lost_its_majority(three: EtcdCluster) -> None:
    async with opened(*three.endpoints, timeout_s=SHORT_S) as store:
        await persistently(lambda: store.txn([], [PutOp("/fence", b"1")]))
        others = [member for member in three.members if member is not member_in_use(store, three)]
        for member in others:
            member.pause()
        try:
            # The member's copy of the key may be stale: the majority may have changed it since.
            with pytest.raises(StoreUnavailable):
                await store.txn([Compare("/fence", CompareTarget.VALUE, b"1")], [])
            with pytest.raises(StoreUnavailable):
                await store.get("/fence")
        finally:
            for member in others:
                member.resume()
            await asyncio.gather(*[asyncio.to_thread(member.wait_ready) for member in others])
        await persistently(lambda: store.txn([Compare("/fence", CompareTarget.VALUE, b"1")], []))


async def test_endpoints_of_two_etcd_clusters_are_refused(etcd: EtcdCluster, tmp_path: Path) -> None:
    with EtcdCluster(tmp_path) as other:
        async with Proxy(etcd.members[0].client_port) as proxy, opened(proxy.url, *other.endpoints) as store:
            await store.txn([], [PutOp("/f/one", b"")])
            proxy.is_refusing = True
            proxy.cut()
            with pytest.raises(ForeignCluster, match=f"{other.endpoints[0]}.*endpoints of one etcd"):
                await persistently(lambda: store.get("/f/one"))


async def test_a_closed_store_ends_its_watches_and_answers_nothing(etcd: EtcdCluster) -> None:
    async with opened(*etcd.endpoints) as store:
        revision = (await store.txn([], [PutOp("/f/close", b"")])).revision

        async def follow() -> None:
            async for _ in store.watch("/f/close", revision):
                seen.set()

        seen = asyncio.Event()
        following = asyncio.ensure_future(follow())
        await seen.wait()
        await store.close()
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(StoreUnavailable, match="closed"):
                await following
            for call in (store.get("/k"), store.txn([], []), anext(aiter(store.watch("/", 1)))):
                with pytest.raises(StoreUnavailable, match="closed"):
                    await call


async def test_closing_a_store_ends_calls_that_still_wait_for_a_connection() -> None:
    async with Proxy(0) as proxy:
        proxy.is_silent = True
        async with opened(proxy.url) as store:
            calls = [asyncio.ensure_future(store.get(f"/k/{i}")) for i in range(3)]
            await eventually(lambda: proxy.connections > 0)
            await store.close()
            for call in calls:
                with pytest.raises(StoreUnavailable, match="closed"):
                    await call


async def test_a_call_that_is_cancelled_takes_nothing_from_the_others(etcd: EtcdCluster) -> None:
    async with opened(*etcd.endpoints) as store:
        calls = [asyncio.ensure_future(store.get("/f/shared")) for _ in range(5)]
        await asyncio.sleep(0)
        calls[0].cancel()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError)
        assert results[1:] == [None] * 4
