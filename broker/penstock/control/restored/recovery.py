"""Recovers a restored store: reads it, plans (`plan`), and writes. Needs only the store; the brokers are frozen.

Called by `penstock cluster recover`. Each write has the condition that the store is still marked as restored, so that
no controller is active. The last transaction removes the mark and adds the election that frozen brokers accept. Until
then a second run only increases the epochs once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from uuid import UUID, uuid4

from penstock.config.topic import topic_setting
from penstock.control.elections import RANDOM_DIGITS, ElectionRecord
from penstock.control.members import ABSENCES, BROKER_HISTORIES, LEAVING_BROKERS
from penstock.control.restored.plan import CannotRecover, PartitionKey, RecoveryInput, RecoveryPlan, plan_recovery
from penstock.control.restored.reports import RestoredRecord, read_reports
from penstock.state import keys
from penstock.state.records import (
    BrokerConfigRecord,
    ControllerRecord,
    PartitionRecord,
    ProducerIdsRecord,
    ShardRecord,
    StoredSettings,
    TopicRecord,
    TransactionRecord,
    decode,
    encode,
)
from penstock.state.store import MAX_TXN_OPERATIONS, Compare, DeleteOp, Operation, PutOp, Store, StoreEntry

MIN_INSYNC = "min.insync.replicas"
DEFAULT_MIN_INSYNC = 2
"""Default in a cluster, unless a topic or all brokers have it set."""
MAX_IN_FLIGHT = 8
"""Maximum number of concurrent transactions."""


@dataclass(frozen=True, slots=True)
class PreparedRecovery:
    """A plan and the state of the store that it is based on. `mark` has the broker that found the restore, and the
    reason."""

    mark: RestoredRecord
    found: RecoveryInput
    plan: RecoveryPlan
    entries: dict[PartitionKey, StoreEntry]
    others: list[StoreEntry]
    """Entries of shards, producer ids and transactions."""
    mark_entry: StoreEntry
    cluster: StoreEntry


async def prepare(store: Store, without: Collection[int] = ()) -> PreparedRecovery | None:
    """Plan the recovery; None if the store is not marked as restored. Raises `CannotRecover`, `StoreError`."""
    mark, cluster = await store.get(keys.RESTORED), await store.get(keys.CLUSTER)
    if mark is None or cluster is None:
        return None
    reports = await read_reports(store)
    listing = await store.range(keys.METADATA)
    entries: dict[PartitionKey, StoreEntry] = {}
    partitions: dict[PartitionKey, PartitionRecord] = {}
    topics: dict[UUID, TopicRecord] = {}
    shards: dict[int, ShardRecord] = {}
    others: list[StoreEntry] = []
    epoch, min_insync = 0, DEFAULT_MIN_INSYNC
    for entry in listing.entries:
        key, value = entry.key, entry.value
        if key.startswith(keys.PARTITIONS):
            topic_id, _, index = key[len(keys.PARTITIONS) :].partition("/")
            at = UUID(topic_id), int(index)
            entries[at], partitions[at] = entry, decode(PartitionRecord, key, value)
        elif key.startswith(keys.TOPICS):
            record = decode(TopicRecord, key, value)
            topics[record.topic_id] = record
        elif key.startswith(keys.SHARDS):
            shards[int(key[len(keys.SHARDS) :])] = decode(ShardRecord, key, value)
            others.append(entry)
        elif key.startswith(keys.ELECTIONS):
            epoch = max(epoch, keys.election_epoch(key))
        elif key == keys.CONTROLLER:
            epoch = max(epoch, decode(ControllerRecord, key, value).epoch)
        elif key == keys.broker_config(None):
            min_insync = stored_min_insync(decode(BrokerConfigRecord, key, value).settings, min_insync)
    ids = await store.get(keys.PRODUCER_IDS)
    others += [ids] if ids is not None else []
    transactions = (await store.range(keys.TRANSACTIONS)).entries
    others += transactions
    found = RecoveryInput(
        epoch=epoch,
        partitions={
            at: r for at, r in partitions.items() if (topic := topics.get(at[0])) is None or not topic.deleting
        },
        names={topic_id: topic.name for topic_id, topic in topics.items()},
        min_insync={
            at[0]: min_insync if at[0] not in topics else stored_min_insync(topics[at[0]].overrides, min_insync)
            for at in partitions
        },
        shards=shards,
        producer_ids=decode(ProducerIdsRecord, ids.key, ids.value) if ids is not None else None,
        reports=reports,
        transactions={e.key: decode(TransactionRecord, e.key, e.value) for e in transactions},
    )
    restored = decode(RestoredRecord, mark.key, mark.value)
    return PreparedRecovery(restored, found, plan_recovery(found, without), entries, others, mark, cluster)


def stored_min_insync(settings: StoredSettings, default: int) -> int:
    """Return `min.insync.replicas` of a topic or of all brokers; `default` if it is missing or invalid."""
    value = topic_setting(MIN_INSYNC).parse_stored(settings.get(MIN_INSYNC), default)
    assert isinstance(value, int), f"{MIN_INSYNC} is a number"
    return value


async def recover(
    store: Store,
    prepared: PreparedRecovery,
    progress: Callable[[int, int], None] = lambda done, of: None,
    new_id: Callable[[], UUID] = uuid4,
) -> int:
    """Write the plan and return the new controller epoch. Raises `CannotRecover` if the store has changed,
    `StoreError`; it can then be run again."""
    todo = prepared.plan
    puts: list[tuple[Compare, Operation]] = [
        (Compare.unchanged(prepared.entries[s.key]), PutOp(keys.partition(*s.key), encode(s.after))) for s in todo.steps
    ]
    values = [(entry, rewritten(entry.key, todo)) for entry in prepared.others]
    puts += [(Compare.unchanged(entry), PutOp(entry.key, value)) for entry, value in values if value is not None]
    if not any(entry.key == keys.PRODUCER_IDS for entry in prepared.others):
        puts.append((Compare.absent(keys.PRODUCER_IDS), PutOp(keys.PRODUCER_IDS, encode(todo.producer_ids))))
    await write_all(store, Compare.unchanged(prepared.mark_entry), puts, progress)
    election = ElectionRecord(broker_id=-1, random_id=new_id().hex[:RANDOM_DIGITS], is_recovery=True)
    result = await store.txn(
        [
            Compare.unchanged(prepared.mark_entry),
            Compare.unchanged(prepared.cluster),
            Compare.absent(keys.election(todo.epoch)),
        ],
        [
            PutOp(keys.CLUSTER, prepared.cluster.value),  # fails a concurrent mark: see `RestoreGuard._mark`
            PutOp(keys.election(todo.epoch), encode(election)),
            DeleteOp(keys.RESTORED),
            DeleteOp(keys.CONTROLLER),
            # Every broker registers as a new incarnation with an empty history.
            *(
                DeleteOp(prefix, prefix=True)
                for prefix in (keys.BROKERS, BROKER_HISTORIES, LEAVING_BROKERS, ABSENCES, keys.REPORTS)
            ),
        ],
    )
    if not result.succeeded:
        raise changed()
    return todo.epoch


def rewritten(key: str, todo: RecoveryPlan) -> bytes | None:
    """Return the new value of a key other than a partition's; None if it stays."""
    if key == keys.PRODUCER_IDS:
        return encode(todo.producer_ids)
    if key.startswith(keys.SHARDS):
        return encode(todo.shards[int(key[len(keys.SHARDS) :])])
    return encode(todo.transactions[key]) if key in todo.transactions else None


async def write_all(
    store: Store,
    mark: Compare,
    puts: Sequence[tuple[Compare, Operation]],
    progress: Callable[[int, int], None],
) -> None:
    """Write in the largest transactions possible, several concurrently. Raises `CannotRecover`, `StoreError`."""
    size = MAX_TXN_OPERATIONS - 1
    chunks = [puts[i : i + size] for i in range(0, len(puts), size)]
    slots, done = asyncio.Semaphore(MAX_IN_FLIGHT), 0
    failures: list[BaseException] = []

    async def write(chunk: Sequence[tuple[Compare, Operation]]) -> None:
        nonlocal done
        async with slots:
            if failures:
                return
            try:
                result = await store.txn([mark, *(compare for compare, _ in chunk)], [put for _, put in chunk])
                if not result.succeeded:
                    raise changed()
                done += len(chunk)
                progress(done, len(puts))
            except Exception as e:
                failures.append(e)

    await asyncio.gather(*map(write, chunks))
    if failures:
        raise failures[0]  # all transactions have ended


def changed() -> CannotRecover:
    """Return the error for a store that has changed since the plan."""
    return CannotRecover("the store was changed concurrently; run the command again to see the new plan")
