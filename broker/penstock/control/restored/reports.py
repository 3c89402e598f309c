"""Reports of frozen brokers about their replicas, in the store, for `penstock cluster recover`.

A broker writes its report once per freeze, in chunks, outside of the watched prefix. The recovery deletes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple
from uuid import UUID

import msgspec

from penstock.log import checkpoint as checkpoints
from penstock.log.log_dir import LogDirectory
from penstock.state import keys
from penstock.state.records import BrokerId, Count, Int32, Int64, StoredRecord, decode, encode
from penstock.state.store import Compare, CompareTarget, DeleteOp, PutOp, Store

CHUNK = 2000
"""Partitions in one chunk, about 100 KB."""
MAX_CHUNKS = 500


class RestoredRecord(StoredRecord, frozen=True, kw_only=True):
    """Marks the store as restored from a backup; written by the first broker that detects it."""

    found_by: BrokerId
    reason: str
    since_ms: Int64


class BrokerReport(StoredRecord, frozen=True, kw_only=True):
    """A frozen broker: the newest election it observed, the revision and identity of the store, its data directory."""

    broker_id: BrokerId
    epoch: Count
    random_id: str
    store_id: str = ""
    revision: Int64 = 0
    directory_id: UUID | None = None
    reason: str = ""
    chunks: Annotated[int, msgspec.Meta(ge=0, le=MAX_CHUNKS)] = 0


class ReplicaReport(NamedTuple):
    """A replica's log, and the newest leader epoch in which this broker knew the partition."""

    topic_id: UUID
    topic: str
    partition: int
    last_epoch: Int32
    """Epoch of the last batch; -1 for an empty log."""
    end_offset: Int64
    seen_epoch: Int32


class ReportChunk(StoredRecord, frozen=True, kw_only=True):
    """A part of a broker's replicas."""

    replicas: Annotated[list[ReplicaReport], msgspec.Meta(max_length=CHUNK)]


def collect(
    log_dir: LogDirectory, seen_epochs: Mapping[tuple[UUID, int], int], names: Mapping[UUID, str]
) -> Iterator[ReplicaReport]:
    """Return all replicas with data, open or not. It may block: a checkpoint is decoded for each that is not open."""
    for key, log in list(log_dir.logs.items()):
        yield ReplicaReport(*key_of(key, log.topic_name), log.latest_epoch, log.end_offset, seen_epochs.get(key, -1))
    for key, data in list(log_dir.stored.items()):
        try:
            checkpoint = checkpoints.decode(data)
        except checkpoints.DamagedCheckpoint:
            continue  # reported when its log is opened; its log end is unknown
        last_epoch = checkpoint.epochs[-1][0] if checkpoint.epochs else -1
        yield ReplicaReport(
            *key_of(key, names.get(key[0], "")), last_epoch, checkpoint.end_offset, seen_epochs.get(key, -1)
        )


def key_of(key: tuple[UUID, int], name: str) -> tuple[UUID, str, int]:
    """Return topic id, topic name and partition."""
    return key[0], name, key[1]


async def write_report(store: Store, report: BrokerReport, replicas: Iterable[ReplicaReport]) -> bool:
    """Write the chunks, then the report that makes them visible; False if the store has been recovered meanwhile.

    Raises `StoreError`.
    """
    marked = [Compare(keys.RESTORED, CompareTarget.VERSION, 0, ">")]
    reported = sorted(replicas)[: CHUNK * MAX_CHUNKS]
    chunks = [reported[i : i + CHUNK] for i in range(0, len(reported), CHUNK)]
    own_id = report.broker_id
    await store.txn(marked, [DeleteOp(keys.report(own_id)), DeleteOp(keys.reports(own_id), prefix=True)])
    for number, chunk in enumerate(chunks):
        await store.txn(marked, [PutOp(keys.report_chunk(own_id, number), encode(ReportChunk(replicas=chunk)))])
    whole = msgspec.structs.replace(report, chunks=len(chunks))
    return (await store.txn(marked, [PutOp(keys.report(own_id), encode(whole))])).succeeded


async def read_reports(store: Store) -> dict[int, tuple[BrokerReport, list[ReplicaReport]]]:
    """Return the complete reports by broker. Raises `StoreError`, also `BadRecord`."""
    listing = await store.range(keys.REPORTS)
    chunks = {e.key: e for e in listing.entries}
    found: dict[int, tuple[BrokerReport, list[ReplicaReport]]] = {}
    for entry in listing.entries:
        if "/" in entry.key[len(keys.REPORTS) :]:
            continue
        report = decode(BrokerReport, entry.key, entry.value)
        names = [keys.report_chunk(report.broker_id, number) for number in range(report.chunks)]
        if all(name in chunks for name in names):
            found[report.broker_id] = report, read_chunks([(name, chunks[name].value) for name in names])
    return found


def read_chunks(chunks: Sequence[tuple[str, bytes]]) -> list[ReplicaReport]:
    """Decode the chunks of a report."""
    replicas: list[ReplicaReport] = []
    for key, value in chunks:
        replicas += decode(ReportChunk, key, value).replicas
    return replicas
