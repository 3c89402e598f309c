"""A cluster with workloads, on which a cell injects its fault and whose guarantees are checked afterwards.

The steps of a cell (`play`): start; wait until all workloads progress; inject the fault, prove that it occurred, and
heal it; wait until all acknowledged records are readable and all workloads progress again; let the workloads finish;
read everything; check.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock_simulation.findings import Finding
from penstock_simulation.history import History, Partition

from penstock_chaos.broker import ClusterBroker
from penstock_chaos.checks import findings, longest_pause_s
from penstock_chaos.cluster import Cluster
from penstock_chaos.console import Refused
from penstock_chaos.history import SOURCE, TARGET, WORKERS, Told
from penstock_chaos.renumbered import Numbering, numberings, renumbered
from penstock_chaos.replicas import differing
from penstock_chaos.secured import ADMIN, Administrator, Secured
from penstock_chaos.workload import POLL_S, Workload

SOURCE_PARTITIONS, TARGET_PARTITIONS = 6, 3
FLOW_LIMIT_S = 90.0
READABLE_LIMIT_S = 60.0
FINISH_LIMIT_S = 90.0
PRODUCE_PAUSE_S = 0.01
MEMBER_LIFE_S = 20.0


@dataclass
class Outcome:
    """The outcome of a cell. `evidence` describes the fault; `findings` is empty if all guarantees held."""

    evidence: list[str] = field(default_factory=list)
    acknowledged: int = 0
    transactions: int = 0
    commits: int = 0
    longest_pause_s: float = 0.0
    fault_s: float = 0.0
    readable_s: float | None = None
    """Time from healing until everything acknowledged before was readable and all workloads progressed again."""
    findings: list[Finding] = field(default_factory=list)


class World:
    """One cluster with its workloads; `rng` chooses the targets of the fault.

    `with_network`: network namespaces. `small_disk`: id of a broker. `is_secured`: TLS, users and ACLs.
    `with_etcd_links`: brokers reach etcd through links that can be cut.
    """

    topics: Mapping[str, int] = {SOURCE: SOURCE_PARTITIONS, TARGET: TARGET_PARTITIONS}
    """Partitions by topic."""
    led_topics: tuple[str, ...] = (SOURCE,)
    """Topics that a leader must have partitions of to become the target of a fault."""
    groups: tuple[str, ...] = ("billing", "shipping", WORKERS)
    """The groups that commit offsets of the source."""

    def __init__(
        self,
        home: Path,
        rng: random.Random,
        with_network: bool,
        small_disk: int | None,
        is_secured: bool = False,
        with_etcd_links: bool = False,
    ) -> None:
        self.home, self.rng = home, rng
        self.secured = Secured(home) if is_secured else None
        self.cluster = Cluster(home, with_network, small_disk, self.secured, with_etcd_links)
        self.workloads: dict[str, Workload] = {}
        self.outcome = Outcome()
        self.acknowledged: dict[int, dict[int, tuple[float, float]]] = {p: {} for p in range(SOURCE_PARTITIONS)}
        """By partition and offset of the source: times when the record was sent and acknowledged."""
        self._sent: dict[str, tuple[int, float]] = {}
        """By value: partition and time."""
        self._ends: dict[str, dict[int, int]] = {}
        self._contents: Workload | None = None
        self._numberings: dict[Partition, list[Numbering]] = {}

    def prove(self, sentence: str) -> None:
        """Record evidence of the fault."""
        self.outcome.evidence.append(sentence)
        print(f"    {sentence}", flush=True)

    def broken(self, sentence: str) -> None:
        """Record a guarantee that was violated during the fault."""
        self.outcome.findings.append(Finding("broken promise", sentence))

    # Workloads

    def start(self) -> None:
        """Start the cluster, create the topics, and start the workloads."""
        self.cluster.start()
        self.create_topics()
        if self.secured is not None:
            Administrator(self.cluster.bootstrap, self.secured).create_users()
        self.start_workloads()

    def create_topics(self) -> None:
        for topic, partitions in self.topics.items():
            self.cluster.create_topic(topic, partitions)

    def start_workloads(self) -> None:
        source = {"topic": SOURCE, "partitions": SOURCE_PARTITIONS}
        producing = source | {"pause_s": PRODUCE_PAUSE_S}
        self.work("produce_confluent", "confluent", "ack", **producing)
        self.work("produce_kafka_python", "kafka-python", "ack", **producing)
        grouping = source | {"life_s": MEMBER_LIFE_S}
        self.work("group_confluent", "billing", "commit", group="billing", members=2, **grouping)
        self.work("group_kafka_python", "shipping", "commit", group="shipping", **grouping)
        self.work(
            "transact", WORKERS, "end", group=WORKERS, transactional_id=WORKERS, target=TARGET,
            target_partitions=TARGET_PARTITIONS, most=200, abort_rate=0.1, seed=self.rng.randrange(1 << 32), **source,
        )  # fmt: skip
        self.work("follow", "follower", "seen", topic=TARGET, partitions=TARGET_PARTITIONS)
        if self.secured is not None:
            self.work("produce_penstock", "penstock", "ack", **producing)

    def work(self, module: str, name: str, progress: str, **options: object) -> None:
        options |= {"bootstrap": self.cluster.bootstrap} | self._login(name)
        self.workloads[name] = Workload(self.home, self.cluster.clients, module, name, progress, **options)

    def _login(self, user: str) -> dict[str, object]:
        """Return the login options of a workload; none in plain text."""
        return {} if self.secured is None else {"login": self.secured.login(user)}

    def read(self) -> None:
        """Read new entries of the workloads' journals."""
        for workload in self.workloads.values():
            for kind, *fields in workload.read():
                if workload.topic != SOURCE:
                    continue
                if kind == "send":
                    self._sent[fields[3]] = fields[1], fields[4]
                elif kind == "ack":
                    partition, sent_s = self._sent[fields[0]]
                    self.acknowledged[partition][fields[1]] = sent_s, fields[2]

    def acknowledged_between(self, begin_s: float, end_s: float) -> dict[int, int]:
        """Return how many records of each source partition were both sent and acknowledged in that time."""
        self.read()
        return {
            p: sum(begin_s < sent_s and acknowledged_s <= end_s for sent_s, acknowledged_s in offsets.values())
            for p, offsets in self.acknowledged.items()
        }

    def comes_true(self, condition: Callable[[], bool], limit_s: float, poll_s: float = POLL_S) -> bool:
        """Whether a condition becomes true within a time limit. It is evaluated every `poll_s`."""
        deadline = time.monotonic() + limit_s
        while not condition():
            for workload in self.workloads.values():
                workload.check_alive()
            if time.monotonic() > deadline:
                return False
            time.sleep(poll_s)
        return True

    def wait_flowing(self, when: str, limit_s: float, much: int) -> None:
        """Wait until each workload has progressed and each partition has accepted records. Raises AssertionError."""
        self.read()
        before = {name: workload.done[workload.progress] for name, workload in self.workloads.items()}
        since_s = time.monotonic()

        def idle() -> list[str]:
            self.read()
            waiting = [n for n, w in self.workloads.items() if w.done[w.progress] < before[n] + much]
            taken = self.acknowledged_between(since_s, time.monotonic())
            return waiting + [f"{SOURCE}-{p}" for p, count in taken.items() if count < much]

        if not self.comes_true(lambda: not idle(), limit_s):
            raise AssertionError(f"waited {limit_s:.0f} s for work to flow {when}; nothing new of {', '.join(idle())}")

    # Course of a cell

    def play(self, fault: Callable[[World], None]) -> Outcome:
        """Run the cell from start to checks. An error on the way is a finding too."""
        began_s = time.monotonic()
        try:
            self.start()
            self.wait_flowing("before the fault", FLOW_LIMIT_S, 5)
            began_s = time.monotonic()
            fault(self)
            healed_s = time.monotonic()
            self.outcome.fault_s = healed_s - began_s
            self._wait_readable(healed_s)
            self._finish()
        except (AssertionError, Refused, subprocess.TimeoutExpired) as broken:
            self.outcome.findings.append(Finding("stuck", str(broken)))
        self._judge(began_s)
        return self.outcome

    def _wait_readable(self, healed_s: float) -> None:
        """Wait until all acknowledged records are readable and all workloads progress."""
        self.read()
        reach = {SOURCE: {p: max(offsets, default=-1) + 1 for p, offsets in self.acknowledged.items()}}
        reader = self._reader("readable", "read_uncommitted", {SOURCE: SOURCE_PARTITIONS}, reach, ())
        deadline = healed_s + READABLE_LIMIT_S
        try:
            self.wait_flowing("after healing", deadline - time.monotonic(), 3)
            reader.wait_finished(deadline)
        finally:
            reader.clean_up()
        self.outcome.readable_s = time.monotonic() - healed_s

    def _finish(self) -> None:
        """Let the workloads complete their operations, then read everything."""
        self.finish_all()
        self._read_everything()
        self._compare_replicas()

    def finish_all(self) -> None:
        self.finish_workloads(self.workloads)

    def finish_workloads(self, names: Iterable[str]) -> None:
        """Let workloads complete their operations, and wait for their ends."""
        finishing = [self.workloads[name] for name in names]
        for workload in finishing:
            workload.ask_to_finish()
        deadline = time.monotonic() + FINISH_LIMIT_S
        for workload in finishing:
            workload.wait_finished(deadline)

    def _read_everything(self) -> None:
        """Read to the high watermark first, then as `read_committed`: a hanging transaction holds back the LSO."""
        topics = dict(self.topics)
        first = self._reader("ends", "read_uncommitted", topics, {}, ())
        first.wait_finished(time.monotonic() + FINISH_LIMIT_S)
        ends: dict[str, dict[int, int]] = {topic: {} for topic in topics}
        for topic, partition, _, end, _ in first.journal.of("content"):
            ends[topic][partition] = end
        self._ends = ends
        last = self._reader("contents", "read_committed", topics, ends, self.groups)
        last.wait_finished(time.monotonic() + FINISH_LIMIT_S)
        self._contents = last

    def _reader(
        self,
        name: str,
        isolation: str,
        topics: dict[str, int],
        reach: dict[str, dict[int, int]],
        groups: tuple[str, ...],
    ) -> Workload:
        where = {"bootstrap": self.cluster.bootstrap, "groups": dict.fromkeys(groups, SOURCE)} | self._login(ADMIN)
        return Workload(
            self.home, self.cluster.clients, "read_all", name, "over",
            isolation=isolation, topics=topics, reach=reach, **where,
        )  # fmt: skip

    def _compare_replicas(self) -> None:
        """Compare the bytes of all in-sync replicas after the last write."""
        truth = self.cluster.wait_truth("all replicas in sync at the end", lambda t: t.is_whole)
        for broker in self.cluster.brokers.values():
            broker.stop()
        data = {i: self.cluster.data_of(i) for i in self.cluster.brokers}
        for topic, partitions in self._ends.items():
            self.outcome.findings += differing(truth.topics[topic], topic, partitions, data)
        logs = next(iter(data.values()))
        self._numberings = {
            (SOURCE, index): numberings(logs / f"{truth.topics[SOURCE]}-{index}") for index in range(SOURCE_PARTITIONS)
        }

    def _judge(self, began_s: float) -> None:
        self.read()
        told = Told()
        self.settings_of(told)
        for workload in self.workloads.values():
            told.add(workload.journal.entries, workload.topic, workload.reads_committed)
        if self._contents is not None:
            told.add(self._contents.journal.entries, SOURCE)
        history = told.settle()
        self.describe(history)
        again = {c.partition: renumbered(c, self._numberings.get(c.partition, [])) for c in history.contents}
        if any(again.values()):
            count = sum(map(len, again.values()))
            self.outcome.evidence.append(f"{count} records are there once more, in a new epoch of their producer")
        self.outcome.findings += findings(told, again)
        acknowledged = [write for write in history.writes if write.offset >= 0]
        self.outcome.acknowledged = len(acknowledged)
        self.outcome.transactions = len(told.committed)
        self.outcome.commits = sum(commit.group != WORKERS and commit.completed_s < 1e300 for commit in history.commits)
        last_s = max((write.completed_s for write in acknowledged), default=began_s)
        self.outcome.longest_pause_s = longest_pause_s(history, SOURCE, began_s, last_s)

    def settings_of(self, told: Told) -> None:
        """Record settings on which the checks depend."""

    def describe(self, history: History) -> None:
        """Add what the history contains to the evidence."""

    def clean_up(self) -> None:
        for workload in self.workloads.values():
            workload.clean_up()
        self.cluster.clean_up()

    # Targets of faults

    def leader(self, avoid_controller: bool = True) -> ClusterBroker:
        """Return a broker that leads partitions of each of the topics in `led_topics`."""
        truth = self.cluster.console.truth()
        assert truth.controller is not None
        leading = [{record.leader for record in truth.of(topic).values()} for topic in self.led_topics]
        leaders = sorted(set(self.cluster.brokers).intersection(*leading))
        others = [each for each in leaders if each != truth.controller.broker_id]
        return self.cluster.brokers[self.rng.choice(others if avoid_controller and others else leaders)]

    def controller(self) -> ClusterBroker:
        truth = self.cluster.console.truth()
        assert truth.controller is not None
        return self.cluster.brokers[truth.controller.broker_id]
