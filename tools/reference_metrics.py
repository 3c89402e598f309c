"""The metrics of a sample broker, from the broker's own code. Used by `generate_reference`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from prometheus_client import Metric

from penstock.api.authentication_stats import AuthenticationStats
from penstock.api.log_dirs import LogDirState
from penstock.http.heartbeat import Heartbeat
from penstock.http.metrics import SnapshotCollector, take_snapshot
from penstock.http.sources import PartitionName, RemoteOffsets, Sources
from penstock.replica.health import ReplicaHealth
from penstock.runtime.clock import SystemClock
from penstock.runtime.stats import Histogram, RequestStats
from penstock.runtime.unhandled_errors import UnhandledErrors
from penstock.security.quotas.client_quotas import ClientQuotas, QuotaWindows
from penstock.security.sasl.exchange import FailureReason
from penstock.server.stats import CloseReason, ServerStats
from penstock.share.stats import ShareStats
from penstock.state.view import ClusterView
from penstock.wire.acl import AclOperation, ResourceType
from penstock.wire.apis import ApiKey


@dataclass
class SampleLog:
    start_offset: int = 0
    end_offset: int = 0
    size_bytes: int = 0

    def batch_times(self, offsets: Sequence[int]) -> list[int | None]:
        return [None for _ in offsets]


@dataclass
class SampleDelivery:
    delay_ms: int = 1
    waiting: int = 1
    next_due_ms: int | None = 1
    visible_offset: int = 0
    is_located: bool = True
    is_loaded: bool = True


@dataclass
class SamplePartition:
    """The parts of a partition that metrics need; it has no data."""

    log: SampleLog
    name: str = "topic"
    index: int = 0
    high_watermark: int = 0
    acknowledged_end: int = 0
    messages_in: int = 0
    delivery: SampleDelivery | None = field(default_factory=SampleDelivery)
    schedule: SampleDelivery | None = field(default_factory=SampleDelivery)
    unrelayed: int | None = 0


@dataclass
class SamplePartitions:
    """The parts of a broker's partitions that metrics need."""

    only: SamplePartition

    def __iter__(self) -> Iterator[SamplePartition]:
        return iter([self.only])

    def find(self, topic: str, index: int) -> SamplePartition | None:
        return self.only

    def damaged(self) -> list[tuple[str, int]]:
        return [(self.only.name, self.only.index)]

    def offline(self) -> int:
        return 1

    def health(self) -> Callable[[], ReplicaHealth]:
        return ReplicaHealth


@dataclass
class SampleCommitted:
    group_id: str = "group"
    topic: str = "topic"
    partition: int = 0
    offset: int = 0


@dataclass
class SampleFlusher:
    rounds: int = 0
    synced_files: int = 0


@dataclass
class SampleListenerTls:
    listener: str = ""
    handshakes: int = 0
    failed_handshakes: int = 0
    reloads: int = 0
    failed_reloads: int = 0
    reload_error: str | None = None
    expires_at: float = 0.0


async def nothing_remote(offsets: object) -> dict[PartitionName, RemoteOffsets]:
    return {}


class SampleShare:
    """The share-partitions."""

    in_flight = 0
    pending_letters = 0

    def __init__(self) -> None:
        self.stats = ShareStats()
        self.stats.count_filtered("g", 1)


async def sample_metrics() -> list[Metric]:
    """Return the metrics of a broker with one partition and one group, from the broker's own code."""
    requests, server = RequestStats(), ServerStats()
    requests.observe(ApiKey.PRODUCE, 0.0)
    server.closed[CloseReason.PEER] += 1
    authentications = AuthenticationStats()
    authentications.count_success("PLAIN")
    authentications.count_failure("PLAIN", FailureReason.CREDENTIALS)
    sources = Sources(
        version="",
        clock=SystemClock(),
        requests=requests,
        authentications=authentications,
        server=server,
        quotas=ClientQuotas(ClusterView(), QuotaWindows(), lambda: 0.0),
        tls=[SampleListenerTls()],
        flusher=SampleFlusher(),
        flush_durations=Histogram(),
        not_ready=lambda: None,
        is_frozen=lambda: False,
        partitions=SamplePartitions(SamplePartition(SampleLog())),
        directories=lambda: [LogDirState("directory", False, 0, 0)],
        committed=lambda: [SampleCommitted()],
        query_remote=nothing_remote,
        share=SampleShare(),
        denials=Counter({(AclOperation.READ, ResourceType.TOPIC): 0}),
        unhandled_errors=UnhandledErrors(),
        failed_shards=list,
    )
    snapshot = await take_snapshot(sources, Heartbeat(asyncio.get_running_loop()))
    return list(SnapshotCollector(snapshot).collect())
