"""Where new partitions go: a new topic's, or those added to a topic.

Topic administration calls `place`. What exists is not moved; it only tells which brokers have less than the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from operator import itemgetter

from penstock.placement.domains import Domain, Domains, bits
from penstock.placement.model import (
    BadInputError,
    Cluster,
    PlacementBroker,
    TooFewBrokersError,
    check_partition,
    checked_brokers,
)


def place(
    brokers: Sequence[PlacementBroker],
    existing: Cluster,
    count: int,
    replication_factor: int,
    *,
    topic: str | None = None,
) -> list[list[int]]:
    """The replicas of `count` new partitions, the preferred leader first.

    `topic` names the topic that they are added to, if it is among `existing`. Each partition is spread over the
    failure domains; of a new topic each broker takes its fair share rounded down or up, and where it is open who takes
    more, those take more that have less of everything. Leaders are as even in the topic, then in the whole, as
    changing only new partitions can make them. Who comes second, and so leads when the leader is gone, is spread too.

    Raises `NoBrokersError`, `TooFewBrokersError` and `BadInputError`.
    """
    if count < 0:
        raise BadInputError(f"{count} partitions cannot be placed: ask for at least 0.")
    if replication_factor < 1:
        raise BadInputError(f"A replication factor of {replication_factor} is not possible: ask for at least 1.")
    usable = checked_brokers(brokers)
    if replication_factor > len(usable):
        raise TooFewBrokersError(topic, replication_factor, len(usable))
    domains = Domains(usable)
    loads = _Loads(domains, existing, topic)
    sets = _place_sets(domains, loads, count, replication_factor)
    leaders = _choose_leaders(sets, loads)
    for held in sets:
        assert domains.legal(held, replication_factor), "replicas are spread over the failure domains from the top down"
    placed = [[domains.ids[bit] for bit in order] for order in _with_followers(sets, leaders, len(usable))]
    assert all(len(set(replicas)) == replication_factor for replicas in placed), "never two replicas on one broker"
    return placed


class _Loads:
    """What each broker has, by bit: replicas and leaders of the topic and of the whole, and what it is due."""

    def __init__(self, domains: Domains, existing: Cluster, topic: str | None) -> None:
        width = len(domains.ids)
        self.topic = [0] * width
        self.whole = [0] * width
        self.topic_leaders = [0] * width
        self.whole_leaders = [0] * width
        self.topic_due = [Fraction(0)] * width
        self.whole_due = [Fraction(0)] * width
        all_factors: Counter[int] = Counter()
        topic_factors: Counter[int] = Counter()
        for key, replicas in existing.items():
            check_partition(key, replicas)
            mine = key.topic == topic
            factor = min(len(replicas), width)
            all_factors[factor] += 1
            topic_factors[factor] += mine
            for place, broker_id in enumerate(replicas):
                bit = domains.bit_of.get(broker_id)
                if bit is None:
                    continue
                self.whole[bit] += 1
                self.topic[bit] += mine
                if not place:
                    self.whole_leaders[bit] += 1
                    self.topic_leaders[bit] += mine
        for factor in all_factors:
            for bit, share in enumerate(domains.shares(factor)):
                self.topic_due[bit] += topic_factors[factor] * share
                self.whole_due[bit] += all_factors[factor] * share


# --- replicas


def _place_sets(domains: Domains, loads: _Loads, count: int, factor: int) -> list[int]:
    """The brokers of each new partition.

    They are dealt in rounds of as many partitions as there are brokers, each round in another order of siblings, so
    that the partitions of one broker have their other replicas on many brokers.
    """
    sets: list[int] = []
    shares = domains.shares(factor)
    width = len(domains.ids)
    dealt = sum(loads.whole)
    while len(sets) < count:
        size = min(width, count - len(sets))
        for bit, share in enumerate(shares):
            loads.topic_due[bit] += size * share
            loads.whole_due[bit] += size * share
        parts = [0] * width
        _split(domains.root, factor * size, size, loads, parts)
        order = _order(domains.root, dealt + len(sets))
        hands = [0] * size
        turn = 0
        for bit in order:
            for _ in range(parts[bit]):
                assert not hands[turn] >> bit & 1, "never two replicas of a partition on one broker"
                hands[turn] |= 1 << bit
                turn = (turn + 1) % size
            loads.topic[bit] += parts[bit]
            loads.whole[bit] += parts[bit]
        sets += hands
    return sets


def _split(domain: Domain, total: int, partitions: int, loads: _Loads, parts: list[int]) -> None:
    """Shares `total` replicas of so many new `partitions` out among the brokers of `domain`, into `parts`.

    Dealt one after the other in the order of the tree, they give each partition in each domain the average rounded
    down or up, which is legal as long as each domain's total is within the limits of what its parent holds.
    """
    if not domain.children:
        parts[domain.mask.bit_length() - 1] = total
        return
    quota, more = divmod(total, partitions)
    least, most = domain.limits(quota)
    low = [(partitions - more) * least_i for least_i in least]
    high = [(partitions - more) * most_i for most_i in most]
    if more:
        least, most = domain.limits(quota + 1)
        low = [a + more * b for a, b in zip(low, least, strict=True)]
        high = [a + more * b for a, b in zip(high, most, strict=True)]
    children = [_Child(child, loads, *limits) for child, *limits in zip(domain.children, low, high, strict=True)]
    left = total - sum(child.taken for child in children)
    for _ in range(left):
        min((child for child in children if child.taken < child.high), key=_Child.urgency).taken += 1
    for _ in range(-left):
        max((child for child in children if child.taken > child.low), key=_Child.surfeit).taken -= 1
    for child in children:
        _split(child.domain, child.taken, partitions, loads, parts)


class _Child:
    """One of the domains that share replicas: what it has, what it is due, what it takes."""

    def __init__(self, domain: Domain, loads: _Loads, low: int, high: int) -> None:
        inside = list(bits(domain.mask))
        self.domain = domain
        self.low = low
        self.high = high
        self.topic_due = sum((loads.topic_due[bit] for bit in inside), Fraction(0))
        self.topic = sum(loads.topic[bit] for bit in inside)
        whole_due = sum((loads.whole_due[bit] for bit in inside), Fraction(0))
        self.whole_ahead = float(sum(loads.whole[bit] for bit in inside) - whole_due)
        self.leaders = sum(loads.whole_leaders[bit] for bit in inside) / domain.capacity
        due = self.topic_due.numerator // self.topic_due.denominator
        self.taken = min(max(due - self.topic, low), high)

    def urgency(self) -> tuple[object, ...]:
        """Smaller takes the next replica: who is below its share of the topic rounded down, then up, then who is least
        over it; among these, who is least ahead of its share of everything; then who leads least; then the first."""
        return self._standing(self.taken, 1)

    def surfeit(self) -> tuple[object, ...]:
        """Larger gives one back: `urgency` after that."""
        return self._standing(self.taken - 1, -1)

    def _standing(self, taken: int, sign: int) -> tuple[object, ...]:
        has = self.topic + taken
        due = self.topic_due
        stage = 0 if has + 1 <= due else 1 if has < due else 2
        over = float(has - due) / self.domain.capacity if stage == 2 else 0.0
        whole = (self.whole_ahead + taken) / self.domain.capacity
        return stage, over, round(whole, 9), self.leaders, sign * (self.domain.mask & -self.domain.mask)


def _order(domain: Domain, number: int) -> list[int]:
    """The brokers of `domain`, each inner domain in one piece, siblings in an order that depends on `number`."""
    if not domain.children:
        return [domain.mask.bit_length() - 1]
    order: list[int] = []
    for key, child in sorted(((_hash(number, child.mask), child) for child in domain.children), key=itemgetter(0)):
        order += _order(child, key)
    return order


def _hash(number: int, mask: int) -> int:
    """64 bits that differ with each bit of either: multiply and shift, as in the finalizer of splitmix64."""
    mixed = number * 0x9E3779B97F4A7C15 + (mask & -mask).bit_length()
    for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        mixed = (mixed ^ (mixed >> 31)) * factor & 0xFFFFFFFFFFFFFFFF
    return mixed


# --- leaders


def _choose_leaders(sets: Sequence[int], loads: _Loads) -> list[int]:
    """The preferred leader of each new partition, by bit: an optimal semi-matching.

    No chain of changes makes it more even; then it is best by every measure of evenness at once [Harvey, Ladner,
    Lovász, Tamir, "Semi-matchings for bipartite graphs and load balancing", 2003]. Evenness in the topic counts
    before evenness in the whole.
    """
    leaders: list[int] = []
    led: list[dict[int, None]] = [{} for _ in loads.topic_leaders]

    def lead(partition: int, bit: int, change: int) -> None:
        loads.topic_leaders[bit] += change
        loads.whole_leaders[bit] += change
        if change > 0:
            led[bit][partition] = None
        else:
            del led[bit][partition]

    for partition, held in enumerate(sets):
        leader = min(bits(held), key=lambda bit: (loads.topic_leaders[bit], loads.whole_leaders[bit], bit))
        leaders.append(leader)
        lead(partition, leader, 1)
    settled: set[int] = set()
    while True:
        sources = [bit for bit in range(len(led)) if led[bit] and bit not in settled]
        if not sources:
            return leaders
        source = max(sources, key=lambda bit: (loads.topic_leaders[bit], loads.whole_leaders[bit], -bit))
        chain = _relief(source, sets, led, loads)
        if chain is None:
            settled.add(source)
            continue
        settled.clear()
        for partition, bit in chain:
            lead(partition, leaders[partition], -1)
            leaders[partition] = bit
            lead(partition, bit, 1)


def _relief(
    source: int, sets: Sequence[int], led: Sequence[dict[int, None]], loads: _Loads
) -> list[tuple[int, int]] | None:
    """The shortest chain of (partition, its new leader) that takes one leadership from `source` to who leads less."""
    here = (loads.topic_leaders[source], loads.whole_leaders[source])
    came: dict[int, tuple[int, int]] = {}
    reached = 1 << source
    queue = [source]
    for bit in queue:
        if (loads.topic_leaders[bit] + 1, loads.whole_leaders[bit] + 1) < here:
            chain = []
            while bit != source:
                previous, partition = came[bit]
                chain.append((partition, bit))
                bit = previous
            return chain
        for partition in led[bit]:
            for other in bits(sets[partition] & ~reached):
                reached |= 1 << other
                came[other] = (bit, partition)
                queue.append(other)
    return None


def _with_followers(sets: Sequence[int], leaders: Sequence[int], width: int) -> list[list[int]]:
    """The brokers of each partition in order: its leader, then the others, those first that seldom follow it."""
    follows = [[0] * width for _ in range(width)]
    seconds = [0] * width
    orders = []
    for held, leader in zip(sets, leaders, strict=True):
        mine = follows[leader]
        others = sorted(bits(held & ~(1 << leader)), key=lambda bit: (mine[bit], seconds[bit], bit))
        if others:
            mine[others[0]] += 1
            seconds[others[0]] += 1
        orders.append([leader, *others])
    return orders
