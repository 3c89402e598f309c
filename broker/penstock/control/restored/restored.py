"""Detects that the cluster's store was restored from a backup, and freezes this broker until it is recovered.

`node` creates one `RestoreGuard` in a cluster, before anything else reads the store. It detects a missing election that
this broker has observed (each election is persisted here before anything of its controller is acted on), another etcd
cluster, or a lower revision. One broker that detects it stops all: its mark in the store ends the controller's
leadership, prevents elections, and freezes every broker that sees it.

A frozen broker serves reads and, as without etcd, acks=all on the partitions it leads. Its view stops, and it does not
truncate, delete or write to the store. It reports its replicas (`reports`) for `penstock cluster recover`. After the
recovery the broker restarts with the recovered store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Sequence
from contextlib import suppress
from typing import Any, Protocol, runtime_checkable
from uuid import UUID

import msgspec

from penstock.control.elections import ElectionPair, missing_reason, newest_recovery, read_election
from penstock.control.restored.guarded import GuardedStore
from penstock.control.restored.observed_revision import ObservedRevision, read_observed, write_observed
from penstock.control.restored.reports import BrokerReport, RestoredRecord, collect, write_report
from penstock.log.log_dir import LogDirectory
from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock.runtime.tasks import report, spawn
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
"""Interval between checks in normal operation; a new connection triggers one at once."""
POLL_S = 1.0
"""Interval between checks while this broker is frozen, and between attempts while the store is unavailable."""
WRITE_MS = 60_000
"""Minimum interval between writes of the observed revision if nothing else has changed."""


@runtime_checkable
class ConnectedStore(Protocol):
    """A store that knows the identity of its server, and reports new connections."""

    @property
    def cluster_id(self) -> str:
        """Identity of the server."""

    on_connect: list[Callable[[], None]]


class RestoreGuard:
    """Freezes this broker while the store is a restored one.

    `reason` is why this broker is frozen; None if it is not. `over` is set when the broker must restart because the
    store was recovered.
    """

    def __init__(
        self,
        store: GuardedStore,
        open_store: Callable[[], Store],
        log_dir: LogDirectory,
        view: ClusterView,
        clock: Clock,
    ) -> None:
        """`open_store` opens another client: one that was connected to one etcd may refuse to use another."""
        self.store, self.open_store, self.log_dir, self.view, self.clock = store, open_store, log_dir, view, clock
        self.reason: str | None = None
        self.over = asyncio.Event()
        self.checks = 0
        self._observed = ObservedRevision()
        self._newest_revision = 0
        self._written_ms = 0
        self._has_reported = False
        self._writing = asyncio.Lock()
        self._requested_checks = 1
        self._completed_checks = 0
        self._sound = asyncio.Event()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        if isinstance(store.store, ConnectedStore):
            store.store.on_connect.append(self.request_check)

    # Queries

    @property
    def is_frozen(self) -> bool:
        """Whether this broker is frozen."""
        return self.reason is not None

    def may_discard(self) -> bool:
        """Return whether data may be truncated or deleted: not while the store may have gone back in time."""
        return self.reason is None and self._completed_checks == self._requested_checks

    def may_serve(self) -> bool:
        """Return whether operations that need the store are allowed: acks=0 and 1, coordinators, ISR changes."""
        return self.reason is None

    def retained(self, hosted: Container[tuple[UUID, int]]) -> Container[tuple[UUID, int]]:
        """Return the (topic id, partition) that must not be quarantined: `hosted`, but after a recovery only those
        assigned to this broker, since other data may be newer than the store."""
        return AssignedPartitions(self.view, self.log_dir.broker_id) if self._observed.sets_aside else hosted

    async def on_data_set_aside(self) -> None:
        """Record that the data outside `retained` has been quarantined durably."""
        async with self._writing:
            if self._observed.sets_aside:
                await self._write(sets_aside=False)

    # Lifecycle

    async def start(self, recover_logs: Callable[[], Awaitable[None]]) -> None:
        """Return when the store is known to be sound: at once, or after its recovery.

        The log directory is locked; `recover_logs` opens its logs if they must be reported. Raises `StoreError`,
        LogError, OSError.
        """
        files, path = self.log_dir.files, self.log_dir.path
        observed = await asyncio.get_running_loop().run_in_executor(None, lambda: read_observed(files, path))
        self._observed = ObservedRevision() if observed is None else observed
        await self.check(is_start=True)
        if self.reason is not None:
            await recover_logs()
            await self._until_recovered()
            self.reason = self.store.refusal = None
            await self.check()
        self._task = spawn(self._run(), "restored")

    async def close(self) -> None:
        """Persist the observed revision, so that the next start detects a lower one."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        revision = max(self._newest_revision, self.view.revision)
        async with self._writing:
            if self.reason is None and revision > self._observed.revision:
                with suppress(OSError):  # the log reports a failing disk
                    await self._write(revision=revision)

    def request_check(self) -> None:
        """Distrust the store until it has been checked, because it may be another one."""
        self._requested_checks += 1
        self._sound.clear()
        self._wake.set()

    async def gate(self, events: Sequence[StoreEvent]) -> None:
        """Return when the watcher may apply changes; persist new elections among them first. Passed to `Watcher`.

        Blocks while this broker is frozen, but raises `StoreUnavailable` if its view is still empty.
        """
        await self._until_sound()
        newest: ElectionPair | None = None
        for event in events:
            if event.key == keys.RESTORED and event.entry is not None:
                self._freeze(reason_of(event.entry))
            elif event.key.startswith(keys.ELECTIONS) and event.entry is not None:
                pair, election = read_election(event.entry)
                if election.is_recovery and pair.epoch > self._observed.epoch:
                    self._freeze("the store was restored from a backup and has been recovered")
                newest = max(newest, pair, key=epoch_of)
        await self._until_sound()
        async with self._writing:
            if epoch_of(newest) > self._observed.epoch and newest is not None:
                await self._write(epoch=newest.epoch, random_id=newest.random_id)

    async def _until_sound(self) -> None:
        while not self.may_discard():
            if self.reason is not None and not self.view.revision:
                raise StoreUnavailable(self.reason)
            self._wake.set()
            await self._sound.wait()

    # Checks

    async def _run(self) -> None:
        while self.reason is None:
            self._wake.clear()
            pause_s = CHECK_S
            try:
                await self.check()
            except StoreError as e:
                log.debug("store check failed", reason=str(e))
                pause_s = POLL_S
            except Exception as e:
                report("store check failed", e)
                pause_s = POLL_S
            if self.reason is None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._wake.wait()
        await self.log_dir.compactor.stop()
        await self._until_recovered()
        self.over.set()

    async def check(self, *, is_start: bool = False) -> None:
        """Compare the store with what was observed, and freeze if it has gone back. Raises `StoreError`."""
        try:
            await self._check(self.store.store, is_start)
        except StoreUnavailable:
            raise
        except StoreError as e:
            # The client refuses, perhaps because etcd is another one. A new client can tell.
            log.warning("checking the store with a new client", reason=str(e))
            store = self.open_store()
            try:
                await self._check(store, is_start)
            finally:
                await store.close()
            if self.reason is None:
                raise

    async def _check(self, store: Store, is_start: bool) -> None:
        requested_checks = self._requested_checks
        if (foreign := self._foreign_reason(await store.get(keys.CLUSTER))) is not None:
            self._freeze(foreign)
            return
        mark = await store.get(keys.RESTORED)
        if is_start and mark is None:
            await self._accept_recovery(store, await store.range(keys.ELECTIONS))
        floor, pair = max(self._newest_revision, self._observed.revision, self.view.revision), self._observed.pair
        listing = await store.range(keys.ELECTIONS if pair is None else keys.election(pair.epoch))
        reason = self._regression_reason(pair, listing.entries, listing.revision, floor, store_id_of(store))
        if reason is None and mark is not None:
            reason = reason_of(mark)
        if reason is not None:
            self._freeze(reason)
            return
        await self._record_progress(listing.entries, listing.revision, store_id_of(store))
        self._newest_revision = max(self._newest_revision, self._observed.revision)
        self.checks += 1
        self._completed_checks = requested_checks
        if self.may_discard():
            self._sound.set()

    def _foreign_reason(self, entry: StoreEntry | None) -> str | None:
        """Return why this is not the store of this broker's cluster; `entry` is its cluster record."""
        assert self.log_dir.opened is not None, "the log directory is locked"
        own_id = self.log_dir.opened.meta.cluster_id
        if entry is not None and decode(ClusterRecord, entry.key, entry.value).cluster_id == own_id:
            return None
        return (
            f'the store does not have this broker\'s cluster "{own_id}": it is empty or belongs to another cluster;'
            " restore a backup of it, or set the endpoints of the right etcd"
        )

    def _regression_reason(
        self, pair: ElectionPair | None, elections: Sequence[StoreEntry], revision: int, floor: int, store_id: str
    ) -> str | None:
        """Return why the store does not continue what was observed; `elections` has that of `pair`, if present."""
        cure = "it was restored from a backup; nothing is truncated or deleted until `penstock cluster recover` is run"
        if revision < floor:
            return f"the store is at revision {revision}, but this broker has seen {floor}: {cure}"
        if store_id and self._observed.store_id and store_id != self._observed.store_id:
            return f"the store is etcd cluster {store_id}, but this broker has used {self._observed.store_id}: {cure}"
        return missing_reason(pair, elections[0] if elections else None) if pair is not None else None

    async def _record_progress(self, elections: Sequence[StoreEntry], revision: int, store_id: str) -> None:
        """Persist what is new about a sound store; the revision only every `WRITE_MS`."""
        self._newest_revision = max(self._newest_revision, revision)
        async with self._writing:
            observed = self._observed
            changes: dict[str, Any] = {}
            if observed.pair is None and elections:
                pair = read_election(elections[-1])[0]
                changes = {"epoch": pair.epoch, "random_id": pair.random_id}
            if store_id and not observed.store_id:
                changes["store_id"] = store_id
            is_late = self.clock.boot_ms() - self._written_ms >= WRITE_MS and revision > observed.revision
            if changes or is_late:
                await self._write(revision=max(revision, observed.revision), **changes)

    async def _write(self, **changes: Any) -> None:
        """Replace fields of `_observed`, on disk first. The caller holds the lock."""
        files, path = self.log_dir.files, self.log_dir.path
        observed = msgspec.structs.replace(self._observed, **changes)
        self._observed = await asyncio.get_running_loop().run_in_executor(None, write_observed, files, path, observed)
        self._written_ms = self.clock.boot_ms()

    # Frozen

    def _freeze(self, reason: str) -> None:
        if self.reason is not None:
            return
        self.reason = self.store.refusal = reason
        self._sound.clear()
        self._wake.set()
        self.log_dir.retention.stop()
        log.error("broker frozen: it serves reads, and changes or deletes nothing", reason=reason)

    async def _until_recovered(self) -> None:
        """Report this broker's replicas, again if the report was lost, until the store is recovered."""
        store, self._has_reported = self.open_store(), False
        try:
            while True:
                try:
                    if await self._is_recovered(store):
                        return
                except StoreError as e:
                    log.warning("frozen broker waiting for the metadata store", reason=str(e))
                    await store.close()
                    store = self.open_store()
                await asyncio.sleep(POLL_S)
        finally:
            await store.close()

    async def _is_recovered(self, store: Store) -> bool:
        """Check once; mark the store and write the report if not done."""
        cluster = await store.get(keys.CLUSTER)
        if cluster is None or self._foreign_reason(cluster) is not None:
            return False
        if await self._accept_store(store):
            log.warning("the store has been recovered; restarting the broker", epoch=self._observed.epoch)
            return True
        await self._mark(store, cluster)
        own_id = self.log_dir.broker_id
        if not self._has_reported or await store.get(keys.report(own_id)) is None:
            epochs = {(t.topic_id, p.index): p.leader_epoch for t in self.view.topics.values() for p in t.partitions}
            names = {topic_id: topic.name for topic_id, topic in self.view.topics_by_id.items()}
            self._has_reported = await write_report(store, self._report(), collect(self.log_dir, epochs, names))
            if self._has_reported:
                log.warning("wrote the recovery report", broker=own_id)
        return False

    async def _accept_store(self, store: Store) -> bool:
        """Return whether the store was recovered after all that was observed, or is sound after all."""
        if await store.get(keys.RESTORED) is not None:
            return False
        listing = await store.range(keys.ELECTIONS)
        if await self._accept_recovery(store, listing):
            return True
        known = {pair.epoch: entry for entry in listing.entries for pair in [read_election(entry)[0]]}
        own = [known[self._observed.epoch]] if self._observed.epoch in known else []
        floor = max(self._newest_revision, self._observed.revision, self.view.revision)
        return self._regression_reason(self._observed.pair, own, listing.revision, floor, store_id_of(store)) is None

    async def _accept_recovery(self, store: Store, elections: StoreListing) -> bool:
        """Accept a store whose recovery is newer than all that was observed."""
        found = newest_recovery(elections.entries)
        if found is None or found[0].epoch <= self._observed.epoch or self._observed.pair is None:
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
        """Mark the store as restored and end the controller's leadership. Raises `StoreError`.

        A recovery rewrites the cluster's record, so the condition on it keeps a recovered store from being marked
        again.
        """
        assert self.reason is not None, "a frozen broker has a reason"
        record = RestoredRecord(found_by=self.log_dir.broker_id, reason=self.reason, since_ms=self.clock.wall_ms())
        unmarked = [Compare.absent(keys.RESTORED), Compare.unchanged(cluster)]
        await store.txn(unmarked, [PutOp(keys.RESTORED, encode(record)), DeleteOp(keys.CONTROLLER)])

    def _report(self) -> BrokerReport:
        observed = self._observed
        return BrokerReport(
            broker_id=self.log_dir.broker_id,
            epoch=observed.epoch,
            random_id=observed.random_id,
            store_id=observed.store_id,
            revision=max(observed.revision, self._newest_revision, self.view.revision),
            directory_id=self.log_dir.directory_id,
            reason=self.reason or "",
        )


class AssignedPartitions:
    """The (topic id, partition) that the view assigns to a broker, and those of topics being deleted, as a container.

    Replicas of other brokers are not contained, unlike in normal operation.
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
    """Return the pair's epoch, -1 without one."""
    return -1 if pair is None else pair.epoch


def store_id_of(store: Store) -> str:
    """Return the server's identity, "" if it has none or it is not known yet."""
    return store.cluster_id if isinstance(store, ConnectedStore) else ""


def reason_of(mark: StoreEntry) -> str:
    """Return the reason that a mark gives."""
    record = decode(RestoredRecord, mark.key, mark.value)
    return f"broker {record.found_by} has detected that the store was restored: {record.reason}"
