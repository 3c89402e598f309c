"""What goes into placement and what comes out, and what is said when it cannot be done.

`place` and `plan` take and return these; topic administration, the controller and the operator build them from what
they know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

MAX_BROKERS = 10_000
"""A bound on the input: sets of brokers are kept as integers with one bit a broker."""


MAX_DEPTH = 16
"""Parts of a failure domain's path."""


class PlacementError(Exception):
    """Replicas cannot be placed as asked. The message names the thing and the cure."""


class NoBrokersError(PlacementError):
    """No broker may take a replica."""


class TooFewBrokersError(PlacementError):
    """`topic` (None for one that is being created) wants `wanted` replicas, and only `usable` brokers may hold one."""

    def __init__(self, topic: str | None, wanted: int, usable: int) -> None:
        what = "A new partition" if topic is None else f"Topic {topic!r}"
        super().__init__(
            f"{what} wants {wanted} replicas on different brokers, but only {usable} broker(s) may take replicas:"
            f" add brokers, end a drain, or ask for a replication factor of at most {usable}."
        )
        self.topic = topic
        self.wanted = wanted
        self.usable = usable


class BadInputError(PlacementError):
    """The input contradicts itself: a broker twice, a number below its minimum."""


@dataclass(frozen=True, slots=True)
class PlacementBroker:
    """One broker as placement sees it.

    `failure_domain` is the path above the broker, widest part first, such as ("zone-a", "node-7"); it may be empty, and
    paths may differ in length. An `excluded` broker (draining, or gone) takes nothing new, and `plan` empties it.
    """

    broker_id: int
    failure_domain: tuple[str, ...] = ()
    excluded: bool = False


class PartitionKey(NamedTuple):
    """A partition. `topic` is whatever identifies a topic to the caller, its name or its id."""

    topic: str
    partition: int


Replicas = Sequence[int]
"""Broker ids of one partition, the preferred leader first."""

Cluster = Mapping[PartitionKey, Replicas]
"""The replicas of each partition, of any number of topics."""


@dataclass(frozen=True, slots=True)
class Move:
    """A partition whose replicas change, or, where `before` and `after` hold the same brokers, only their order."""

    key: PartitionKey
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def adds(self) -> frozenset[int]:
        """Brokers that have to copy the partition."""
        return frozenset(self.after) - frozenset(self.before)

    @property
    def removes(self) -> frozenset[int]:
        """Brokers that give the partition up."""
        return frozenset(self.before) - frozenset(self.after)

    @property
    def moves_data(self) -> bool:
        """False where nothing but the preferred leader (or a dropped replica) changes."""
        return bool(self.adds)


def checked_brokers(brokers: Sequence[PlacementBroker]) -> list[PlacementBroker]:
    """The brokers that may take replicas, by id.

    Raises `BadInputError` for a broker named twice for too many or too deep a
    domain, `NoBrokersError` where none is usable.
    """
    if len(brokers) > MAX_BROKERS:
        raise BadInputError(f"{len(brokers)} brokers are more than the {MAX_BROKERS} that placement takes.")
    ordered = sorted(brokers, key=lambda broker: broker.broker_id)
    for one, other in pairwise(ordered):
        if one.broker_id == other.broker_id:
            raise BadInputError(f"Broker {one.broker_id} is listed twice: name each broker once.")
    for broker in ordered:
        if len(broker.failure_domain) > MAX_DEPTH:
            raise BadInputError(
                f"Broker {broker.broker_id} has a failure domain of {len(broker.failure_domain)} parts: {MAX_DEPTH} is"
                " the most."
            )
    usable = [broker for broker in ordered if not broker.excluded]
    if not usable:
        raise NoBrokersError(
            f"None of {len(brokers)} broker(s) may take replicas: start a broker, or end the drain of one."
        )
    return usable


def check_partition(key: PartitionKey, replicas: Replicas) -> None:
    """Raises `BadInputError` where a partition has no replica or one broker twice."""
    if not replicas:
        raise BadInputError(f"Partition {key.topic!r}-{key.partition} has no replicas: leave it out.")
    if len(set(replicas)) < len(replicas):
        raise BadInputError(
            f"Partition {key.topic!r}-{key.partition} has a broker twice in {list(replicas)[:20]}: name each once."
        )
