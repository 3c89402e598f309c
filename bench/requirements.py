"""Penstock's performance requirements: each bounds one measured figure. The report and the terminal judge by them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from bench import results
from bench.results import Figure, Results

CLIENT_LIMIT_SHARE = 0.9  # of its core: a busier client limits the throughput instead of the broker


class Bound(Enum):
    """The side of the target that meets the requirement."""

    AT_MOST = "at most"
    AT_LEAST = "at least"


class State(Enum):
    """The result of a requirement."""

    PASS = "pass"
    SHORT = "SHORT"
    CLIENT = "client's limit"
    MISSING = "not measured"


@dataclass(frozen=True)
class Requirement:
    """`subject` over `base` of one metric in one case; without a base the metric itself, in `unit`."""

    group: str
    suite: str
    case: str
    metric: str
    bound: Bound
    target: float
    subject: str = "penstock"
    base: str | None = "kafka"
    paired: bool = False
    unless_client_limits: bool = False
    unit: str = "x"
    label: str = ""

    @property
    def name(self) -> str:
        return self.label or self.case


@dataclass(frozen=True)
class Verdict:
    """A requirement with its measured figure."""

    requirement: Requirement
    state: State
    figure: Figure | None
    subject: float | None = None
    base: float | None = None


SIZES = {100: "100 B", 1024: "1 KiB", 10240: "10 KiB"}
SHARE_RATE_PER_S = 100
SHARE_LATENCY_CASES = {f"{SHARE_RATE_PER_S}/s, members: {members}": members for members in (1, 16)}
QUEUE_SIZES = (100, 1024)
WORST_CASE = "100 B, members: 64, one by one, every second one released once"
REBALANCE_CASES = {"a member dies": False, "a member leaves": True}
"""The cases of `rebalance`, and whether the member leaves the group."""
DELAYED_KINDS = ("delivery.delay.ms", "delivery.schedule.enable")
DELAYED_WAITING, DELAYED_LATENESS = "1,000,000 waiting", "1,000 due a second"
DELAYED_RESTARTS = {"restart": False, "restart after kill -9": True}
"""The cases of a restart, and whether the broker is killed."""
RESTART_CASES = {
    "100 partitions, 1 GB": (100, 10),
    "1,000 partitions, 1 GB": (1000, 1),
    "1,000 partitions, 10 GB": (1000, 10),
}
"""The cases of `restart`: numbers of partitions and of segments of 1 MiB in each."""
WIDE_CASES = {
    f"{brokers} brokers, {partitions:,} partitions": (brokers, partitions)
    for brokers in (3, 10, 30)
    for partitions in (1000, 10_000, 50_000)
}
"""The cases of `wide`: numbers of brokers and of partitions with three replicas."""
WIDE_BESIDE_KAFKA = "10 brokers, 1,000 partitions"
MIXED_WARM, MIXED_COLD = "consumer behind, warm", "consumer behind, cold"
CPU, RATE, MB = "cpu_s_per_million", "messages_per_s", "mb_per_s"
AT_MOST, AT_LEAST = Bound.AT_MOST, Bound.AT_LEAST


def size_name(size_bytes: int) -> str:
    """Return 100 B, 1 KiB, 10 KiB; other sizes in bytes."""
    return SIZES.get(size_bytes, f"{size_bytes} B")


def _cpu() -> Iterator[Requirement]:
    for acks in ("1", "all"):
        for size, target in zip(SIZES.values(), (0.5, 0.8, 0.8), strict=True):
            group = "Broker CPU per message, produce, unflushed"
            yield Requirement(group, "produce", f"acks={acks} {size}", CPU, AT_MOST, target)
    for size, target in zip(SIZES.values(), (1.1, 0.85, 0.85), strict=True):
        yield Requirement("Broker CPU per message, consume", "consume", size, CPU, AT_MOST, target)
    for size in SIZES.values():
        group = "Broker CPU per message, the Java client's default batches (16 KiB, linger 0)"
        yield Requirement(group, "small-batches", f"produce {size}", CPU, AT_MOST, 0.8)


def _throughput() -> Iterator[Requirement]:
    group = "Throughput, unflushed"
    for acks in ("1", "all"):
        for size in SIZES.values():
            case = f"acks={acks} {size}"
            yield Requirement(
                group, "produce", case, MB, AT_LEAST, 1.0, unless_client_limits=True, label=f"produce {case}"
            )
    for size in SIZES.values():
        yield Requirement(group, "consume", size, MB, AT_LEAST, 1.0, unless_client_limits=True, label=f"consume {size}")


def _catch_up() -> Iterator[Requirement]:
    group = "First read after producing (cold: page cache dropped)"
    for size in ("1 KiB", "10 KiB"):
        for state in ("warm", "cold"):
            case = f"{size}, {state}"
            yield Requirement(
                group, "catch-up", case, MB, AT_LEAST, 1.0, unless_client_limits=True, label=f"throughput, {case}"
            )
            yield Requirement(group, "catch-up", case, CPU, AT_MOST, 0.8, label=f"CPU per message, {case}")


def _mixed(suite: str, group: str, cases: Iterable[str]) -> Iterator[Requirement]:
    """Yield the minimum; the aim is half of Kafka's p99 and 1.3 of its throughput."""
    for case in cases:
        label = f"{case}: p99 at the tail"
        yield Requirement(group, suite, case, "end_to_end_p99_ms", AT_MOST, 1.0, label=label)
        label = f"{case}: its throughput"
        yield Requirement(group, suite, case, "lagging_mb_per_s", AT_LEAST, 1.0, unless_client_limits=True, label=label)


