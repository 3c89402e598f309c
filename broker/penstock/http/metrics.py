"""The Prometheus metrics, made from plain counters at the moment when somebody asks.

`take_snapshot` reads the counters on the event loop; `render` makes the text in a thread, as it grows with the number
of partitions and groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client import CollectorRegistry, Metric, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.registry import Collector

from penstock.http.heartbeat import Heartbeat
from penstock.http.lag import Lag, measure_lags
from penstock.http.sources import Sources
from penstock.runtime.stats import BUCKETS_S, Histogram
from penstock.wire.apis import name_of

Labels = dict[str, str]
Value = tuple[Labels, float]


@dataclass(frozen=True, slots=True)
class HistogramValue:
    """A histogram as of now: counts by bucket, the last one unbounded."""

    labels: Labels
    counts: tuple[int, ...]
    sum_s: float

    @classmethod
    def of(cls, histogram: Histogram, **labels: str) -> HistogramValue:
        return cls(labels, tuple(histogram.counts), histogram.sum_s)


@dataclass(frozen=True, slots=True)
class PartitionValue:
    labels: Labels
    start_offset: int
    end_offset: int
    high_watermark: int
    size_bytes: int
    records_in: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that is told, as of one moment. `counters` and `gauges` are (name, what it is, values)."""

    counters: list[tuple[str, str, list[Value]]]
    gauges: list[tuple[str, str, list[Value]]]
    requests: list[HistogramValue]
    flushes: HistogramValue
    partitions: list[PartitionValue]
    lags: list[Lag]


async def take_snapshot(sources: Sources, heartbeat: Heartbeat) -> Snapshot:
    lags = await measure_lags(sources)
    loop = asyncio.get_running_loop()
    directories = await loop.run_in_executor(None, sources.directories)
    health = await loop.run_in_executor(None, sources.partitions.health())
    sized = [d for d in directories if d.total_bytes >= 0]
    server, requests, flusher = sources.server, sources.requests, sources.flusher
    partitions = sources.partitions
    damaged: list[Value] = [({"topic": topic, "partition": str(index)}, 1) for topic, index in partitions.damaged()]
    closed: list[Value] = [({"reason": reason.value}, n) for reason, n in server.closed.items()]
    return Snapshot(
        counters=[
            ("penstock_received_bytes", "Bytes received from clients.", single(server.bytes_in)),
            ("penstock_sent_bytes", "Bytes sent to clients.", single(server.bytes_out)),
            ("penstock_fetched_bytes", "Bytes of record batches in answers to Fetch.", single(requests.fetched_bytes)),
            ("penstock_received_requests", "Requests received, those turned away included.", single(server.requests)),
            ("penstock_connections_accepted", "Connections accepted.", single(server.accepted)),
            ("penstock_connections_closed", "Connections ended, by reason.", closed),
            ("penstock_connection_pauses", "Times that a connection was not read any further.", single(server.pauses)),
            ("penstock_flush_rounds", "Rounds of group commit.", single(flusher.rounds)),
            ("penstock_flushed_files", "Files synced to disk.", single(flusher.synced_files)),
            ("penstock_loop_stalls", "Times that the event loop came late.", single(heartbeat.stalls)),
            ("penstock_loop_stalled_seconds", "Time by which it came late.", single(heartbeat.stalled_s)),
        ],
        gauges=[
            ("penstock_build_info", "The version that runs.", [({"version": sources.version}, 1)]),
            ("penstock_ready", "Whether clients may come.", single(sources.not_ready() is None)),
            (
                "penstock_frozen",
                "Whether this broker changes and deletes nothing, as its etcd was restored from a backup.",
                single(sources.is_frozen()),
            ),
            ("penstock_connections", "Connections open now.", single(server.connections)),
            ("penstock_connections_paused", "Connections not read now.", single(server.paused)),
            ("penstock_loop_longest_stall_seconds", "Worst delay of the event loop.", single(heartbeat.longest_s)),
            (
                "penstock_log_directory_failed",
                "Whether the log directory has stopped after an I/O error: nothing is written to it until a restart.",
                [({"directory": d.path}, d.failed) for d in directories],
            ),
            (
                "penstock_log_directory_total_bytes",
                "Size of the file system that holds the log directory.",
                [({"directory": d.path}, d.total_bytes) for d in sized],
            ),
            (
                "penstock_log_directory_free_bytes",
                "Space that is left to the broker there.",
                [({"directory": d.path}, d.usable_bytes) for d in sized],
            ),
            (
                "penstock_partitions_offline",
                "Partitions that this broker leads and cannot serve: damaged, or in a failed log directory.",
                single(partitions.offline()),
            ),
            (
                "penstock_partitions_under_replicated",
                "Partitions that this broker leads with fewer replicas in sync than they have; those added now aside.",
                single(health.under_replicated),
            ),
            (
                "penstock_partitions_at_min_isr",
                "Of those, partitions with just min.insync.replicas in sync: one less, and acks=all is refused.",
                single(health.at_min_isr),
            ),
            (
                "penstock_partitions_under_min_isr",
                "Of those, partitions with less than min.insync.replicas in sync: acks=all is refused.",
                single(health.under_min_isr),
            ),
            (
                "penstock_partitions_leaderless",
                "Partitions with a replica on this broker that nobody leads.",
                single(health.leaderless),
            ),
            ("penstock_partition_damaged", "1 for each partition whose files are damaged.", damaged),
        ],
        requests=[HistogramValue.of(h, api=name_of(key)) for key, h in sorted(requests.by_api.items())],
        flushes=HistogramValue.of(sources.flush_durations),
        partitions=[
            PartitionValue(
                {"topic": p.name, "partition": str(p.index)},
                p.log.start_offset,
                p.log.end_offset,
                p.high_watermark,
                p.log.size_bytes,
                p.messages_in,
            )
            for p in partitions
        ],
        lags=lags,
    )


