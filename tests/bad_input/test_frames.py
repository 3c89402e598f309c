"""Invalid frames: each has a defined outcome, and other clients are served."""

from __future__ import annotations

import os
import random
import struct

import pytest
from bad_input_kit import Rude, frame_of, framed

from bench.fuzz.attack import attack
from bench.fuzz.broker import Broker
from bench.fuzz.canary import Canary
from penstock.wire import codec
from penstock.wire.apis import APIS, ApiKey
from penstock.wire.errors import ErrorCode
from penstock.wire.frame import request_head
from penstock.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.messages.describe_acls import DescribeAclsRequest
from penstock.wire.messages.list_groups import ListGroupsRequest
from penstock.wire.messages.metadata import MetadataRequest, MetadataResponse


@pytest.mark.parametrize("size", [0x7FFFFFFF, -1, -0x80000000, (100 << 20) + 1])
def test_a_frame_of_impossible_length_closes_the_connection(rude: Rude, broker: Broker, size: int) -> None:
    rude.say(struct.pack(">i", size) + b"x" * 1000)
    assert rude.is_closed()
    assert broker.status_kib("VmRSS") < 300_000, "nothing was allocated for it"


def test_a_large_length_that_is_allowed_takes_no_memory_before_the_bytes_come(rude: Rude, broker: Broker) -> None:
    before = broker.status_kib("VmRSS")
    many = [Rude(broker.host, broker.port) for _ in range(50)]
    for one in many:
        one.say(struct.pack(">i", 100 << 20) + b"x" * 100)
    rude.ping()
    assert broker.status_kib("VmRSS") - before < 20_000
    for one in many:
        one.socket.close()


@pytest.mark.parametrize("trailing", [b"\0", b"\0\0\0", b"trailing"])
def test_bytes_behind_a_request_are_ignored(rude: Rude, trailing: bytes) -> None:
    """librdkafka appends up to three to Metadata, and kafka-go one to DescribeAcls and DeleteAcls."""
    for number, request in enumerate([ListGroupsRequest(), MetadataRequest(topics=None), DescribeAclsRequest()]):
        version = min(request.VERSIONS[1], 9)
        rude.say(framed(bytes(frame_of(request, version, correlation_id=number)[4:]) + trailing))
        assert struct.unpack_from(">i", rude.receive()) == (number,)


def test_a_truncated_request_closes_the_connection(rude: Rude, broker: Broker) -> None:
    request = bytes(frame_of(MetadataRequest(topics=[]), 9)[4:])
    for end in range(len(request)):
        with Rude(broker.host, broker.port) as other:
            other.say(framed(request[:end]))
            assert other.is_closed(), f"cut at byte {end}"


def test_random_frames_close_the_connection(rude: Rude, broker: Broker) -> None:
    rng = random.Random(8)
    for _ in range(100):
        with Rude(broker.host, broker.port) as other:
            # an unknown API key, so that no part can be a valid request
            other.say(framed(struct.pack(">h", rng.randrange(200, 32767)) + rng.randbytes(rng.randrange(300))))
            assert other.is_closed()


@pytest.mark.parametrize("key", [-1, 4, 17, 36, 93, 32767])
def test_an_unknown_api_closes_the_connection(rude: Rude, key: int) -> None:
    rude.say(framed(bytes(request_head(key, 0, 1, "rude")[4:])))
    assert rude.is_closed()


@pytest.mark.parametrize("key", [k for k in APIS if k not in (ApiKey.API_VERSIONS, ApiKey.PRODUCE)])
def test_a_version_that_is_not_served_closes_the_connection(rude: Rude, broker: Broker, key: int) -> None:
    for version in {APIS[key].last + 1, APIS[key].first - 1, 32767, -32768}:
        with Rude(broker.host, broker.port) as other:
            other.say(framed(struct.pack(">hhih", key, version, 1, -1) + b"\0" * 30))
            assert other.is_closed(), f"version {version}"


@pytest.mark.parametrize("version", [5, 99, 32767])
def test_a_future_api_versions_request_is_told_what_there_is(rude: Rude, version: int) -> None:
    """KIP-511: the answer has version 0 and error 35, so that the client can fall back."""
    rude.say(framed(bytes(request_head(ApiKey.API_VERSIONS, version, 42, "rude")[4:]) + b"whatever"))
    answer = rude.receive()
    assert struct.unpack_from(">i", answer) == (42,)
    told = codec.decode(ApiVersionsResponse, 0, answer, 4)
    assert told.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert {a.api_key for a in told.api_keys} >= {0, 1, 3, 18}
    rude.ping()


def test_a_client_with_a_strange_name_is_told(rude: Rude) -> None:
    named = ApiVersionsRequest(client_software_name="-; DROP TABLE", client_software_version="1")
    assert rude.ask(named, 3, ApiVersionsResponse).error_code == ErrorCode.INVALID_REQUEST
    rude.ping()


def test_a_client_id_that_is_no_text_or_too_long_closes_the_connection(rude: Rude, broker: Broker) -> None:
    for client_id in (b"\xff\xfe", b"x" * 5000):
        with Rude(broker.host, broker.port) as other:
            other.say(framed(struct.pack(">hhih", 3, 1, 1, len(client_id)) + client_id + b"\0\0\0\0"))
            assert other.is_closed()


def test_an_array_that_claims_more_than_there_is_closes_the_connection(rude: Rude, broker: Broker) -> None:
    for count in (2, 1000, 0x7FFFFFFF):
        with Rude(broker.host, broker.port) as other:
            head = bytes(request_head(ApiKey.METADATA, 1, 1, None)[4:])
            other.say(framed(head + struct.pack(">i", count) + b"\0\1a"))
            assert other.is_closed()
    assert broker.status_kib("VmRSS") < 300_000


def test_tagged_fields_from_the_future_are_no_offence(rude: Rude) -> None:
    request = bytes(frame_of(ListGroupsRequest(), 3, correlation_id=9)[4:])
    rude.say(framed(request[:-1] + b"\x02\x63\x01x\xe7\x07\x00"))
    assert struct.unpack_from(">i", rude.receive()) == (9,)
    rude.say(framed(request[:-1] + b"\x01\x63\x7fx"))  # a tagged field longer than the frame
    assert rude.is_closed()


def test_an_answer_comes_to_what_was_asked_before_the_offence(rude: Rude) -> None:
    request = MetadataRequest(topics=[])
    rude.say(frame_of(request, 1, correlation_id=5) + frame_of(request, 1, correlation_id=6) + b"\xff" * 50)
    for expected in (5, 6):
        answer = rude.receive()
        assert struct.unpack_from(">i", answer) == (expected,)
        codec.decode(MetadataResponse, 1, answer, 4)
    assert rude.is_closed()


def test_some_thousand_mutated_requests_of_every_api_do_no_harm(broker: Broker, canary: Canary) -> None:
    """`make fuzz` sends a million; a seed that fails there fails here too."""
    seed = int(os.environ.get("PENSTOCK_FUZZ_SEED", random.randrange(1 << 32)))
    print("PENSTOCK_FUZZ_SEED", seed)
    outcome = attack(broker.host, broker.port, 6000, seed, lambda _: None)
    assert outcome.requests == 6000
    assert 500 < outcome.closed_by_broker < 5000, "the broker closes connections for some of the requests, not for most"
    log = broker.log.read_text(errors="replace")
    assert "Traceback" not in log, broker.tail()
