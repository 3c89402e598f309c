"""The codec rejects malformed messages, whatever sizes and lengths they declare."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_kit import every_version, name_of_case, payloads, random_message, versions

from penstock.wire import codec
from penstock.wire.messages.create_topics import CreateTopicsRequest
from penstock.wire.messages.join_group import JoinGroupRequest
from penstock.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from penstock.wire.schema import MalformedMessage, Payload
from penstock.wire.varint import read_uvarint, write_uvarint

CASES = every_version()


@pytest.mark.parametrize("cls", payloads(), ids=name_of_case)
def test_a_message_cut_at_any_byte_is_malformed(cls: type[Payload]) -> None:
    for version in versions(cls):
        rng = random.Random(f"{cls.__name__} {version}")
        encoded = codec.encode(random_message(cls, version, rng, most=2), version)
        step = max(1, len(encoded) // 400)
        for end in range(0, len(encoded), step):
            with pytest.raises(MalformedMessage):
                codec.decode(cls, version, encoded[:end])


@pytest.mark.parametrize("cls", payloads(), ids=name_of_case)
def test_a_byte_too_many_is_malformed(cls: type[Payload]) -> None:
    for version in versions(cls):
        encoded = codec.encode(random_message(cls, version, random.Random(1)), version)
        with pytest.raises(MalformedMessage, match="ends at byte"):
            codec.decode(cls, version, encoded + b"\0")


@pytest.mark.parametrize("cls", payloads(), ids=name_of_case)
def test_bytes_behind_a_request_are_ignored(cls: type[Payload]) -> None:
    for version in versions(cls):
        encoded = codec.encode(random_message(cls, version, random.Random(1)), version)
        message = codec.decode_request(cls, version, encoded + b"\0")
        assert codec.encode(message, version) == encoded


@pytest.mark.parametrize("cls", payloads(), ids=name_of_case)
def test_mutated_bytes_are_a_message_or_malformed_and_nothing_else(cls: type[Payload]) -> None:
    for version in versions(cls):
        rng = random.Random(f"mutate {cls.__name__} {version}")
        for _ in range(6):
            encoded = codec.encode(random_message(cls, version, rng), version)
            for _ in range(25):
                mutated = bytearray(encoded)
                for _ in range(rng.randrange(1, 4)):
                    if mutated:
                        mutated[rng.randrange(len(mutated))] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
                try:
                    message = codec.decode(cls, version, mutated)
                except MalformedMessage:
                    continue
                again = codec.decode(cls, version, codec.encode(message, version))
                assert same(again, message)


def same(one: Any, other: Any) -> bool:
    """Return whether two messages are equal, with NaN equal to NaN."""
    return bool(one == other) or repr(one) == repr(other)


@pytest.mark.parametrize("cls", [c for c in payloads() if c.VERSIONS[1] >= c.FLEXIBLE_FROM], ids=name_of_case)
def test_unknown_tagged_fields_are_skipped(cls: type[Payload]) -> None:
    """KIP-482: each structure of a flexible version can have unknown tagged fields."""
    for version in range(max(cls.FLEXIBLE_FROM, cls.VERSIONS[0]), cls.VERSIONS[1] + 1):
        rng = random.Random(f"tags {cls.__name__} {version}")
        for _ in range(5):
            message = random_message(cls, version, rng)
            encoded = bytearray()
            inserted = encode_with_unknown_tags(message, version, encoded)
            assert inserted >= 1
            assert codec.decode(cls, version, encoded) == message


def encode_with_unknown_tags(message: Payload, version: int, out: bytearray) -> int:
    """Encode `message` with unknown tagged fields in each structure. Returns the number of structures."""
    inserted = 0
    cls = type(message)
    for field in cls.FIELDS:
        if field.tag is not None or not field.first <= version <= field.last:
            continue
        inserted += write_field(field, getattr(message, field.name), version, out)
    tags = []
    for field in cls.FIELDS:
        value = getattr(message, field.name)
        if field.tag is not None and field.first <= version <= field.last and value != getattr(cls(), field.name):
            content = bytearray()
            inserted += write_field(field, value, version, content)
            tags.append((field.tag, bytes(content)))
    tags.append((20_000, b"from the future"))
    tags.append((20_001, b""))
    write_uvarint(out, len(tags))
    for tag, content in sorted(tags):
        write_uvarint(out, tag)
        write_uvarint(out, len(content))
        out += content
    return inserted + 1


def write_field(field: Any, value: Any, version: int, out: bytearray) -> int:
    if not field.array:
        return write_value(field, value, version, out)
    if value is None:
        out.append(0)
        return 0
    write_uvarint(out, len(value) + 1)
    return sum(write_value(field._replace(nullable=False), element, version, out) for element in value)


def write_value(field: Any, value: Any, version: int, out: bytearray) -> int:
    kind = field.type
    if not isinstance(kind, str):
        if field.nullable:
            out += b"\xff" if value is None else b"\x01"
        return 0 if value is None else encode_with_unknown_tags(value, version, out)
    layouts = {"int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint16": "H", "float64": "d", "bool": "?"}
    if kind in layouts:
        out += struct.pack(">" + layouts[kind], value)
    elif kind == "uuid":
        out += value.bytes
    elif value is None:
        out.append(0)
    else:
        content = value.encode() if kind == "string" else bytes(value)
        write_uvarint(out, len(content) + 1)
        out += content
    return 0


def test_lengths_that_lie_are_refused_without_allocating() -> None:
    huge_old = struct.pack(">i", 0x7FFFFFFF)
    with pytest.raises(MalformedMessage, match="more elements than the frame can contain"):
        codec.decode(MetadataRequest, 1, huge_old + b"x" * 50)
    with pytest.raises(MalformedMessage, match="more elements than the frame can contain"):
        codec.decode(MetadataRequest, 9, b"\xff\xff\xff\xff\x0f" + b"x" * 50)
    string = struct.pack(">i", 1) + struct.pack(">h", 0x7FFF) + b"abc"
    with pytest.raises(MalformedMessage, match="longer than the frame"):
        codec.decode(MetadataRequest, 1, string)
    with pytest.raises(MalformedMessage, match="null"):
        codec.decode(MetadataRequest, 0, struct.pack(">i", -1))


def test_the_number_of_elements_has_a_budget_over_the_whole_message() -> None:
    message = MetadataRequest(topics=[MetadataRequestTopic(name="t") for _ in range(1000)])
    encoded = codec.encode(message, 1)
    assert codec.decode(MetadataRequest, 1, encoded, max_elements=1000) == message
    with pytest.raises(MalformedMessage, match="too many array elements"):
        codec.decode(MetadataRequest, 1, encoded, max_elements=999)
    nested = random_message(CreateTopicsRequest, 7, random.Random(5), most=4)
    total = sum(
        1 + len(t.configs) + len(t.assignments) + sum(len(a.broker_ids) for a in t.assignments) for t in nested.topics
    )
    assert total > len(nested.topics)
    encoded = codec.encode(nested, 7)
    assert codec.decode(CreateTopicsRequest, 7, encoded, max_elements=total) == nested
    with pytest.raises(MalformedMessage, match="too many array elements"):
        codec.decode(CreateTopicsRequest, 7, encoded, max_elements=total - 1)


def test_text_that_is_not_utf_8_is_malformed() -> None:
    encoded = struct.pack(">i", 1) + struct.pack(">h", 2) + b"\xff\xfe"
    with pytest.raises(MalformedMessage, match="UTF-8"):
        codec.decode(MetadataRequest, 1, encoded)


def test_a_version_that_there_is_not_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="versions 0 to 9, not 10"):
        codec.encode(JoinGroupRequest(), 10)
    with pytest.raises(ValueError, match="versions 0 to 9, not -1"):
        codec.decode(JoinGroupRequest, -1, b"")


@settings(max_examples=settings().max_examples * 3, deadline=None)
@given(st.sampled_from(CASES), st.binary(max_size=300))
def test_any_bytes_at_all_are_a_message_or_malformed(case: tuple[type[Payload], int], data: bytes) -> None:
    cls, version = case
    try:
        message = codec.decode(cls, version, data)
    except MalformedMessage:
        return
    assert same(codec.decode(cls, version, codec.encode(message, version)), message)


def test_each_message_has_a_place_for_each_of_its_versions() -> None:
    assert len(payloads()) >= 60
    for cls, version in CASES:
        empty = codec.encode(cls(), version)
        assert codec.encode(codec.decode(cls, version, empty), version) == empty


def test_the_head_given_stands_before_the_message() -> None:
    encoded = codec.encode(MetadataRequest(topics=[]), 1, head=b"head")
    assert encoded[:4] == b"head"
    message, end = codec.decode_from(MetadataRequest, 1, encoded + b"tail", 4)
    assert (message, end) == (MetadataRequest(topics=[]), len(encoded))
    assert read_uvarint(b"\x05", 0) == (5, 1)
