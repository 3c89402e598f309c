"""Requests to all brokers at once: those in the metadata and those at the bootstrap addresses."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from client_doubles.scripted import ScriptedBroker

from penstock.client import ClientError
from penstock.client.cluster import ClusterConnections
from penstock.wire.messages.metadata import MetadataRequest, MetadataResponse
from penstock.wire.schema import Payload

pytestmark = pytest.mark.integration


class Named(ScriptedBroker):
    """Answers Metadata with its own id as controller and the brokers in `ports`; does not respond if `is_silent`."""

    def __init__(self, node_id: int) -> None:
        super().__init__()
        self.node_id, self.is_silent = node_id, False
        self.ports: dict[int, int] = {}

    def _answer(self, frame: bytes) -> bytes | None:
        return b"" if self.is_silent else super()._answer(frame)

    def _other(self, request: Payload) -> Payload:
        answer = super()._other(request)
        if isinstance(answer, MetadataResponse):
            (own,) = answer.brokers
            ports = self.ports or {self.node_id: self.port}
            answer.brokers = [type(own)(node_id=node_id, host=own.host, port=port) for node_id, port in ports.items()]
            answer.controller_id = self.node_id
        return answer


@pytest.fixture
async def brokers() -> AsyncIterator[list[Named]]:
    """Yield brokers 1 and 2 of one cluster, and broker 3, which reports a cluster of its own."""
    async with Named(1) as one, Named(2) as two, Named(3) as three:
        one.ports = two.ports = {1: one.port, 2: two.port}
        yield [one, two, three]


async def heard(bootstrap: str, timeout_ms: float = 10_000, silent: Named | None = None) -> dict[object, int]:
    """Return the controller id that each broker reports."""
    cluster = ClusterConnections(bootstrap)
    await cluster.start()
    try:
        if silent is not None:
            silent.is_silent = True
        answers = await cluster.call_all(MetadataRequest(topics=[]), MetadataResponse, timeout_ms)
        return {place: answer.controller_id for place, answer in answers.items()}
    finally:
        await cluster.close()


async def test_each_known_broker_is_asked_once(brokers: list[Named]) -> None:
    one, two, _ = brokers
    assert await heard(one.address) == {1: 1, 2: 2}
    assert await heard(f"{two.address},{one.address}") == {1: 1, 2: 2}


async def test_a_bootstrap_address_that_is_no_known_brokers_is_asked_too(brokers: list[Named]) -> None:
    one, _, three = brokers
    assert await heard(f"{one.address},{three.address}") == {1: 1, 2: 2, ("127.0.0.1", three.port): 3}


@pytest.mark.parametrize("which", [1, 2], ids=["known", "of the bootstrap"])
async def test_who_does_not_answer_in_time_is_left_out(brokers: list[Named], which: int) -> None:
    one, _, three = brokers
    places: dict[object, int] = {1: 1, 2: 2, ("127.0.0.1", three.port): 3}
    del places[2 if which == 1 else ("127.0.0.1", three.port)]
    assert await heard(f"{one.address},{three.address}", 500, brokers[which]) == places


async def test_who_cannot_be_reached_is_left_out(brokers: list[Named]) -> None:
    one, two, _ = brokers
    two._server.close()
    assert await heard(f"{one.address},127.0.0.1:1") == {1: 1}


async def test_it_is_an_error_where_nobody_answers(brokers: list[Named]) -> None:
    three = brokers[2]
    with pytest.raises(ClientError, match="no answer within 300 ms") as caught:
        await heard(three.address, 300, three)
    assert caught.value.retriable
