"""Where the replicas of a topic should be, with as few moves as possible. Used by `reconcile.topic`.

What is spread how is decided by `penstock.placement`; here the choice among what it allows is by load. Whole clusters
are balanced elsewhere: a topic is touched only where its replication factor is another, or where its replicas are not
spread over the failure domains as well as they could be.
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
    """The tree of those that may take replicas; None where none may."""
    try:
        return Domains(select_usable_brokers([as_placed(broker) for broker in brokers]))
    except PlacementError:
        return None


def as_placed(broker: ObservedBrokerState) -> PlacementBroker:
    path = tuple(part for part in broker.failure_domain.split("/") if part)
    return PlacementBroker(broker.broker_id, path, broker.is_draining)


def usable(brokers: Sequence[ObservedBrokerState]) -> int:
    """How many brokers may take replicas."""
    return sum(not broker.is_draining for broker in brokers)


def are_places_known(brokers: Sequence[ObservedBrokerState]) -> bool:
    """Whether it is known of all who may take replicas where they are, or of none of them.

    One that came just now, or is silent, has no failure domain yet, or its rack for one: beside two zones it would look
    like a third, and every partition would have to have a replica there for as long as that lasts.
    """
    return len({broker.failure_domain in ("", broker.rack) for broker in brokers if not broker.is_draining}) <= 1


def wanted_replicas(partition: ObservedPartition) -> tuple[int, ...]:
    """Those that it has or will have: what is under way counts as done."""
    return tuple(broker for broker in partition.replicas if broker not in partition.removing)


def present_replicas(partition: ObservedPartition) -> tuple[int, ...]:
    """Those that count now: what is yet to come does not."""
    return tuple(broker for broker in partition.replicas if broker not in partition.adding)


def factor_targets(
    partitions: Sequence[ObservedPartition], factor: int, domains: Domains, loads: Mapping[int, int], room: int
) -> Targets:
    """New replicas for the partitions that do not have, or get, `factor` of them; at most `room` at a time.

    Needs at least `factor` usable brokers.
    """
    assert factor <= len(domains.ids), "a replication factor that was checked before"
    wrong = [i for i, partition in enumerate(partitions) if len(wanted_replicas(partition)) != factor]
    return _chosen(partitions, wrong[: max(room, 0)], factor, domains, loads)


def spread_targets(
    partitions: Sequence[ObservedPartition],
    domains: Domains,
    brokers: Sequence[ObservedBrokerState],
    loads: Mapping[int, int],
    room: int,
) -> Targets:
    """New replicas for partitions that are spread worse than they could be over the failure domains.

    Only those that are at rest: nothing moves, every replica is in sync, on a broker that is there and not about to be
    emptied. Who is away for a while, or drains, is others' business.
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
    return not partition.adding and not partition.removing and set(partition.replicas) <= set(partition.isr)


def _chosen(
    partitions: Sequence[ObservedPartition],
    indexes: Sequence[int],
    factor: int,
    domains: Domains,
    loads: Mapping[int, int],
) -> Targets:
    of_topic = Counter(broker for partition in partitions for broker in wanted_replicas(partition))
    of_all = Counter(loads)
    targets: Targets = {}
    for index in indexes:
        before = wanted_replicas(partitions[index])
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
    """Keeps what the spread permits: who is in sync before who is not (nobody goes before those that stay are in sync,
    and one that is gone for good never is), the preferred leader first, the less loaded before the more; then adds the
    least loaded of those that are allowed."""

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
        assert open_to, "what is legal so far can be completed"
        chosen = min(open_to, key=lambda b: (b not in before, of_topic[b], of_all[b], b))
        held |= 1 << domains.bit_of[chosen]
        new.append(chosen)
    assert domains.legal(held, factor), "replicas are spread over the failure domains from the top down"
    return (*(broker for broker in before if broker in kept), *new)
