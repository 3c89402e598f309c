"""Who in a group reads which partitions. Pure functions of the members and the topics; the group's leader calls them.

`RangeAssignor` and `RoundRobinAssignor` give what the Java client's assignors of these names give.
`CooperativeStickyAssignor` keeps what members have as far as balance allows, and moves a partition in two steps, so
that nobody stops for others' sake (KIP-429).
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
    """A member as it joined: what it subscribes to, and what it owned in `generation` (-1: it does not say)."""

    member_id: str
    topics: frozenset[str]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1
    instance_id: str | None = None

    @property
    def rank(self) -> tuple[bool, str]:
        """Static members come first, by their own names, so that a restart does not reorder them (KIP-345)."""
        return self.instance_id is None, self.instance_id or self.member_id


class Assignor(Protocol):
    """`assign` takes the number of partitions by topic, and returns each member's share; every member is in it."""

    name: str
    cooperative: bool

    def assign(self, partitions: Mapping[str, int], members: Sequence[AssignorMember]) -> Assignment: ...


class RangeAssignor:
    """Neighbouring partitions of each topic go to one member, so that topics with equal keys are read side by side."""

    name = "range"
    cooperative = False

    def assign(self, partitions: Mapping[str, int], members: Sequence[AssignorMember]) -> Assignment:
        assignment: Assignment = {member.member_id: [] for member in members}
        ranked = sorted(members, key=lambda m: m.rank)
        for topic in sorted(partitions):
            takers = [member for member in ranked if topic in member.topics]
            if not takers:
                continue
            share, more = divmod(partitions[topic], len(takers))
            start = 0
            for index, member in enumerate(takers):
                end = start + share + (index < more)
                assignment[member.member_id] += [TopicPartition(topic, p) for p in range(start, end)]
                start = end
        return assignment


class RoundRobinAssignor:
    """All partitions in order, dealt out one by one."""

    name = "roundrobin"
    cooperative = False

    def assign(self, partitions: Mapping[str, int], members: Sequence[AssignorMember]) -> Assignment:
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
    """Balanced, with as few moves as balance allows; a partition that moves is first taken from its old owner, and
    given to the new one in the rebalance that follows.
    """

    name = "cooperative-sticky"
    cooperative = True

    def assign(self, partitions: Mapping[str, int], members: Sequence[AssignorMember]) -> Assignment:
        owners = claims(partitions, members)
        target = balance(partitions, members, owners)
        return {
            member_id: sorted(tp for tp in share if owners.get(tp, member_id) == member_id)
            for member_id, share in target.items()
        }


def all_partitions(partitions: Mapping[str, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, p) for topic in sorted(partitions) for p in range(partitions[topic])]


def claims(partitions: Mapping[str, int], members: Iterable[AssignorMember]) -> dict[TopicPartition, str]:
    """Who owns what, as far as members still want it and it is still there; the newest generation is believed."""
    newest: dict[TopicPartition, tuple[int, str | None]] = {}
    for member in members:
        for tp in member.owned:
            if tp.topic not in member.topics or not 0 <= tp.partition < partitions.get(tp.topic, 0):
                continue
            generation, _ = newest.get(tp, (-2, None))
            if member.generation > generation:
                newest[tp] = (member.generation, member.member_id)
            elif member.generation == generation:
                newest[tp] = (generation, None)  # two claim it: neither is believed
    return {tp: owner for tp, (_, owner) in newest.items() if owner is not None}


def balance(
    partitions: Mapping[str, int], members: Sequence[AssignorMember], owners: Mapping[TopicPartition, str]
) -> dict[str, set[TopicPartition]]:
    """Shares that cannot be evened out by moving one partition, starting from `owners`."""
    ranked = sorted(members, key=lambda m: m.rank)
    shares: dict[str, set[TopicPartition]] = {member.member_id: set() for member in ranked}
    takers: dict[str, list[str]] = defaultdict(list)
    for member in ranked:
        for topic in member.topics:
            takers[topic].append(member.member_id)
    free = []
    for tp in all_partitions(partitions):
        owner = owners.get(tp)
        if owner is not None:
            shares[owner].add(tp)
        elif takers[tp.topic]:
            free.append(tp)
    # Partitions that few can take are dealt first; the others can still even out what results.
    free.sort(key=lambda tp: (len(takers[tp.topic]), tp))
    for tp in free:
        shares[min(takers[tp.topic], key=lambda m: len(shares[m]))].add(tp)
    even_out(ranked, shares, takers)
    return shares


def even_out(
    ranked: Sequence[AssignorMember], shares: dict[str, set[TopicPartition]], takers: Mapping[str, list[str]]
) -> None:
    """Moves one partition at a time from whoever has at least two more. Each lowers the sum of squares: it ends."""
    moved = True
    while moved:
        moved = False
        for member in sorted(ranked, key=lambda m: -len(shares[m.member_id])):
            giver = shares[member.member_id]
            for topic in sorted({tp.topic for tp in giver}):
                while True:
                    taker = min(takers[topic], key=lambda m: len(shares[m]))
                    mine = [tp for tp in giver if tp.topic == topic]
                    if not mine or len(giver) - len(shares[taker]) < 2:
                        break
                    tp = max(mine)
                    giver.remove(tp)
                    shares[taker].add(tp)
                    moved = True


KNOWN: dict[str, Assignor] = {a.name: a for a in (RangeAssignor(), RoundRobinAssignor(), CooperativeStickyAssignor())}


def find(choice: str | Assignor) -> Assignor:
    """An assignor by its name. Raises ValueError for one that is not known."""
    if not isinstance(choice, str):
        return choice
    if choice not in KNOWN:
        raise ValueError(f"unknown assignor {choice!r}: choose one of {', '.join(KNOWN)}")
    return KNOWN[choice]
