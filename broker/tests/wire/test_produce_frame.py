"""The Produce parser, which reads requests in place, agrees with the general codec."""

from __future__ import annotations

import random
from uuid import UUID

import pytest

from penstock.wire import codec
from penstock.wire.messages.produce import (
    LeaderIdAndEpoch,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from penstock.wire.produce_frame import PartitionResult, Topic, encode_produce_response, parse_produce
from penstock.wire.schema import MalformedMessage

VERSIONS = range(3, 14)


def request(version: int, seed: int = 7) -> ProduceRequest:
    rng = random.Random(seed)
    topics = [
        TopicProduceData(
            name=f"topic-{i}",
            topic_id=UUID(int=i + 1),
            partition_data=[PartitionProduceData(index=j, records=rng.randbytes(rng.randrange(200))) for j in range(3)],
        )
        for i in range(2)
    ]
    return ProduceRequest(transactional_id=None, acks=-1, timeout_ms=1500, topic_data=topics)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_batch_is_found_where_it_lies(version: int) -> None:
    asked = request(version)
    frame = codec.encode(asked, version, head=b"header")
    found = parse_produce(memoryview(frame), 6, version)
    assert (found.transactional_id, found.acks, found.timeout_ms) == (None, -1, 1500)
    for (topic, places), wanted in zip(found.topics, asked.topic_data, strict=True):
        assert topic == (wanted.topic_id if version >= 13 else wanted.name)
        for place, data in zip(places, wanted.partition_data, strict=True):
            assert place.partition == data.index
            assert frame[place.start : place.start + place.size] == data.records


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_cut_anywhere_is_malformed(version: int) -> None:
    frame = codec.encode(request(version), version)
    for end in range(len(frame)):
        with pytest.raises(MalformedMessage):
            parse_produce(memoryview(frame[:end]), 0, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_bytes_behind_the_request_are_ignored(version: int) -> None:
    frame = bytes(codec.encode(request(version), version))
    assert parse_produce(memoryview(frame + b"\0"), 0, version) == parse_produce(memoryview(frame), 0, version)


@pytest.mark.parametrize("version", [9, 13])
def test_unknown_tagged_fields_are_stepped_over(version: int) -> None:
    frame = codec.encode(request(version), version)
    assert frame[-1] == 0
    tagged = frame[:-1] + b"\x01\xce\x0f\x03abc"
    assert parse_produce(memoryview(tagged), 0, version) == parse_produce(memoryview(frame), 0, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_random_bytes_never_raise_anything_else(version: int) -> None:
    rng = random.Random(version)
    frame = codec.encode(request(version), version)
    for _ in range(3000):
        mutated = bytearray(frame)
        for _ in range(rng.randrange(1, 6)):
            mutated[rng.randrange(len(mutated))] = rng.randrange(256)
        try:
            found = parse_produce(memoryview(mutated), 0, version)
        except MalformedMessage:
            continue
        for _, places in found.topics:
            assert all(p.start >= 0 and p.start + p.size <= len(mutated) for p in places)


@pytest.mark.parametrize("version", VERSIONS)
def test_answers_read_as_the_general_codec_writes_them(version: int) -> None:
    topic: Topic = UUID(int=5) if version >= 13 else "flights"
    results = [
        PartitionResult(0, 0, 10, 20, 5),
        PartitionResult(1, 87, message="no key"),
        PartitionResult(2, 6, leader=(3, 9)),
    ]
    frame = encode_produce_response(77, version, [(topic, results)])
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert int.from_bytes(frame[4:8], "big") == 77
    answer = codec.decode(ProduceResponse, version, frame, 9 if version >= 9 else 8)

    def expected(r: PartitionResult) -> PartitionProduceResponse:
        told = PartitionProduceResponse(index=r.partition, error_code=r.error, base_offset=r.base_offset)
        told.log_append_time_ms = r.log_append_time_ms
        if version >= 5:
            told.log_start_offset = r.log_start_offset
        if version >= 8:
            told.error_message = r.message
        if version >= 10 and r.leader:
            told.current_leader = LeaderIdAndEpoch(leader_id=r.leader[0], leader_epoch=r.leader[1])
        return told

    named = {"topic_id": topic} if version >= 13 else {"name": topic}
    whole = TopicProduceResponse(partition_responses=[expected(r) for r in results], **named)
    assert answer == ProduceResponse(responses=[whole])
