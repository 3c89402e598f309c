"""ApiVersions: the first request of a client (KIP-35, KIP-511)."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from wire_in_memory import RecordedConnection, Wire, opened_wire

from penstock.api.exchange import ProtocolViolation
from penstock.wire import codec
from penstock.wire.apis import ApiKey
from penstock.wire.errors import ErrorCode
from penstock.wire.frame import request_head
from penstock.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

SERVED = {
    ApiKey.PRODUCE: (0, 13),
    ApiKey.FETCH: (4, 18),
    ApiKey.LIST_OFFSETS: (1, 11),
    ApiKey.API_VERSIONS: (0, 4),
    ApiKey.DELETE_RECORDS: (0, 2),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (2, 4),
    ApiKey.DESCRIBE_PRODUCERS: (0, 0),
}


@pytest.fixture
async def wire(tmp_path: Path) -> AsyncIterator[Wire]:
    async with opened_wire(tmp_path) as opened:
        yield opened


def asked(wire: Wire, version: int, name: str = "client", software: str = "1.0") -> ApiVersionsResponse:
    request = ApiVersionsRequest(client_software_name=name, client_software_version=software)
    exchange = wire.send(request, version)
    assert exchange is not None
    return wire.decoded(exchange, ApiVersionsResponse, version)


def served(response: ApiVersionsResponse) -> dict[int, tuple[int, int]]:
    return {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}


@pytest.mark.parametrize("version", range(5))
async def test_all_that_is_served_is_told_with_its_versions(wire: Wire, version: int) -> None:
    response = asked(wire, version)
    assert response.error_code == 0
    assert served(response) == SERVED


async def test_apis_are_told_in_the_order_of_their_keys(wire: Wire) -> None:
    keys = [api.api_key for api in asked(wire, 3).api_keys]
    assert keys == sorted(keys)


async def test_produce_is_told_from_version_0_on_as_several_clients_insist(wire: Wire) -> None:
    assert served(asked(wire, 0))[ApiKey.PRODUCE][0] == 0


@pytest.mark.parametrize("version", range(5))
async def test_the_answers_header_has_no_tags_in_any_version(wire: Wire, version: int) -> None:
    exchange = wire.send(ApiVersionsRequest(client_software_name="a", client_software_version="1"), version)
    assert exchange is not None
    assert exchange.frame is not None
    assert exchange.frame[8:10] == b"\0\0"  # the error code follows the correlation id


@pytest.mark.parametrize("version", [5, 99, 32767, -1])
@pytest.mark.parametrize("body", [b"", b"\0", b"\xff" * 50])
async def test_a_version_from_the_future_is_answered_in_version_0_with_what_is_served(
    wire: Wire, version: int, body: bytes
) -> None:
    head = request_head(ApiKey.API_VERSIONS, 3, 41, "tester")[4:]
    struct.pack_into(">h", head, 2, version)
    wire.dispatcher(wire.connection, memoryview(head + body))
    (exchange,) = wire.connection.exchanges
    wire.correlation_id = 41
    response = wire.decoded(exchange, ApiVersionsResponse, 0)
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION == 35
    assert served(response) == SERVED


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize("name", ["librdkafka", "apache-kafka-java", "a", "9", "a.b-c", "A-.b"])
async def test_a_software_name_is_letters_digits_dots_and_dashes(wire: Wire, version: int, name: str) -> None:
    assert asked(wire, version, name, "2.16.1-rc1").error_code == 0
    assert asked(wire, version, "client", name).error_code == 0


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize("name", ["", "-a", "a-", ".a", "a.", "a b", "a/b", "é", "²", "a\n", "a_b", "-", "..."])
async def test_any_other_name_is_an_invalid_request(wire: Wire, version: int, name: str) -> None:
    for response in (asked(wire, version, name, "1"), asked(wire, version, "client", name)):
        assert response.error_code == ErrorCode.INVALID_REQUEST
        assert response.api_keys == []


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_versions_without_a_name_are_not_asked_for_one(wire: Wire, version: int) -> None:
    assert asked(wire, version, "", "").error_code == 0


@pytest.mark.parametrize("version", range(3, 5))
async def test_a_body_that_is_none_breaks_the_protocol(wire: Wire, version: int) -> None:
    request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    frame = codec.encode(request, version, bytes(request_head(ApiKey.API_VERSIONS, version, 1, None)))[4:]
    with pytest.raises(ProtocolViolation):
        wire.dispatcher(wire.connection, memoryview(frame[:-1]))
    assert wire.connection.exchanges == []


def test_exchanges_know_what_an_answer_is() -> None:
    """A recorded exchange rejects a second response, as the exchange of a connection does."""
    exchange = RecordedConnection().open_exchange()
    exchange.reply([b"abc"])
    with pytest.raises(AssertionError, match="once"):
        exchange.reply([b"abc"])
