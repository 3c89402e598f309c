"""Partition assignors of consumer groups. Pure functions of members and topics, called by the group's leader.

`RangeAssignor` and `RoundRobinAssignor` give the same result as the Java client's. `CooperativeStickyAssignor` keeps
assignments as far as balance allows, and moves a partition in two rebalances, so that other members keep reading
(KIP-429).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.client.types import TopicPartition

Assignment = dict[str, list[TopicPartition]]


@dataclass(frozen=True, slots=True)
class AssignorMember:
    """A member's subscription, and the partitions it owned in `generation` (-1: unknown)."""

    member_id: str
    topics: frozenset[str]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1
    instance_id: str | None = None

    @property
    def rank(self) -> tuple[bool, str]:
        """Return the sort key: static members first, by instance id, so that restarts keep the order (KIP-345)."""
        return self.instance_id is None, self.instance_id or self.member_id


class Assignor(Protocol):
    """Assigns partitions; every member is in the result."""

    name: str
    cooperative: bool

    def assign(self, partitions: Mapping[str, int], members: Sequence[AssignorMember]) -> Assignment:
        """Return each member's partitions, given partition counts by topic."""


class RangeAssignor:
    """Assigns consecutive partitions of each topic to one member, which co-partitions topics with equal keys."""

    name = "range"
    cooperative = False

    def assign(self, partitions: Mapping[str, int], members: Sequence[AssignorMember]) -> Assignment:
        """Return each member's partitions."""
        assignment: Assignment = {member.member_id: [] for member in members}
        ranked = sorted(members, key=lambda m: m.rank)
        for topic in sorted(partitions):
            subscribers = [member for member in ranked if topic in member.topics]
            if not subscribers:
                continue
            share, remainder = divmod(partitions[topic], len(subscribers))
            start = 0
            for index, member in enumerate(subscribers):
                end = start + share + (index < remainder)
                assignment[member.member_id] += [TopicPartition(topic, p) for p in range(start, end)]
                start = end
        return assignment


class RoundRobinAssignor:
    """Assigns all partitions, in order, to members in turn."""

    name = "roundrobin"
    cooperative = False

    def assign(self, partitions: Mapping[str, int], members: Sequence[AssignorMember]) -> Assignment:
        """Return each member's partitions."""
        assignment: Assignment = {member.member_id: [] for member in members}
        ranked = sorted(members, key=lambda m: m.rank)
        turn = 0
        for tp in all_partitions(partitions):
            for _ in ranked:
                member = ranked[turn % len(ranked)]
                turn += 1
                if tp.topic in member.topics:
                    assignment[member.member_id].append(tp)
                    break
        return assignment


class CooperativeStickyAssignor:
    """Balances with as few moves as possible. A moving partition is first revoked from its owner, and assigned to its
    new owner in the next rebalance.
    """

    name = "cooperative-sticky"
    cooperative = True

    def assign(self, partitions: Mapping[str, int], members: Sequence[AssignorMember]) -> Assignment:
        """Return each member's partitions."""
        owners = current_owners(partitions, members)
        target = balance(partitions, members, owners)
        return {
            member_id: sorted(tp for tp in share if owners.get(tp, member_id) == member_id)
            for member_id, share in target.items()
        }


def all_partitions(partitions: Mapping[str, int]) -> list[TopicPartition]:
    """Return all partitions in order."""
    return [TopicPartition(topic, p) for topic in sorted(partitions) for p in range(partitions[topic])]


def current_owners(partitions: Mapping[str, int], members: Iterable[AssignorMember]) -> dict[TopicPartition, str]:
    """Return the owner of each existing, subscribed partition. Of conflicting claims, the newest generation counts."""
    newest: dict[TopicPartition, tuple[int, str | None]] = {}
    for member in members:
        for tp in member.owned:
            if tp.topic not in member.topics or not 0 <= tp.partition < partitions.get(tp.topic, 0):
                continue
            generation, _ = newest.get(tp, (-2, None))
            if member.generation > generation:
                newest[tp] = (member.generation, member.member_id)
            elif member.generation == generation:
                newest[tp] = (generation, None)  # two members of a generation claim it: ignore both
    return {tp: owner for tp, (_, owner) in newest.items() if owner is not None}


def balance(
    partitions: Mapping[str, int], members: Sequence[AssignorMember], owners: Mapping[TopicPartition, str]
) -> dict[str, set[TopicPartition]]:
    """Return shares that moving a single partition cannot balance further, starting from `owners`."""
    ranked = sorted(members, key=lambda m: m.rank)
    shares: dict[str, set[TopicPartition]] = {member.member_id: set() for member in ranked}
    subscribers: dict[str, list[str]] = defaultdict(list)
    for member in ranked:
        for topic in member.topics:
            subscribers[topic].append(member.member_id)
    unassigned = []
    for tp in all_partitions(partitions):
        owner = owners.get(tp)
        if owner is not None:
            shares[owner].add(tp)
        elif subscribers[tp.topic]:
            unassigned.append(tp)
    # Assign partitions with few subscribers first; the others can balance the result.
    unassigned.sort(key=lambda tp: (len(subscribers[tp.topic]), tp))
    for tp in unassigned:
        shares[min(subscribers[tp.topic], key=lambda m: len(shares[m]))].add(tp)
    even_out(ranked, shares, subscribers)
    return shares


def even_out(
    ranked: Sequence[AssignorMember], shares: dict[str, set[TopicPartition]], subscribers: Mapping[str, list[str]]
) -> None:
    """Move partitions one at a time to members with at least two fewer. Terminates, as each move lowers the sum of
    squares.
    """
    moved = True
    while moved:
        moved = False
        for member in sorted(ranked, key=lambda m: -len(shares[m.member_id])):
            source_share = shares[member.member_id]
            for topic in sorted({tp.topic for tp in source_share}):
                while True:
                    target = min(subscribers[topic], key=lambda m: len(shares[m]))
                    candidates = [tp for tp in source_share if tp.topic == topic]
                    if not candidates or len(source_share) - len(shares[target]) < 2:
                        break
                    tp = max(candidates)
                    source_share.remove(tp)
                    shares[target].add(tp)
                    moved = True


ASSIGNORS: dict[str, Assignor] = {
    a.name: a for a in (RangeAssignor(), RoundRobinAssignor(), CooperativeStickyAssignor())
}


def find_assignor(choice: str | Assignor) -> Assignor:
    """Return an assignor by name. Raises ValueError if it is unknown."""
    if not isinstance(choice, str):
        return choice
    if choice not in ASSIGNORS:
        raise ValueError(f'unknown assignor "{choice}"; use one of {", ".join(ASSIGNORS)}')
    return ASSIGNORS[choice]
