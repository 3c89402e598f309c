"""What a broker writes of itself when it starts: the cluster's identity, its registration, who is controller.

Called by `node`. With the embedded store there is one broker, which is its own controller; its registration needs no
lease, since nobody else looks at it while it is gone.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable
from uuid import UUID, uuid4

import msgspec

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
from penstock.state.store import MAX_TXN_OPERATIONS, Compare, Entry, Operation, Put, Store, StoreError
from penstock.state.view import Endpoint

SCHEMA_VERSION = 1
FEATURE_LEVEL = 1


async def ensure_cluster(store: Store, new_id: Callable[[], UUID] = uuid4) -> ClusterRecord:
    """The cluster's identity, made where there is none yet. Raises `StoreError` where its format is a newer one."""
    entry = await store.get(keys.CLUSTER)
    if entry is None:
        cluster_id = "-"
        while cluster_id.startswith("-"):  # would be an option on a command line
            cluster_id = urlsafe_b64encode(new_id().bytes).decode().rstrip("=")
        record = ClusterRecord(cluster_id=cluster_id, schema_version=SCHEMA_VERSION, feature_level=FEATURE_LEVEL)
        await store.txn([Compare.absent(keys.CLUSTER)], [Put(keys.CLUSTER, encode(record))])
        entry = await store.get(keys.CLUSTER)
        assert entry is not None, "the cluster's record was just written, by us or by another"
    cluster = decode(ClusterRecord, entry.key, entry.value)
    if cluster.schema_version > SCHEMA_VERSION or cluster.feature_level > FEATURE_LEVEL:
        raise StoreError(
            f"the cluster {cluster.cluster_id} has state of format {cluster.schema_version} and features of level"
            f" {cluster.feature_level}; this version knows {SCHEMA_VERSION} and {FEATURE_LEVEL}: run a newer one"
        )
    return cluster


async def register_embedded(
    store: Store, broker_id: int, endpoints: Iterable[Endpoint], rack: str | None, incarnation: UUID, now_ms: int
) -> int:
    """Registers the one broker, as a new incarnation and as controller; returns the revision."""
    record = BrokerRecord(
        broker_id=broker_id,
        incarnation=incarnation,
        endpoints=[EndpointRecord(listener=e.listener, host=e.host, port=e.port) for e in endpoints],
        rack=rack,
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
            Put(keys.broker(broker_id), encode(record)),
            Put(keys.CONTROLLER, encode(ControllerRecord(broker_id=broker_id, epoch=epoch + 1))),
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
        puts: list[Operation] = [Put(e.key, value) for e in entries if (value := with_next_epoch(e)) is not None]
        result = await store.txn([Compare.unchanged(entry) for entry in entries], puts)
        if not result.succeeded:
            raise StoreError("partitions were changed by somebody else while their leader epochs were")
        revision = result.revision
    return revision


def with_next_epoch(entry: Entry) -> bytes | None:
    try:
        record = decode(PartitionRecord, entry.key, entry.value)
    except BadRecord:
        return None
    return encode(msgspec.structs.replace(record, leader_epoch=record.leader_epoch + 1))
