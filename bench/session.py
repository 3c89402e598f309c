"""One run of the bench: options, brokers, topics, and the timed sections in alternating order."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from bench import admin, client, machine, procfs
from bench.loads import specs
from bench.peers.broker import Peer
from bench.peers.cluster import Cluster
from bench.peers.service import Contender, Service
from bench.results import RESULTS_DIR, Header, Recorder, Row

QUIET_SHARE = 0.03  # of a core; an idle Kafka uses less
QUIET_WINDOW_S = 0.1
WARM_WINDOW = 3  # the newest sections, compared with the best one before them
WARM_SHARE = 0.95  # the cost is steady if the newest are not below this share of it
WARM_LIMIT_S = 12.0  # for each lane of a case
SpecFor = Callable[["Lane"], specs.AnySpec]
WarmUp = Callable[["Session", list[Service]], None]


@dataclass(frozen=True)
class Options:
    """Options of the command line; `rounds` None means each suite's default."""

    rounds: int | None = None
    megabytes: float = 40.0
    sizes: tuple[int, ...] = (100, 1024, 10240)
    acks: tuple[int, ...] = (1, -1)
    quick: bool = False
    against_itself: bool = False
    restart: int | None = None
    """For the suite `delayed`: measure only restarts, with this many records that wait."""

    def rounds_of(self, usual: int) -> int:
        return self.rounds or (2 if self.quick else usual)

    def messages(self, size_bytes: int, factor: float = 1.0) -> int:
        """Return the number of messages of this size in the configured volume."""
        megabytes = min(self.megabytes, 4.0) if self.quick else self.megabytes
        return max(int(megabytes * factor * 1_000_000 / size_bytes), 100)

    def scaled(self, usual: int) -> int:
        """Return a number of connections or partitions; a smoke run has a tenth of it."""
        return usual // 10 if self.quick else usual

    def seconds(self, usual: float) -> float:
        return min(usual, 1.0) if self.quick else usual


@dataclass(frozen=True)
class Lane:
    """A column of the table: a running service and the topic settings of its measurements.

    `address` and `client_settings` are those of a listener other than the service's own.
    """

    name: str
    broker: Service
    topic_settings: dict[str, str] = field(default_factory=dict)
    address: str = ""
    client_settings: dict[str, str | int] = field(default_factory=dict)


