"""Writes a broker's own records at its start: the cluster's identity, its registration, the controller. Called by
`node`.

With the embedded store the only broker is its own controller, and its registration needs no lease. In a cluster,
`Registration` is a broker's membership under a lease.
"""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from uuid import UUID

import msgspec

from penstock.config.addresses import join_host_port
from penstock.control.broker_reports import ReportedSettings
from penstock.control.features import INITIAL_FEATURES
from penstock.control.keep_alive import LeaseKeepAlive
from penstock.control.members import LeavingRecord, history_key, leaving_key, next_history, read_history
from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock.state import keys
from penstock.state.records import (
    BadRecord,
    BrokerRecord,
    ClusterRecord,
    ControllerRecord,
    EndpointRecord,
    PartitionRecord,
    decode,
    encode,
)
from penstock.state.store import (
    MAX_TXN_OPERATIONS,
    Compare,
    CompareTarget,
    DeleteOp,
    LeaseExpired,
    Operation,
    PutOp,
    Store,
    StoreEntry,
    StoreError,
    StoreUnavailable,
)
from penstock.state.view import BrokerEndpoint, BrokerView

SCHEMA_VERSION = 1
FEATURE_LEVEL = 3
POLL_S = 0.2
"""Interval between reads of a key that another broker or the controller is expected to change."""

log = get_logger("penstock.control")


class DuplicateBroker(StoreError):
    """Another broker with the same id is running; the message has both and the fix."""


async def ensure_cluster(store: Store, new_id: Callable[[], UUID]) -> ClusterRecord:
    """Return the cluster's identity; create it if missing. Raises `StoreError` if its format is newer than this
    version."""
    entry = await store.get(keys.CLUSTER)
    if entry is None:
        cluster_id = "-"
        while cluster_id.startswith("-"):  # looks like an option on a command line
            cluster_id = urlsafe_b64encode(new_id().bytes).decode().rstrip("=")
        record = ClusterRecord(
            cluster_id=cluster_id,
            schema_version=SCHEMA_VERSION,
            feature_level=FEATURE_LEVEL,
            features=INITIAL_FEATURES,
        )
        no_cluster = [Compare.absent(keys.CLUSTER), Compare.absent(keys.ADOPTION)]
        await store.txn(no_cluster, [PutOp(keys.CLUSTER, encode(record))])
        entry = await store.get(keys.CLUSTER)
        if entry is None:
            raise StoreError(
                "the store has no cluster: a single broker is being adopted into it; wait for `penstock cluster adopt`"
                " to finish, or run it again if it was interrupted"
            )
    cluster = decode(ClusterRecord, entry.key, entry.value)
    if cluster.schema_version > SCHEMA_VERSION or cluster.feature_level > FEATURE_LEVEL:
        raise StoreError(
            f'cluster "{cluster.cluster_id}" has schema version {cluster.schema_version} and feature level'
            f" {cluster.feature_level}, but this version supports {SCHEMA_VERSION} and {FEATURE_LEVEL}; upgrade"
        )
    return cluster


async def register_embedded(
    store: Store,
    broker_id: int,
    endpoints: Iterable[BrokerEndpoint],
    rack: str | None,
    incarnation: UUID,
    now_ms: int,
    failure_domain: str = "",
) -> int:
    """Register the only broker as a new incarnation and as controller; return the revision."""
    record = BrokerRecord(
        broker_id=broker_id,
        incarnation=incarnation,
        endpoints=[EndpointRecord(listener=e.listener, host=e.host, port=e.port) for e in endpoints],
        rack=rack,
        failure_domain=failure_domain,
        registered_ms=now_ms,
        feature_level=FEATURE_LEVEL,
    )
    others = [e for e in (await store.range(keys.BROKERS)).entries if e.key != keys.broker(broker_id)]
    if others:
        raise StoreError(
            f"the state belongs to broker {others[0].key[len(keys.BROKERS) :]}, and this one is {broker_id}:"
            " set node.id to that, or use another data directory"
        )
    controller = await store.get(keys.CONTROLLER)
    epoch = 0 if controller is None else decode(ControllerRecord, controller.key, controller.value).epoch
    result = await store.txn(
        [],
        [
            PutOp(keys.broker(broker_id), encode(record)),
            PutOp(keys.CONTROLLER, encode(ControllerRecord(broker_id=broker_id, epoch=epoch + 1))),
        ],
    )
    return result.revision


