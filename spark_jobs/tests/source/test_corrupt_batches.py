"""A batch with unreadable records fails a task, or is omitted and named. On a real broker."""

from __future__ import annotations

import asyncio

import pytest
from penstock_spark_kit.broker import Broker
from penstock_spark_kit.topics import MakeTopic

from penstock.client import Admin, AlterConfig
from penstock.client.cluster import ClusterConnections
from penstock.wire.batch import CRC, checksum
from penstock.wire.batch_builder import build_batch
from penstock.wire.compression import Codec
from penstock.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from penstock.wire.record import Record
from penstock_spark.link.link import Link
from penstock_spark.model.errors import CorruptBatch
from penstock_spark.model.ranges import OffsetRange
from penstock_spark.options.source import SourceOptions
from penstock_spark.source.reading import read_task
from penstock_spark.source.splitting import ReadTask

pytestmark = pytest.mark.integration


def batch(count: int, *, damage: str = "") -> bytes:
    made = bytearray(build_batch([Record(value=b"%d" % number) for number in range(count)]))
    if damage == "codec":
        made[22] |= Codec.LZ4
    if damage == "record":
        made[61] = 0x02  # the first record's length
    CRC.pack_into(made, 17, checksum(memoryview(made), 0, len(made)))
    return bytes(made)


async def write(bootstrap: str, topic: str, batches: list[bytes]) -> None:
    async with Admin(bootstrap) as admin:
        await admin.alter_topic_configs(topic, [AlterConfig("penstock.record.validation", "none")])
    cluster = ClusterConnections(
        bootstrap, client_id="t", request_timeout_ms=30_000, metadata_max_age_ms=60_000, security=None
    )
    try:
        await cluster.start()
        leader = (await cluster.topic(topic)).partitions[0].leader
        for one in batches:
            data = [TopicProduceData(name=topic, partition_data=[PartitionProduceData(0, one)])]
            request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=data)
            answer = await cluster.call(leader, request, ProduceResponse, timeout_ms=30_000)
            assert answer.responses[0].partition_responses[0].error_code == 0
    finally:
        await cluster.close()


def read(broker: Broker, topic: str, end: int, **options: str) -> list[int]:
    given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, **options}
    parsed = SourceOptions.parse(given, streaming=False)
    id_ = Link.to(parsed.connection).topics([topic])[topic].topic_id
    rows = read_task(parsed, ReadTask(OffsetRange(topic, 0, 0, end), id_))
    return [offset for batch in rows for offset in batch.column("offset").to_pylist()]


def test_a_batch_that_cannot_be_read_ends_the_task_or_is_left_out_and_named(
    penstock: Broker, topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic()
    batches = [batch(5, damage="record"), batch(10), batch(3, damage="codec"), batch(2), batch(1, damage="record")]
    asyncio.run(write(penstock.bootstrap, name, batches))
    message = f'{name}-0: cannot read the batch at offset 15: .*; set onCorruptBatch to "skip"'
    with pytest.raises(CorruptBatch, match=message):
        read(penstock, name, 21)
    assert read(penstock, name, 21, onCorruptBatch="skip") == [*range(5, 15), 18, 19]
    for offsets in ("0 to 4", "15 to 17", "20 to 20"):
        assert f"offsets {offsets} are skipped" in caplog.text
    assert name in caplog.text
