"""The headers of requests and responses, and the table of served APIs."""

from __future__ import annotations

import random
import struct

import pytest
from kio.schema.request_header.v1 import header as v1
from kio.schema.request_header.v2 import header as v2
from kio.serial import entity_reader
from wire_kit import payloads

from penstock.wire.api_table import NEVER
from penstock.wire.apis import APIS, ApiKey, api_name, request_header_version, response_header_version
from penstock.wire.frame import MAX_CLIENT_ID_BYTES, RequestHeader, parse_request_header, request_head, response_head
from penstock.wire.schema import MalformedMessage


def frame(api_key: int, version: int, correlation_id: int, client_id: str | None) -> bytes:
    return bytes(request_head(api_key, version, correlation_id, client_id)[4:])


@pytest.mark.parametrize("client_id", [None, "", "flights", "ä" * 500])
def test_a_head_is_read_as_it_was_written(client_id: str | None) -> None:
    for key, api in APIS.items():
        for version in range(api.first, api.last + 1):
            head = frame(key, version, 77, client_id)
            parsed = parse_request_header(memoryview(head + b"body"))
            assert parsed == RequestHeader(key, version, 77, client_id, len(head))


def test_the_oracle_reads_the_same_head() -> None:
    for theirs, key, version in ((v1.RequestHeader, 3, 1), (v2.RequestHeader, 3, 9)):
        head = frame(key, version, -5, "client")
        found, size = entity_reader(theirs)(head, 0)
        assert size == len(head)
        assert (found.request_api_key, found.request_api_version) == (key, version)
        assert (found.correlation_id, found.client_id) == (-5, "client")


def test_unknown_tagged_fields_in_a_head_are_skipped() -> None:
    head = frame(ApiKey.METADATA, 9, 1, "c")
    tagged = head[:-1] + b"\x02\x00\x01x\xff\x01\x03abc"
    assert parse_request_header(memoryview(tagged)).body_offset == len(tagged)


def test_a_head_cut_at_any_byte_is_malformed() -> None:
    head = frame(ApiKey.METADATA, 9, 1, "client")
    for end in range(len(head)):
        with pytest.raises(MalformedMessage):
            parse_request_header(memoryview(head[:end]))


def test_random_heads_are_parsed_or_malformed_and_nothing_else() -> None:
    rng = random.Random(9)
    for _ in range(20_000):
        head = bytearray(frame(rng.choice(list(APIS)), rng.randrange(14), 1, "client") + rng.randbytes(20))
        for _ in range(rng.randrange(4)):
            head[rng.randrange(len(head))] = rng.randrange(256)
        try:
            parsed = parse_request_header(memoryview(head))
        except MalformedMessage:
            continue
        assert 10 <= parsed.body_offset <= len(head)


def test_a_client_id_is_bounded() -> None:
    longest = "x" * MAX_CLIENT_ID_BYTES
    assert parse_request_header(memoryview(frame(3, 1, 1, longest))).client_id == longest
    with pytest.raises(MalformedMessage, match="at most"):
        parse_request_header(memoryview(frame(3, 1, 1, longest + "x")))
    with pytest.raises(MalformedMessage, match="UTF-8"):
        parse_request_header(memoryview(struct.pack(">hhih", 3, 1, 1, 2) + b"\xff\xfe"))
    with pytest.raises(MalformedMessage, match="invalid length -2"):
        parse_request_header(memoryview(struct.pack(">hhih", 3, 1, 1, -2)))


def test_a_request_that_nobody_knows_still_has_a_head() -> None:
    parsed = parse_request_header(memoryview(frame(999, 5, 3, "c")))
    assert (parsed.api_key, parsed.version, parsed.client_id) == (999, 5, "c")
    assert api_name(999) == "with key 999"
    assert api_name(36) == "SaslAuthenticate"


def test_the_table_agrees_with_the_messages() -> None:
    for cls in payloads():
        if cls.KEY < 0:
            continue
        api = APIS[cls.KEY]
        assert (api.name + "Request" == cls.__name__) or (api.name + "Response" == cls.__name__)
        first, last = cls.VERSIONS
        assert first <= api.first <= api.last <= last
        assert min(cls.FLEXIBLE_FROM, NEVER) == api.flexible_from
    assert {cls.KEY for cls in payloads() if cls.KEY >= 0} == set(APIS) == set(ApiKey)


def test_the_answer_to_api_versions_can_be_read_before_any_version_is_agreed() -> None:
    assert [response_header_version(ApiKey.API_VERSIONS, v) for v in range(5)] == [0] * 5
    assert [request_header_version(ApiKey.API_VERSIONS, v) for v in range(5)] == [1, 1, 1, 2, 2]


def test_a_responses_head_names_the_request() -> None:
    assert response_head(7, 0) == b"\0\0\0\0\0\0\0\x07"
    assert response_head(-1, 1) == b"\0\0\0\0\xff\xff\xff\xff\0"
