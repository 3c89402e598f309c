"""An HTTP server of a broker whose state the tests set."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.api.authentication_stats import AuthenticationStats
from penstock.api.log_dirs import LogDirState
from penstock.http.app import HttpServer
from penstock.http.sources import PartitionName, RemoteOffsets, Sources
from penstock.replica.health import ReplicaHealth
from penstock.runtime.stats import Histogram, RequestStats
from penstock.runtime.unhandled_errors import UnhandledErrors
from penstock.security.audit import Denials
from penstock.security.quotas.client_quotas import ClientQuotas, QuotaWindows
from penstock.server.stats import ServerStats
from penstock.share.stats import ShareStats
from penstock.state.view import ClusterView

pytestmark = pytest.mark.integration

NOW_MS = 1_700_000_000_000


class FixedClock:
    def wall_ms(self) -> int:
        return NOW_MS

    def boot_ms(self) -> int:
        return 0


class PartOfALog:
    """A log with one batch per offset, each one second older than the next."""

    def __init__(self, start_offset: int, end_offset: int) -> None:
        self.start_offset, self.end_offset, self.size_bytes = start_offset, end_offset, 1000 + end_offset
        self.readable = True
        self.asked_in: list[int] = []

    def batch_times(self, offsets: Sequence[int]) -> list[int | None]:
        self.asked_in.append(threading.get_ident())
        return [NOW_MS - (self.end_offset - 1 - offset) * 1000 if self.readable else None for offset in offsets]


class WaitingRecords(NamedTuple):
    """The delayed delivery of a partition."""

    delay_ms: int
    waiting: int
    next_due_ms: int | None


class FakePartition:
    def __init__(self, name: str, index: int, start_offset: int, high_watermark: int) -> None:
        self.name, self.index, self.high_watermark = name, index, high_watermark
        self.acknowledged_end = high_watermark
        self.delivery: WaitingRecords | None = None
        self.schedule: WaitingRecords | None = None
        self.unrelayed: int | None = None
        self.messages_in = high_watermark
        self.log = PartOfALog(start_offset, high_watermark + 1)


class Committed(NamedTuple):
    group_id: str
    topic: str
    partition: int
    offset: int


class Flusher:
    rounds = 12
    synced_files = 34


class Partitions:
    """A fake replica manager."""

    def __init__(self, parts: list[FakePartition]) -> None:
        self.parts = parts
        self.broken: list[tuple[str, int]] = []
        self.unserved = 0
        self.replicas = ReplicaHealth()

    def __iter__(self) -> Iterator[FakePartition]:
        return iter(self.parts)

    def find(self, topic: str, index: int) -> FakePartition | None:
        return next((p for p in self.parts if (p.name, p.index) == (topic, index)), None)

    def damaged(self) -> list[tuple[str, int]]:
        return self.broken

    def offline(self) -> int:
        return self.unserved

    def health(self) -> Callable[[], ReplicaHealth]:
        return lambda: self.replicas


class LedShare:
    """The share-partitions of the broker."""

    def __init__(self) -> None:
        self.stats, self.in_flight, self.pending_letters = ShareStats(), 0, 0


@dataclass
class TlsOfListener:
    listener: str
    handshakes: int = 7
    failed_handshakes: int = 3
    reloads: int = 2
    failed_reloads: int = 1
    reload_error: str | None = None
    expires_at: float = 0.0


class Broker:
    """An HTTP server and the state that it reports, set by the test."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.frozen = False
        self.partitions = Partitions([FakePartition("flights", 0, 0, 10), FakePartition("flights", 1, 5, 5)])
        self.parts = self.partitions.parts
        self.directories = [LogDirState("/data", False, 1000, 400)]
        self.committed: list[Committed] = []
        self.others: dict[PartitionName, RemoteOffsets] = {}
        """Offsets reported by other leaders."""
        self.asked: list[dict[PartitionName, list[int]]] = []
        self.quotas = ClientQuotas(ClusterView(), QuotaWindows(), lambda: 0.0)
        self.tls: list[TlsOfListener] = []
        self.denials: Denials = Counter()
        self.unhandled_errors = UnhandledErrors()
        self.share = LedShare()
        self.failed_shards: list[int] = []
        self.requests, self.server, self.flushes = RequestStats(), ServerStats(), Histogram()
        self.authentications = AuthenticationStats()
        self.sources = Sources(
            version="1.2.3",
            clock=FixedClock(),
            requests=self.requests,
            authentications=self.authentications,
            server=self.server,
            quotas=self.quotas,
            tls=self.tls,
            flusher=Flusher(),
            flush_durations=self.flushes,
            not_ready=lambda: self.reason,
            is_frozen=lambda: self.frozen,
            partitions=self.partitions,
            directories=lambda: self.directories,
            committed=lambda: self.committed,
            query_remote=self.query_remote,
            share=self.share,
            denials=self.denials,
            unhandled_errors=self.unhandled_errors,
            failed_shards=lambda: self.failed_shards,
        )
        self.http = HttpServer(lambda: self.reason)
        self.http.sources = self.sources

    async def query_remote(
        self, offsets: Mapping[PartitionName, Collection[int]]
    ) -> Mapping[PartitionName, RemoteOffsets]:
        self.asked.append({place: sorted(those) for place, those in offsets.items()})
        return self.others

    async def get(self, path: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{self.port}{path}") as response:
            return response.status, await response.text()

    async def metrics(self) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
        status, text = await self.get("/metrics")
        assert status == 200
        found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                at = tuple(sorted(sample.labels.items()))
                assert at not in found.setdefault(sample.name, {}), "each series once"
                found[sample.name][at] = sample.value
        return found

    port = 0


@asynccontextmanager
async def running() -> AsyncIterator[Broker]:
    broker = Broker()
    broker.port = await broker.http.start("127.0.0.1", 0)
    try:
        yield broker
    finally:
        await broker.http.close()


def at(group: str, partition: int) -> tuple[tuple[str, str], ...]:
    return ("group", group), ("partition", str(partition)), ("topic", "flights")
