"""The fewest moves from the replicas there are to replicas that are legal and balanced.

The controller calls `plan` when brokers join (rebalance), drain or are gone, and when a topic's replication factor
changes; the operator, to show what a change would cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import partial

from penstock.placement import flow
from penstock.placement.domains import Domains, bits
from penstock.placement.model import (
    BadInputError,
    Cluster,
    Move,
    PartitionKey,
    PlacementBroker,
    TooFewBrokersError,
    check_partition,
    checked_brokers,
)


def plan(brokers: Sequence[PlacementBroker], existing: Cluster, wanted: Mapping[str, int] | None = None) -> list[Move]:
    """The partitions whose replicas should change, in order of their keys; nothing where nothing is wrong.

    `wanted` gives replication factors by topic; a topic that it does not name keeps its own (the largest among its
    partitions). Brokers in `existing` that are not in `brokers` are gone: they are treated as excluded ones.

    Afterwards each partition is spread over the domains as `domains` says, no excluded broker holds anything, and each
    broker holds its fair share (`Domains.shares`), rounded down or up, of each topic and of all. Among all outcomes of
    which this is true, this is one with the fewest replicas copied. Then preferred leaders are balanced over
    topics and the whole by changing as few of them as possible, without moving data.

    Raises `NoBrokersError`, `TooFewBrokersError` (leave that topic out, and the rest can still be planned) and
    `BadInputError`.
    """
    usable = checked_brokers(brokers)
    keys = sorted(existing)
    for key in keys:
        check_partition(key, existing[key])
    if not keys:
        return []
    cluster = _Topics(keys, _factors(keys, existing, wanted or {}, len(usable)))
    domains = Domains(usable)
    sets = _settle_replicas(cluster, domains, [existing[key] for key in keys])
    leaders = _settle_leaders(cluster, domains, sets, [existing[key] for key in keys])
    moves = []
    for key, held, leader in zip(keys, sets, leaders, strict=True):
        before = tuple(existing[key])
        after = _ordered(before, [domains.ids[bit] for bit in bits(held)], domains.ids[leader])
        assert len(set(after)) == len(after), "never two replicas of a partition on one broker"
        if after != before:
            moves.append(Move(key, before, after))
    return moves


def plan_what_can_be(
    brokers: Sequence[PlacementBroker], existing: Cluster, wanted: Mapping[str, int] | None = None
) -> tuple[list[Move], list[str]]:
    """`plan` without the topics that want more replicas than there are brokers for; those are named beside the moves.

    Raises `NoBrokersError` and `BadInputError`.
    """
    left = dict(existing)
    refused: list[str] = []
    while True:
        try:
            return plan(brokers, left, wanted), refused
        except TooFewBrokersError as e:
            if e.topic is None:
                raise
            refused.append(e.topic)
            left = {key: replicas for key, replicas in left.items() if key.topic != e.topic}


class _Topics:
    """Partitions by number in the order of their keys, and the rows that they are balanced in.

    A row is a topic, except that topics of one partition share a row with those of the same factor: a broker holds such
    a partition or not, and a topic's bounds say nothing more.
    """

    def __init__(self, keys: Sequence[PartitionKey], factors: Mapping[str, int]) -> None:
        self.factor_of = [factors[key.topic] for key in keys]
        sizes = Counter(key.topic for key in keys)
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
        """Topics in each row."""


def _factors(keys: Sequence[PartitionKey], existing: Cluster, wanted: Mapping[str, int], usable: int) -> dict[str, int]:
    """The replication factor of each topic, topics in order."""
    factors: dict[str, int] = {}
    for key in keys:
        factors[key.topic] = max(factors.get(key.topic, 0), len(existing[key]))
    for topic in factors:
        factor = factors[topic] = wanted.get(topic, factors[topic])
        if factor < 1:
            raise BadInputError(f"Topic {topic!r} cannot have a replication factor of {factor}: ask for at least 1.")
        if factor > usable:
            raise TooFewBrokersError(topic, factor, usable)
    return factors


def _settle_replicas(cluster: _Topics, domains: Domains, existing: Sequence[Sequence[int]]) -> list[int]:
    """The brokers of each partition."""
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
        wanted=cluster.factor_of,
        held=held,
        before=before,
        allowed=lambda partition, mask: domains.allowed(mask, cluster.factor_of[partition]),
        row_bounds=row_bounds,
        bounds=_rounded(due),
    )
    settled = flow.settle(task)
    assert settled, "fair shares of legal sets can always be rounded to legal sets"
    for factor, mask in zip(cluster.factor_of, held, strict=True):
        assert domains.legal(mask, factor), "replicas are spread over the failure domains from the top down"
    return held


def _settle_leaders(
    cluster: _Topics, domains: Domains, sets: Sequence[int], existing: Sequence[Sequence[int]]
) -> list[int]:
    """The preferred leader of each partition, by bit.

    First with the same number for each broker, in topics and in the whole; where the replicas do not permit that
    (domains of different shapes, topics with different factors), with less: what a broker leads of a topic, then also
    of the whole, goes by what it holds. The last can always be reached.
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
            wanted=[1] * len(sets),
            held=(held := list(before)),
            before=before,
            allowed=partial(_one_of, sets),
            row_bounds=row_bounds,
            bounds=bounds,
        )
        if flow.settle(task):
            return [mask.bit_length() - 1 for mask in held]
    raise AssertionError("leaders in proportion to replicas can always be reached")


def _successor(domains: Domains, held: int, replicas: Sequence[int]) -> int:
    """The first of `replicas` that stays, as a bit: it would lead anyway. 0 where none does."""
    for broker_id in replicas:
        bit = domains.bit_of.get(broker_id)
        if bit is not None and held >> bit & 1:
            return 1 << bit
    return 0


def _one_of(sets: Sequence[int], partition: int, held: int) -> int:
    return 0 if held else sets[partition]


def _rounded(fair: Sequence[Fraction], topics: int = 1) -> flow.Bounds:
    """Each fair share rounded down and up, that many `topics` of them."""
    least = [share.numerator // share.denominator * topics for share in fair]
    most = [-(-share.numerator // share.denominator) * topics for share in fair]
    return flow.Bounds(least, most)


def _ordered(before: Sequence[int], after: Sequence[int], leader: int) -> tuple[int, ...]:
    """`after` with its leader first, then what stays in its old order, then what is new."""
    kept = [broker for broker in before if broker in after and broker != leader]
    new = [broker for broker in after if broker not in before and broker != leader]
    return (leader, *kept, *new)
