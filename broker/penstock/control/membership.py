"""What a broker writes of itself when it starts: the cluster's identity, its registration, who is controller.

Called by `node`. With the embedded store there is one broker, which is its own controller; its registration needs no
lease, since nobody else looks at it while it is gone. In a cluster `Registration` is a broker's membership.
"""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from uuid import UUID, uuid4

import msgspec

from penstock.config.addresses import join_host_port
from penstock.control.broker_reports import ReportedBroker
from penstock.control.keep_alive import LeaseKeepAlive
from penstock.control.members import LeavingRecord, leaving_key, next_past, past_key, read_past
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
FEATURE_LEVEL = 1
POLL_S = 0.2
"""Between two looks at a key that somebody else is to change."""

log = get_logger("penstock.control")


class DuplicateBroker(StoreError):
    """Another broker of the same id is running; the message names both and the cure."""


async def ensure_cluster(store: Store, new_id: Callable[[], UUID] = uuid4) -> ClusterRecord:
    """The cluster's identity, made where there is none yet. Raises `StoreError` where its format is a newer one."""
    entry = await store.get(keys.CLUSTER)
    if entry is None:
        cluster_id = "-"
        while cluster_id.startswith("-"):  # would be an option on a command line
            cluster_id = urlsafe_b64encode(new_id().bytes).decode().rstrip("=")
        record = ClusterRecord(cluster_id=cluster_id, schema_version=SCHEMA_VERSION, feature_level=FEATURE_LEVEL)
        no_cluster = [Compare.absent(keys.CLUSTER), Compare.absent(keys.ADOPTION)]
        await store.txn(no_cluster, [PutOp(keys.CLUSTER, encode(record))])
        entry = await store.get(keys.CLUSTER)
        if entry is None:
            raise StoreError(
                "a broker that was alone is being moved into this store (penstock cluster adopt): wait for the end of"
                " it, or run it again if it was interrupted"
            )
    cluster = decode(ClusterRecord, entry.key, entry.value)
    if cluster.schema_version > SCHEMA_VERSION or cluster.feature_level > FEATURE_LEVEL:
        raise StoreError(
            f"the cluster {cluster.cluster_id} has state of format {cluster.schema_version} and features of level"
            f" {cluster.feature_level}; this version knows {SCHEMA_VERSION} and {FEATURE_LEVEL}: run a newer one"
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
    """Registers the one broker, as a new incarnation and as controller; returns the revision."""
    record = BrokerRecord(
        broker_id=broker_id,
        incarnation=incarnation,
        endpoints=[EndpointRecord(listener=e.listener, host=e.host, port=e.port) for e in endpoints],
        rack=rack,
        failure_domain=failure_domain,
        registered_ms=now_ms,
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


async def begin_leader_epochs(store: Store) -> int:
    """Gives every partition a new leader epoch, as after an end that was not clean; returns the revision, or 0.

    A record that is not understood is left as it is: the watcher reports it.
    Whoever remembers offsets of the epoch before can then find out where it ended.
    """
    listing = await store.range(keys.PARTITIONS)
    revision = 0
    per_txn = MAX_TXN_OPERATIONS
    for start in range(0, len(listing.entries), per_txn):
        entries = listing.entries[start : start + per_txn]
        puts: list[Operation] = [PutOp(e.key, value) for e in entries if (value := with_next_epoch(e)) is not None]
        result = await store.txn([Compare.unchanged(entry) for entry in entries], puts)
        if not result.succeeded:
            raise StoreError("partitions were changed by somebody else while their leader epochs were")
        revision = result.revision
    return revision


def with_next_epoch(entry: StoreEntry) -> bytes | None:
    try:
        record = decode(PartitionRecord, entry.key, entry.value)
    except BadRecord:
        return None
    return encode(msgspec.structs.replace(record, leader_epoch=record.leader_epoch + 1))


class Registration:
    """A broker's membership of a cluster: its registration under a lease, from `register` to `leave` or until `lost`.

    The directory id in `record` is what tells two brokers of one id apart: whoever has the same directory (which is
    locked while it is used) is a later start of the same broker, and replaces the registration of the earlier at once.
    """

    def __init__(
        self, store: Store, clock: Clock, record: BrokerRecord, ttl_ms: int, damaged: Sequence[str] = ()
    ) -> None:
        """`damaged` names partitions of which recovery cut more than one torn batch (`members.partition_name`)."""
        self.store, self.clock, self.record, self.ttl_ms, self.damaged = store, clock, record, ttl_ms, damaged
        self.key = keys.broker(record.broker_id)
        self.epoch = -1
        """The revision at which it registered: the broker's epoch."""
        self.lease = 0
        self.lost = asyncio.Event()
        self.lost_reason = ""
        self._granted_ms = 0
        self._keep_alive: LeaseKeepAlive | None = None

    async def register(self, patience_s: float | None = None) -> int:
        """Returns the epoch. Raises `DuplicateBroker` where another broker has the id for longer than `patience_s`.

        That is by default a little longer than a lease, so that one that is dead is outlasted. Raises `StoreError`.
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
                    elif self._is_mine(entry):
                        self.epoch = entry.create_revision
                        return self.epoch
                    elif not await self._replace(entry):
                        if loop.time() >= deadline_s:
                            raise self._duplicate(entry)
                        await asyncio.sleep(POLL_S)
                        await self.store.keep_alive(self.lease)
            except LeaseExpired:
                log.warning("the lease ended before the broker was registered: once more")

    def _is_mine(self, entry: StoreEntry) -> bool:
        """Whether an earlier attempt, whose answer was lost, has succeeded; it must have the lease that is renewed."""
        if entry.lease != self.lease:
            return False
        return decode(BrokerRecord, entry.key, entry.value).incarnation == self.record.incarnation

    async def _create(self) -> bool:
        """Registers where nobody is; False where it has to be looked at again."""
        key = past_key(self.record.broker_id)
        entry = await self.store.get(key)
        past = read_past(entry) if entry is not None else None
        cluster = await self._check_level()
        record = self.record
        following = next_past(past, record.directory_id, record.boot_id, record.was_unclean, self.damaged)
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
            log.warning("the registration got no answer", reason=str(e))
            await asyncio.sleep(POLL_S)
            return False
        if result.succeeded:
            self.epoch = result.revision
        return result.succeeded

    async def _check_level(self) -> StoreEntry:
        """The cluster's record, whose features this broker must know. Raises `StoreError`."""
        entry = await self.store.get(keys.CLUSTER)
        if entry is None:
            raise StoreError("the cluster's record is not in the store: was the store replaced by another?")
        level = decode(ClusterRecord, entry.key, entry.value).feature_level
        if level > self.record.feature_level:
            raise StoreError(
                f"the cluster has features of level {level}, and this version knows {self.record.feature_level}:"
                " run a newer one"
            )
        return entry

    async def _replace(self, entry: StoreEntry) -> bool:
        """Ends the registration of an earlier start with the same directory; False where it is another's."""
        try:
            theirs = decode(BrokerRecord, entry.key, entry.value).directory_id
        except BadRecord:
            theirs = None
        if theirs is None or theirs != self.record.directory_id:
            return False
        log.info("an earlier registration of this broker is replaced", epoch=entry.create_revision)
        await self.store.txn([created(self.key, entry.create_revision)], [DeleteOp(self.key)])
        return True

    def _duplicate(self, entry: StoreEntry) -> DuplicateBroker:
        broker_id = self.record.broker_id
        where = ""
        with suppress(BadRecord):
            theirs = decode(BrokerRecord, entry.key, entry.value)
            where = "".join(f" at {join_host_port(e.host, e.port)}" for e in theirs.endpoints[:1])
        return DuplicateBroker(
            f"broker {broker_id} is running already{where}, with another data directory: give this broker another id"
            " (node.id), or stop the other one first"
        )

    def keep_alive(self, store: Store | None = None, pulse: Callable[[], int] | None = None) -> LeaseKeepAlive:
        """What renews the lease. Its `run` may be run in another thread's loop, then with a `store` made there."""
        assert self.epoch >= 0, "it is kept alive after it was registered"
        assert self._keep_alive is None, "it is kept alive once"
        loop = asyncio.get_running_loop()

        def tell(reason: str) -> None:
            with suppress(RuntimeError):  # the broker's loop has ended before
                loop.call_soon_threadsafe(self._lose, reason)

        self._keep_alive = LeaseKeepAlive(
            store or self.store,
            self.clock,
            self.lease,
            self.key,
            self.epoch,
            self.ttl_ms,
            self._granted_ms,
            tell,
            pulse,
        )
        return self._keep_alive

    def may_serve(self) -> bool:
        """Whether the lease surely holds, by a clock that counts suspended time; ask before acknowledging."""
        return self._keep_alive is not None and self._keep_alive.may_serve()

    def seen(self, broker: BrokerView | None) -> None:
        """What the view now has for this broker's id: where it is another incarnation, or none, this one is over.

        To be called from when the view has the registration on.
        """
        if broker is None or broker.epoch != self.epoch:
            self._lose("the registration of this broker was ended by the controller, or replaced by a newer start")

    def _lose(self, reason: str) -> None:
        if self._keep_alive is not None:
            self._keep_alive.end()
        if not self.lost.is_set():
            self.lost_reason = reason
            self.lost.set()
            log.error("this broker is no longer a member of the cluster", reason=reason)

    async def show(self, shown: ReportedBroker) -> None:
        """Shows in the registration what is set for this broker; the epoch stays. Raises `StoreError`."""
        record = shown.put_into(self.record)
        if record == self.record:
            return
        result = await self.store.txn([created(self.key, self.epoch)], [PutOp(self.key, encode(record), self.lease)])
        if result.succeeded:
            self.record = record

    async def hand_over(self, timeout_s: float) -> bool:
        """Asks the controller to give this broker's leaderships to others; True when it has. Call before `leave`.

        Raises `StoreError`.
        """
        key = leaving_key(self.record.broker_id)
        put = PutOp(key, encode(LeavingRecord(epoch=self.epoch)), self.lease)
        if not (await self.store.txn([created(self.key, self.epoch)], [put])).succeeded:
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
        """Ends the membership: all others know at once. Raises `StoreUnavailable`; the lease then ends by itself."""
        if self._keep_alive is not None:
            self._keep_alive.end()
        if self.lease:
            with suppress(LeaseExpired):
                await self.store.revoke_lease(self.lease)


def created(key: str, revision: int) -> Compare:
    """Whether a key is still the one that was created at a revision."""
    return Compare(key, CompareTarget.CREATE_REVISION, revision)
