"""Produce templates: parsed requests and encoded responses are the same as those of the general parser and encoder."""

from __future__ import annotations

import random
from uuid import UUID

import pytest

from penstock.wire import codec
from penstock.wire.apis import ApiKey
from penstock.wire.frame import parse_request_header, request_head
from penstock.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from penstock.wire.produce_frame import BatchSlice, PartitionResult, Topic, encode_produce_response, parse_produce
from penstock.wire.produce_template import MAX_MISSES, ProduceTemplate, learn_template
from penstock.wire.schema import MalformedMessage

VERSIONS = range(9, 14)
SIZES = (1, 61, 126, 127, 128, 16_382, 16_383, 16_384, 2_097_150, 2_097_151, 2_097_152)
"""Batch sizes around the values at which the encoded size takes one more byte."""


def frame_of(
    version: int, batches: list[bytes | None], correlation_id: int = 1, topic: str = "flights", **more: object
) -> bytearray:
    data = [PartitionProduceData(index=i, records=batch) for i, batch in enumerate(batches)]
    topics = [TopicProduceData(name=topic, topic_id=UUID(int=len(topic)), partition_data=data)]
    asked = ProduceRequest(acks=-1, timeout_ms=1500, topic_data=topics, **more)  # type: ignore[arg-type]
    return codec.encode(asked, version, bytes(request_head(ApiKey.PRODUCE, version, correlation_id, "someone")))[4:]


def learnt(frame: bytearray) -> ProduceTemplate | None:
    view = memoryview(frame)
    header = parse_request_header(view)
    return learn_template(view, header.version, parse_produce(view, header.body_offset, header.version))


def known(version: int, topic: str = "flights") -> ProduceTemplate:
    found = learnt(frame_of(version, [bytes(200)], topic=topic))
    assert found is not None
    return found


def read(template: ProduceTemplate, frame: memoryview) -> list[BatchSlice] | None:
    """Return the slices of the batches; check that `read_single` finds the batch exactly if it is the only one."""
    places = template.read_batches(frame)
    alone = places[0] if places is not None and len(places) == 1 else None
    correlation_id = int.from_bytes(frame[4:8], "big", signed=True)
    assert template.read_single(frame) == (None if alone is None else (correlation_id, *alone))
    return places


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("size", SIZES)
def test_a_batch_is_found_where_it_lies(version: int, size: int) -> None:
    batch = random.Random(size).randbytes(size)
    frame = frame_of(version, [batch], correlation_id=99)
    found = learnt(frame)
    assert found is not None, "a request of any size can be learnt from"
    for template in (found, known(version)):
        places = read(template, memoryview(frame))
        assert places is not None
        ((index, start, length),) = places
        assert (index, frame[start : start + length]) == (0, batch)
        assert (template.acks, template.timeout_ms, template.version) == (-1, 1500, version)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("count", [1, 2, 126])
def test_each_of_several_batches_is_found(version: int, count: int) -> None:
    frame = memoryview(frame_of(version, [bytes([i]) * (60 + i) for i in range(count)]))
    header = parse_request_header(frame)
    ((topic, places),) = parse_produce(frame, header.body_offset, version).topics
    template = known(version)
    assert read(template, frame) == places
    assert template.topic == topic


@pytest.mark.parametrize("version", VERSIONS)
def test_another_head_is_not_alike(version: int) -> None:
    template = known(version)
    frame = frame_of(version, [bytes(80)])
    assert read(template, memoryview(frame)) is not None
    for at in (*range(4), *range(8, template.end)):
        other = frame.copy()
        other[at] ^= 1
        assert read(template, memoryview(other)) is None, f"byte {at} differs"
    for at in range(4, 8):
        other = frame.copy()
        other[at] ^= 1
        assert read(template, memoryview(other)) is not None, "a correlation id is always another"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("sizes", [(80, 300), (80,), (300,)])
def test_a_request_that_is_cut_or_longer_is_left_to_the_general_parser(version: int, sizes: tuple[int, ...]) -> None:
    template = known(version)
    frame = frame_of(version, [bytes(size) for size in sizes])
    for end in range(len(frame)):
        assert read(template, memoryview(frame[:end])) is None
    assert read(template, memoryview(frame + b"\0")) is None


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("sizes", [(80, 300), (300,)])
def test_what_it_reads_of_damaged_requests_the_general_parser_reads_too(version: int, sizes: tuple[int, ...]) -> None:
    rng = random.Random(version)
    template = known(version)
    frame = frame_of(version, [bytes(size) for size in sizes])
    taken = 0
    for _ in range(20_000):
        damaged = frame.copy()
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(template.end, len(damaged))] = rng.choice(
                (0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256))
            )
        view = memoryview(damaged)
        places = read(template, view)
        if places is None:
            continue
        taken += 1
        header = parse_request_header(view)
        assert parse_produce(view, header.body_offset, version).topics == [(template.topic, places)]
    assert taken > 100, "most damage is in the batches, which are not looked at here"


@pytest.mark.parametrize("version", VERSIONS)
def test_requests_of_other_kinds_are_not_taken_up(version: int) -> None:
    assert learnt(frame_of(version, [bytes(80)], transactional_id="t")) is None
    assert learnt(frame_of(version, [])) is None
    assert learnt(frame_of(version, [None])) is None
    assert learnt(frame_of(version, [bytes(70)] * 127)) is None
    tagged = frame_of(version, [bytes(80)])[:-1] + b"\x01\xce\x0f\x03abc"
    assert learnt(tagged) is None
    template = known(version)
    assert read(template, memoryview(frame_of(version, [None]))) is None
    assert read(template, memoryview(frame_of(version, [bytes(70)] * 127))) is None
    assert read(template, memoryview(tagged)) is None


def test_the_old_encoding_is_left_to_the_general_parser() -> None:
    assert learnt(frame_of(8, [bytes(80)])) is None


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("topic", ["t", "flights", "a" * 126, "a" * 249])
def test_the_answer_is_that_of_the_general_encoder(version: int, topic: str) -> None:
    template = known(version, topic)
    called: Topic = UUID(int=len(topic)) if version >= 13 else topic
    result = PartitionResult(5, 0, 1 << 40, 1_700_000_000_000, 77)
    general = encode_produce_response(-7, version, [(called, [result])])
    assert template.encode_response(-7, 5, 1 << 40, 1_700_000_000_000, 77) == general


def test_it_is_learnt_anew_after_a_request_that_was_alike_or_many_that_were_not() -> None:
    template = known(9)
    assert [template.should_relearn() for _ in range(MAX_MISSES + 1)] == [False] * MAX_MISSES + [True], (
        "it was never of use"
    )
    for finds in (ProduceTemplate.read_batches, ProduceTemplate.read_single):
        template = known(9)
        assert finds(template, memoryview(frame_of(9, [bytes(80)]))) is not None
        assert template.should_relearn(), "the producer has gone on to something else"


def test_malformed_requests_stay_malformed_for_the_general_parser() -> None:
    """The general parser rejects, with the reason, a request that the template does not match."""
    frame = memoryview(frame_of(9, [bytes(80)])[:-4])
    assert known(9).read_batches(frame) is None
    with pytest.raises(MalformedMessage):
        parse_produce(frame, parse_request_header(frame).body_offset, 9)