def _mixed_one_broker() -> Iterator[Requirement]:
    group = "Consumers at the tail and far behind, producer at half of the maximum rate"
    yield from _mixed("mixed", group, (MIXED_WARM, MIXED_COLD))


def _mixed_cluster() -> Iterator[Requirement]:
    group = "Three replicas: consumers at the tail and far behind, producer at half of the maximum rate"
    yield from _mixed("cluster-mixed", group, (MIXED_WARM,))


def _durable() -> Iterator[Requirement]:
    group = "Durable (Penstock's default) beside Kafka with flush.messages=1"
    for size, target in zip(SIZES.values(), (0.5, 0.5, 0.65), strict=True):
        yield Requirement(group, "durable", size, CPU, AT_MOST, target, label=f"CPU per message, {size}")
    for size, target in (("1 KiB", 2.0), ("10 KiB", 1.7)):
        yield Requirement(
            group, "durable", size, MB, AT_LEAST, target, unless_client_limits=True, label=f"throughput, {size}"
        )
    yield Requirement(group, "roundtrip", "durable", RATE, AT_LEAST, 1.2, label="one by one, requests/s")
    yield Requirement(group, "roundtrip", "durable", "p99_ms", AT_MOST, 0.9, label="one by one, p99")
    yield Requirement(
        group, "latency", "durable 200/s", "produce_p99_ms", AT_MOST, 0.9, label="single messages at 200/s, p99"
    )
    yield Requirement(
        "Durable Penstock beside Kafka unflushed",
        "durable",
        "1 KiB",
        MB,
        AT_LEAST,
        1.0,
        base="kafka unflushed",
        unless_client_limits=True,
        label="throughput, 1 KiB",
    )


def _latency() -> Iterator[Requirement]:
    group = "Latency, unflushed"
    yield Requirement(group, "roundtrip", "unflushed", RATE, AT_LEAST, 1.0, label="one by one, requests/s")
    for rate in ("200/s", "5,000/s"):
        for what in ("produce", "end_to_end"):
            for metric, target in (("p50_ms", 1.0), ("p99_ms", 1.4)):
                label = f"{what.replace('_', ' ')} at {rate}, {metric.removesuffix('_ms')}"
                yield Requirement(
                    group, "latency", f"unflushed {rate}", f"{what}_{metric}", AT_MOST, target, label=label
                )


def _footprint() -> Iterator[Requirement]:
    group = "Start-up"
    for case in ("one core", "all cores"):
        label = f"start to first accepted message, {case}"
        yield Requirement(group, "startup", case, "seconds", AT_MOST, 0.5, label=label)
    for case, target in (("idle", 60.0), ("after the load", 200.0)):
        yield Requirement("Memory", "memory", case, "resident_mb", AT_MOST, target, base=None, unit="MB", label=case)


