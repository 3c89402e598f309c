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

QUIET_SHARE = 0.03  # of a core; Kafka's own idling stays below
QUIET_WINDOW_S = 0.1
WARM_WINDOW = 3  # the newest sections, compared with the best one before them
WARM_SHARE = 0.95  # the cost counts as steady when the newest are not below this share of it
WARM_LIMIT_S = 12.0  # for each lane of a case
SpecFor = Callable[["Lane"], specs.AnySpec]
WarmUp = Callable[["Session", list[Service]], None]


@dataclass(frozen=True)
class Options:
    """What the command line chose; ``rounds`` None means each suite's own number."""

    rounds: int | None = None
    megabytes: float = 40.0
    sizes: tuple[int, ...] = (100, 1024, 10240)
    acks: tuple[int, ...] = (1, -1)
    quick: bool = False
    against_itself: bool = False

    def rounds_of(self, usual: int) -> int:
        return self.rounds or (2 if self.quick else usual)

    def messages(self, size_bytes: int, factor: float = 1.0) -> int:
        """How many messages of this size make the wanted volume."""
        megabytes = min(self.megabytes, 4.0) if self.quick else self.megabytes
        return max(int(megabytes * factor * 1_000_000 / size_bytes), 100)

    def scaled(self, usual: int) -> int:
        """A number of connections or partitions; a smoke run has a tenth of it."""
        return usual // 10 if self.quick else usual

    def seconds(self, usual: float) -> float:
        return min(usual, 1.0) if self.quick else usual


@dataclass(frozen=True)
class Lane:
    """A column of the table: a running service and the topic settings that it is measured with."""

    name: str
    broker: Service
    topic_settings: dict[str, str] = field(default_factory=dict)


@dataclass
class Session:
    """Handed to each suite.  The subjects stand in Penstock's column, the Kafkas are None with --no-kafka."""

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
        """Penstock's and Kafka's, as far as they are wanted."""
        return [cluster for cluster in (self.subject_cluster, self.kafka_cluster) if cluster is not None]

    def open_suite(self, name: str, rounds: int, *, clusters: bool = False, **parameters: str) -> None:
        """Begins the results file of a suite of brokers."""
        single = [peer for peer in (self.subject, self.kafka, self.mock) if peer is not None]
        peers = self.rival_clusters if clusters else single
        self.open_suite_of(name, rounds, {peer.label: peer.version() for peer in peers}, parameters)

    def open_suite_of(self, name: str, rounds: int, versions: dict[str, str], parameters: dict[str, str]) -> None:
        """Begins the results file of a suite that compares what `versions` has."""
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

    @contextmanager
    def cluster(self, contender: Contender) -> Iterator[Cluster]:
        """A running cluster on all cores, for suites of what happens once: starting, failing, creating."""
        with self.brokers(contender, cores={self.cores.broker, self.cores.client}) as [running]:
            assert isinstance(running, Cluster), f"{contender.label} is no cluster"
            yield running

    def in_turns(self, contenders: Sequence[Contender], rounds: int) -> Iterator[tuple[int, Contender]]:
        """Each of them in each round, in an order that turns round each time."""
        for round_ in range(rounds):
            for contender in contenders if round_ % 2 == 0 else reversed(contenders):
                yield round_, contender

    def results_dir(self) -> Path:
        if self.options.against_itself:
            return RESULTS_DIR / "null"
        return RESULTS_DIR / "quick" if self.options.quick else RESULTS_DIR

    @contextmanager
    def brokers(self, *peers: Contender | None, cores: set[int] | None = None) -> Iterator[list[Service]]:
        """Running services of the peers that there are, on the broker's core; removed at the end."""
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
        """What several suites share, so that a compiler's work is waited for once; warmed when new.

        Single brokers with the mock, or the clusters: a suite of the one kind ends what stands of the other.
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
        """For suites that need the machine for themselves, and after a failure."""
        self._standing = []
        self._stack.close()

    def rivals(self, brokers: Sequence[Service], *, durable: bool) -> list[Lane]:
        """A lane for each broker with the settings for durable or for unflushed topics."""
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
        """A new topic, deleted at the end."""
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
        """Writes all dirty pages out and waits until the brokers are idle, for a bounded time."""
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
        """One timed section in a client process of its own."""
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
        """Uncounted sections until the broker's CPU time per message no longer falls, or ``limit_s`` is over.

        A just-in-time compiler needs some thousand requests of each kind; before that a JVM is measured at
        several times its steady cost.
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
        """``rounds`` sections of each lane, in an order that turns round each time, all lanes warm."""
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
    """Where the brokers' data goes: PENSTOCK_BENCH_DIR or the system's temporary directory, on a real disk."""
    return Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=os.environ.get("PENSTOCK_BENCH_DIR")))
