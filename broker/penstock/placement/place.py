"""Places new partitions: those of a new topic, or those added to a topic.

Called by `control.replica_placer`. Existing replicas are not moved; they only determine the load of each broker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from operator import itemgetter

from penstock.placement.domains import Domain, Domains, bits
from penstock.placement.model import (
    Assignments,
    BadInputError,
    PlacementBroker,
    TooFewBrokersError,
    check_partition,
    select_usable_brokers,
)


def place_partitions(
    brokers: Sequence[PlacementBroker],
    existing: Assignments,
    count: int,
    replication_factor: int,
    *,
    topic: str | None = None,
) -> list[list[int]]:
    """Return the replicas of `count` new partitions, the preferred leader first.

    `topic` names the topic they are added to, if it is among `existing`. Each partition is spread over the failure
    domains. Of a new topic, each broker gets its fair share rounded down or up; the brokers with the least total load
    get the higher share. Leaders are as even within the topic, then within the cluster, as changes of new partitions
    alone permit. The second replicas, which lead after the leader fails, are spread too.

    Raises `NoBrokersError`, `TooFewBrokersError` and `BadInputError`.
    """
    if count < 0:
        raise BadInputError(f"cannot place {count} partitions: the number must be at least 0")
    if replication_factor < 1:
        raise BadInputError(f"invalid replication factor {replication_factor}: it must be at least 1")
    usable = select_usable_brokers(brokers)
    if replication_factor > len(usable):
        raise TooFewBrokersError(topic, replication_factor, len(usable))
    domains = Domains(usable)
    loads = _Loads(domains, existing, topic)
    sets = _place_sets(domains, loads, count, replication_factor)
    leaders = _choose_leaders(sets, loads)
    for held in sets:
        assert domains.legal(held, replication_factor), "replicas are spread over the failure domains from the top down"
    placed = [[domains.ids[bit] for bit in order] for order in _order_replicas(sets, leaders, len(usable))]
    assert all(len(set(replicas)) == replication_factor for replicas in placed), "never two replicas on one broker"
    return placed


class _Loads:
    """The replicas and leaders of each broker, by bit, of the topic and of the cluster, and its fair shares."""

    def __init__(self, domains: Domains, existing: Assignments, topic: str | None) -> None:
        width = len(domains.ids)
        self.topic_replicas = [0] * width
        self.total_replicas = [0] * width
        self.topic_leaders = [0] * width
        self.total_leaders = [0] * width
        self.topic_due = [Fraction(0)] * width
        self.total_due = [Fraction(0)] * width
        all_factors: Counter[int] = Counter()
        topic_factors: Counter[int] = Counter()
        for key, replicas in existing.items():
            check_partition(key, replicas)
            in_topic = key.topic == topic
            factor = min(len(replicas), width)
            all_factors[factor] += 1
            topic_factors[factor] += in_topic
            for index, broker_id in enumerate(replicas):
                bit = domains.bit_of.get(broker_id)
                if bit is None:
                    continue
                self.total_replicas[bit] += 1
                self.topic_replicas[bit] += in_topic
                if not index:
                    self.total_leaders[bit] += 1
                    self.topic_leaders[bit] += in_topic
        for factor in all_factors:
            for bit, share in enumerate(domains.shares(factor)):
                self.topic_due[bit] += topic_factors[factor] * share
                self.total_due[bit] += all_factors[factor] * share


# --- replicas


def _place_sets(domains: Domains, loads: _Loads, count: int, factor: int) -> list[int]:
    """Return the brokers of each new partition.

    They are dealt in rounds of as many partitions as there are brokers, each round with another order of siblings, so
    that the partitions of one broker have their other replicas on many brokers.
    """
    sets: list[int] = []
    shares = domains.shares(factor)
    width = len(domains.ids)
    dealt = sum(loads.total_replicas)
    while len(sets) < count:
        size = min(width, count - len(sets))
        for bit, share in enumerate(shares):
            loads.topic_due[bit] += size * share
            loads.total_due[bit] += size * share
        parts = [0] * width
        _split(domains.root, factor * size, size, loads, parts)
        order = _shuffled_brokers(domains.root, dealt + len(sets))
        dealt_sets = [0] * size
        turn = 0
        for bit in order:
            for _ in range(parts[bit]):
                assert not dealt_sets[turn] >> bit & 1, "never two replicas of a partition on one broker"
                dealt_sets[turn] |= 1 << bit
                turn = (turn + 1) % size
            loads.topic_replicas[bit] += parts[bit]
            loads.total_replicas[bit] += parts[bit]
        sets += dealt_sets
    return sets


def _split(domain: Domain, total: int, partitions: int, loads: _Loads, parts: list[int]) -> None:
    """Divide `total` replicas of that many new `partitions` among the brokers of `domain`, into `parts`.

    Dealt one after the other in tree order, they give each partition in each domain the average rounded down or up,
    which is legal as long as each domain's total is within the limits of its parent's replicas.
    """
    if not domain.children:
        parts[domain.mask.bit_length() - 1] = total
        return
    quota, extra = divmod(total, partitions)
    least, most = domain.limits(quota)
    low = [(partitions - extra) * least_i for least_i in least]
    high = [(partitions - extra) * most_i for most_i in most]
    if extra:
        least, most = domain.limits(quota + 1)
        low = [a + extra * b for a, b in zip(low, least, strict=True)]
        high = [a + extra * b for a, b in zip(high, most, strict=True)]
    children = [_Child(child, loads, *limits) for child, *limits in zip(domain.children, low, high, strict=True)]
    left = total - sum(child.taken for child in children)
    for _ in range(left):
        min((child for child in children if child.taken < child.high), key=_Child.urgency).taken += 1
    for _ in range(-left):
        max((child for child in children if child.taken > child.low), key=_Child.surplus).taken -= 1
    for child in children:
        _split(child.domain, child.taken, partitions, loads, parts)


class _Child:
    """One of the domains that divide replicas: its load, its fair share, and the replicas it gets."""

    def __init__(self, domain: Domain, loads: _Loads, low: int, high: int) -> None:
        inside = list(bits(domain.mask))
        self.domain = domain
        self.low = low
        self.high = high
        self.topic_due = sum((loads.topic_due[bit] for bit in inside), Fraction(0))
        self.topic = sum(loads.topic_replicas[bit] for bit in inside)
        total_due = sum((loads.total_due[bit] for bit in inside), Fraction(0))
        self.total_ahead = float(sum(loads.total_replicas[bit] for bit in inside) - total_due)
        self.leaders = sum(loads.total_leaders[bit] for bit in inside) / domain.capacity
        due = self.topic_due.numerator // self.topic_due.denominator
        self.taken = min(max(due - self.topic, low), high)

    def urgency(self) -> tuple[object, ...]:
        """Return a sort key; the smallest gets the next replica.

        First come children below their topic share rounded down, then below it rounded up, then the least above it;
        among these, the one least above its cluster share, then with the fewest leaders, then the first.
        """
        return self._load_key(self.taken, 1)

    def surplus(self) -> tuple[object, ...]:
        """Return a sort key; the largest gives one replica back, by the order of `urgency` after that."""
        return self._load_key(self.taken - 1, -1)

    def _load_key(self, taken: int, sign: int) -> tuple[object, ...]:
        has = self.topic + taken
        due = self.topic_due
        stage = 0 if has + 1 <= due else 1 if has < due else 2
        over = float(has - due) / self.domain.capacity if stage == 2 else 0.0
        total = (self.total_ahead + taken) / self.domain.capacity
        return stage, over, round(total, 9), self.leaders, sign * (self.domain.mask & -self.domain.mask)


def _shuffled_brokers(domain: Domain, number: int) -> list[int]:
    """Return the brokers of `domain`, each inner domain contiguous, siblings in an order that depends on `number`."""
    if not domain.children:
        return [domain.mask.bit_length() - 1]
    order: list[int] = []
    for key, child in sorted(((_hash(number, child.mask), child) for child in domain.children), key=itemgetter(0)):
        order += _shuffled_brokers(child, key)
    return order


def _hash(number: int, mask: int) -> int:
    """Return 64 bits that depend on each input bit: multiply and shift, as in the finalizer of splitmix64."""
    mixed = number * 0x9E3779B97F4A7C15 + (mask & -mask).bit_length()
    for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        mixed = (mixed ^ (mixed >> 31)) * factor & 0xFFFFFFFFFFFFFFFF
    return mixed


# --- leaders


def _choose_leaders(sets: Sequence[int], loads: _Loads) -> list[int]:
    """Return the preferred leader of each new partition, by bit: an optimal semi-matching.

    It is optimal when no chain of changes makes it more even, and then optimal by every measure of evenness [Harvey,
    Ladner, Lovász, Tamir, "Semi-matchings for bipartite graphs and load balancing", 2003]. Evenness within the topic
    comes before evenness within the cluster.
    """
    leaders: list[int] = []
    led: list[dict[int, None]] = [{} for _ in loads.topic_leaders]

    def lead(partition: int, bit: int, change: int) -> None:
        loads.topic_leaders[bit] += change
        loads.total_leaders[bit] += change
        if change > 0:
            led[bit][partition] = None
        else:
            del led[bit][partition]

    for partition, held in enumerate(sets):
        leader = min(bits(held), key=lambda bit: (loads.topic_leaders[bit], loads.total_leaders[bit], bit))
        leaders.append(leader)
        lead(partition, leader, 1)
    finished: set[int] = set()
    while True:
        sources = [bit for bit in range(len(led)) if led[bit] and bit not in finished]
        if not sources:
            return leaders
        source = max(sources, key=lambda bit: (loads.topic_leaders[bit], loads.total_leaders[bit], -bit))
        chain = _find_relief_chain(source, sets, led, loads)
        if chain is None:
            finished.add(source)
            continue
        finished.clear()
        for partition, bit in chain:
            lead(partition, leaders[partition], -1)
            leaders[partition] = bit
            lead(partition, bit, 1)


def _find_relief_chain(
    source: int, sets: Sequence[int], led: Sequence[dict[int, None]], loads: _Loads
) -> list[tuple[int, int]] | None:
    """Return the shortest chain of (partition, new leader) that moves one leadership from `source` to a broker with
    fewer."""
    source_load = (loads.topic_leaders[source], loads.total_leaders[source])
    previous_of: dict[int, tuple[int, int]] = {}
    reached = 1 << source
    queue = [source]
    for bit in queue:
        if (loads.topic_leaders[bit] + 1, loads.total_leaders[bit] + 1) < source_load:
            chain = []
            while bit != source:
                previous, partition = previous_of[bit]
                chain.append((partition, bit))
                bit = previous
            return chain
        for partition in led[bit]:
            for other in bits(sets[partition] & ~reached):
                reached |= 1 << other
                previous_of[other] = (bit, partition)
                queue.append(other)
    return None


def _order_replicas(sets: Sequence[int], leaders: Sequence[int], width: int) -> list[list[int]]:
    """Return the brokers of each partition in order: its leader, then those that follow this leader least often."""
    follows = [[0] * width for _ in range(width)]
    seconds = [0] * width
    orders = []
    for held, leader in zip(sets, leaders, strict=True):
        follow_counts = follows[leader]
        others = sorted(bits(held & ~(1 << leader)), key=lambda bit: (follow_counts[bit], seconds[bit], bit))
        if others:
            follow_counts[others[0]] += 1
            seconds[others[0]] += 1
        orders.append([leader, *others])
    return orders