async def increment_leader_epochs(store: Store) -> int:
    """Give every partition a new leader epoch after an unclean shutdown; return the revision, or 0.

    Clients that know an offset of the epoch before can then find out where it ended (KIP-320). Unreadable records stay
    as they are: the watcher reports them.
    """
    listing = await store.range(keys.PARTITIONS)
    revision = 0
    per_txn = MAX_TXN_OPERATIONS
    for start in range(0, len(listing.entries), per_txn):
        entries = listing.entries[start : start + per_txn]
        puts: list[Operation] = [PutOp(e.key, value) for e in entries if (value := with_next_epoch(e)) is not None]
        result = await store.txn([Compare.unchanged(entry) for entry in entries], puts)
        if not result.succeeded:
            raise StoreError("partitions were changed by another writer while their leader epochs were incremented")
        revision = result.revision
    return revision


def with_next_epoch(entry: StoreEntry) -> bytes | None:
    """Return the partition's record with the next leader epoch; None if it is unreadable."""
    try:
        record = decode(PartitionRecord, entry.key, entry.value)
    except BadRecord:
        return None
    return encode(msgspec.structs.replace(record, leader_epoch=record.leader_epoch + 1))


class Registration:
    """A broker's registration under a lease, from `register` to `leave` or until `lost`.

    The directory id in `record` distinguishes two brokers with the same id. A start with the same directory, which is
    locked while in use, is a later start of the same broker and replaces the earlier registration at once.
    """

    def __init__(
        self, store: Store, clock: Clock, record: BrokerRecord, ttl_ms: int, damaged: Sequence[str] = ()
    ) -> None:
        """`damaged` are the partitions of which recovery cut more than one torn batch (`members.partition_name`)."""
        self.store, self.clock, self.record, self.ttl_ms, self.damaged = store, clock, record, ttl_ms, damaged
        self.key = keys.broker(record.broker_id)
        self.epoch = -1
        """The revision of the registration: the broker epoch."""
        self.lease = 0
        self.lost = asyncio.Event()
        self.lost_reason = ""
        self._granted_ms = 0
        self._keep_alive: LeaseKeepAlive | None = None

    async def register(self, patience_s: float | None = None) -> int:
        """Register and return the broker epoch. Raises `DuplicateBroker`, `StoreError`.

        `patience_s` is how long to wait for another broker with this id; the default outlasts the lease of a dead one.
        """
        assert self.epoch == -1, "a broker registers once; a new start makes a new registration"
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + (self.ttl_ms * 1.2 / 1000 if patience_s is None else patience_s)
        while True:
            self._granted_ms = self.clock.boot_ms()
            self.lease = await self.store.grant_lease(self.ttl_ms / 1000)
            try:
                while True:
                    entry = await self.store.get(self.key)
                    if entry is None:
                        if await self._create():
                            return self.epoch
                    elif self._is_own(entry):
                        self.epoch = entry.create_revision
                        return self.epoch
                    elif not await self._replace(entry):
                        if loop.time() >= deadline_s:
                            raise self._duplicate(entry)
                        await asyncio.sleep(POLL_S)
                        await self.store.keep_alive(self.lease)
            except LeaseExpired:
                log.warning("lease expired before the broker was registered; retrying")

    def _is_own(self, entry: StoreEntry) -> bool:
        """Return whether an earlier attempt with the same lease succeeded although its response was lost."""
        if entry.lease != self.lease:
            return False
        return decode(BrokerRecord, entry.key, entry.value).incarnation == self.record.incarnation

    async def _create(self) -> bool:
        """Register if the id is free; False if the caller must read the key again."""
        key = history_key(self.record.broker_id)
        entry = await self.store.get(key)
        history = read_history(entry) if entry is not None else None
        cluster = await self._check_level()
        record = self.record
        following = next_history(history, record.directory_id, record.boot_id, record.was_unclean, self.damaged)
        unchanged = Compare.absent(key) if entry is None else Compare.unchanged(entry)
        try:
            result = await self.store.txn(
                [Compare.absent(self.key), unchanged, Compare.unchanged(cluster)],
                [
                    PutOp(self.key, encode(record), self.lease),
                    PutOp(key, encode(following)),
                    PutOp(keys.ENROLLED, str(record.broker_id).encode()),
                ],
            )
        except StoreUnavailable as e:
            log.warning("registration not confirmed by the store; retrying", reason=str(e))
            await asyncio.sleep(POLL_S)
            return False
        if result.succeeded:
            self.epoch = result.revision
        return result.succeeded

    async def _check_level(self) -> StoreEntry:
        """Return the cluster's record. Raises `StoreError` if this version does not support its feature level."""
        entry = await self.store.get(keys.CLUSTER)
        if entry is None:
            raise StoreError(
                "the store has no cluster record; check that the endpoints are those of this cluster's store"
            )
        level = decode(ClusterRecord, entry.key, entry.value).feature_level
        if level > self.record.feature_level:
            raise StoreError(
                f"the cluster has feature level {level}, but this version supports {self.record.feature_level}; upgrade"
            )
        return entry

    async def _replace(self, entry: StoreEntry) -> bool:
        """Remove the registration of an earlier start with the same directory; False if it is another broker's."""
        try:
            other_directory = decode(BrokerRecord, entry.key, entry.value).directory_id
        except BadRecord:
            other_directory = None
        if other_directory is None or other_directory != self.record.directory_id:
            return False
        log.info("replacing an earlier registration of this broker", epoch=entry.create_revision)
        await self.store.txn([compare_created(self.key, entry.create_revision)], [DeleteOp(self.key)])
        return True

    def _duplicate(self, entry: StoreEntry) -> DuplicateBroker:
        broker_id = self.record.broker_id
        where = ""
        with suppress(BadRecord):
            other = decode(BrokerRecord, entry.key, entry.value)
            where = "".join(f" at {join_host_port(e.host, e.port)}" for e in other.endpoints[:1])
        return DuplicateBroker(
            f"broker {broker_id} is running already{where}, with another data directory: give this broker another id"
            " (node.id), or stop the other one first"
        )

    def keep_alive(self, store: Store | None = None, pulse: Callable[[], int] | None = None) -> LeaseKeepAlive:
        """Create the lease renewal. Its `run` can run on another thread's loop, with a `store` made there."""
        assert self.epoch >= 0, "a lease is renewed after the registration"
        assert self._keep_alive is None, "a lease has one renewal task"
        loop = asyncio.get_running_loop()

        def notify_lost(reason: str) -> None:
            with suppress(RuntimeError):  # the broker's loop is closed
                loop.call_soon_threadsafe(self._lose, reason)

        self._keep_alive = LeaseKeepAlive(
            store or self.store,
            self.clock,
            self.lease,
            self.key,
            self.epoch,
            self.ttl_ms,
            self._granted_ms,
            notify_lost,
            pulse,
        )
        return self._keep_alive

    def may_serve(self) -> bool:
        """Return whether the lease is surely valid, by a clock that counts suspended time; check before
        acknowledging."""
        return self._keep_alive is not None and self._keep_alive.may_serve()

    def check_view(self, broker: BrokerView | None) -> None:
        """End the membership if the view has another incarnation, or none, for this broker's id.

        Call it once the view has had the registration.
        """
        if broker is None or broker.epoch != self.epoch:
            self._lose("the registration of this broker was removed by the controller, or replaced by a newer start")

    def _lose(self, reason: str) -> None:
        if self._keep_alive is not None:
            self._keep_alive.stop()
        if not self.lost.is_set():
            self.lost_reason = reason
            self.lost.set()
            log.error("this broker is no longer a member of the cluster", reason=reason)

    async def report_settings(self, reported: ReportedSettings) -> None:
        """Write the broker's settings to its registration and keep the epoch. Raises `StoreError`."""
        record = reported.apply_to(self.record)
        if record == self.record:
            return
        result = await self.store.txn(
            [compare_created(self.key, self.epoch)], [PutOp(self.key, encode(record), self.lease)]
        )
        if result.succeeded:
            self.record = record

    async def request_handover(self, timeout_s: float) -> bool:
        """Ask the controller to move this broker's leaderships; True once it has. Call before `leave`.

        Raises `StoreError`.
        """
        key = leaving_key(self.record.broker_id)
        put = PutOp(key, encode(LeavingRecord(epoch=self.epoch)), self.lease)
        if not (await self.store.txn([compare_created(self.key, self.epoch)], [put])).succeeded:
            return False
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        while loop.time() < deadline_s and not self.lost.is_set():
            entry = await self.store.get(key)
            if entry is None or decode(LeavingRecord, entry.key, entry.value).is_done:
                return entry is not None
            await asyncio.sleep(POLL_S / 4)
        return False

    async def leave(self) -> None:
        """End the membership at once. Raises `StoreUnavailable`; the lease then expires by itself."""
        if self._keep_alive is not None:
            self._keep_alive.stop()
        if self.lease:
            with suppress(LeaseExpired):
                await self.store.revoke_lease(self.lease)
            self.lease = 0  # etcd logs a warning about another revocation


def compare_created(key: str, revision: int) -> Compare:
    """Return the condition that a key is still the one created at a revision."""
    return Compare(key, CompareTarget.CREATE_REVISION, revision)
