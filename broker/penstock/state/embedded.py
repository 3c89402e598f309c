"""The store inside a single broker's process: memory for reads, SQLite (`database`) for durability. Created by `node`.

Transactions are decided on the event loop and written by a thread. Those that arrive during one commit share the next:
each has its own revision, and they share one sync. Leases end with the process, its only client: the next start deletes
their keys.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from queue import SimpleQueue

from penstock.state.contents import StoreContents
from penstock.state.database import Database, DiskFull
from penstock.state.history import MAX_BYTES, MAX_EVENTS, History, Revision
from penstock.state.limits import check_key, check_txn
from penstock.state.store import (
    Compare,
    DeleteOp,
    LeaseExpired,
    Operation,
    PutOp,
    StoreChanges,
    StoreEntry,
    StoreError,
    StoreListing,
    StoreUnavailable,
    TxnResult,
)

MAX_BATCH = 4096
"""Maximum number of transactions per commit."""
MAX_LEASE_S = 86_400.0
RETRY_S = 1.0


@dataclass(slots=True)
class StoreJob:
    """A transaction on its way to the disk; one without a revision only waits for those before it."""

    revision: Revision | None
    done: asyncio.Future[None]


@dataclass(slots=True)
class EmbeddedLease:
    """A granted lease."""

    ttl_s: float
    deadline_s: float
    """Expiry on the loop's clock."""
    timer: asyncio.TimerHandle
    keys: set[str]
    """Keys that were put with the lease; some may since have been deleted, or put without it."""


