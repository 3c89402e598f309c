"""Invalid batches: each is rejected with a specific error, and the connection stays open."""

from __future__ import annotations

import random
import struct
import uuid
from pathlib import Path

import pytest
from bad_input_kit import Rude, frame_of

from bench.fuzz.broker import Broker
from penstock.wire.batch import CRC, checksum, read_header
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from penstock.wire.records import Codec, Record, build_batch

NEVER = (1 << 31) - 1
GOOD = build_batch([Record(timestamp_ms=1, key=b"k", value=b"v" * 50) for _ in range(3)])


def spoiled(**fields: int) -> bytearray:
    """Return the valid batch with other header fields; its CRC is correct unless given."""
    header = read_header(GOOD)._replace(**fields)
    batch = bytearray(GOOD)
    struct.pack_into(">qiibIhiqqqhii", batch, 0, *header)
    if "crc" not in fields:
        CRC.pack_into(batch, 17, checksum(memoryview(batch), 0, len(batch)))
    return batch


@pytest.fixture
def topic(rude: Rude) -> str:
    name = f"bad-{uuid.uuid4().hex[:12]}"
    rude.create(name)
    assert rude.produce(GOOD, name).base_offset == 0
    return name


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        (spoiled(crc=7), ErrorCode.CORRUPT_MESSAGE),
        (spoiled(magic=0), ErrorCode.INVALID_RECORD),
        (spoiled(magic=1), ErrorCode.INVALID_RECORD),
        (spoiled(magic=99), ErrorCode.CORRUPT_MESSAGE),
        (spoiled(record_count=NEVER, last_offset_delta=NEVER - 1), ErrorCode.INVALID_RECORD),
        (spoiled(record_count=0, last_offset_delta=-1), ErrorCode.INVALID_RECORD),
        (spoiled(record_count=-3, last_offset_delta=-4), ErrorCode.INVALID_RECORD),
        (spoiled(last_offset_delta=1000), ErrorCode.INVALID_RECORD),
        (spoiled(batch_length=-1), ErrorCode.CORRUPT_MESSAGE),
        (spoiled(batch_length=-NEVER), ErrorCode.CORRUPT_MESSAGE),
        (spoiled(batch_length=NEVER), ErrorCode.INVALID_RECORD),
        (spoiled(attributes=0x20), ErrorCode.INVALID_RECORD),
        (spoiled(attributes=6), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (spoiled(producer_id=3, producer_epoch=-1), ErrorCode.INVALID_RECORD),
        (GOOD + GOOD, ErrorCode.INVALID_RECORD),
        (GOOD[:-1], ErrorCode.INVALID_RECORD),
        (GOOD[:61], ErrorCode.INVALID_RECORD),
        (GOOD[:20], ErrorCode.INVALID_RECORD),
        (GOOD[:5], ErrorCode.INVALID_RECORD),
        (b"", ErrorCode.INVALID_RECORD),
        (None, ErrorCode.INVALID_RECORD),
    ],
)
@pytest.mark.parametrize("version", [3, 9])
def test_a_bad_batch_is_refused_and_nothing_of_it_is_kept(
    rude: Rude, topic: str, batch: bytes | None, error: ErrorCode, version: int
) -> None:
    """The errors are those of Kafka 4.3, where ProduceRequest.validateRecords checks before the log does."""
    assert rude.error_of(batch, topic, version=version) is error
    answer = rude.produce(GOOD, topic)
    assert (answer.error_code, answer.base_offset) == (0, 3)


@pytest.mark.parametrize(
    ("version", "error"), [(3, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE), (9, ErrorCode.INVALID_RECORD)]
)
def test_zstd_needs_version_7_whatever_else_is_wrong(rude: Rude, topic: str, version: int, error: ErrorCode) -> None:
    batch = spoiled(record_count=NEVER, last_offset_delta=NEVER - 1, attributes=4)
    assert rude.error_of(batch, topic, version=version) is error
    assert rude.produce(GOOD, topic).base_offset == 3


