"""Reference implementation of the placement rules, and strategies that draw brokers and clusters."""

from __future__ import annotations

from collections import Counter, defaultdict
from fractions import Fraction
from itertools import combinations
from math import ceil, floor

import pytest
from hypothesis import strategies as st

from penstock.placement.domains import Domains
from penstock.placement.model import PartitionKey, PlacementBroker


class Spec:
    """Reference implementation of the placement rules, slow and simple."""

    Key = PartitionKey

    @staticmethod
    def usable(brokers):
        return {broker.broker_id: broker for broker in brokers if not broker.excluded}

    @classmethod
    def is_spread(cls, brokers, replicas):
        """Return whether sibling domains differ by at most one replica at each level, unless the lesser is full."""
        members = [(broker.failure_domain, broker.broker_id) for broker in cls.usable(brokers).values()]
        return set(replicas) <= set(cls.usable(brokers)) and cls._is_spread(members, set(replicas))

    @classmethod
    def _is_spread(cls, members, replicas):
        siblings = defaultdict(list)
        for path, broker in members:
            siblings[("domain", path[0]) if path else ("broker", broker)].append((path[1:], broker))
        sizes = [(sum(broker in replicas for _, broker in inside), len(inside)) for inside in siblings.values()]
        most = max(count for count, _ in sizes)
        if any(count < most - 1 and count < size for count, size in sizes):
            return False
        return all(kind == "broker" or cls._is_spread(inside, replicas) for (kind, _), inside in siblings.items())

    @classmethod
    def is_even(cls, brokers, counts):
        values = [counts[broker] for broker in cls.usable(brokers)]
        return max(values) - min(values) <= 1

    @classmethod
    def is_fair(cls, brokers, counts, factors):
        """Return whether each broker has its fair share, rounded down or up, of partitions with these factors."""
        usable = sorted(cls.usable(brokers).values(), key=lambda broker: broker.broker_id)
        due = [Fraction(0)] * len(usable)
        for factor, partitions in Counter(factors).items():
            due = [a + partitions * b for a, b in zip(due, Domains(usable).shares(factor), strict=True)]
        return all(floor(a) <= counts[b.broker_id] <= ceil(a) for a, b in zip(due, usable, strict=True))

    @staticmethod
    def counts(cluster, topic=None):
        """Return (replicas, leaders) by broker, of one topic or of all."""
        chosen = [replicas for key, replicas in cluster.items() if topic in (None, key.topic)]
        return Counter(broker for replicas in chosen for broker in replicas), Counter(r[0] for r in chosen)

    @staticmethod
    def topics(cluster):
        return sorted({key.topic for key in cluster})

    @staticmethod
    def after(cluster, moves):
        return {**cluster, **{move.key: move.after for move in moves}}

    @staticmethod
    def copied(moves):
        return sum(len(move.adds) for move in moves)

    @classmethod
    def fewest_copied(cls, brokers, cluster, factors, good):
        """Return the fewest replicas to copy to a cluster of spread partitions for which `good` is true, for each topic
        and as a whole, by exhaustive search. `good(counts, factors)` gets replicas by broker."""
        ids = sorted(cls.usable(brokers))
        legal = {
            factor: [s for s in combinations(ids, factor) if cls.is_spread(brokers, s)]
            for factor in set(factors.values())
        }

        def counter(vector):
            return Counter(dict(zip(ids, vector, strict=True)))

        wholes = {(0,) * len(ids): 0}
        for topic in cls.topics(cluster):
            rows = {(0,) * len(ids): 0}
            keys = [key for key in cluster if key.topic == topic]
            for key in keys:
                options = [([int(b in s) for b in ids], len(set(s) - set(cluster[key]))) for s in legal[factors[topic]]]
                grown = {}
                for vector, cost in rows.items():
                    for held, adds in options:
                        new = tuple(map(int.__add__, vector, held))
                        grown[new] = min(grown.get(new, 10**9), cost + adds)
                rows = grown
            rows = {v: c for v, c in rows.items() if good(counter(v), [factors[topic]] * len(keys))}
            grown = {}
            for vector, cost in wholes.items():
                for row, adds in rows.items():
                    new = tuple(map(int.__add__, vector, row))
                    grown[new] = min(grown.get(new, 10**9), cost + adds)
            wholes = grown
        whole_factors = [factors[key.topic] for key in cluster]
        return min(cost for vector, cost in wholes.items() if good(counter(vector), whole_factors))

    # --- strategies

    @staticmethod
    def flat(count, excluded=()):
        return [PlacementBroker(i, (), i in excluded) for i in range(count)]

    @staticmethod
    def zones(*sizes, nodes=1):
        """Return brokers in zones of these sizes, with `nodes` nodes per zone."""
        result = []
        for zone, size in enumerate(sizes):
            result += [PlacementBroker(len(result) + i, (f"z{zone}", f"n{zone}.{i % nodes}")) for i in range(size)]
        return result

    @classmethod
    def equal_shapes(cls, most=9):
        """Draw brokers whose domains have equal shape."""
        shapes = [(z, n, b) for z in range(1, 5) for n in range(1, 4) for b in range(1, 4) if z * n * b <= most]
        return st.sampled_from(shapes).map(
            lambda shape: [
                PlacementBroker(100 + i, (f"z{i % shape[0]}", f"n{i // shape[0] % shape[1]}"))
                for i in range(shape[0] * shape[1] * shape[2])
            ]
        )

    @staticmethod
    def any_shapes(most=9, excluded=True):
        """Draw brokers in domains of any shape and depth; some may be excluded, never all."""
        path = st.lists(st.sampled_from("abc"), max_size=2).map(tuple)
        broker = st.tuples(path, st.integers(0, 4).map(lambda n: excluded and n == 0))
        return (
            st.lists(broker, min_size=1, max_size=most)
            .map(lambda drawn: [PlacementBroker(i, path, out) for i, (path, out) in enumerate(drawn)])
            .filter(lambda brokers: not all(broker.excluded for broker in brokers))
        )

    @classmethod
    def clusters(cls, brokers, topics=3, partitions=6, gone=True):
        """Draw arbitrary replicas; no partition has a broker twice."""
        ids = [broker.broker_id for broker in brokers] + ([7777] if gone else [])
        most = min(4, len(cls.usable(brokers)))
        replicas = st.lists(st.sampled_from(ids), min_size=1, max_size=most, unique=True).map(tuple)
        topic = st.lists(replicas, min_size=1, max_size=partitions)
        return st.lists(topic, min_size=1, max_size=topics).map(
            lambda drawn: {
                PartitionKey(f"t{t}", i): replicas for t, some in enumerate(drawn) for i, replicas in enumerate(some)
            }
        )

    @classmethod
    def factors(cls, cluster, requested=None):
        result = {}
        for key, replicas in cluster.items():
            result[key.topic] = max(result.get(key.topic, 0), len(replicas))
        return {**result, **(requested or {})}


@pytest.fixture(scope="session")
def spec():
    return Spec