def _scale() -> Iterator[Requirement]:
    group = "10,000 partitions"
    yield Requirement(group, "partitions", "created", "seconds", AT_MOST, 0.25)
    for case in ("restart, empty", "restart, one message in each"):
        yield Requirement(group, "partitions", case, "seconds", AT_MOST, 0.125, label=f"writable after {case}")
    group = "CPU per message, with against without"
    for suite, case in (("partitions", "10,000 idle partitions"), ("connections", "1,000 idle connections")):
        yield Requirement(group, suite, case, CPU, AT_MOST, 1.05, subject="with", base="without", paired=True)


def _restart() -> Iterator[Requirement]:
    group = "Restart after kill -9, until every partition accepts a message"
    for case in RESTART_CASES:
        yield Requirement(group, "restart", case, "seconds", AT_MOST, 0.25)
    for case in RESTART_CASES:
        label = f"{case}: acknowledged records lost"
        yield Requirement(group, "restart", case, "lost", AT_MOST, 0, base=None, unit="", label=label)


def _surge() -> Iterator[Requirement]:
    group = "Surge of 100 producers"
    yield Requirement(
        group, "surge", "surge", "lost", AT_MOST, 0, base=None, unit="", label="acknowledged messages lost"
    )
    yield Requirement(group, "surge", "surge", "peak_mb", AT_MOST, 512, base=None, unit="MB", label="peak memory")


def _security() -> Iterator[Requirement]:
    group = "TLS 1.3 beside Kafka with TLS, AES-256-GCM: broker CPU per message, unflushed"
    for what, target in (("produce", 0.6), ("consume", 0.8)):
        for size in ("1 KiB", "10 KiB"):
            yield Requirement(group, "tls", f"{what} {size}", CPU, AT_MOST, target)
    for case in ("EC P-256", "EC P-256, client certificate", "RSA 2048"):
        yield Requirement("TLS handshakes per CPU second", "handshakes", case, "per_cpu_s", AT_LEAST, 1.0)
    group = "CPU per message, with against without"
    for case in ("10,000 ACLs", "10,000 ACLs, consume 1 KiB"):
        yield Requirement(group, "acls", case, CPU, AT_MOST, 1.02, subject="with", base="without", paired=True)
    group = "1,000 messages a second beside a client above its quota, against alone: p99"
    for subject in ("beside a producer", "beside a consumer"):
        for metric, what in (("produce_p99_ms", "produce"), ("end_to_end_p99_ms", "end to end")):
            yield Requirement(
                group,
                "noisy",
                "1,000 messages a second",
                metric,
                AT_MOST,
                1.3,
                subject=subject,
                base="alone",
                label=f"{subject}, {what}",
            )


def share_cases(sizes: Iterable[int]) -> Iterator[tuple[str, int, int, bool]]:
    """Yield the cases of the `share` suite: name, size, members, and whether they acknowledge one by one."""
    for size in sizes:
        for members in (1, 16):
            for is_single in (False, True):
                how = "one by one" if is_single else "in batches"
                yield f"{size_name(size)}, members: {members}, {how}", size, members, is_single


def _share() -> Iterator[Requirement]:
    group = "Share groups beside Kafka's"
    for case, *_ in share_cases((100, 1024)):
        yield Requirement(group, "share", case, CPU, AT_MOST, 0.5, label=f"CPU per message, {case}")
        yield Requirement(
            group, "share", case, RATE, AT_LEAST, 2.0, unless_client_limits=True, label=f"messages a second, {case}"
        )
    for case in SHARE_LATENCY_CASES:
        yield Requirement(group, "share", case, "end_to_end_p99_ms", AT_MOST, 0.5, label=f"produce to delivery, {case}")


def _rebalance() -> Iterator[Requirement]:
    """Yield the requirement beside Kafka; the session timeout is equal on both sides and subtracted."""
    group = "Consumer group (KIP-848) of 200 members and 1,000 partitions, until all partitions are consumed again"
    label = "a member dies, after its session timeout"
    yield Requirement(group, "rebalance", "a member dies", "seconds", AT_MOST, 0.5, label=label)