def test_a_record_from_before_1970_is_stored(rude: Rude, topic: str) -> None:
    assert rude.produce(spoiled(base_timestamp_ms=-1000), topic).base_offset == 3


def test_a_batch_larger_than_max_message_bytes_is_refused(rude: Rude, topic: str) -> None:
    large = build_batch([Record(value=random.Random(1).randbytes(1_100_000))])
    assert rude.error_of(large, topic) is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("acks", [7, 2, -2, 32767])
def test_acks_that_there_are_not_are_refused(rude: Rude, topic: str, acks: int) -> None:
    answer = rude.produce(GOOD, topic, acks=acks)
    assert ErrorCode(answer.error_code) is ErrorCode.INVALID_REQUIRED_ACKS
    assert rude.produce(GOOD, topic).base_offset == 3


def test_a_refused_batch_that_expects_no_answer_closes_the_connection(rude: Rude, broker: Broker, topic: str) -> None:

    bad = [PartitionProduceData(index=0, records=spoiled(crc=1))]
    request = ProduceRequest(acks=0, timeout_ms=5, topic_data=[TopicProduceData(name=topic, partition_data=bad)])
    rude.say(frame_of(request, 9))
    assert rude.is_closed()


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_decompression_bomb_for_a_compacted_topic_costs_an_error_and_bounded_memory(
    rude: Rude, broker: Broker, codec: Codec
) -> None:
    """The broker reads the keys of a compacted topic, so it must decompress the batch."""
    name = f"compacted-{uuid.uuid4().hex[:12]}"
    config = [CreatableTopicConfig(name=n, value=v) for n, v in BOMB_CONFIG.items()]
    asked = CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=config)
    (made,) = rude.ask(CreateTopicsRequest(topics=[asked], timeout_ms=5000), 5, CreateTopicsResponse).topics
    assert made.error_code == 0
    bomb = build_batch([Record(key=b"k", value=b"\0" * (400 << 20))], codec=codec)
    assert len(bomb) < 25 << 20
    answer = rude.produce(bomb, name)
    assert ErrorCode(answer.error_code) is ErrorCode.MESSAGE_TOO_LARGE
    assert broker.status_kib("VmHWM") < 600_000
    assert rude.produce(GOOD, name).base_offset == 0


BOMB_CONFIG = {"cleanup.policy": "compact", "max.message.bytes": str(30 << 20)}


@pytest.mark.parametrize(
    "name",
    ["../../escaped", "..", ".", "", "a/b", "/etc/passwd", "a\0b", "a" * 250, "x" * 30_000, "späße", "a b", "a\n"],
    ids=lambda n: n[:20].encode().hex(),
)
def test_a_topic_name_that_climbs_paths_or_is_too_long_is_refused(rude: Rude, broker: Broker, name: str) -> None:
    before = files_around(broker)
    asked = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    (made,) = rude.ask(CreateTopicsRequest(topics=[asked], timeout_ms=5000), 5, CreateTopicsResponse).topics
    assert ErrorCode(made.error_code) is ErrorCode.INVALID_TOPIC_EXCEPTION
    named = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=True)
    (found,) = rude.ask(named, 9, MetadataResponse).topics
    assert ErrorCode(found.error_code) is ErrorCode.INVALID_TOPIC_EXCEPTION
    error = rude.error_of(GOOD, name)
    assert error in (ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert files_around(broker) == before


def files_around(broker: Broker) -> set[Path]:
    """Return the entries of the data directory and of its parent."""
    return {*broker.data.parent.iterdir(), *broker.data.iterdir()}


@pytest.mark.parametrize("index", [-1, 1, NEVER, -NEVER])
def test_a_partition_that_there_is_not_is_unknown(rude: Rude, topic: str, index: int) -> None:
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=index, records=GOOD)])
    request = ProduceRequest(acks=1, timeout_ms=5000, topic_data=[data])
    (answer,) = rude.ask(request, 9, ProduceResponse).responses
    (partition,) = answer.partition_responses
    assert ErrorCode(partition.error_code) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
