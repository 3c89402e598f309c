"""The hand-written messages, checked against an independent codec."""

from __future__ import annotations

import importlib
import io
import struct
import time
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.api_versions.v0.request import ApiVersionsRequest
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12.request import FetchRequest
from kio.schema.metadata.v4.request import MetadataRequest
from kio.schema.produce.v9.request import ProduceRequest
from kio.serial import entity_reader, entity_writer

from bench import wire

# Built field by field from plain numbers: the schema's own types would wrap each of them.
PRODUCED: Any = importlib.import_module("kio.schema.produce.v9.response")
FETCHED: Any = importlib.import_module("kio.schema.fetch.v12.response")
kafka_record: Any = importlib.import_module("kafka.record")


def _body(frame: bytes, *, flexible: bool) -> bytes:
    size, _api, _version, _correlation, client_id_length = struct.unpack_from(">ihhih", frame)
    assert size == len(frame) - 4
    return frame[14 + client_id_length + flexible :]


def test_a_batch_carries_its_values_and_a_valid_checksum() -> None:
    batch = wire.record_batch([b"one", b"", b"three" * 100], timestamp_ms=77)
    (parsed,) = [kafka_record.MemoryRecords(batch).next_batch()]
    assert parsed is not None
    assert parsed.validate_crc()
    assert [(record.offset, record.value, record.timestamp) for record in parsed] == [
        (0, b"one", 77),
        (1, b"", 77),
        (2, b"three" * 100, 77),
    ]


def test_a_produce_request_holds_a_batch_for_each_partition() -> None:
    batch = wire.record_batch([b"x"])
    body = _body(wire.produce_request("t", [(3, batch), (7, batch)], acks=1, timeout_ms=500), flexible=True)
    request, used = entity_reader(ProduceRequest)(body, 0)
    assert used == len(body)
    assert request.acks == 1
    (topic,) = request.topic_data
    assert topic.name == "t"
    assert [(part.index, part.records) for part in topic.partition_data] == [(3, batch), (7, batch)]


def test_a_fetch_request_asks_for_one_partition_outside_a_session() -> None:
    body = _body(wire.fetch_request("t", 2, 99, max_wait_ms=250), flexible=True)
    request, used = entity_reader(FetchRequest)(body, 0)
    assert used == len(body)
    (topic,) = request.topics
    (part,) = topic.partitions
    assert (topic.topic, part.partition, part.fetch_offset) == ("t", 2, 99)
    assert (request.session_id, request.session_epoch, request.min_bytes) == (0, -1, 1)


@pytest.mark.parametrize("create", [True, False])
def test_a_metadata_request_says_whether_to_create(create: bool) -> None:
    body = _body(wire.metadata_request(["a", "b"], create=create), flexible=False)
    request, used = entity_reader(MetadataRequest)(body, 0)
    assert used == len(body)
    assert request.topics is not None
    assert [topic.name for topic in request.topics] == ["a", "b"]
    assert request.allow_auto_topic_creation is create


def test_an_api_versions_request_has_no_body() -> None:
    body = _body(wire.api_versions_request(), flexible=False)
    assert entity_reader(ApiVersionsRequest)(body, 0)[1] == len(body) == 0


def _written(entity: Any) -> bytes:
    buffer = io.BytesIO()
    buffer.write(b"\0\0\0\5\0")  # correlation id and the header's tagged fields
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def test_a_produce_response_gives_each_partitions_error_and_offset() -> None:
    answers = tuple(
        PRODUCED.PartitionProduceResponse(
            index=index,
            error_code=error,
            base_offset=offset,
            log_append_time=None,
            log_start_offset=0,
            record_errors=(PRODUCED.BatchIndexAndErrorMessage(batch_index=0, batch_index_error_message="bad"),),
            error_message="why",
        )
        for index, error, offset in ((0, ErrorCode.none, 12), (1, ErrorCode.kafka_storage_error, -1))
    )
    topic = PRODUCED.TopicProduceResponse(name="t", partition_responses=answers)
    data = _written(PRODUCED.ProduceResponse(responses=(topic,), throttle_time=timedelta()))
    assert list(wire.produce_response(data)) == [wire.Produced(0, 0, 12), wire.Produced(1, 56, -1)]


def _fetch_response(records: bytes | None) -> bytes:
    part = FETCHED.PartitionData(
        partition_index=0,
        error_code=ErrorCode.none,
        high_watermark=50,
        last_stable_offset=50,
        log_start_offset=0,
        aborted_transactions=(FETCHED.AbortedTransaction(producer_id=1, first_offset=2),),
        preferred_read_replica=-1,
        records=records,
    )
    topic = FETCHED.FetchableTopicResponse(topic="t", partitions=(part,))
    return _written(
        FETCHED.FetchResponse(throttle_time=timedelta(), error_code=ErrorCode.none, session_id=0, responses=(topic,))
    )


def _at(offset: int, batch: bytes) -> bytes:
    return struct.pack(">q", offset) + batch[8:]


def test_a_fetch_response_tells_the_offset_after_its_last_whole_batch() -> None:
    records = _at(40, wire.record_batch([b"a", b"b"])) + _at(42, wire.record_batch([b"c"]))
    assert wire.fetch_response(_fetch_response(records)) == wire.Fetched(0, 50, 43)
    assert wire.fetch_response(_fetch_response(records[:-1])) == wire.Fetched(0, 50, 42)


def test_an_empty_fetch_response_tells_no_offset() -> None:
    assert wire.fetch_response(_fetch_response(b"")).next_offset == -1
    assert wire.fetch_response(_fetch_response(None)).next_offset == -1


def test_a_length_beyond_the_end_is_an_error() -> None:
    with pytest.raises(wire.WireError):
        wire.Reader(b"\0\x09ab").skip_string()


def test_a_batch_is_of_today_unless_told_otherwise() -> None:
    (made,) = [kafka_record.MemoryRecords(wire.record_batch([b"x"])).next_batch()]
    assert abs(made.max_timestamp / 1000 - time.time()) < 3600