def single(value: float) -> list[Value]:
    return [({}, float(value))]


def render(snapshot: Snapshot) -> bytes:
    """The text format."""
    registry = CollectorRegistry()
    registry.register(SnapshotCollector(snapshot))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    return generate_latest(registry)


class SnapshotCollector(Collector):
    """Hands a snapshot to prometheus-client."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        for name, what, values in self.snapshot.counters:
            yield counter(name, what, values)
        for name, what, values in self.snapshot.gauges:
            yield gauge(name, what, values)
        what = "Time from a request's arrival to its answer, a Fetch's wait for data included."
        yield histogram("penstock_request_seconds", what, self.snapshot.requests)
        yield histogram("penstock_flush_seconds", "Time of a round of group commit.", [self.snapshot.flushes])
        yield from self.of_partitions()
        yield from self.of_groups()

    def of_partitions(self) -> Iterator[Metric]:
        partitions = self.snapshot.partitions
        yield gauge("penstock_partition_size_bytes", "Bytes on disk.", ((p.labels, p.size_bytes) for p in partitions))
        yield gauge(
            "penstock_partition_start_offset", "First offset.", ((p.labels, p.start_offset) for p in partitions)
        )
        yield gauge(
            "penstock_partition_end_offset", "Next offset to be given.", ((p.labels, p.end_offset) for p in partitions)
        )
        yield gauge(
            "penstock_partition_high_watermark",
            "Consumers see what is below.",
            ((p.labels, p.high_watermark) for p in partitions),
        )
        yield counter("penstock_partition_records", "Records taken in.", ((p.labels, p.records_in) for p in partitions))

    def of_groups(self) -> Iterator[Metric]:
        labelled = [
            ({"group": lag.group, "topic": lag.topic, "partition": str(lag.partition)}, lag)
            for lag in self.snapshot.lags
        ]
        what = "Offset that the group has committed."
        yield gauge("penstock_group_offset", what, ((at, lag.committed_offset) for at, lag in labelled))
        what = "Records that the group has not read."
        behind = ((at, lag.records) for at, lag in labelled if lag.records is not None)
        yield gauge("penstock_group_lag_records", what, behind)
        what = "Age of the first batch that the group has not read."
        aged = ((at, lag.seconds) for at, lag in labelled if lag.seconds is not None)
        yield gauge("penstock_group_lag_seconds", what, aged)


def counter(name: str, what: str, values: Iterable[Value]) -> Metric:
    metric = Metric(name, what, "counter")
    for labels, value in values:
        metric.add_sample(name + "_total", labels, value)
    return metric


def gauge(name: str, what: str, values: Iterable[Value]) -> Metric:
    metric = Metric(name, what, "gauge")
    for labels, value in values:
        metric.add_sample(name, labels, value)
    return metric


BOUNDS = [*(repr(bound) for bound in BUCKETS_S), "+Inf"]


def histogram(name: str, what: str, values: Iterable[HistogramValue]) -> Metric:
    metric = Metric(name, what, "histogram")
    for value in values:
        for bound, total in zip(BOUNDS, accumulate(value.counts), strict=True):
            metric.add_sample(name + "_bucket", {**value.labels, "le": bound}, total)
        metric.add_sample(name + "_count", value.labels, sum(value.counts))
        metric.add_sample(name + "_sum", value.labels, value.sum_s)
    return metric
