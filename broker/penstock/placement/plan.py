"""Plans the fewest moves from the current replicas to legal and balanced ones.

Called by the controller when brokers join (rebalancing), drain or are gone and when a topic's replication factor
changes, and by the operator to show the cost of a change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import partial

from penstock.placement import flow
from penstock.placement.domains import Domains, bits
from penstock.placement.model import (
    Assignments,
    BadInputError,
    Move,
    PartitionKey,
    PlacementBroker,
    TooFewBrokersError,
    check_partition,
    select_usable_brokers,
)


def plan_moves(
    brokers: Sequence[PlacementBroker], existing: Assignments, replication_factors: Mapping[str, int] | None = None
) -> list[Move]:
    """Return the partitions whose replicas should change, in key order; empty if everything is balanced.

    `replication_factors` is by topic; other topics keep theirs (the largest among their partitions). Brokers in
    `existing` that are not in `brokers` are gone and treated as excluded.

    Afterwards each partition is legally spread over the domains (see `domains`), no excluded broker holds a replica,
    and each broker holds its fair share (`Domains.shares`), rounded down or up, of each topic and in total. The result
    is one with the fewest copied replicas. Then preferred leaders are balanced within topics and the cluster with as
    few changes as possible, without moving data.

    Raises `NoBrokersError`, `TooFewBrokersError` (the rest can still be planned without that topic) and
    `BadInputError`.
    """
    usable = select_usable_brokers(brokers)
    keys = sorted(existing)
    for key in keys:
        check_partition(key, existing[key])
    if not keys:
        return []
    cluster = _TopicRows(keys, _factors(keys, existing, replication_factors or {}, len(usable)))
    domains = Domains(usable)
    sets = _balance_replicas(cluster, domains, [existing[key] for key in keys])
    leaders = _balance_leaders(cluster, domains, sets, [existing[key] for key in keys])
    moves = []
    for key, held, leader in zip(keys, sets, leaders, strict=True):
        before = tuple(existing[key])
        after = _ordered(before, [domains.ids[bit] for bit in bits(held)], domains.ids[leader])
        assert len(set(after)) == len(after), "never two replicas of a partition on one broker"
        if after != before:
            moves.append(Move(key, before, after))
    return moves


def plan_feasible_moves(
    brokers: Sequence[PlacementBroker], existing: Assignments, replication_factors: Mapping[str, int] | None = None
) -> tuple[list[Move], list[str]]:
    """Plan without the topics that need more replicas than there are brokers; return (moves, those topics).

    Raises `NoBrokersError` and `BadInputError`.
    """
    left = dict(existing)
    refused: list[str] = []
    while True:
        try:
            return plan_moves(brokers, left, replication_factors), refused
        except TooFewBrokersError as e:
            if e.topic is None:
                raise
            refused.append(e.topic)
            left = {key: replicas for key, replicas in left.items() if key.topic != e.topic}


class _TopicRows:
    """Partitions by number in key order, and the rows in which they are balanced.

    A row is a topic, except that topics with one partition share a row with those of the same replication factor: a
    broker either holds such a partition or not, so a bound per topic adds nothing.
    """

    def __init__(self, keys: Sequence[PartitionKey], factors: Mapping[str, int]) -> None:
        self.factor_of = [factors[key.topic] for key in keys]
        sizes = Counter(key.topic for key in keys)
        """Partitions of each of the row's topics."""
        numbers: dict[str | int, int] = {}
        self.row_of = []
        for key, factor in zip(keys, self.factor_of, strict=True):
            self.row_of.append(numbers.setdefault(key.topic if sizes[key.topic] > 1 else factor, len(numbers)))
        rows = list(numbers)
        self.factors = [row if isinstance(row, int) else factors[row] for row in rows]
        in_row = Counter(self.row_of)
        self.sizes = [1 if isinstance(row, int) else in_row[number] for number, row in enumerate(rows)]
        """Partitions of each of the row's topics."""
        self.topics = [in_row[number] // size for number, size in enumerate(self.sizes)]
        """Number of topics in each row."""


def _factors(
    keys: Sequence[PartitionKey], existing: Assignments, replication_factors: Mapping[str, int], usable: int
) -> dict[str, int]:
    """Return the replication factor of each topic, in key order."""
    factors: dict[str, int] = {}
    for key in keys:
        factors[key.topic] = max(factors.get(key.topic, 0), len(existing[key]))
    for topic in factors:
        factor = factors[topic] = replication_factors.get(topic, factors[topic])
        if factor < 1:
            raise BadInputError(f'invalid replication factor {factor} of topic "{topic}": it must be at least 1')
        if factor > usable:
            raise TooFewBrokersError(topic, factor, usable)
    return factors


def _balance_replicas(cluster: _TopicRows, domains: Domains, existing: Sequence[Sequence[int]]) -> list[int]:
    """Return the brokers of each partition."""
    held, before = [], []
    for factor, replicas in zip(cluster.factor_of, existing, strict=True):
        kept = 0
        for broker_id in replicas:
            bit = domains.bit_of.get(broker_id)
            if bit is not None and domains.allowed(kept, factor) >> bit & 1:
                kept |= 1 << bit
        held.append(kept)
        before.append(domains.mask_of(replicas))
    due = [Fraction(0)] * len(domains.ids)
    shapes = Counter(zip(cluster.sizes, cluster.factors, cluster.topics, strict=True))
    by_shape = {}
    for (size, factor, topics), rows in shapes.items():
        fair = [size * share for share in domains.shares(factor)]
        by_shape[size, factor, topics] = _rounded(fair, topics)
        due = [total + rows * topics * part for total, part in zip(due, fair, strict=True)]
    row_bounds = [by_shape[shape] for shape in zip(cluster.sizes, cluster.factors, cluster.topics, strict=True)]
    task = flow.FlowTask(
        brokers=len(domains.ids),
        row_of=cluster.row_of,
        required=cluster.factor_of,
        held=held,
        before=before,
        allowed=lambda partition, mask: domains.allowed(mask, cluster.factor_of[partition]),
        row_bounds=row_bounds,
        bounds=_rounded(due),
    )
    is_balanced = flow.solve(task)
    assert is_balanced, "fair shares of legal sets can always be rounded to legal sets"
    for factor, mask in zip(cluster.factor_of, held, strict=True):
        assert domains.legal(mask, factor), "replicas are spread over the failure domains from the top down"
    return held


def _balance_leaders(
    cluster: _TopicRows, domains: Domains, sets: Sequence[int], existing: Sequence[Sequence[int]]
) -> list[int]:
    """Return the preferred leader of each partition, by bit.

    The first attempt gives each broker the same number of leaders, within topics and in total. If the replicas do not
    permit that (domains of different shapes, topics with different replication factors), the bounds are relaxed: a
    broker's leaders of a topic, then also in total, are proportional to its replicas. The last bounds can always be
    met.
    """
    width = len(domains.ids)
    held_by_row = [[0] * width for _ in cluster.sizes]
    for row, mask in zip(cluster.row_of, sets, strict=True):
        counts = held_by_row[row]
        for bit in bits(mask):
            counts[bit] += 1
    even = _rounded([Fraction(len(sets), width)] * width)
    even_rows, rows_by_held = [], []
    due = [Fraction(0)] * width
    for size, factor, topics, counts in zip(cluster.sizes, cluster.factors, cluster.topics, held_by_row, strict=True):
        fair = [Fraction(count, factor) for count in counts]
        even_rows.append(_rounded([Fraction(size, width)] * width, topics))
        rows_by_held.append(_rounded(fair) if size > 1 else even_rows[-1])
        due = [total + part for total, part in zip(due, fair, strict=True)]
    by_held = _rounded(due)
    before = [_successor(domains, mask, replicas) for mask, replicas in zip(sets, existing, strict=True)]
    for row_bounds, bounds in ((even_rows, even), (rows_by_held, even), (rows_by_held, by_held)):
        task = flow.FlowTask(
            brokers=width,
            row_of=cluster.row_of,
            required=[1] * len(sets),
            held=(held := list(before)),
            before=before,
            allowed=partial(_one_of, sets),
            row_bounds=row_bounds,
            bounds=bounds,
        )
        if flow.solve(task):
            return [mask.bit_length() - 1 for mask in held]
    raise AssertionError("leaders in proportion to replicas are always possible")


def _successor(domains: Domains, held: int, replicas: Sequence[int]) -> int:
    """Return the bit of the first of `replicas` that stays: it would become leader. 0 if none stays."""
    for broker_id in replicas:
        bit = domains.bit_of.get(broker_id)
        if bit is not None and held >> bit & 1:
            return 1 << bit
    return 0


def _one_of(sets: Sequence[int], partition: int, held: int) -> int:
    return 0 if held else sets[partition]


def _rounded(fair: Sequence[Fraction], topics: int = 1) -> flow.Bounds:
    """Return bounds for each fair share rounded down and up, times `topics`."""
    least = [share.numerator // share.denominator * topics for share in fair]
    most = [-(-share.numerator // share.denominator) * topics for share in fair]
    return flow.Bounds(least, most)


def _ordered(before: Sequence[int], after: Sequence[int], leader: int) -> tuple[int, ...]:
    """Return `after` with its leader first, then the remaining old replicas in their order, then the new ones."""
    kept = [broker for broker in before if broker in after and broker != leader]
    new = [broker for broker in after if broker not in before and broker != leader]
    return (leader, *kept, *new)
