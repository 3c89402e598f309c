"""Notices that the cluster's store was restored from a backup, and holds this broker still until that is recovered.

`node` makes one `Restored` in a cluster, before anything else reads the store. What tells is the newest election that
this broker has seen and the store lacks (rule: an election is written down here before anything of that controller is
acted on), another etcd than before, or a revision that went back. One broker that notices stops all: it leaves a mark
in the store which ends the controller's time, lets nobody be elected, and freezes whoever sees it.

A frozen broker goes on serving reads and, as when etcd is away, acks=all on what it leads. Its view stands still,
nothing is truncated, deleted or written to the store. It reports what it has (`reports`); `penstock cluster recover`
reads that. When the store has been recovered this run of the broker is over, and a new one begins from what is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Sequence
from contextlib import suppress
from typing import Any, Protocol, runtime_checkable
from uuid import UUID

import msgspec

from penstock.control.elections import ElectionPair, missing, newest_recovery, read_election
from penstock.control.restored.guarded import GuardedStore
from penstock.control.restored.observed_revision import ObservedRevision, read_seen, write_seen
from penstock.control.restored.reports import BrokerReport, RestoredRecord, collect, write_report
from penstock.log.log_dir import LogDirectory
from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock.state import keys
from penstock.state.records import ClusterRecord, decode, encode
from penstock.state.store import (
    Compare,
    DeleteOp,
    PutOp,
    Store,
    StoreEntry,
    StoreError,
    StoreEvent,
    StoreListing,
    StoreUnavailable,
)
from penstock.state.view import ClusterView

log = get_logger("penstock.control")

CHECK_S = 5.0
"""Between two looks while nothing seems wrong; a connection that was made anew is a reason to look at once."""
POLL_S = 1.0
"""Between two looks while this broker is frozen, and between attempts while the store does not answer."""
WRITE_MS = 60_000
"""How often the revision that was seen is written down, for nothing but it has changed."""


@runtime_checkable
class Connected(Protocol):
    """A store that tells which server it talks to, and when that may have become another."""

    @property
    def cluster_id(self) -> str: ...

    on_connect: list[Callable[[], None]]


class Restored:
    """`reason` is why this broker is frozen; None where it is not. `over` is set when its run is to end, as the store
    was recovered meanwhile."""

    def __init__(
        self,
        store: GuardedStore,
        open_store: Callable[[], Store],
        log_dir: LogDirectory,
        view: ClusterView,
        clock: Clock,
    ) -> None:
        """`open_store` makes one more: a store that has talked to one etcd may refuse to talk to another."""
        self.store, self.open_store, self.log_dir, self.view, self.clock = store, open_store, log_dir, view, clock
        self.reason: str | None = None
        self.over = asyncio.Event()
        self.checks = 0
        self._seen = ObservedRevision()
        self._newest_revision = 0
        self._written_ms = 0
        self._has_reported = False
        self._writing = asyncio.Lock()
        self._doubts = 1
        self._settled_doubts = 0
        self._sound = asyncio.Event()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        if isinstance(store.store, Connected):
            store.store.on_connect.append(self.doubt)

    # What rooms ask

    @property
    def is_frozen(self) -> bool:
        return self.reason is not None

    def may_discard(self) -> bool:
        """Whether data may be cut off or deleted: not while the store may have gone back in time."""
        return self.reason is None and self._settled_doubts == self._doubts

    def may_serve(self) -> bool:
        """Whether what needs the store may be done: acks=0 and 1, coordinators, changes of ISRs."""
        return self.reason is None

    def known(self, hosted: Container[tuple[UUID, int]]) -> Container[tuple[UUID, int]]:
        """Which (topic id, partition) are not to be put aside: `hosted`, but after a recovery only what is this
        broker's, as data that nobody assigns to it may be newer than what the store knows."""
        return Assigned(self.view, self.log_dir.broker_id) if self._seen.sets_aside else hosted

    async def set_aside(self) -> None:
        """What is not `known` has been put aside, durably."""
        async with self._writing:
            if self._seen.sets_aside:
                await self._write(sets_aside=False)

    # Life

    async def start(self, recover_logs: Callable[[], Awaitable[None]]) -> None:
        """Returns when the store is known to be sound: at once, or after it has been recovered.

        The log directory is claimed; `recover_logs` makes its logs known where they have to be told of. Raises
        `StoreError`, LogError, OSError.
        """
        files, path = self.log_dir.files, self.log_dir.path
        seen = await asyncio.get_running_loop().run_in_executor(None, lambda: read_seen(files, path))
        self._seen = ObservedRevision() if seen is None else seen
        await self.check(is_start=True)
        if self.reason is not None:
            await recover_logs()
            await self._until_recovered()
            self.reason = self.store.refusal = None
            await self.check()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="restored")

    async def close(self) -> None:
        """Writes down how far the store was: nobody is left to notice if that goes back now."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        revision = max(self._newest_revision, self.view.revision)
        async with self._writing:
            if self.reason is None and revision > self._seen.revision:
                with suppress(OSError):  # a disk that fails is told of by those who have more to write
                    await self._write(revision=revision)

    def doubt(self) -> None:
        """The store may be another than it was: until it has been looked at, nothing is taken from it."""
        self._doubts += 1
        self._sound.clear()
        self._wake.set()

    async def gate(self, events: Sequence[StoreEvent]) -> None:
        """For `Watcher`: returns when changes may be taken in, and what must not be forgotten of them is written down.

        Does not return while this broker is frozen; raises StoreUnavailable instead where its view is still empty.
        """
        await self._until_sound()
        newest: ElectionPair | None = None
        for event in events:
            if event.key == keys.RESTORED and event.entry is not None:
                self._freeze(reason_of(event.entry))
            elif event.key.startswith(keys.ELECTIONS) and event.entry is not None:
                pair, election = read_election(event.entry)
                if election.is_recovery and pair.epoch > self._seen.epoch:
                    self._freeze("the store was restored from a backup and has been recovered")
                newest = max(newest, pair, key=epoch_of)
        await self._until_sound()
        async with self._writing:
            if epoch_of(newest) > self._seen.epoch and newest is not None:
                await self._write(epoch=newest.epoch, random_id=newest.random_id)

    async def _until_sound(self) -> None:
        while not self.may_discard():
            if self.reason is not None and not self.view.revision:
                raise StoreUnavailable(self.reason)
            self._wake.set()
            await self._sound.wait()

    # Looking

    async def _run(self) -> None:
        while self.reason is None:
            self._wake.clear()
            pause_s = CHECK_S
            try:
                await self.check()
            except StoreError as e:
                log.debug("the store could not be looked at", reason=str(e))
                pause_s = POLL_S
            except Exception:
                log.exception("the store could not be looked at")
                pause_s = POLL_S
            if self.reason is None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._wake.wait()
        await self.log_dir.compactor.stop()
        await self._until_recovered()
        self.over.set()

    async def check(self, *, is_start: bool = False) -> None:
        """Compares the store with what was seen, and freezes where it has gone back. Raises `StoreError`."""
        try:
            await self._check(self.store.store, is_start)
        except StoreUnavailable:
            raise
        except StoreError as e:
            # It refuses to answer: perhaps as another etcd is there. A store that has seen neither tells.
            log.warning("the store is looked at anew", reason=str(e))
            store = self.open_store()
            try:
                await self._check(store, is_start)
            finally:
                await store.close()
            if self.reason is None:
                raise

    async def _check(self, store: Store, is_start: bool) -> None:
        doubts = self._doubts
        if (foreign := self._foreign(await store.get(keys.CLUSTER))) is not None:
            self._freeze(foreign)
            return
        mark = await store.get(keys.RESTORED)
        if is_start and mark is None:
            await self._adopt(store, await store.range(keys.ELECTIONS))
        floor, pair = max(self._newest_revision, self._seen.revision, self.view.revision), self._seen.pair
        listing = await store.range(keys.ELECTIONS if pair is None else keys.election(pair.epoch))
        reason = self._gone_back(pair, listing.entries, listing.revision, floor, store_id_of(store))
        if reason is None and mark is not None:
            reason = reason_of(mark)
        if reason is not None:
            self._freeze(reason)
            return
        await self._note(listing.entries, listing.revision, store_id_of(store))
        self._newest_revision = max(self._newest_revision, self._seen.revision)
        self.checks += 1
        self._settled_doubts = doubts
        if self.may_discard():
            self._sound.set()

    def _foreign(self, entry: StoreEntry | None) -> str | None:
        """Why this is not the store of this broker's cluster at all; `entry` is what it says of its cluster."""
        assert self.log_dir.opened is not None, "the log directory was claimed"
        own_id = self.log_dir.opened.meta.cluster_id
        if entry is not None and decode(ClusterRecord, entry.key, entry.value).cluster_id == own_id:
            return None
        return (
            f"the store knows nothing of this broker's cluster {own_id}: it is empty, or another's; restore a backup of"
            " it, or name the endpoints of the right etcd"
        )

    def _gone_back(
        self, pair: ElectionPair | None, elections: Sequence[StoreEntry], revision: int, floor: int, store_id: str
    ) -> str | None:
        """Why the store is not a continuation of what was seen; `elections` has that of `pair`, if the store does."""
        cure = "it was restored from a backup; nothing is truncated or deleted until `penstock cluster recover` is run"
        if revision < floor:
            return f"the store is at revision {revision}, and this broker has seen {floor}: {cure}"
        if store_id and self._seen.store_id and store_id != self._seen.store_id:
            return f"the store is etcd cluster {store_id}, and this broker has used {self._seen.store_id}: {cure}"
        return missing(pair, elections[0] if elections else None) if pair is not None else None

    async def _note(self, elections: Sequence[StoreEntry], revision: int, store_id: str) -> None:
        """Writes down what is new about a sound store, the revision not each time."""
        self._newest_revision = max(self._newest_revision, revision)
        async with self._writing:
            seen = self._seen
            news: dict[str, Any] = {}
            if seen.pair is None and elections:
                pair = read_election(elections[-1])[0]
                news = {"epoch": pair.epoch, "random_id": pair.random_id}
            if store_id and not seen.store_id:
                news["store_id"] = store_id
            is_late = self.clock.boot_ms() - self._written_ms >= WRITE_MS and revision > seen.revision
            if news or is_late:
                await self._write(revision=max(revision, seen.revision), **news)

    async def _write(self, **news: Any) -> None:
        """Replaces fields of what was seen, on disk first. One at a time: under the lock."""
        files, path = self.log_dir.files, self.log_dir.path
        seen = msgspec.structs.replace(self._seen, **news)
        self._seen = await asyncio.get_running_loop().run_in_executor(None, write_seen, files, path, seen)
        self._written_ms = self.clock.boot_ms()

    # Frozen

    def _freeze(self, reason: str) -> None:
        if self.reason is not None:
            return
        self.reason = self.store.refusal = reason
        self._sound.clear()
        self._wake.set()
        self.log_dir.retention.stop()
        log.error("this broker is frozen: reads go on, and nothing is changed or deleted", reason=reason)

    async def _until_recovered(self) -> None:
        """Tells what this broker has, again if it was lost, until the store is recovered."""
        store, self._has_reported = self.open_store(), False
        try:
            while True:
                try:
                    if await self._is_recovered(store):
                        return
                except StoreError as e:
                    log.warning("a frozen broker waits for its store", reason=str(e))
                    await store.close()
                    store = self.open_store()
                await asyncio.sleep(POLL_S)
        finally:
            await store.close()

    async def _is_recovered(self, store: Store) -> bool:
        """One look; marks the store, and reports to it, where that is still to be done."""
        cluster = await store.get(keys.CLUSTER)
        if cluster is None or self._foreign(cluster) is not None:
            return False
        if await self._accept(store):
            log.warning("the store has been recovered: this broker begins anew", epoch=self._seen.epoch)
            return True
        await self._mark(store, cluster)
        own_id = self.log_dir.broker_id
        if not self._has_reported or await store.get(keys.report(own_id)) is None:
            epochs = {(t.topic_id, p.index): p.leader_epoch for t in self.view.topics.values() for p in t.partitions}
            names = {topic_id: topic.name for topic_id, topic in self.view.topics_by_id.items()}
            self._has_reported = await write_report(store, self._report(), collect(self.log_dir, epochs, names))
            if self._has_reported:
                log.warning("what this broker has is reported to the store", broker=own_id)
        return False

    async def _accept(self, store: Store) -> bool:
        """Takes the store as it is where it was recovered after all that was seen, or was never at fault."""
        if await store.get(keys.RESTORED) is not None:
            return False
        listing = await store.range(keys.ELECTIONS)
        if await self._adopt(store, listing):
            return True
        known = {pair.epoch: entry for entry in listing.entries for pair in [read_election(entry)[0]]}
        own = [known[self._seen.epoch]] if self._seen.epoch in known else []
        floor = max(self._newest_revision, self._seen.revision, self.view.revision)
        return self._gone_back(self._seen.pair, own, listing.revision, floor, store_id_of(store)) is None

    async def _adopt(self, store: Store, elections: StoreListing) -> bool:
        """Takes a store that was recovered after all that was seen, in place of what was seen, for what has been."""
        found = newest_recovery(elections.entries)
        if found is None or found[0].epoch <= self._seen.epoch or self._seen.pair is None:
            return False
        async with self._writing:
            await self._write(
                epoch=found[0].epoch,
                random_id=found[0].random_id,
                store_id=store_id_of(store),
                revision=elections.revision,
                sets_aside=True,
            )
        self._newest_revision = elections.revision
        return True

    async def _mark(self, store: Store, cluster: StoreEntry) -> None:
        """Ends the time of whoever is controller by this store, and lets nobody follow. Raises `StoreError`.

        A recovery rewrites the cluster's record: nobody marks anew what was recovered since it was looked at.
        """
        assert self.reason is not None, "who marks the store has a reason"
        record = RestoredRecord(found_by=self.log_dir.broker_id, reason=self.reason, since_ms=self.clock.wall_ms())
        unmarked = [Compare.absent(keys.RESTORED), Compare.unchanged(cluster)]
        await store.txn(unmarked, [PutOp(keys.RESTORED, encode(record)), DeleteOp(keys.CONTROLLER)])

    def _report(self) -> BrokerReport:
        seen = self._seen
        return BrokerReport(
            broker_id=self.log_dir.broker_id,
            epoch=seen.epoch,
            random_id=seen.random_id,
            store_id=seen.store_id,
            revision=max(seen.revision, self._newest_revision, self.view.revision),
            directory_id=self.log_dir.directory_id,
            reason=self.reason or "",
        )


class Assigned:
    """The partitions that a view assigns to a broker, and what is on its way out, as a container of (topic id, index).

    Unlike in ordinary times a replica of another broker is not known here.
    """

    def __init__(self, view: ClusterView, broker_id: int) -> None:
        self.view, self.broker_id = view, broker_id

    def __contains__(self, key: object) -> bool:
        assert isinstance(key, tuple), key
        topic_id: UUID = key[0]
        index: int = key[1]
        topic = self.view.topics_by_id.get(topic_id)
        if topic is None or index >= len(topic.partitions):
            return topic_id in self.view.deleting
        placed = topic.partitions[index]
        return self.broker_id in placed.replicas or self.broker_id in placed.adding


def epoch_of(pair: ElectionPair | None) -> int:
    return -1 if pair is None else pair.epoch


def store_id_of(store: Store) -> str:
    """The server's own identity, "" where the store has none or has not heard of it yet."""
    return store.cluster_id if isinstance(store, Connected) else ""


def reason_of(mark: StoreEntry) -> str:
    record = decode(RestoredRecord, mark.key, mark.value)
    return f"broker {record.found_by} has found that the store was restored: {record.reason}"
