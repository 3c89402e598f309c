"""A cluster as whoever moves replicas sees it, read by the protocol; and what should move, by `placement`.

Used by `penstock cluster` and `penstock broker`. Brokers of any make will do: one that does not name its failure domain
has its rack for one.
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
"""After which a broker that is registered and does not answer is shown as that."""


@dataclass(frozen=True, slots=True)
class BrokerSummary:
    """A broker that is registered. `domain` is the path above it, widest part first; `error` says why it is silent.

    `free_bytes` is -1 where it is not known.
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
    """Settings that bound what is copied, by name, where they are set."""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """Brokers by id, topics by name, what is being reassigned, and how large each partition is."""

    cluster: ClusterInfo
    brokers: Mapping[int, BrokerSummary]
    topics: Mapping[str, TopicInfo]
    under_way: Mapping[TopicPartition, Reassignment]
    sizes: Mapping[TopicPartition, int]

    def existing(self) -> dict[PartitionKey, tuple[int, ...]]:
        """The replicas that are wanted of each partition: what is under way counts as done."""
        found = {}
        for topic in self.topics.values():
            for partition in topic.partitions.values():
                tp = TopicPartition(topic.name, partition.partition)
                change = self.under_way.get(tp)
                found[PartitionKey(*tp)] = partition.replicas if change is None else change.target
        return {key: replicas for key, replicas in found.items() if replicas}

    def held(self) -> Counter[int]:
        """Replicas by broker, as they are now."""
        partitions = [p for topic in self.topics.values() for p in topic.partitions.values()]
        return Counter(broker for partition in partitions for broker in partition.replicas)

    def led(self) -> Counter[int]:
        """Leaders by broker."""
        return Counter(p.leader for topic in self.topics.values() for p in topic.partitions.values() if p.leader >= 0)

    def missing(self) -> dict[int, int]:
        """Brokers that hold replicas and are not registered, with how many."""
        return {broker: count for broker, count in sorted(self.held().items()) if broker not in self.brokers}

    def short(self) -> int:
        """Partitions that have fewer replicas in sync than they should have; those that come are not missed yet."""
        count = 0
        for topic in self.topics.values():
            for p in topic.partitions.values():
                change = self.under_way.get(TopicPartition(topic.name, p.partition))
                count += len(p.isr) < len(p.replicas if change is None else change.original)
        return count

    def unpreferred(self) -> list[TopicPartition]:
        """Partitions that are led by another than their preferred replica, which could lead."""
        found = []
        for topic in self.topics.values():
            for p in topic.partitions.values():
                tp = TopicPartition(topic.name, p.partition)
                if p.replicas and p.leader != p.replicas[0] and p.replicas[0] in p.isr and tp not in self.under_way:
                    found.append(tp)
        return found

    def bytes_of(self, move: Move) -> int:
        """What a move copies."""
        return self.sizes.get(TopicPartition(*move.key), 0) * len(move.adds)


@dataclass(frozen=True, slots=True)
class MovePlan:
    """What should move, and topics that cannot: they want more replicas than there are brokers."""

    moves: Sequence[Move] = ()
    left_out: Sequence[str] = ()
    received: Mapping[int, int] = field(default_factory=dict)
    """Bytes that each broker gets."""

    @property
    def copied_bytes(self) -> int:
        return sum(self.received.values())


async def read_picture(admin: Admin) -> ClusterSnapshot:
    """Asks the cluster. A broker that does not answer is in the picture, with the error."""
    cluster = await admin.describe_cluster()
    topics = await admin.list_topics(internal=True)
    under_way = await admin.list_partition_reassignments()
    answers = await asyncio.gather(*(read_broker(admin, node) for node in cluster.brokers))
    sizes: dict[TopicPartition, int] = {}
    for _, directories in answers:
        for directory in directories:
            for tp, size in directory.partitions.items():
                sizes[tp] = max(size, sizes.get(tp, 0))
    return ClusterSnapshot(cluster, {state.broker_id: state for state, _ in answers}, topics, under_way, sizes)


async def read_broker(admin: Admin, node: Node) -> tuple[BrokerSummary, list[LogDir]]:
    address = node.address
    try:
        settings = await admin.broker_configs(node.node_id, SETTINGS)
        directories = await admin.log_dirs(brokers=[node.node_id])
    except ClientError as e:
        return BrokerSummary(node.node_id, address, domain_of(node.rack), error=str(e)), []
    values = {name: entry.value for name, entry in settings.items()}
    known = [d.usable_bytes for d in directories if d.usable_bytes >= 0 and not d.error]
    state = BrokerSummary(
        node.node_id,
        address,
        domain_of(values.get(DOMAIN) or values.get(RACK) or node.rack),
        values.get(DRAINING) == "true",
        values.get(REMOVABLE) == "true",
        sum(size for d in directories for size in d.partitions.values()),
        sum(known) if known else -1,
        tuple(d.path for d in directories if d.error),
        {n: settings[n].value or "" for n in BOUNDS if n in settings and settings[n].source in ("broker", "cluster")},
    )
    return state, directories