def _delayed() -> Iterator[Requirement]:
    group = "A million records that wait for their delivery"
    for kind in DELAYED_KINDS:
        for case, metric, most, unit, what in (
            *((case, "seconds", 5.0, "s", case) for case in DELAYED_RESTARTS),
            (DELAYED_LATENESS, "late_p99_ms", 100.0, "ms", f"{DELAYED_LATENESS}, lateness, p99"),
        ):
            yield Requirement(
                group, "delayed", case, metric, AT_MOST, most, kind, base=None, unit=unit, label=f"{kind}: {what}"
            )


def _queues(suite: str, group: str) -> Iterator[Requirement]:
    """Yield requirements relative to the queue servers that write each message to disk before they confirm it."""
    cases = [f"publish {size_name(size)}" for size in QUEUE_SIZES] + [case for case, *_ in share_cases(QUEUE_SIZES)]
    for case in cases:
        for base in ("rabbitmq", "jetstream"):
            label = f"{case}, beside {base}"
            yield Requirement(
                group, suite, case, RATE, AT_LEAST, 1.0, base=base, unless_client_limits=True, label=label
            )


def _cluster_work() -> Iterator[Requirement]:
    """Yield requirements for three brokers on one core; CPU is that of all processes, with etcd."""
    flushes = (("durable", "penstock", "kafka"), ("unflushed", "penstock unflushed", "kafka unflushed"))
    for size, target in (("100 B", 0.7), ("1 KiB", 0.9)):
        for name, subject, base in flushes:
            group = "Three replicas, acks=all: CPU per message over all brokers"
            yield Requirement(
                group, "rf3", size, CPU, AT_MOST, target, subject=subject, base=base, label=f"{size}, both {name}"
            )
        group = "Three replicas, acks=all: throughput of durable Penstock"
        for base, least, name in (("kafka", 1.0, "flush.messages=1"), ("kafka unflushed", 0.7, "unflushed")):
            yield Requirement(
                group,
                "rf3",
                size,
                MB,
                AT_LEAST,
                least,
                base=base,
                unless_client_limits=True,
                label=f"{size}, Kafka {name}",
            )
    for rate in ("200/s", "5,000/s"):
        for name, subject, base in flushes:
            group = "Three replicas, acks=all: end to end, p99"
            yield Requirement(
                group,
                "rf3-latency",
                rate,
                "end_to_end_p99_ms",
                AT_MOST,
                0.7,
                subject=subject,
                base=base,
                label=f"{rate}, both {name}",
            )


LEASE_S = 9.0


def _cluster_faults() -> Iterator[Requirement]:
    group = "Failover, until every partition takes acknowledged writes again"
    for case in ("kill -9 of a broker", "kill -9 of the controller"):
        yield Requirement(group, "failover", case, "seconds", AT_MOST, 0.2, label=f"{case}, 1,000 partitions")
    for case, most in (("kill -9, 10,000 partitions", 5.0), ("a paused broker", LEASE_S + 2.0)):
        yield Requirement(group, "failover", case, "seconds", AT_MOST, most, base=None, unit="s")


def _cluster_scale() -> Iterator[Requirement]:
    group, suite = "A cluster with 10,000 partitions of three replicas", "cluster-partitions"
    for case, most in (("1,000 created", 1.0), ("10,000 created", 8.0)):
        yield Requirement(group, suite, case, "seconds", AT_MOST, most, base=None, unit="s")
    yield Requirement(group, suite, "whole cluster restarted", "seconds", AT_MOST, 0.125)
    yield Requirement(
        group,
        suite,
        "10,000 idle",
        "busiest_share_of_core",
        AT_MOST,
        0.05,
        base=None,
        unit="of a core",
        label="10,000 idle, the busiest broker",
    )
    group = "Ten brokers with 1,000 partitions of three replicas, beside ten Kafkas"
    for step, metric, most in (("idle", "cores", 0.1), ("created", "seconds", 0.02), ("a broker lost", "seconds", 0.1)):
        yield Requirement(group, "wide", f"{WIDE_BESIDE_KAFKA}: {step}", metric, AT_MOST, most, label=step)
    group = "Commits through one coordinator of a cluster, each durable in etcd"
    for metric, bound, target, unit in (("commits_per_s", AT_LEAST, 5000.0, "commits/s"), ("lost", AT_MOST, 0.0, "")):
        label = metric.replace("_", " ").replace("per s", "a second")
        yield Requirement(group, "cluster-commits", "commits", metric, bound, target, base=None, unit=unit, label=label)


