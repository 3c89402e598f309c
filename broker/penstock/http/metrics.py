"""Prometheus metrics, built from plain counters for each scrape.

`take_snapshot` reads the counters on the event loop; `render` formats the text in a thread, because it grows with the
number of partitions and groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client import CollectorRegistry, Metric, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.registry import Collector

from penstock.api.log_dirs import LogDirState
from penstock.http.heartbeat import Heartbeat
from penstock.http.lag import Lag, measure_lags
from penstock.http.sources import PartitionSource, Sources
from penstock.replica.health import ReplicaHealth
from penstock.runtime.stats import BUCKETS_S, Histogram
from penstock.security.quotas.resolution import QuotaKind
from penstock.share.stats import ShareStats
from penstock.wire.apis import api_name

Labels = dict[str, str]
Value = tuple[Labels, float]
MetricValues = tuple[str, str, list[Value]]
"""(name, help text, values) of a counter or gauge."""


@dataclass(frozen=True, slots=True)
class HistogramValue:
    """A histogram's current values: counts per bucket, the last one without an upper bound."""

    labels: Labels
    counts: tuple[int, ...]
    sum_s: float

    @classmethod
    def from_histogram(cls, histogram: Histogram, **labels: str) -> HistogramValue:
        """Copy a histogram's current values."""
        return cls(labels, tuple(histogram.counts), histogram.sum_s)


