"""A snapshot of a cluster's brokers and replicas, read through the Kafka protocol, and the moves to plan from it.

Used by `penstock cluster` and `penstock broker`. Works with any Kafka broker: without `broker.failure.domain`, a
broker's rack is its failure domain.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.cli.common import CommandError, ExitCode
from penstock.cli.output import size_text
from penstock.client import Admin, ClientError, ClusterInfo, LogDir, Node, Reassignment, TopicInfo, TopicPartition
from penstock.placement.model import Move, NoBrokersError, PartitionKey, PlacementBroker
from penstock.placement.plan import plan_feasible_moves

DOMAIN, RACK, DRAINING, REMOVABLE = "broker.failure.domain", "broker.rack", "broker.draining", "broker.removable"
BOUNDS = (
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "reassignment.throttle.bytes.per.second",
)
SETTINGS = (DOMAIN, RACK, DRAINING, REMOVABLE, *BOUNDS)
SILENT_AFTER_MS = 10_000
"""Request timeout after which a registered broker is shown as not responding."""


@dataclass(frozen=True, slots=True)
class BrokerSummary:
    """A registered broker. `domain` is its failure domain, widest part first; `error` is why it does not respond.

    `free_bytes` is -1 if unknown.
    """

    broker_id: int
    address: str
    domain: tuple[str, ...] = ()
    is_draining: bool = False
    is_removable: bool = False
    data_bytes: int = 0
    free_bytes: int = -1
    failed_dirs: tuple[str, ...] = ()
    bounds: Mapping[str, str] = field(default_factory=dict)
    """Throttle settings that are set, by name."""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """Brokers by id, topics by name, running reassignments, and partition sizes in bytes."""

    cluster: ClusterInfo
    brokers: Mapping[int, BrokerSummary]
    topics: Mapping[str, TopicInfo]
    reassignments: Mapping[TopicPartition, Reassignment]
    sizes: Mapping[TopicPartition, int]

    def target_replicas(self) -> dict[PartitionKey, tuple[int, ...]]:
        """Return the replicas that each partition will have once its running reassignment has completed."""
        found = {}
        for topic in self.topics.values():
            for partition in topic.partitions.values():
                tp = TopicPartition(topic.name, partition.partition)
                change = self.reassignments.get(tp)
                found[PartitionKey(*tp)] = partition.replicas if change is None else change.target
        return {key: replicas for key, replicas in found.items() if replicas}

    def replica_counts(self) -> Counter[int]:
        """Return the current number of replicas by broker."""
        partitions = [p for topic in self.topics.values() for p in topic.partitions.values()]
        return Counter(broker for partition in partitions for broker in partition.replicas)

    def leader_counts(self) -> Counter[int]:
        """Return the number of led partitions by broker."""
        return Counter(p.leader for topic in self.topics.values() for p in topic.partitions.values() if p.leader >= 0)

    def missing_brokers(self) -> dict[int, int]:
        """Return the number of replicas by broker, for brokers that hold replicas but are not registered."""
        return {broker: count for broker, count in sorted(self.replica_counts().items()) if broker not in self.brokers}

    def under_replicated_count(self) -> int:
        """Count under-replicated partitions. Replicas that a running reassignment adds are not expected yet."""
        count = 0
        for topic in self.topics.values():
            for p in topic.partitions.values():
                change = self.reassignments.get(TopicPartition(topic.name, p.partition))
                count += len(p.isr) < len(p.replicas if change is None else change.original)
        return count

    def led_by_other_replica(self) -> list[TopicPartition]:
        """Return partitions whose preferred replica is in sync but not the leader."""
        found = []
        for topic in self.topics.values():
            for p in topic.partitions.values():
                tp = TopicPartition(topic.name, p.partition)
                if p.replicas and p.leader != p.replicas[0] and p.replicas[0] in p.isr and tp not in self.reassignments:
                    found.append(tp)
        return found

    def move_bytes(self, move: Move) -> int:
        """Return the bytes that a move copies."""
        return self.sizes.get(TopicPartition(*move.key), 0) * len(move.adds)


@dataclass(frozen=True, slots=True)
class MovePlan:
    """Planned moves, and topics that cannot be placed because their replication factor exceeds the broker count."""

    moves: Sequence[Move] = ()
    left_out: Sequence[str] = ()
    received: Mapping[int, int] = field(default_factory=dict)
    """Bytes that each broker receives."""

    @property
    def copied_bytes(self) -> int:
        """Return the bytes that all moves copy."""
        return sum(self.received.values())


async def read_snapshot(admin: Admin) -> ClusterSnapshot:
    """Read the cluster's state. A broker that does not respond is included, with its error."""
    cluster = await admin.describe_cluster()
    topics = await admin.list_topics(internal=True)
    reassignments = await admin.list_partition_reassignments()
    answers = await asyncio.gather(*(read_broker(admin, node) for node in cluster.brokers))
    sizes: dict[TopicPartition, int] = {}
    for _, directories in answers:
        for directory in directories:
            for tp, size in directory.partitions.items():
                sizes[tp] = max(size, sizes.get(tp, 0))
    return ClusterSnapshot(cluster, {state.broker_id: state for state, _ in answers}, topics, reassignments, sizes)