SPARK_SIZES = (100, 1024)
SPARK_CODECS = ("none", "zstd")
ROWS = "rows_per_s"


def _spark() -> Iterator[Requirement]:
    """Yield requirements relative to Spark's own Kafka connector, on the same Penstock broker."""
    group = "Spark: rows a second from a topic, beside Spark's own Kafka connector"
    for size in SPARK_SIZES:
        for codec in SPARK_CODECS:
            name = f"{size_name(size)} {codec}"
            for what, least, subject in (
                ("batch to noop", 0.7, "penstock"),
                ("AvailableNow to noop", 0.7, "penstock"),
                ("batch to parquet", 1.0, "penstock"),
                ("AvailableNow to parquet", 1.0, "penstock"),
                ("AvailableNow to delta", 1.0, "penstock archive"),
            ):
                case = f"{name}, {what}"
                yield Requirement(group, "spark-read", case, ROWS, AT_LEAST, least, subject=subject, base="connector")
    group = "Spark: rows a second into a topic, exactly once beside the connector's at least once"
    for size in SPARK_SIZES:
        for flushing in ("durable", "unflushed"):
            case, subject = f"{size_name(size)} {flushing}", "penstock exactly-once"
            yield Requirement(group, "spark-write", case, ROWS, AT_LEAST, 0.5, subject=subject, base="connector")


ONE_BROKER = (
    *(*_cpu(), *_throughput(), *_catch_up(), *_mixed_one_broker(), *_durable(), *_latency()),
    *(*_footprint(), *_scale(), *_restart(), *_surge(), *_share()),
    *_rebalance(),
    *_delayed(),
    *_queues("queues", "Work queues, durable: messages a second"),
)
THREE_BROKERS = (
    *(*_cluster_work(), *_mixed_cluster(), *_cluster_faults(), *_cluster_scale()),
    *_queues("cluster-queues", "Work queues with three replicas, durable: messages a second"),
)
SECURITY = tuple(_security())
SPARK = tuple(_spark())
ALL = (*ONE_BROKER, *SECURITY, *THREE_BROKERS, *SPARK)


def _figure(requirement: Requirement, found: Results) -> Figure | None:
    if requirement.base is None:
        return results.summary(found.values(requirement.case, requirement.subject, requirement.metric))
    above, below = found.paired(requirement.case, requirement.subject, requirement.base, requirement.metric)
    return (results.median_of_ratios if requirement.paired else results.ratio_of_medians)(above, below)


def _client_limits(requirement: Requirement, found: Results) -> bool:
    """Return whether the client limited the figure: it was busy on the subject's side and, for targets up to 1, also on
    the base's."""
    lanes = [requirement.subject]
    if requirement.base is not None and requirement.target <= 1:
        lanes.append(requirement.base)
    shares = [found.values(requirement.case, lane, "client_share_of_core") for lane in lanes]
    return all(values and statistics.median(values) >= CLIENT_LIMIT_SHARE for values in shares)


def judge(requirement: Requirement, measured: Mapping[str, Results]) -> Verdict:
    """Judge the requirement by the median; the spread is reported only."""
    found = measured.get(requirement.suite)
    figure = _figure(requirement, found) if found else None
    if found is None or figure is None:
        return Verdict(requirement, State.MISSING, None)
    at_most = requirement.bound is Bound.AT_MOST
    good = figure.value <= requirement.target if at_most else figure.value >= requirement.target
    state = State.PASS if good else State.SHORT
    if not good and requirement.unless_client_limits and _client_limits(requirement, found):
        state = State.CLIENT
    base = found.median(requirement.case, requirement.base, requirement.metric) if requirement.base else None
    subject = found.median(requirement.case, requirement.subject, requirement.metric)
    return Verdict(requirement, state, figure, subject, base)
