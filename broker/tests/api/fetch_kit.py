"""Fetch requests of any version and readers of their responses, for the tests of Fetch."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from log_kit import headers_in
from replica_kit import accepted, batch_of, until
from wire_in_memory import RecordedExchange, Wire

from penstock.replica.leader import Leader
from penstock.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

VERSIONS = range(4, 19)
CHANGES = [4, 8, 9, 11, 12, 13, 18]
"""The first and last versions, and those that changed the epoch fields."""
LONG_MS = 60_000
"""A wait that is longer than any test."""
MUCH = 1 << 20


def request(wire: Wire, version: int, offsets: dict[tuple[str, int], int] | None = None, **more: Any) -> FetchRequest:
    """Return a request for (topic, partition) → offset; `each` has fields of every partition."""
    each = {"partition_max_bytes": MUCH, **more.pop("each", {})}
    topics: dict[str, FetchTopic] = {}
    for (name, index), offset in ({("t", 0): 0} if offsets is None else offsets).items():
        known = wire.path.view.topics.get(name)
        ids = {"topic_id": known.topic_id} if version >= 13 and known is not None else {}
        topic = topics.setdefault(name, FetchTopic(topic=name, partitions=[], **ids))
        topic.partitions.append(FetchPartition(partition=index, fetch_offset=offset, **each))
    fields = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": MUCH, **more}
    return FetchRequest(topics=list(topics.values()), **fields)


async def fetch(wire: Wire, version: int = 11, *arguments: Any, **more: Any) -> FetchResponse:
    return await wire.fetched(request(wire, version, *arguments, **more), version)


def waiting(wire: Wire, version: int = 11, *arguments: Any, **more: Any) -> RecordedExchange:
    """Send a request that waits for more data."""
    more = {"max_wait_ms": LONG_MS, **more}
    exchange = wire.send(request(wire, version, *arguments, **more), version)
    assert exchange is not None
    assert not exchange.completed
    return exchange


async def answered(wire: Wire, exchange: RecordedExchange, version: int = 11) -> FetchResponse:
    await until(lambda: exchange.completed)
    return wire.decoded(exchange, FetchResponse, version)


def parts(response: FetchResponse) -> dict[tuple[str | UUID, int], PartitionData]:
    return {(t.topic or t.topic_id, p.partition_index): p for t in response.responses for p in t.partitions}


def only(response: FetchResponse) -> PartitionData:
    (found,) = parts(response).values()
    return found


def read(data: PartitionData) -> list[tuple[int, int]]:
    """Return (first, last offset) of the batches."""
    return [(h.base_offset, h.last_offset) for h in headers_in(bytes(data.records or b""))]


async def filled(wire: Wire, *counts: int, name: str = "t", **settings: str) -> Leader:
    """Create a topic with one flushed batch per size."""
    partition = await wire.path.partition(name, **settings)
    for count in counts:
        accepted(partition, batch_of(count))
    await wire.path.flushed()
    return partition