@dataclass
class Session:
    """Context of each suite. The subjects are in Penstock's column; the Kafkas are None with --no-kafka."""

    options: Options
    console: Console
    subject: Peer
    kafka: Peer | None
    mock: Peer
    subject_cluster: Contender
    kafka_cluster: Contender | None
    work_dir: Path
    cores: machine.Cores = field(default_factory=machine.Cores.of_this_machine)
    recorder: Recorder | None = None
    _topics: int = 0
    _standing: list[Service] = field(default_factory=list)
    _standing_clusters: bool = False
    _stack: ExitStack = field(default_factory=ExitStack)

    @property
    def rival_clusters(self) -> list[Contender]:
        """Return Penstock's and Kafka's clusters, as selected."""
        return [cluster for cluster in (self.subject_cluster, self.kafka_cluster) if cluster is not None]

    def open_suite(self, name: str, rounds: int, *, clusters: bool = False, **parameters: str) -> None:
        """Start the results file of a suite of brokers."""
        single = [peer for peer in (self.subject, self.kafka, self.mock) if peer is not None]
        peers = self.rival_clusters if clusters else single
        self.open_suite_of(name, rounds, {peer.label: peer.version() for peer in peers}, parameters)

    def open_suite_of(self, name: str, rounds: int, versions: dict[str, str], parameters: dict[str, str]) -> None:
        """Start the results file of a suite that compares the keys of `versions`."""
        header = Header(
            suite=name,
            command=shlex.join(["python", "-m", "bench", *sys.argv[1:]]),
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            rounds=rounds,
            machine=machine.describe(self.work_dir, self.cores),
            peers=versions,
            parameters=parameters,
        )
        self.recorder = Recorder(self.results_dir(), header)
        self.console.rule(f"{name}: {rounds} rounds")

    @property
    def all_cores(self) -> set[int]:
        """Return both cores, for suites of single events."""
        return {self.cores.broker, self.cores.client}

    @contextmanager
    def cluster(self, contender: Contender) -> Iterator[Cluster]:
        """Run a cluster on all cores, for suites of single events: starting, failing, creating."""
        with self.brokers(contender, cores=self.all_cores) as [running]:
            assert isinstance(running, Cluster), f"{contender.label} is no cluster"
            yield running

    def in_turns(self, contenders: Sequence[Contender], rounds: int) -> Iterator[tuple[int, Contender]]:
        """Yield each of them in each round, in an order that reverses each time."""
        for round_ in range(rounds):
            for contender in contenders if round_ % 2 == 0 else reversed(contenders):
                yield round_, contender

    def results_dir(self) -> Path:
        if self.options.against_itself:
            return RESULTS_DIR / "null"
        return RESULTS_DIR / "quick" if self.options.quick else RESULTS_DIR

    @contextmanager
    def brokers(self, *peers: Contender | None, cores: set[int] | None = None) -> Iterator[list[Service]]:
        """Run services of the available peers on the broker's core; remove them at the end."""
        with ExitStack() as stack:
            running = []
            for peer in peers:
                if peer is not None:
                    broker = peer.service(cores or {self.cores.broker}, self.work_dir)
                    stack.callback(broker.remove)
                    broker.start()
                    running.append(broker)
            yield running

    def standing_brokers(self, warm_up: WarmUp, *, clusters: bool = False) -> list[Service]:
        """Return services that several suites share, so that they warm up only once.

        These are the single brokers with the mock, or the clusters: a suite of one kind ends the services of the other.
        """
        if self._standing and self._standing_clusters != clusters:
            self.end_standing_brokers()
        if not self._standing:
            peers = self.rival_clusters if clusters else [self.subject, self.kafka, self.mock]
            self._standing = self._stack.enter_context(self.brokers(*peers))
            self._standing_clusters = clusters
            started = time.monotonic()
            warm_up(self, self._standing)
            self.console.print(f"  the brokers were warmed up for {time.monotonic() - started:.0f} s")
        return self._standing

    def end_standing_brokers(self) -> None:
        """End the shared services, for suites that need the whole machine, and after a failure."""
        self._standing = []
        self._stack.close()

    def rivals(self, brokers: Sequence[Service], *, durable: bool) -> list[Lane]:
        """Return a lane for each broker, with the settings of durable or of unflushed topics."""
        return [
            Lane(
                broker.contender.label,
                broker,
                broker.contender.durable_topic if durable else broker.contender.unflushed_topic,
            )
            for broker in brokers
        ]

    @contextmanager
    def topic(self, lane: Lane, partitions: int) -> Iterator[str]:
        """Create a topic; delete it at the end."""
        self._topics += 1
        name = f"bench-{self._topics}"
        broker = lane.broker
        if broker.contender.creates_topics:
            admin.create_topics(broker.address, [name], partitions, lane.topic_settings, broker.contender.replicas)
            admin.wait_for_leaders(broker.addresses, name, partitions)
            yield name
            admin.delete_topic(broker.address, name)
        else:
            admin.wait_for_leaders(broker.addresses, name, 1, create=True)
            yield name

    def settle(self, brokers: Sequence[Service]) -> None:
        """Write all dirty pages to disk and wait until the brokers are idle, for a bounded time."""
        os.sync()
        deadline = time.monotonic() + (0.5 if self.options.quick else 5.0)
        pids = [pid for broker in brokers for pid in broker.pids]
        while time.monotonic() < deadline:
            before = procfs.cpu_s(*pids)
            time.sleep(QUIET_WINDOW_S)
            after = procfs.cpu_s(*pids)
            if after - before < QUIET_SHARE * QUIET_WINDOW_S * len(pids):
                return

    def measure(self, lane: Lane, spec: specs.AnySpec, brokers: Sequence[Service]) -> specs.Metrics:
        """Run one timed section in a separate client process."""
        self.settle(brokers)
        try:
            metrics = client.run(spec)
        except client.ClientFailed as error:
            raise client.ClientFailed(f"on {lane.name}: {error}") from error
        lane.broker.check()
        return metrics

    def record(self, case: str, lane: str, round_: int, metrics: specs.Metrics) -> None:
        assert self.recorder is not None, "a suite opens its results first"
        self.recorder.add(Row(case=case, lane=lane, round=round_, metrics=metrics))

    def warm_up(self, lane: Lane, spec: specs.AnySpec, limit_s: float, window: int = WARM_WINDOW) -> None:
        """Run uncounted sections until the broker's CPU time per message stops falling, or `limit_s` is over.

        A just-in-time compiler needs some thousand requests of each kind; before that a JVM's cost is several times its
        steady cost.
        """
        deadline = time.monotonic() + limit_s
        costs: list[float] = []
        while time.monotonic() < deadline:
            costs.append(self.measure(lane, spec, [lane.broker])["cpu_s_per_million"])
            steady = len(costs) > window and min(costs[-window:]) > WARM_SHARE * min(costs[:-window])
            if steady or self.options.quick:
                return

    def run_rounds(
        self,
        case: str,
        lanes: Sequence[Lane],
        rounds: int,
        spec_for: SpecFor,
        warm_up_s: float = WARM_LIMIT_S,
    ) -> None:
        """Run `rounds` sections of each warm lane, in an order that reverses each time."""
        brokers = list({id(lane.broker): lane.broker for lane in lanes}.values())
        started = time.monotonic()
        for lane in lanes:
            self.warm_up(lane, spec_for(lane), warm_up_s)
        warm = time.monotonic()
        for round_ in range(rounds):
            for lane in lanes if round_ % 2 == 0 else reversed(lanes):
                self.record(case, lane.name, round_, self.measure(lane, spec_for(lane), brokers))
        self.console.print(
            f"  {case}: {rounds} x {len(lanes)} sections in {time.monotonic() - warm:.0f} s, "
            f"after {warm - started:.0f} s of warming up"
        )


def new_work_dir() -> Path:
    """Create the directory for the brokers' data, below PENSTOCK_BENCH_DIR or the system's temporary directory, on a
    real disk."""
    return Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=os.environ.get("PENSTOCK_BENCH_DIR")))
