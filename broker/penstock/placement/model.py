"""The inputs, outputs and errors of placement.

`place` and `plan` use them; topic administration, the controller and the operator create them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

MAX_BROKERS = 10_000
"""Maximum number of brokers: sets of brokers are integers with one bit per broker."""


MAX_DEPTH = 16
"""Maximum number of parts of a failure domain's path."""


class PlacementError(Exception):
    """The replicas cannot be placed; the message names the cause and the fix."""


class NoBrokersError(PlacementError):
    """No broker may host a replica."""


class TooFewBrokersError(PlacementError):
    """`topic` (None for a new one) needs `required` replicas, but only `usable` brokers may host one."""

    def __init__(self, topic: str | None, required: int, usable: int) -> None:
        what = "new partition" if topic is None else f'partition of topic "{topic}"'
        super().__init__(
            f"cannot place {required} replicas of a {what}: only {usable} broker(s) may host replicas;"
            f" add brokers, end a drain, or use a replication factor of at most {usable}"
        )
        self.topic = topic
        self.required = required
        self.usable = usable


class BadInputError(PlacementError):
    """The input is inconsistent: a broker listed twice, or a number below its minimum."""


@dataclass(frozen=True, slots=True)
class PlacementBroker:
    """A broker as placement sees it.

    `failure_domain` is the path above the broker, widest part first, such as ("zone-a", "node-7"); it may be empty, and
    paths may differ in length. An `excluded` broker (draining or gone) gets no replicas, and `plan_moves` empties it.
    """

    broker_id: int
    failure_domain: tuple[str, ...] = ()
    excluded: bool = False


class PartitionKey(NamedTuple):
    """A partition. `topic` identifies the topic for the caller, by name or ID."""

    topic: str
    partition: int


Replicas = Sequence[int]
"""Broker IDs of one partition, the preferred leader first."""

Assignments = Mapping[PartitionKey, Replicas]
"""The replicas of each partition, of any number of topics."""


@dataclass(frozen=True, slots=True)
class Move:
    """A partition whose replicas change; if `before` and `after` hold the same brokers, only their order changes."""

    key: PartitionKey
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def adds(self) -> frozenset[int]:
        """Brokers that must copy the partition."""
        return frozenset(self.after) - frozenset(self.before)

    @property
    def removes(self) -> frozenset[int]:
        """Brokers that give up the partition."""
        return frozenset(self.before) - frozenset(self.after)

    @property
    def moves_data(self) -> bool:
        """False if only the preferred leader changes or replicas are dropped."""
        return bool(self.adds)


def select_usable_brokers(brokers: Sequence[PlacementBroker]) -> list[PlacementBroker]:
    """Return the brokers that may host replicas, by ID.

    Raises `BadInputError` for a broker listed twice, for too many brokers or for too deep a domain; `NoBrokersError` if
    no broker is usable.
    """
    if len(brokers) > MAX_BROKERS:
        raise BadInputError(f"cannot place replicas: {len(brokers)} brokers exceed the limit of {MAX_BROKERS}")
    ordered = sorted(brokers, key=lambda broker: broker.broker_id)
    for one, other in pairwise(ordered):
        if one.broker_id == other.broker_id:
            raise BadInputError(f"cannot place replicas: broker {one.broker_id} is listed twice; list each broker once")
    for broker in ordered:
        if len(broker.failure_domain) > MAX_DEPTH:
            raise BadInputError(
                f"cannot place replicas: the failure domain of broker {broker.broker_id} has"
                f" {len(broker.failure_domain)} parts; use at most {MAX_DEPTH}"
            )
    usable = [broker for broker in ordered if not broker.excluded]
    if not usable:
        raise NoBrokersError(
            f"cannot place replicas: none of {len(brokers)} broker(s) may host replicas; start a broker or end a drain"
        )
    return usable


def check_partition(key: PartitionKey, replicas: Replicas) -> None:
    """Raise `BadInputError` if a partition has no replica or one broker twice."""
    if not replicas:
        raise BadInputError(f'partition {key.partition} of topic "{key.topic}" has no replicas; leave it out')
    if len(set(replicas)) < len(replicas):
        raise BadInputError(
            f'partition {key.partition} of topic "{key.topic}" lists a broker twice in {list(replicas)[:20]};'
            " list each broker once"
        )
