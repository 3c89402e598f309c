"""The world of a cluster: brokers on separate machines, a metadata store, clients, and an administrator.

The seed chooses the workloads, the number of brokers and their settings.
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from penstock.client import TopicPartition
from penstock_simulation import (
    administering,
    delaying,
    filtering,
    plain_reading,
    queue_settings,
    queueing,
    resizing,
    revoking,
    scheduling,
    transacting,
    workload,
)
from penstock_simulation.cluster_faults import CLUSTER_WEIGHTS, ClusterFaults
from penstock_simulation.findings import Finding
from penstock_simulation.hosting import BrokerHost
from penstock_simulation.machine import Machine
from penstock_simulation.observing import replicas
from penstock_simulation.scenario import LEAST_FAULTS, Scenario

if TYPE_CHECKING:
    from penstock.client.membership import GroupProtocol
    from penstock.replica.manager import ReplicaManager
    from penstock.replica.partition import Partition as Role

BROKERS = 3
REPLICATION = 3
TRANSACTORS = 2
TRANSACTED = 150
"""Number of records that each transactional producer sends."""
ALIKE_DEADLINE_S = 60.0
FEATURES = {"transactions": 0.6, "churn": 0.3, "reassignment": 0.4, "scaling": 0.3}
"""Optional workloads, and the probability of each."""
RIGHTS, QUEUES, DELAYS, GROUPS = "rights", "queues", "delays", "groups"
SCHEDULES, RESIZES, FILTERS = "schedules", "resizes", "filters"
FEATURES_APART = {RIGHTS: 0.3, QUEUES: 0.4, DELAYS: 0.3, GROUPS: 0.4, SCHEDULES: 0.3, RESIZES: 0.3, FILTERS: 0.3}
"""Further optional workloads, and the probability of each. Each is drawn apart, so that it changes nothing in seeds
without it: ACLs, a share group, a delayed topic, members of the group that use KIP-848, scheduled records, a changing
number of partitions, filters."""
PROTOCOLS: tuple[tuple[GroupProtocol, ...], ...] = (("consumer",), ("classic", "consumer"))
"""The protocols of the members of a group with KIP-848; with both, the group migrates."""
GROUP_SETTINGS = {
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "1000",
}
DELAYED_QUEUE_SHARE = 0.6
"""Probability that the share group, if there are both, has the delayed topic too."""
ALL_FEATURES = frozenset({*FEATURES, *FEATURES_APART})


class Cluster(Scenario):
    """A cluster of several brokers. `features` names the workloads to run; by default the seed chooses them."""

    is_watched = True
    size: resizing.Size
    """Sizes of the topic whose number of partitions changes."""
    apart: RolesApart | None = None
    """What `are_alike` found last."""

    def __init__(
        self,
        seed: int,
        *,
        keep_trace: bool = False,
        kinds: dict[str, int] | None = None,
        features: frozenset[str] | None = None,
    ) -> None:
        super().__init__(seed, keep_trace=keep_trace)
        rng = self.world.streams["plan"]
        drawn = frozenset(name for name, share in FEATURES.items() if rng.random() < share)
        streams = self.world.streams
        drawn |= {name for name, share in FEATURES_APART.items() if streams[name].random() < share}
        self.features = drawn if features is None else features
        self.faults = ClusterFaults(self, kinds or CLUSTER_WEIGHTS)
        self.faults.pace = rng.choice([0.3, 1.0])
        lease_ms = rng.choice([2000, 4000, 9000])
        self.settings = {
            "group.initial.rebalance.delay.ms": "200",
            "broker.session.timeout.ms": str(lease_ms),
            "replica.lag.time.max.ms": str(rng.choice([1000, 4000, 10_000])),
            "replica.fetch.wait.max.ms": str(rng.choice([100, 500])),
            "leader.imbalance.check.interval.seconds": str(rng.choice([3, 300])),
        }
        if RIGHTS in self.features:
            self.settings |= revoking.SETTINGS
        if GROUPS in self.features:
            self.settings |= GROUP_SETTINGS
        if QUEUES in self.features:
            self.settings |= queue_settings.BROKER_SETTINGS
        for number in range(1, BROKERS + 1):
            self.add_host(number)
        self.plan = workload.Plan(
            self.world,
            self.history,
            ",".join(host.address for host in self.hosts),
            partitions=rng.choice([1, 2, 4]),
            records=rng.randrange(330, 400),
            pause_s=rng.choice([0.12, 0.2, 0.3]),
            configs={"segment.bytes": str(rng.choice([1024, 4096, 1 << 20])), "min.insync.replicas": "2"},
            replication=REPLICATION,
            enough=lambda: self.faults.counted >= LEAST_FAULTS,
        )
        self.revocations = revoking.Revocations(self.plan, self.hosts, lease_ms / 1000)
        if GROUPS in self.features:
            self.plan.protocols = streams["group protocols"].choice(PROTOCOLS)
        if "transactions" in self.features:
            self.plan.records = rng.randrange(250, 300)
        self.prepare_topics()

    def prepare_topics(self) -> None:
        """Add the topics of the workloads, and what reads them at the end."""
        plan, streams, features = self.plan, self.world.streams, self.features
        if DELAYS in features:
            delaying.draw_settings(plan, streams["delay settings"])
            plan.last.append(partial(delaying.wait_until_due, plan))
        if QUEUES in features:
            self.prepare_queue()
        if FILTERS in features:
            filtering.draw_filters(plan, streams["filter settings"], QUEUES in features)
        if SCHEDULES in features:
            scheduling.draw_settings(plan, streams["schedule settings"])
            plan.last.append(partial(scheduling.read_all, plan))
        if RESIZES in features:
            size = self.size = resizing.draw_settings(plan, streams["sizes"])
            clock = Machine(self.world, self.network, "opener").clock
            plan.last.append(partial(resizing.open_all, plan, size, clock))
        if RIGHTS in features:
            plan.others.append((revoking.GUARDED, 1, False))
        if "transactions" in features:
            plan.others.append((transacting.LEDGER, TRANSACTORS, True))
            partitions = [TopicPartition(transacting.LEDGER, number) for number in range(TRANSACTORS)]
            plan.groups.append((transacting.TRANSFER, partitions))

    def prepare_queue(self) -> None:
        plan, streams = self.plan, self.world.streams
        queue_settings.draw_settings(plan, streams["queue settings"], streams["letters"], streams["forgetful members"])
        if DELAYS in self.features and streams["delayed queue"].random() < DELAYED_QUEUE_SHARE:
            plan.queue_topics.append(delaying.LATER)
        plan.last.append(partial(queueing.finish, plan))
        if plan.letters:
            plan.last.append(partial(queue_settings.read_letters, plan))

    def add_host(self, number: int) -> BrokerHost:
        settings = {**self.settings, "node.id": str(number)}
        more_listeners = {revoking.LISTENER: revoking.PORT} if RIGHTS in self.features else None
        host = BrokerHost(
            self.world, self.network, self.core, self.faults.rng, f"b{number}", settings, is_clustered=True,
            more_listeners=more_listeners,
        )  # fmt: skip
        self.hosts.append(host)
        return host

    def start_clients(self) -> None:
        super().start_clients()
        plan, streams = self.plan, self.world.streams
        self.start_client("plain", partial(plain_reading.read_plainly, plan, "plain", streams["plain"]))
        if "transactions" in self.features:
            for number in range(TRANSACTORS):
                name = f"t{number}"
                plan.working.add(name)
                plan.fewer[name] = TRANSACTED
                clock = Machine(self.world, self.network, name).clock
                main = partial(transacting.transact, plan, name, number, TRANSACTORS, clock, streams[name])
                self.start_client(name, main)
            ledger = [TopicPartition(transacting.LEDGER, number) for number in range(TRANSACTORS)]
            reader = partial(workload.read_alone, plan, "rc", streams["rc"], ledger, "read_committed")
            self.start_client("rc", reader)
        if RIGHTS in self.features:
            self.start_client("grants", partial(revoking.administer, self.revocations, streams["grants"]))
            self.start_client("user", partial(revoking.use, self.revocations, streams["user"]))
        if QUEUES in self.features:
            for number in range(queueing.MEMBERS):
                name = f"q{number}"
                self.start_client(name, partial(queueing.work, plan, name, streams[name]))
        if DELAYS in self.features:
            plan.working.add("d0")
            plan.fewer["d0"] = delaying.RECORDS
            clock = Machine(self.world, self.network, "d0").clock
            main = partial(workload.produce, plan, "d0", clock, streams["d0"], delaying.LATER)
            self.start_client("d0", main)
            reader = partial(workload.read_alone, plan, "dr", streams["dr"], delaying.PARTITIONS)
            self.start_client("dr", reader)
        if SCHEDULES in self.features:
            self.start_schedule()
        if RESIZES in self.features:
            self.start_resizes()
        if FILTERS in self.features:
            name = filtering.READER
            main = partial(workload.read_alone, plan, name, streams[name], record_filter=plan.filter)
            self.start_client(name, main)
        if "churn" in self.features:
            clock = Machine(self.world, self.network, "churn").clock
            self.start_client("churn", partial(administering.churn, plan, clock, streams["churn"]))
        if "reassignment" in self.features:
            self.start_client("mover", partial(administering.move, plan, self.broker_ids, streams["mover"]))
        if "scaling" in self.features:
            rng = streams["scaling"]
            self.world.after(rng.uniform(2.0, 12.0), self.grow)

    def start_schedule(self) -> None:
        plan, streams = self.plan, self.world.streams
        plan.working.add(scheduling.PRODUCER)
        plan.fewer[scheduling.PRODUCER] = scheduling.RECORDS
        clock = Machine(self.world, self.network, scheduling.PRODUCER).clock
        producer_rng, reader_rng = streams[scheduling.PRODUCER], streams[scheduling.READER]
        self.start_client(scheduling.PRODUCER, partial(scheduling.schedule, plan, clock, producer_rng))
        self.start_client(scheduling.READER, partial(scheduling.read, plan, reader_rng))

    def start_resizes(self) -> None:
        plan, streams, size = self.plan, self.world.streams, self.size
        for name in resizing.PRODUCERS:
            plan.working.add(name)
            plan.fewer[name] = resizing.RECORDS
            clock = Machine(self.world, self.network, name).clock
            self.start_client(name, partial(resizing.produce, plan, name, clock, streams[name]))
        for name in resizing.MEMBERS:
            main = partial(workload.consume, plan, name, streams[name], resizing.GROUP, resizing.RESIZED)
            self.start_client(name, main)
        reader = resizing.READER
        partitions = resizing.partitions_of(size)
        self.start_client(reader, partial(workload.read_alone, plan, reader, streams[reader], partitions))
        for name, main in (
            (resizing.ADMINISTRATOR, partial(resizing.resize, plan, size, streams[resizing.ADMINISTRATOR])),
            (resizing.WATCHER, partial(resizing.watch_seals, plan, streams[resizing.WATCHER])),
        ):
            self.start_client(name, main)
        plan.working.add(resizing.ADMINISTRATOR)

    def broker_ids(self) -> list[int]:
        return [number for number, host in enumerate(self.hosts, 1) if host.is_wanted]

    def grow(self) -> None:
        """Add a broker; in most cases, drain a broker later."""
        if self.faults.over:
            return
        self.add_host(len(self.hosts) + 1).start()
        rng = self.world.streams["scaling"]
        if rng.random() < 0.7:
            number = rng.choice(self.broker_ids())
            self.world.after(rng.uniform(1.0, 8.0), self.drain, number, True)

    def drain(self, number: int, is_draining: bool) -> None:
        if self.world.stopped:
            return
        main = partial(administering.drain, self.plan, number, is_draining)
        self.start_client(f"drain{number}{is_draining}", main)
        if is_draining and self.world.streams["scaling"].random() < 0.5:
            self.world.after(self.world.streams["scaling"].uniform(2.0, 10.0), self.drain, number, False)

    def look_inside(self) -> list[Finding]:
        """Wait until replicas have caught up, then record the contents of each."""
        are_alike = self.world.run(self.are_alike, self.world.now + ALIKE_DEADLINE_S)
        self.history.replicas += replicas(self.hosts)
        if are_alike:
            return []
        apart = "not all brokers are ready" if self.apart is None else f"replicas differ: {self.apart}"
        return [Finding("stuck", f"{ALIKE_DEADLINE_S:.0f} s after the last read, {apart}")]

    def are_alike(self) -> bool:
        """Whether all brokers are ready and all replicas of each partition have the same high watermark, as far as
        followers learn it: not past what was relayed of a sealed partition.

        The world asks after each turn, so the two replicas that were apart last are compared first.
        """
        apart, self.apart = self.apart, None
        nodes = [host.serving for host in self.hosts]
        managers = [node.replicas for node in nodes if node is not None and node.replicas is not None]
        if len(managers) < len(nodes):
            return False
        if apart is not None and apart.still_differ(managers):
            self.apart = apart
            return False
        first: dict[tuple[str, int], Role] = {}
        for role in chain.from_iterable(managers):
            other = first.setdefault((role.name, role.index), role)
            if other.replicated_watermark != role.replicated_watermark:
                self.apart = RolesApart(managers, other, role)
                return False
        return True


class RolesApart(NamedTuple):
    """Two replicas of a partition, of two of the brokers' `managers`, with different watermarks."""

    managers: list[ReplicaManager]
    one: Role
    other: Role

    def __str__(self) -> str:
        one, other = self.one, self.other
        return f"{one!r} at {one.replicated_watermark}, {other!r} at {other.replicated_watermark}"

    def still_differ(self, managers: list[ReplicaManager]) -> bool:
        """Whether the replicas still belong to the brokers, and differ."""
        one, other = self.one, self.other
        if one.ended or other.ended or managers != self.managers:
            return False
        return one.replicated_watermark != other.replicated_watermark