def domain_of(path: str | None) -> tuple[str, ...]:
    """`zone-a/node-7` as a path."""
    return tuple(part for part in (path or "").split("/") if part)


# What should move


def plan_rebalance(picture: ClusterSnapshot, factors: Mapping[str, int] | None = None) -> MovePlan:
    """The fewest moves after which replicas and leaders are balanced; draining brokers, and missing ones, are emptied.

    `factors` gives topics another replication factor than they have. Raises `CommandError` where nothing can be
    planned, or not what `factors` asks for.
    """
    wanted = factors or {}
    if unknown := sorted(wanted.keys() - picture.topics.keys()):
        raise CommandError(
            f"there is no topic {unknown[0]}: penstock topic list shows those that there are", ExitCode.NOT_FOUND
        )
    found = made_plan(picture, placement_brokers(picture), wanted)
    if too_wide := [topic for topic in found.left_out if topic in wanted]:
        usable = sum(not broker.excluded for broker in placement_brokers(picture))
        raise CommandError(
            f"{too_wide[0]} cannot have {wanted[too_wide[0]]} replicas: {usable} broker{'s' * (usable != 1)} may take"
            " any. Start another broker, end a drain, or ask for fewer",
            ExitCode.REFUSED,
        )
    return found


def plan_drain(picture: ClusterSnapshot, broker_id: int) -> MovePlan:
    """The moves that would empty a broker. Raises `CommandError` where its replicas have no place elsewhere."""
    found = made_plan(picture, placement_brokers(picture, [broker_id]))
    held = {key.topic for key, replicas in picture.existing().items() if broker_id in replicas}
    stuck = [topic for topic in found.left_out if topic in held]
    if stuck:
        factors = {name: max(len(p.replicas) for p in picture.topics[name].partitions.values()) for name in stuck}
        usable = sum(not broker.excluded for broker in placement_brokers(picture, [broker_id]))
        named = ", ".join(f"{name} ({factors[name]})" for name in stuck[:5])
        more = f" and {len(stuck) - 5:,} more" if len(stuck) > 5 else ""
        raise CommandError(
            f"broker {broker_id} cannot be emptied: {usable} other broker{'s' * (usable != 1)} may take replicas, and"
            f" these topics want more (their replication factor): {named}{more}."
            " Start another broker, end another drain, or lower the replication factor",
            ExitCode.REFUSED,
        )
    moves = [move for move in found.moves if broker_id in move.removes]
    return MovePlan(moves, (), received_bytes(picture, moves))


def made_plan(
    picture: ClusterSnapshot, brokers: list[PlacementBroker], wanted: Mapping[str, int] | None = None
) -> MovePlan:
    try:
        moves, left_out = plan_feasible_moves(brokers, picture.existing(), wanted)
    except NoBrokersError as e:
        raise CommandError(str(e), ExitCode.REFUSED) from None
    return MovePlan(moves, left_out, received_bytes(picture, moves))


def placement_brokers(picture: ClusterSnapshot, excluded: Collection[int] = ()) -> list[PlacementBroker]:
    return [
        PlacementBroker(state.broker_id, state.domain, state.is_draining or state.broker_id in excluded)
        for state in picture.brokers.values()
    ]


def received_bytes(picture: ClusterSnapshot, moves: Iterable[Move]) -> dict[int, int]:
    received: Counter[int] = Counter()
    for move in moves:
        for broker in move.adds:
            received[broker] += picture.sizes.get(TopicPartition(*move.key), 0)
    return dict(received)


def check_room(picture: ClusterSnapshot, plan: MovePlan) -> None:
    """Raises `CommandError` where a broker would get more than its disk can take."""
    for broker, size in sorted(plan.received.items()):
        free = picture.brokers[broker].free_bytes
        if 0 <= free < size:
            raise CommandError(
                f"broker {broker} would get {size_text(size)} and has {size_text(free)} left: make room there, or add a"
                " broker",
                ExitCode.REFUSED,
            )


def check_answers(picture: ClusterSnapshot) -> None:
    """Raises `CommandError` where a broker did not answer: a plan without what it holds would be wrong."""
    for broker in picture.brokers.values():
        if broker.error is not None:
            raise CommandError(f"broker {broker.broker_id} does not answer: {broker.error}", ExitCode.UNREACHABLE)
