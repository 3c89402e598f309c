"""Logs as bytes: fetched and produced without a client library, constructed, and as other clients read them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from penstock.client.cluster import ClusterConnections
from penstock.wire.batch import CRC, HEADER_SIZE, LENGTH_OVERHEAD, checksum
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from penstock.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from penstock_spark.decode.arena import Arena
from penstock_spark.decode.varints import Bytes
from penstock_spark.model.ranges import Fetched

CRC_OFFSET = 17
FAR = 1 << 60
DEADLINE_S = 60.0


class Row(NamedTuple):
    """A record as a reader returns it; `headers` is None without headers."""

    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] | None = None


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    """Return Arrow's rows; Arrow validates each batch."""
    rows: list[Row] = []
    for batch in batches:
        batch.validate(full=True)
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names if name != "timestamp"}
        times = batch.column("timestamp").cast(pa.int64()).to_pylist()
        headers = columns.get("headers", [None] * len(times))
        for index, micros in enumerate(times):
            assert micros % 1000 == 0, "records have times in milliseconds"
            row = [columns[name][index] for name in ("offset", "timestampType", "key", "value")]
            lists = headers[index]
            pairs = None if lists is None else tuple((header["key"], header["value"]) for header in lists)
            rows.append(Row(row[0], micros // 1000, row[1], row[2], row[3], pairs))
    return rows


def padded(*parts: bytes) -> Bytes:
    """Return contiguous records in reused memory, as a decoder has them."""
    arena = Arena()
    arena.put(b"\xff" * (1000 + sum(map(len, parts))))
    arena.clear()
    for part in parts:
        arena.put(part)
    return arena.source()


def answer(log: bytes | bytearray | memoryview, aborted: Sequence[tuple[int, int]] = ()) -> Fetched:
    """Return a fetch response with these bytes."""
    return Fetched(memoryview(log), aborted, FAR, FAR, 0)


def reseal(log: bytearray) -> bytearray:
    """Set the correct length and CRC of the single batch in `log`."""
    log[8:12] = (len(log) - LENGTH_OVERHEAD).to_bytes(4, "big")
    with memoryview(log) as view:
        CRC.pack_into(log, CRC_OFFSET, checksum(view, 0, len(log)))
    return log


def with_body(batch: bytes, body: bytes) -> bytearray:
    """Return the batch with other bytes instead of its records, with correct length and CRC."""
    return reseal(bytearray(batch[:HEADER_SIZE] + body))


def fetch_all(
    bootstrap: str, topic: str, isolation: int, *, start: int = 0, partition_bytes: int = 1 << 20
) -> list[Fetched]:
    """Return the fetch responses from `start` up to the last readable record in partition 0."""

    async def run() -> list[Fetched]:
        cluster = ClusterConnections(bootstrap, client_id="penstock-spark-tests")
        await cluster.start()
        try:
            return await fetch_with(cluster)
        finally:
            await cluster.close()

    async def fetch_with(cluster: ClusterConnections) -> list[Fetched]:
        leader = (await cluster.topic(topic)).partitions[0].leader
        answers: list[Fetched] = []
        at = start
        while True:
            wanted = FetchPartition(partition=0, fetch_offset=at, partition_max_bytes=partition_bytes)
            request = FetchRequest(
                max_bytes=64 << 20, isolation_level=isolation, topics=[FetchTopic(topic=topic, partitions=[wanted])]
            )
            got = await cluster.call(leader, request, FetchResponse)
            data = got.responses[0].partitions[0]
            assert not data.error_code, data
            if not data.records:
                return answers
            records = bytes(data.records)
            aborted = [(pair.producer_id, pair.first_offset) for pair in data.aborted_transactions or ()]
            answers.append(Fetched(memoryview(records), aborted, data.high_watermark, data.last_stable_offset, 0))
            at = next_offset(records)

    return asyncio.run(run())


def next_offset(records: bytes) -> int:
    """Return the offset after the last whole batch."""
    at, found = 0, -1
    while len(records) - at >= HEADER_SIZE:
        size = int.from_bytes(records[at + 8 : at + 12], "big") + LENGTH_OVERHEAD
        if size > len(records) - at:
            break
        base = int.from_bytes(records[at : at + 8], "big")
        found = base + int.from_bytes(records[at + 23 : at + 27], "big") + 1
        at += size
    assert found >= 0, "an answer without a whole batch"
    return found


def produce_raw(bootstrap: str, topic: str, batches: Iterable[bytes | bytearray]) -> list[int]:
    """Send unmodified batches to partition 0, one after the other. Return the offset of each."""

    async def run() -> list[int]:
        cluster = ClusterConnections(bootstrap, client_id="penstock-spark-tests")
        await cluster.start()
        try:
            leader = (await cluster.topic(topic)).partitions[0].leader
            offsets = []
            for batch in batches:
                part = PartitionProduceData(index=0, records=batch)
                data = TopicProduceData(name=topic, partition_data=[part])
                request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[data])
                got = (await cluster.call(leader, request, ProduceResponse)).responses[0].partition_responses[0]
                assert not got.error_code, got
                offsets.append(got.base_offset)
            return offsets
        finally:
            await cluster.close()

    return asyncio.run(run())


def confluent_rows(bootstrap: str, topic: str, *, committed: bool = True, start: int = OFFSET_BEGINNING) -> list[Row]:
    """Return the records of partition 0 as confluent-kafka reads them."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"{topic}-reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
    )
    rows: list[Row] = []
    try:
        consumer.assign([TopicPartition(topic, 0, start)])
        deadline_s = time.monotonic() + DEADLINE_S
        while True:
            messages = consumer.consume(1_000, 0.1)
            assert time.monotonic() < deadline_s, "confluent-kafka does not come to the end"
            for message in messages:
                error = message.error()
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    return rows
                kind, time_ms = message.timestamp()
                headers = message.headers()
                pairs = tuple((key, value) for key, value in headers) if headers else None
                rows.append(Row(message.offset(), time_ms, kind - 1, message.key(), message.value(), pairs))
    finally:
        consumer.close()
