"""Replica placement of a topic with minimal moves. Used by `reconcile.topic`.

`penstock.placement` decides which placements are legal; this module chooses among them by load. It moves replicas only
to change the replication factor or to improve the spread over failure domains; balancing is done per cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache

from penstock.placement.domains import Domains, bits
from penstock.placement.model import PlacementBroker, PlacementError, select_usable_brokers
from penstock_operator.ports.brokers import ObservedBrokerState, ObservedPartition

Targets = dict[int, tuple[int, ...]]


@lru_cache(maxsize=64)
def domains_of(brokers: tuple[ObservedBrokerState, ...]) -> Domains | None:
    """Return the failure domains of brokers that can receive replicas; None if there are none."""
    try:
        return Domains(select_usable_brokers([as_placed(broker) for broker in brokers]))
    except PlacementError:
        return None


def as_placed(broker: ObservedBrokerState) -> PlacementBroker:
    """Convert a broker for the placement."""
    path = tuple(part for part in broker.failure_domain.split("/") if part)
    return PlacementBroker(broker.broker_id, path, broker.is_draining)


def usable(brokers: Sequence[ObservedBrokerState]) -> int:
    """Return the number of brokers that can receive replicas."""
    return sum(not broker.is_draining for broker in brokers)


def are_places_known(brokers: Sequence[ObservedBrokerState]) -> bool:
    """Whether the failure domains of all usable brokers are known, or of none.

    A broker that is new or does not answer has no failure domain, or only its rack. Next to two known zones it would
    look like a third one, and every partition would get a replica there.
    """
    return len({broker.failure_domain in ("", broker.rack) for broker in brokers if not broker.is_draining}) <= 1


def replicas_after_move(partition: ObservedPartition) -> tuple[int, ...]:
    """Return the replicas after the ongoing reassignment."""
    return tuple(broker for broker in partition.replicas if broker not in partition.removing)


def present_replicas(partition: ObservedPartition) -> tuple[int, ...]:
    """Return the replicas without those that are being added."""
    return tuple(broker for broker in partition.replicas if broker not in partition.adding)


def factor_targets(
    partitions: Sequence[ObservedPartition], factor: int, domains: Domains, loads: Mapping[int, int], room: int
) -> Targets:
    """Return new replicas for up to `room` partitions whose replication factor is not `factor`.

    Requires at least `factor` usable brokers.
    """
    assert factor <= len(domains.ids), "the caller checks the number of brokers"
    wrong = [i for i, partition in enumerate(partitions) if len(replicas_after_move(partition)) != factor]
    return _chosen(partitions, wrong[: max(room, 0)], factor, domains, loads)


def spread_targets(
    partitions: Sequence[ObservedPartition],
    domains: Domains,
    brokers: Sequence[ObservedBrokerState],
    loads: Mapping[int, int],
    room: int,
) -> Targets:
    """Return new replicas for up to `room` partitions that are not optimally spread over the failure domains.

    Skips partitions that are moving or have replicas that are out of sync or on missing or draining brokers.
    """
    known = {broker.broker_id for broker in brokers if not broker.is_draining}
    wrong = [
        i
        for i, partition in enumerate(partitions)
        if is_at_rest(partition)
        and known.issuperset(partition.replicas)
        and not domains.legal(domains.mask_of(partition.replicas), len(partition.replicas))
    ]
    targets: Targets = {}
    for factor in sorted({len(partitions[i].replicas) for i in wrong}):
        of_factor = [i for i in wrong if len(partitions[i].replicas) == factor]
        targets |= _chosen(partitions, of_factor[: max(room - len(targets), 0)], factor, domains, loads)
    return targets


def is_at_rest(partition: ObservedPartition) -> bool:
    """Whether no replica moves and all are in sync."""
    return not partition.adding and not partition.removing and set(partition.replicas) <= set(partition.isr)


def _chosen(
    partitions: Sequence[ObservedPartition],
    indexes: Sequence[int],
    factor: int,
    domains: Domains,
    loads: Mapping[int, int],
) -> Targets:
    of_topic = Counter(broker for partition in partitions for broker in replicas_after_move(partition))
    of_all = Counter(loads)
    targets: Targets = {}
    for index in indexes:
        before = replicas_after_move(partitions[index])
        after = _replicas(partitions[index], before, factor, domains, of_topic, of_all)
        for broker, change in [(b, 1) for b in after if b not in before] + [(b, -1) for b in before if b not in after]:
            of_topic[broker] += change
            of_all[broker] += change
        targets[index] = after
    return targets


def _replicas(
    partition: ObservedPartition,
    before: Sequence[int],
    factor: int,
    domains: Domains,
    of_topic: Counter[int],
    of_all: Counter[int],
) -> tuple[int, ...]:
    """Return new replicas: keep those that the spread permits, in-sync ones first (a reassignment completes only when
    all kept replicas are in sync), then the preferred leader, then the less loaded brokers; add the least loaded
    brokers."""

    def worth_keeping(broker: int) -> tuple[bool, bool, int, int]:
        return broker not in partition.isr, broker != before[0], of_topic[broker], of_all[broker]

    held = 0
    kept = []
    for broker in sorted(before, key=worth_keeping):
        bit = domains.bit_of.get(broker)
        if bit is not None and domains.allowed(held, factor) >> bit & 1:
            held |= 1 << bit
            kept.append(broker)
    new: list[int] = []
    while len(kept) + len(new) < factor:
        open_to = [domains.ids[bit] for bit in bits(domains.allowed(held, factor))]
        assert open_to, "a legal partial placement can be completed"
        chosen = min(open_to, key=lambda b: (b not in before, of_topic[b], of_all[b], b))
        held |= 1 << domains.bit_of[chosen]
        new.append(chosen)
    assert domains.legal(held, factor), "replicas are spread over the failure domains from the top down"
    return (*(broker for broker in before if broker in kept), *new)