async def read_broker(admin: Admin, node: Node) -> tuple[BrokerSummary, list[LogDir]]:
    """Return a broker's summary and its log directories."""
    address = node.address
    try:
        settings = await admin.broker_configs(node.node_id, SETTINGS)
        directories = await admin.log_dirs(brokers=[node.node_id])
    except ClientError as e:
        return BrokerSummary(node.node_id, address, parse_domain(node.rack), error=str(e)), []
    values = {name: entry.value for name, entry in settings.items()}
    known = [d.usable_bytes for d in directories if d.usable_bytes >= 0 and not d.error]
    state = BrokerSummary(
        node.node_id,
        address,
        parse_domain(values.get(DOMAIN) or values.get(RACK) or node.rack),
        values.get(DRAINING) == "true",
        values.get(REMOVABLE) == "true",
        sum(size for d in directories for size in d.partitions.values()),
        sum(known) if known else -1,
        tuple(d.path for d in directories if d.error),
        {n: settings[n].value or "" for n in BOUNDS if n in settings and settings[n].source in ("broker", "cluster")},
    )
    return state, directories


def parse_domain(path: str | None) -> tuple[str, ...]:
    """Split `zone-a/node-7` into its parts."""
    return tuple(part for part in (path or "").split("/") if part)


def plan_rebalance(snapshot: ClusterSnapshot, factors: Mapping[str, int] | None = None) -> MovePlan:
    """Return the fewest moves that balance replicas and leaders, and empty draining and missing brokers.

    `factors` sets the replication factor of topics. Raises `CommandError` if no plan exists, or none that satisfies
    `factors`.
    """
    new_factors = factors or {}
    if unknown := sorted(new_factors.keys() - snapshot.topics.keys()):
        raise CommandError(
            f'topic "{unknown[0]}" does not exist; run `penstock topic list` to see all topics', ExitCode.NOT_FOUND
        )
    found = make_plan(snapshot, placement_brokers(snapshot), new_factors)
    if too_wide := [topic for topic in found.left_out if topic in new_factors]:
        usable = sum(not broker.excluded for broker in placement_brokers(snapshot))
        raise CommandError(
            f'topic "{too_wide[0]}" cannot have {new_factors[too_wide[0]]} replicas: only {usable} '
            f"broker{'s' * (usable != 1)} can take any; add a broker, undrain one, or lower the replication factor",
            ExitCode.REFUSED,
        )
    return found


def plan_drain(snapshot: ClusterSnapshot, broker_id: int) -> MovePlan:
    """Return the moves that empty a broker. Raises `CommandError` if the other brokers cannot take its replicas."""
    found = make_plan(snapshot, placement_brokers(snapshot, [broker_id]))
    affected = {key.topic for key, replicas in snapshot.target_replicas().items() if broker_id in replicas}
    stuck = [topic for topic in found.left_out if topic in affected]
    if stuck:
        factors = {name: max(len(p.replicas) for p in snapshot.topics[name].partitions.values()) for name in stuck}
        usable = sum(not broker.excluded for broker in placement_brokers(snapshot, [broker_id]))
        named = ", ".join(f"{name} ({factors[name]})" for name in stuck[:5])
        more = f" and {len(stuck) - 5:,} more" if len(stuck) > 5 else ""
        raise CommandError(
            f"broker {broker_id} cannot be drained: {usable} other broker{'s' * (usable != 1)} can take replicas, and"
            f" these topics have a higher replication factor: {named}{more};"
            " add a broker, undrain another, or lower the replication factor",
            ExitCode.REFUSED,
        )
    moves = [move for move in found.moves if broker_id in move.removes]
    return MovePlan(moves, (), received_bytes(snapshot, moves))


def make_plan(
    snapshot: ClusterSnapshot, brokers: list[PlacementBroker], new_factors: Mapping[str, int] | None = None
) -> MovePlan:
    """Return the placement planner's moves. Raises `CommandError` if no broker can take replicas."""
    try:
        moves, left_out = plan_feasible_moves(brokers, snapshot.target_replicas(), new_factors)
    except NoBrokersError as e:
        raise CommandError(str(e), ExitCode.REFUSED) from None
    return MovePlan(moves, left_out, received_bytes(snapshot, moves))


def placement_brokers(snapshot: ClusterSnapshot, excluded: Collection[int] = ()) -> list[PlacementBroker]:
    """Return the brokers for the placement planner; draining and `excluded` ones get no replicas."""
    return [
        PlacementBroker(state.broker_id, state.domain, state.is_draining or state.broker_id in excluded)
        for state in snapshot.brokers.values()
    ]


def received_bytes(snapshot: ClusterSnapshot, moves: Iterable[Move]) -> dict[int, int]:
    """Return the bytes that each broker receives."""
    received: Counter[int] = Counter()
    for move in moves:
        for broker in move.adds:
            received[broker] += snapshot.sizes.get(TopicPartition(*move.key), 0)
    return dict(received)


def check_free_space(snapshot: ClusterSnapshot, plan: MovePlan) -> None:
    """Raise `CommandError` if a broker would receive more bytes than its log directories have free."""
    for broker, size in sorted(plan.received.items()):
        free = snapshot.brokers[broker].free_bytes
        if 0 <= free < size:
            raise CommandError(
                f"broker {broker} would receive {size_text(size)} but has {size_text(free)} free; free up disk space,"
                " or add a broker",
                ExitCode.REFUSED,
            )


def check_responding(snapshot: ClusterSnapshot) -> None:
    """Raise `CommandError` if a broker does not respond: the plan would miss the replicas it holds."""
    for broker in snapshot.brokers.values():
        if broker.error is not None:
            raise CommandError(f"broker {broker.broker_id} is not responding: {broker.error}", ExitCode.UNREACHABLE)