class EmbeddedStore:
    """A `Store` in the file `path`, or in memory (":memory:"). Raises `StoreError` if the file cannot be used.

    `history_events` and `history_bytes` bound how far in the past a watch can start.
    """

    def __init__(self, path: str, *, history_events: int = MAX_EVENTS, history_bytes: int = MAX_BYTES) -> None:
        self._database = Database(path)
        entries, revision = self._database.load()
        self._contents = StoreContents(entries, revision)
        self._history = History(revision, history_events, history_bytes)
        self._queue: list[StoreJob] = []
        self._in_flight: list[StoreJob] = []
        self._flush_soon = False
        self._leases: dict[int, EmbeddedLease] = {}
        self._lease_ids = count(1)
        self._watchers: list[asyncio.Future[None]] = []
        self._failure: StoreError | None = None
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._work: SimpleQueue[list[StoreJob] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self.commits = 0
        """Number of commits, for metrics: fewer than transactions, which share them."""

    async def get(self, key: str) -> StoreEntry | None:
        """Return the committed entry of a key."""
        self._check_open()
        check_key(key)
        return self._contents.committed.get(key)

    async def range(self, prefix: str, revision: int = 0) -> StoreListing:
        """Return the committed entries with a prefix, as of `revision` (0: now)."""
        self._check_open()
        entries = self._contents.range(prefix)
        current = self._contents.committed_revision
        if revision in (0, current):
            return StoreListing(entries, current)
        if revision > current:
            raise ValueError(f"revision {revision} is in the future: the store is at {current}")
        return StoreListing(self._history.undo(prefix, entries, revision), revision)

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TxnResult:
        """Run a transaction; return when it is durable."""
        self._check_open()
        check_txn(compares, then, otherwise)
        succeeded = all(self._contents.holds(compare) for compare in compares)
        return TxnResult(succeeded, await self._apply(then if succeeded else otherwise))

    async def _apply(self, operations: Sequence[Operation]) -> int:
        """Write, and return the revision once it and all that it was decided on are durable."""
        leased = [op for op in operations if isinstance(op, PutOp) and op.lease]
        for put in leased:
            self._live_lease(put.lease)
        revision = self._contents.plan(operations)
        for put in leased:
            self._leases[put.lease].keys.add(put.key)
        if revision is None and not self._queue and not self._in_flight:
            return self._contents.committed_revision
        await self._submit(revision)
        return self._contents.committed_revision if revision is None else revision.number

    def _submit(self, revision: Revision | None) -> asyncio.Future[None]:
        loop = self._running_loop()
        job = StoreJob(revision, loop.create_future())
        self._queue.append(job)
        if not self._in_flight and not self._flush_soon:
            self._flush_soon = True
            loop.call_soon(self._flush)
        return job.done

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._write_batches, name="state-store", daemon=True)
            self._thread.start()
        return self._loop

    def _flush(self) -> None:
        self._flush_soon = False
        if self._in_flight or not self._queue:
            return
        self._in_flight, self._queue = self._queue[:MAX_BATCH], self._queue[MAX_BATCH:]
        self._work.put(self._in_flight)

    def _write_batches(self) -> None:
        """Write one commit per batch, in the writer thread."""
        assert self._loop is not None
        while (batch := self._work.get()) is not None:
            failure: StoreError | None = None
            try:
                self._write(batch)
            except StoreError as e:
                failure = e
            except Exception as e:
                failure = StoreError(f"the state database failed: {e!r}")
            try:
                self._loop.call_soon_threadsafe(self._written, failure)
            except RuntimeError:
                return  # the loop was closed before the store

    def _write(self, batch: list[StoreJob]) -> None:
        latest: dict[str, StoreEntry | None] = {}
        last = 0
        for job in batch:
            if job.revision is not None:
                last = job.revision.number
                latest.update((event.key, event.entry) for event in job.revision.events)
        if last:
            puts = [entry for entry in latest.values() if entry is not None]
            deletes = [key.encode() for key, entry in latest.items() if entry is None]
            self._database.write(puts, deletes, last)

    def _written(self, failure: StoreError | None) -> None:
        """Complete a batch on the event loop: it is durable, or it and everything decided after it has failed."""
        batch, self._in_flight = self._in_flight, []
        if failure is not None:
            self._fail(batch, failure)
            return
        self.commits += 1
        for job in batch:
            if job.revision is not None:
                self._contents.commit(job.revision)
                self._history.add(job.revision)
            if not job.done.done():
                job.done.set_result(None)
        self._wake_watchers()
        self._flush()

    def _fail(self, batch: list[StoreJob], failure: StoreError) -> None:
        self._contents.abandon()
        if not isinstance(failure, DiskFull):
            self._failure = failure
            self._wake_watchers()
        failed, self._queue = batch + self._queue, []
        for job in failed:
            if not job.done.done():
                job.done.set_exception(StoreUnavailable(str(failure)))

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed")
        if self._failure is not None:
            raise StoreUnavailable(str(self._failure))

    async def watch(self, prefix: str, from_revision: int) -> AsyncIterator[StoreChanges]:
        """Yield changes with a prefix from `from_revision` on."""
        if from_revision < 1:
            raise ValueError(f"a watch must start at revision 1 or later, not at {from_revision}")
        while True:
            self._check_open()
            while from_revision <= self._history.last or from_revision < self._history.first_change:
                changes, from_revision = self._history.changes(prefix, from_revision)
                if changes.events:
                    yield changes
                    self._check_open()
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._watchers.append(waiter)
            await waiter

    def _wake_watchers(self) -> None:
        waiters, self._watchers = self._watchers, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def grant_lease(self, ttl_s: float) -> int:
        """Grant a lease; return its id."""
        self._check_open()
        if not 0 < ttl_s <= MAX_LEASE_S:
            raise ValueError(f"a lease TTL must be above 0 and at most {MAX_LEASE_S} seconds, not {ttl_s}")
        loop = self._running_loop()
        lease = next(self._lease_ids)
        timer = loop.call_later(ttl_s, self._lease_timer, lease)
        self._leases[lease] = EmbeddedLease(ttl_s, loop.time() + ttl_s, timer, set())
        return lease

    async def keep_alive(self, lease: int) -> None:
        """Renew a lease."""
        self._check_open()
        held = self._live_lease(lease)
        held.timer.cancel()
        loop = self._running_loop()
        held.deadline_s = loop.time() + held.ttl_s
        held.timer = loop.call_later(held.ttl_s, self._lease_timer, lease)

    async def revoke_lease(self, lease: int) -> None:
        """End a lease and delete its keys."""
        self._check_open()
        await self._end_lease(lease, self._live_lease(lease))

    def _live_lease(self, lease: int) -> EmbeddedLease:
        """Raise `LeaseExpired` also if the TTL has passed but a busy loop has not run the timer yet."""
        held = self._leases.get(lease)
        if held is None or held.deadline_s <= self._running_loop().time():
            raise LeaseExpired(f"lease {lease} does not exist or has expired")
        return held

    def _lease_timer(self, lease: int) -> None:
        held = self._leases.get(lease)
        if held is not None and not self._closed and self._failure is None:
            self._end_lease(lease, held)

    def _lease_ended(self, lease: int, held: EmbeddedLease, done: asyncio.Future[None]) -> None:
        if not done.cancelled() and done.exception() is not None and not self._closed:
            # The disk is full: retry the deletion of the keys.
            self._leases[lease] = held
            held.deadline_s = 0.0
            held.timer = self._running_loop().call_later(RETRY_S, self._lease_timer, lease)

    def _end_lease(self, lease: int, held: EmbeddedLease) -> asyncio.Future[None]:
        held.timer.cancel()
        del self._leases[lease]
        latest = self._contents.latest
        keys = sorted(key for key in held.keys if (entry := latest(key)) is not None and entry.lease == lease)
        done = self._submit(self._contents.plan([DeleteOp(key) for key in keys]))
        done.add_done_callback(lambda done: self._lease_ended(lease, held, done))
        return done

    async def compact(self, revision: int) -> None:
        """Drop history before `revision`."""
        self._check_open()
        if revision > self._contents.committed_revision:
            raise ValueError(
                f"revision {revision} is in the future: the store is at {self._contents.committed_revision}"
            )
        self._history.forget_before(revision)

    async def close(self) -> None:
        """Wait for pending writes and close the file. Watches end with `StoreUnavailable`."""
        if self._closed:
            return
        self._closed = True
        for lease in self._leases.values():
            lease.timer.cancel()
        self._leases.clear()
        if self._queue or self._in_flight:
            with suppress(StoreUnavailable):  # the writers get the error
                await self._submit(None)
        self._wake_watchers()
        if self._thread is not None:
            self._work.put(None)
            await asyncio.to_thread(self._thread.join)
        self._database.close()