@dataclass(frozen=True, slots=True)
class PartitionValue:
    """The current values of a partition."""

    labels: Labels
    start_offset: int
    end_offset: int
    high_watermark: int
    size_bytes: int
    records_in: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All metrics at one moment. `counters` and `gauges` are (name, help text, values)."""

    counters: list[MetricValues]
    gauges: list[MetricValues]
    requests: list[HistogramValue]
    flushes: HistogramValue
    partitions: list[PartitionValue]
    lags: list[Lag]


async def take_snapshot(sources: Sources, heartbeat: Heartbeat) -> Snapshot:
    """Read all counters."""
    lags = await measure_lags(sources)
    loop = asyncio.get_running_loop()
    directories = await loop.run_in_executor(None, sources.directories)
    health = await loop.run_in_executor(None, sources.partitions.health())
    partitions = sources.partitions
    damaged: list[Value] = [({"topic": topic, "partition": str(index)}, 1) for topic, index in partitions.damaged()]
    return Snapshot(
        counters=[
            *tls_counters(sources),
            *traffic_counters(sources),
            *security_counters(sources),
            *share_counters(sources.share.stats),
            *process_counters(sources, heartbeat),
        ],
        gauges=[
            *tls_gauges(sources),
            *state_gauges(sources, heartbeat),
            *directory_gauges(directories),
            *partition_gauges(partitions.offline(), health),
            *delay_gauges(partitions, sources.clock.wall_ms()),
            relay_gauge(partitions),
            ("penstock_partition_damaged", "1 for each partition whose files are damaged.", damaged),
        ],
        requests=[
            HistogramValue.from_histogram(h, api=api_name(key)) for key, h in sorted(sources.requests.by_api.items())
        ],
        flushes=HistogramValue.from_histogram(sources.flush_durations),
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


def traffic_counters(sources: Sources) -> list[MetricValues]:
    """Return the counters of connections, requests and quotas."""
    server = sources.server
    closed: list[Value] = [({"reason": reason.value}, n) for reason, n in server.closed.items()]
    return [
        ("penstock_received_bytes", "Bytes received from clients.", single(server.bytes_in)),
        ("penstock_sent_bytes", "Bytes sent to clients.", single(server.bytes_out)),
        (
            "penstock_fetched_bytes",
            "Bytes of record batches in Fetch responses.",
            single(sources.requests.fetched_bytes),
        ),
        ("penstock_received_requests", "Requests received, including rejected ones.", single(server.requests)),
        ("penstock_connections_accepted", "Connections accepted.", single(server.accepted)),
        ("penstock_connections_closed", "Connections closed, by reason.", closed),
        ("penstock_connection_pauses", "Times that reading from a connection was paused.", single(server.pauses)),
        (
            "penstock_quota_throttles",
            "Times that a client was throttled because it exceeded a quota, by quota.",
            by_quota(sources.quotas.throttles),
        ),
        (
            "penstock_quota_throttle_seconds",
            "Sum of the throttle times, by quota.",
            by_quota(sources.quotas.throttled_s),
        ),
    ]


def security_counters(sources: Sources) -> list[MetricValues]:
    """Return the counters of authorization and authentication."""
    denials: list[Value] = [
        ({"operation": operation.name, "resource_type": resource.name}, n)
        for (operation, resource), n in sources.denials.items()
    ]
    authentications = sources.authentications
    succeeded: list[Value] = [({"mechanism": name}, n) for name, n in authentications.successes.items()]
    rejected: list[Value] = [
        ({"mechanism": name, "reason": reason.value}, n) for (name, reason), n in authentications.failures.items()
    ]
    return [
        ("penstock_authorization_denials", "Operations denied to clients.", denials),
        ("penstock_authentications", "Successful SASL authentications, by mechanism.", succeeded),
        ("penstock_authentication_failures", "Failed SASL authentications, by mechanism and reason.", rejected),
        (
            "penstock_expired_sessions",
            "Connections closed because the client did not re-authenticate in time.",
            single(authentications.expired_sessions),
        ),
    ]


def share_counters(stats: ShareStats) -> list[MetricValues]:
    """Return the counters of share groups."""
    return [
        (
            "penstock_share_acquired_records",
            "Records given to members of share groups, redeliveries included.",
            single(stats.acquired),
        ),
        (
            "penstock_share_acknowledged_records",
            "Records that members of share groups have acknowledged, by type.",
            [({"type": kind.name.lower()}, n) for kind, n in stats.acknowledged.items()],
        ),
        (
            "penstock_share_filtered_records",
            "Records that the filter of a share group left out.",
            [({"group": group}, count) for group, count in stats.filtered.items()],
        ),
        (
            "penstock_share_dead_letters",
            "Dead letters that were written for share groups.",
            single(stats.dead_letters),
        ),
        (
            "penstock_share_dead_letters_dropped",
            "Records of share groups that were archived without a letter: the dead-letter topic rejects it.",
            single(stats.dropped_letters),
        ),
    ]


def process_counters(sources: Sources, heartbeat: Heartbeat) -> list[MetricValues]:
    """Return the counters of flushes, errors and event loop stalls."""
    return [
        ("penstock_flush_rounds", "Flush rounds (group commits).", single(sources.flusher.rounds)),
        ("penstock_flushed_files", "Files synced to disk.", single(sources.flusher.synced_files)),
        (
            "penstock_unhandled_errors",
            "Exceptions that no code handled, or that were contained to one request or partition. Each is a bug.",
            single(sources.unhandled_errors.count),
        ),
        ("penstock_loop_stalls", "Event loop stalls of more than 50 ms.", single(heartbeat.stalls)),
        ("penstock_loop_stalled_seconds", "Total duration of event loop stalls.", single(heartbeat.stalled_s)),
    ]


def state_gauges(sources: Sources, heartbeat: Heartbeat) -> list[MetricValues]:
    """Return the gauges of the broker, its share groups and its connections."""
    server = sources.server
    return [
        ("penstock_build_info", "The broker's version.", [({"version": sources.version}, 1)]),
        ("penstock_ready", "Whether the broker is ready for clients.", single(sources.not_ready() is None)),
        (
            "penstock_frozen",
            "Whether this broker makes no changes and deletions because its etcd was restored from a backup.",
            single(sources.is_frozen()),
        ),
        (
            "penstock_share_in_flight_records",
            "Records of share groups that were delivered and are not done, or wait for an earlier one.",
            single(sources.share.in_flight),
        ),
        (
            "penstock_share_dead_letters_pending",
            "Records of share groups that await their dead letters.",
            single(sources.share.pending_letters),
        ),
        (
            "penstock_coordinator_shards_failed",
            "Coordinator shards that this broker owns and cannot load; their groups and transactions wait.",
            single(len(sources.failed_shards())),
        ),
        ("penstock_connections", "Open connections.", single(server.connections)),
        ("penstock_connections_paused", "Connections whose reading is paused.", single(server.paused)),
        (
            "penstock_quota_throttled_clients",
            "Users, client ids or addresses that exceed a quota at present, by quota.",
            by_quota(sources.quotas.throttled_clients()),
        ),
        ("penstock_loop_longest_stall_seconds", "Longest event loop stall.", single(heartbeat.longest_s)),
    ]


def directory_gauges(directories: Sequence[LogDirState]) -> list[MetricValues]:
    """Return the gauges of log directories."""
    sized = [d for d in directories if d.total_bytes >= 0]
    return [
        (
            "penstock_log_directory_failed",
            "Whether the log directory failed with an I/O error; no data is written to it until a restart.",
            [({"directory": d.path}, d.failed) for d in directories],
        ),
        (
            "penstock_log_directory_total_bytes",
            "Size of the file system that holds the log directory.",
            [({"directory": d.path}, d.total_bytes) for d in sized],
        ),
        (
            "penstock_log_directory_free_bytes",
            "Free space on that file system for the broker.",
            [({"directory": d.path}, d.usable_bytes) for d in sized],
        ),
    ]


def partition_gauges(offline: int, health: ReplicaHealth) -> list[MetricValues]:
    """Return the gauges of partitions that are not healthy."""
    return [
        (
            "penstock_partitions_offline",
            "Partitions that this broker leads and cannot serve: damaged, or in a failed log directory.",
            single(offline),
        ),
        (
            "penstock_partitions_under_replicated",
            "Partitions that this broker leads with replicas out of sync, not counting those being added.",
            single(health.under_replicated),
        ),
        (
            "penstock_partitions_at_min_isr",
            "Of these, partitions with exactly min.insync.replicas in sync; with one less, acks=all fails.",
            single(health.at_min_isr),
        ),
        (
            "penstock_partitions_under_min_isr",
            "Of these, partitions with less than min.insync.replicas in sync; acks=all fails.",
            single(health.under_min_isr),
        ),
        (
            "penstock_partitions_leaderless",
            "Partitions with a replica on this broker and no leader.",
            single(health.leaderless),
        ),
    ]


def delay_gauges(partitions: Iterable[PartitionSource], now_ms: int) -> list[MetricValues]:
    """Return the gauges of topics with `delivery.delay.ms` or `delivery.schedule.enable`."""
    waiting: dict[str, int] = {}
    scheduled: dict[str, int] = {}
    due_ms: dict[str, int] = {}
    for partition in partitions:
        name = partition.name
        for delivery, counts in ((partition.delivery, waiting), (partition.schedule, scheduled)):
            if delivery is not None:
                counts[name] = counts.get(name, 0) + delivery.waiting
                if (next_due_ms := delivery.next_due_ms) is not None:
                    due_ms[name] = min(due_ms.get(name, next_due_ms), next_due_ms)
    return [
        (
            "penstock_topic_undelivered_records",
            "Committed records of partitions that this broker leads that wait for delivery.delay.ms.",
            [({"topic": name}, count) for name, count in waiting.items()],
        ),
        (
            "penstock_topic_scheduled_records",
            "Scheduled records of partitions that this broker leads that wait for their time.",
            [({"topic": name}, count) for name, count in scheduled.items()],
        ),
        (
            "penstock_topic_next_delivery_seconds",
            "Time until the next of these records becomes visible to consumers.",
            [({"topic": name}, max(time_ms - now_ms, 0) / 1000) for name, time_ms in due_ms.items()],
        ),
    ]


def relay_gauge(partitions: Iterable[PartitionSource]) -> tuple[str, str, list[Value]]:
    """Return the gauge of topics whose number of partitions was reduced."""
    behind: dict[str, int] = {}
    for partition in partitions:
        if (unrelayed := partition.unrelayed) is not None:
            behind[partition.name] = behind.get(partition.name, 0) + unrelayed
    return (
        "penstock_topic_unrelayed_records",
        "Committed records of sealed partitions that this broker leads that wait for their relay.",
        [({"topic": name}, count) for name, count in behind.items()],
    )


def tls_counters(sources: Sources) -> list[MetricValues]:
    """Return the counters of listeners with TLS."""
    listeners = [({"listener": each.listener}, each) for each in sources.tls]
    return [
        ("penstock_tls_handshakes", "TLS handshakes completed.", [(n, each.handshakes) for n, each in listeners]),
        (
            "penstock_tls_handshakes_failed",
            "TLS handshakes that failed, including connections without TLS.",
            [(n, each.failed_handshakes) for n, each in listeners],
        ),
        (
            "penstock_tls_reloads",
            "Times that changed certificates were loaded.",
            [(n, e.reloads) for n, e in listeners],
        ),
        (
            "penstock_tls_reloads_failed",
            "Times that changed certificates were invalid.",
            [(n, each.failed_reloads) for n, each in listeners],
        ),
    ]


def tls_gauges(sources: Sources) -> list[MetricValues]:
    """Return the gauges of listeners with TLS."""
    listeners = [({"listener": each.listener}, each) for each in sources.tls]
    now_s = sources.clock.wall_ms() / 1000
    return [
        (
            "penstock_tls_certificate_expires_seconds",
            "Time until the listener's certificate, or one of its chain, expires; negative if it has.",
            [(n, each.expires_at - now_s) for n, each in listeners],
        ),
        (
            "penstock_tls_certificate_outdated",
            "Whether changed certificates or settings are invalid, so that the listener still uses the earlier ones.",
            [(n, each.reload_error is not None) for n, each in listeners],
        ),
    ]


def single(value: float) -> list[Value]:
    """Return a value without labels."""
    return [({}, float(value))]


def by_quota(values: Mapping[QuotaKind, float]) -> list[Value]:
    """Return values with the key of their quota as a label."""
    return [({"quota": kind.value}, float(value)) for kind, value in values.items()]


def render(snapshot: Snapshot) -> bytes:
    """Return the Prometheus text format."""
    registry = CollectorRegistry()
    registry.register(SnapshotCollector(snapshot))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    return generate_latest(registry)


class SnapshotCollector(Collector):
    """Passes a snapshot to prometheus-client."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        for name, help_text, values in self.snapshot.counters:
            yield counter(name, help_text, values)
        for name, help_text, values in self.snapshot.gauges:
            yield gauge(name, help_text, values)
        help_text = "Time from a request's arrival to its response, including the wait of a Fetch for data."
        yield histogram("penstock_request_seconds", help_text, self.snapshot.requests)
        yield histogram("penstock_flush_seconds", "Duration of a flush round (group commit).", [self.snapshot.flushes])
        yield from self.partition_metrics()
        yield from self.group_metrics()

    def partition_metrics(self) -> Iterator[Metric]:
        """Yield the metrics per partition."""
        partitions = self.snapshot.partitions
        yield gauge("penstock_partition_size_bytes", "Bytes on disk.", ((p.labels, p.size_bytes) for p in partitions))
        yield gauge(
            "penstock_partition_start_offset", "First offset.", ((p.labels, p.start_offset) for p in partitions)
        )
        yield gauge(
            "penstock_partition_end_offset",
            "Next offset to be assigned.",
            ((p.labels, p.end_offset) for p in partitions),
        )
        yield gauge(
            "penstock_partition_high_watermark",
            "Consumers can read the offsets below, once the topic's delivery.delay.ms has passed.",
            ((p.labels, p.high_watermark) for p in partitions),
        )
        yield counter("penstock_partition_records", "Records appended.", ((p.labels, p.records_in) for p in partitions))

    def group_metrics(self) -> Iterator[Metric]:
        """Yield the metrics per group and partition."""
        labelled = [
            ({"group": lag.group, "topic": lag.topic, "partition": str(lag.partition)}, lag)
            for lag in self.snapshot.lags
        ]
        help_text = "Offset that the group has committed."
        yield gauge("penstock_group_offset", help_text, ((labels, lag.committed_offset) for labels, lag in labelled))
        help_text = "Records that the group has not read."
        behind = ((labels, lag.records) for labels, lag in labelled if lag.records is not None)
        yield gauge("penstock_group_lag_records", help_text, behind)
        help_text = "Age of the first batch that the group has not read."
        aged = ((labels, lag.seconds) for labels, lag in labelled if lag.seconds is not None)
        yield gauge("penstock_group_lag_seconds", help_text, aged)


def counter(name: str, help_text: str, values: Iterable[Value]) -> Metric:
    """Build a counter; its samples get the suffix `_total`."""
    metric = Metric(name, help_text, "counter")
    for labels, value in values:
        metric.add_sample(name + "_total", labels, value)
    return metric


def gauge(name: str, help_text: str, values: Iterable[Value]) -> Metric:
    """Build a gauge."""
    metric = Metric(name, help_text, "gauge")
    for labels, value in values:
        metric.add_sample(name, labels, value)
    return metric


BOUNDS = [*(repr(bound) for bound in BUCKETS_S), "+Inf"]


def histogram(name: str, help_text: str, values: Iterable[HistogramValue]) -> Metric:
    """Build a histogram with cumulative buckets."""
    metric = Metric(name, help_text, "histogram")
    for value in values:
        for bound, total in zip(BOUNDS, accumulate(value.counts), strict=True):
            metric.add_sample(name + "_bucket", {**value.labels, "le": bound}, total)
        metric.add_sample(name + "_count", value.labels, sum(value.counts))
        metric.add_sample(name + "_sum", value.labels, value.sum_s)
    return metric
