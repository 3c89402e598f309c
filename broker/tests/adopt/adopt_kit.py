"""Data directories of single brokers, and a store that fails at a given transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from penstock.adopt.move import Adoption
from penstock.adopt.source import AdoptionSource
from penstock.log.meta import claim
from penstock.runtime.disk import OsFiles
from penstock.state import keys
from penstock.state.embedded import EmbeddedStore
from penstock.state.records import (
    BrokerConfigRecord,
    BrokerRecord,
    ClusterRecord,
    ControllerRecord,
    GroupRecord,
    OffsetRecord,
    PartitionRecord,
    ProducerIdsRecord,
    ShardCleanedRecord,
    TopicNameRecord,
    TopicRecord,
    TransactionRecord,
    TxnOffsetRecord,
    encode,
)
from penstock.state.store import Compare, Operation, PutOp, StoreUnavailable, TxnResult

CLUSTER_ID = "g8OcYHCRTaWYM_Q-xMFn6A"
FLIGHTS = UUID("c94c07d9-84b3-4cce-ad48-3ef13cb4fe22")
ABSENCES = UUID("0d6a3b1e-8c43-4ad4-9a1b-5ffb7b6c6f10")
BROKER = 0
OFFSETS = 300
"""More records than fit in one transaction."""

OFFSET = OffsetRecord(offset=7, metadata="here", commit_ms=5)


def records() -> dict[str, bytes]:
    """Return one record of each kind and `OFFSETS` committed offsets, encoded, by key."""
    found: dict[str, Any] = {
        keys.CLUSTER: ClusterRecord(cluster_id=CLUSTER_ID),
        keys.CONTROLLER: ControllerRecord(broker_id=BROKER, epoch=9),
        keys.broker(BROKER): BrokerRecord(broker_id=BROKER, incarnation=FLIGHTS, endpoints=[]),
        keys.broker_config(None): BrokerConfigRecord(settings={"log.retention.ms": "3600000"}),
        keys.topic(FLIGHTS): TopicRecord(name="flights", topic_id=FLIGHTS, partition_count=2),
        keys.topic(ABSENCES): TopicRecord(name="gone", topic_id=ABSENCES, partition_count=1, deleting=True),
        keys.topic_name("flights"): TopicNameRecord(topic_id=FLIGHTS),
        keys.partition(FLIGHTS, 0): PartitionRecord(replicas=[BROKER], leader=BROKER, leader_epoch=4, isr=[BROKER]),
        keys.partition(FLIGHTS, 1): PartitionRecord(replicas=[BROKER], leader=BROKER, leader_epoch=4, isr=[BROKER]),
        keys.partition(ABSENCES, 0): PartitionRecord(replicas=[BROKER], leader=BROKER, isr=[BROKER]),
        keys.PRODUCER_IDS: ProducerIdsRecord(next_id=2000),
        keys.group("app"): GroupRecord(protocol_type="consumer", generation=3),
        keys.transaction("pay"): TransactionRecord(
            producer_id=1000, epoch=2, state="Ongoing", timeout_ms=60_000, partitions={FLIGHTS: [0]}
        ),
        keys.txn_offset("app", 1000, FLIGHTS, 0): TxnOffsetRecord(transactional_id="pay", epoch=2, record=OFFSET),
        keys.shard_cleaned(3): ShardCleanedRecord(revision=17),
    }
    found |= {keys.offset(f"group-{number}", FLIGHTS, 0): OFFSET for number in range(OFFSETS)}
    return {key: encode(record) for key, record in found.items()}


async def make_directory(path: Path, values: Mapping[str, bytes] | None = None) -> UUID:
    """Create a single broker's data directory; return its directory id."""
    path.mkdir(parents=True, exist_ok=True)
    meta, _ = claim(OsFiles(), str(path), CLUSTER_ID, BROKER, uuid4)
    partition = path / f"{FLIGHTS}-0"
    partition.mkdir(exist_ok=True)
    (partition / "00000000000000000000.log").write_bytes(b"x" * 100)
    await fill(path / "state.db", records() if values is None else values)
    return meta.directory_id


async def fill(path: Path, values: Mapping[str, bytes]) -> None:
    store = EmbeddedStore(str(path))
    puts: list[Operation] = [PutOp(key, value) for key, value in values.items()]
    for start in range(0, len(puts), 100):
        await store.txn([], puts[start : start + 100])
    await store.close()


class Failing(EmbeddedStore):
    """In-memory store. Transaction number `fails_at` (from 1) gets no response; with `is_done` it is applied first."""

    def __init__(self, fails_at: int = 0, is_done: bool = False) -> None:
        super().__init__(":memory:")
        self.fails_at, self.is_done, self.writes = fails_at, is_done, 0

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TxnResult:
        self.writes += 1
        if self.writes == self.fails_at:
            if self.is_done:
                await super().txn(compares, then, otherwise)
            raise StoreUnavailable("no answer")
        return await super().txn(compares, then, otherwise)


@asynccontextmanager
async def moving(path: Path, store: EmbeddedStore) -> Any:
    """Yield an adoption of the directory; unlock it at the end."""
    source = AdoptionSource(OsFiles(), str(path))
    try:
        yield Adoption(source, store)
    finally:
        source.close()


async def adopt(path: Path, store: EmbeddedStore) -> None:
    """Plan and run the move as `penstock cluster adopt` does."""
    async with moving(path, store) as mover:
        await mover.run(await mover.plan())


async def adopt_until_it_fails(path: Path, store: EmbeddedStore) -> None:
    with suppress(StoreUnavailable):
        await adopt(path, store)


async def contents(store: EmbeddedStore) -> dict[str, bytes]:
    return {entry.key: entry.value for entry in (await store.range("")).entries}
