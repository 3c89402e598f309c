"""Where replicas go when their broker is to be emptied, is gone for long, or others have joined.

`placement.plan` says which partitions should move; here it is asked in a thread, since it may take seconds, and what it
says is begun a part at a time, as reassignments. A broker is removable when no partition has a replica on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from uuid import UUID

from penstock.config.broker import BrokerConfig
from penstock.control.controller import leaders, reassign
from penstock.control.controller.index import PartitionId, PartitionIndex
from penstock.control.controller.keeper import PartitionKeeper
from penstock.control.controller.registry import Registry
from penstock.control.controller.writer import BATCH, ProposalOutcome, ProposalWriter, StoreProposal
from penstock.placement.model import Move, PartitionKey, PlacementBroker, PlacementError
from penstock.placement.plan import plan_what_can_be
from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock.state.view import BrokerView, ClusterView

log = get_logger("penstock.control")

MAX_MOVING = 500
"""Partitions whose replicas are moved at a time."""
LOOK_S = 5.0
"""Between two looks at who is to be emptied."""
REPLAN_S = 60.0
"""Before a plan is made again where the last one could not empty everybody."""


def placement_brokers(brokers: Iterable[BrokerView], excluded: Collection[int] = ()) -> list[PlacementBroker]:
    """Brokers as placement sees them; those that are draining, or named, take nothing."""
    return [
        PlacementBroker(
            broker.broker_id,
            tuple(part for part in broker.failure_domain.split("/") if part),
            broker.draining or broker.broker_id in excluded,
        )
        for broker in brokers
    ]


def existing_replicas(view: ClusterView) -> dict[PartitionKey, tuple[int, ...]]:
    """What is wanted of each partition now, by topic id: what is under way counts as done."""
    return {
        PartitionKey(str(topic.topic_id), partition.index): tuple(reassign.target(partition))
        for topic in view.topics_by_id.values()
        for partition in topic.partitions
    }


def rebalance(view: ClusterView) -> list[Move]:
    """The fewest moves after which replicas and leaders are balanced; topics that cannot be placed are left out.

    Moves name topics by their ids. May take seconds: call it in a thread, with a view that nobody changes meanwhile.
    Raises `PlacementError`.
    """
    return plan_what_can_be(placement_brokers(view.brokers.values()), existing_replicas(view))[0]


def emptying(moves: Iterable[Move], brokers: Collection[int]) -> list[Move]:
    """Of a plan, the moves that take replicas off `brokers`, and of the plan for others nothing."""
    return [move for move in moves if not move.removes.isdisjoint(brokers)]


class Replacement:
    """Empties brokers that drain or are gone for long, while this broker is controller."""

    def __init__(
        self,
        view: ClusterView,
        index: PartitionIndex,
        registry: Registry,
        keeper: PartitionKeeper,
        writer: ProposalWriter,
        clock: Clock,
        config: BrokerConfig,
    ) -> None:
        self.view, self.index, self.registry, self.keeper, self.writer = view, index, registry, keeper, writer
        self.clock, self.config = clock, config
        self._queue: list[Move] = []
        self._planned_for: frozenset[int] = frozenset()
        self._next_plan_s = 0.0
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Something has changed that may be a reason to look."""
        self._wake.set()

    async def run(self) -> None:
        while True:
            try:
                await self.look()
            except PlacementError as e:
                log.warning("replicas cannot be placed elsewhere", reason=str(e))
                self._next_plan_s = asyncio.get_running_loop().time() + REPLAN_S
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._wake.wait()
            except TimeoutError:
                continue
            self._wake.clear()

    def to_empty(self) -> frozenset[int]:
        """The brokers that are to have nothing: draining ones, and those that are gone for long enough."""
        now_ms = self.clock.wall_ms()
        after_ms = self.config.broker_replace_after_ms
        gone = {
            broker
            for broker, since_ms in self.registry.gone.items()
            if broker not in self.registry.members and 0 <= after_ms <= now_ms - since_ms
        }
        return frozenset(broker for broker in self._draining() | gone if self._holds(broker))

    def _draining(self) -> set[int]:
        return {broker for broker, member in self.registry.members.items() if member.is_draining}

    def _holds(self, broker: int) -> bool:
        """Whether a broker has replicas that nobody is moving off it."""
        for key in self.index.of(broker):
            found = self.index.get(key)
            if found is not None and broker not in found[1].removing:
                return True
        return False

    async def look(self) -> None:
        """Plans where somebody is to be emptied, and begins as many moves as may be under way."""
        wanted = self.to_empty()
        if not wanted:
            self._queue, self._planned_for = [], frozenset()
            return
        now_s = asyncio.get_running_loop().time()
        if wanted != self._planned_for or (not self._queue and now_s >= self._next_plan_s):
            self._next_plan_s = now_s + REPLAN_S
            await self._plan(wanted)
        await self._begin()

    async def _plan(self, wanted: frozenset[int]) -> None:
        """Brokers that are away but not for long keep what they have: they count, and take nothing new from others."""
        present = [self.registry.view_of(broker) for broker in self.registry.members]
        brokers = placement_brokers(present, wanted | self._draining())
        existing = existing_replicas(self.view)
        self._queue, self._planned_for = [], wanted  # also where that fails: it is tried again in its time
        moves, refused = await asyncio.to_thread(plan_what_can_be, brokers, existing)
        self._queue = [self._only_from(move, wanted) for move in emptying(moves, wanted)]
        for topic in refused:
            known = self.view.topics_by_id.get(UUID(topic))
            log.warning(
                "a topic stays where it is: too few brokers are left for its replicas",
                topic=known.name if known is not None else topic,
            )
        log.info("replicas are moved", brokers=sorted(wanted), partitions=len(self._queue))

    def _only_from(self, move: Move, wanted: frozenset[int]) -> Move:
        """A broker that is away for a short time keeps its replica, though the plan would take it off it."""
        away = [b for b in move.before if b not in self.registry.members and b not in wanted]
        if not away:
            return move
        kept = [broker for broker in move.after if broker in move.before]
        come = [broker for broker in move.after if broker not in move.before]
        after = (*kept, *away, *come)[: max(len(move.before), len(kept) + len(away))]
        return Move(move.key, move.before, after)

    async def _begin(self) -> None:
        room = MAX_MOVING - len(self.index.reassigning)
        while self._queue and room > 0:
            part, self._queue = self._queue[: min(BATCH, room)], self._queue[min(BATCH, room) :]
            room -= len(part)
            await self.writer.write([p for move in part if (p := self._proposal(move)) is not None], self._told)

    def _proposal(self, move: Move) -> StoreProposal | None:
        """None where the partition is no longer what was planned for."""
        key = PartitionId(UUID(move.key.topic), move.key.partition)
        found = self.index.get(key)
        if found is None or tuple(reassign.target(found[1])) != move.before or self.keeper.is_writing(key):
            return None
        topic, partition = found
        try:
            record = reassign.started(
                leaders.record_of(partition), move.after, self.keeper.facts(key, topic, partition)
            )
        except reassign.RefusedReassignment as e:
            log.warning("a replica is not moved", topic=topic.name, partition=key.partition, reason=str(e))
            return None
        return StoreProposal(key, partition.revision, record) if record is not None else None

    def _told(self, proposal: StoreProposal, fate: ProposalOutcome, revision: int) -> None:
        """What was not written is planned again."""
        if fate is not ProposalOutcome.WRITTEN:
            self._next_plan_s = 0.0
