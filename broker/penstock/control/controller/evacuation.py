"""Moves replicas off draining and long-absent brokers, and plans rebalancing. Part of a `ControllerTerm`.

`placement.plan` computes the moves in a thread, because it can take seconds. They are started a batch at a time, as
reassignments. A broker is removable when no partition has a replica on it.
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
from penstock.control.controller.writer import MAX_BATCH_PARTITIONS, ProposalOutcome, ProposalWriter, StoreProposal
from penstock.placement.model import Move, PartitionKey, PlacementBroker, PlacementError
from penstock.placement.plan import plan_feasible_moves
from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock.state.view import BrokerView, ClusterView

log = get_logger("penstock.control")

MAX_REASSIGNING = 500
"""Maximum number of partitions being reassigned at a time."""
CHECK_INTERVAL_S = 5.0
"""Interval between checks which brokers to empty."""
REPLAN_S = 60.0
"""Pause before a new plan if the last one could not empty all brokers."""


def placement_brokers(brokers: Iterable[BrokerView], excluded: Collection[int] = ()) -> list[PlacementBroker]:
    """Return placement's view of brokers; draining and excluded ones get no replicas."""
    return [
        PlacementBroker(
            broker.broker_id,
            tuple(part for part in broker.failure_domain.split("/") if part),
            broker.draining or broker.broker_id in excluded,
        )
        for broker in brokers
    ]


def existing_replicas(view: ClusterView) -> dict[PartitionKey, tuple[int, ...]]:
    """Return the target replicas of each partition by topic id, as if all reassignments had completed."""
    return {
        PartitionKey(str(topic.topic_id), partition.index): tuple(reassign.target_replicas(partition))
        for topic in view.topics_by_id.values()
        for partition in topic.partitions
    }


def rebalance(view: ClusterView) -> list[Move]:
    """Return the fewest moves that balance replicas and leaders; topics that cannot be placed are left out.

    Moves name topics by their ids. It can take seconds: call it in a thread, with a view that does not change. Raises
    `PlacementError`.
    """
    return plan_feasible_moves(placement_brokers(view.brokers.values()), existing_replicas(view))[0]


def moves_off(moves: Iterable[Move], brokers: Collection[int]) -> list[Move]:
    """Return only the moves that remove replicas from `brokers`."""
    return [move for move in moves if not move.removes.isdisjoint(brokers)]


class BrokerEvacuation:
    """Empties draining and long-absent brokers while this broker is controller."""

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
        """Check now."""
        self._wake.set()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            try:
                await self.plan_moves()
            except PlacementError as e:
                log.warning("no placement for the replicas of draining or absent brokers", reason=str(e))
                self._next_plan_s = asyncio.get_running_loop().time() + REPLAN_S
            try:
                async with asyncio.timeout(CHECK_INTERVAL_S):
                    await self._wake.wait()
            except TimeoutError:
                continue
            self._wake.clear()

    def brokers_to_empty(self) -> frozenset[int]:
        """Return the draining and long-absent brokers that still have replicas."""
        now_ms = self.clock.wall_ms()
        after_ms = self.config.broker_replace_after_ms
        absent = {
            broker
            for broker, since_ms in self.registry.absent.items()
            if broker not in self.registry.members and 0 <= after_ms <= now_ms - since_ms
        }
        return frozenset(broker for broker in self._draining() | absent if self._holds(broker))

    def _draining(self) -> set[int]:
        return {broker for broker, member in self.registry.members.items() if member.is_draining}

    def _holds(self, broker: int) -> bool:
        """Return whether a broker has replicas that are not being moved off it."""
        for key in self.index.partitions_on(broker):
            found = self.index.get(key)
            if found is not None and broker not in found[1].removing:
                return True
        return False

    async def plan_moves(self) -> None:
        """Plan if brokers must be emptied, and start as many moves as allowed."""
        brokers = self.brokers_to_empty()
        if not brokers:
            self._queue, self._planned_for = [], frozenset()
            return
        now_s = asyncio.get_running_loop().time()
        if brokers != self._planned_for or (not self._queue and now_s >= self._next_plan_s):
            self._next_plan_s = now_s + REPLAN_S
            await self._plan(brokers)
        await self._start_moves()

    async def _plan(self, emptied: frozenset[int]) -> None:
        """Plan the moves. Briefly absent brokers keep their replicas and get no new ones."""
        present = [self.registry.view_of(broker) for broker in self.registry.members]
        brokers = placement_brokers(present, emptied | self._draining())
        existing = existing_replicas(self.view)
        self._queue, self._planned_for = [], emptied  # also on failure: retried after REPLAN_S
        moves, refused = await asyncio.to_thread(plan_feasible_moves, brokers, existing)
        self._queue = [self._keep_absent(move, emptied) for move in moves_off(moves, emptied)]
        for topic in refused:
            known = self.view.topics_by_id.get(UUID(topic))
            log.warning(
                "topic not moved: too few brokers for its replicas",
                topic=known.name if known is not None else topic,
            )
        log.info("moving replicas", brokers=sorted(emptied), partitions=len(self._queue))

    def _keep_absent(self, move: Move, emptied: frozenset[int]) -> Move:
        """Return the move without removals from briefly absent brokers."""
        absent = [b for b in move.before if b not in self.registry.members and b not in emptied]
        if not absent:
            return move
        kept = [broker for broker in move.after if broker in move.before]
        added = [broker for broker in move.after if broker not in move.before]
        after = (*kept, *absent, *added)[: max(len(move.before), len(kept) + len(absent))]
        return Move(move.key, move.before, after)

    async def _start_moves(self) -> None:
        room = MAX_REASSIGNING - len(self.index.reassigning)
        while self._queue and room > 0:
            part, self._queue = (
                self._queue[: min(MAX_BATCH_PARTITIONS, room)],
                self._queue[min(MAX_BATCH_PARTITIONS, room) :],
            )
            room -= len(part)
            await self.writer.write([p for move in part if (p := self._proposal(move)) is not None], self._on_outcome)

    def _proposal(self, move: Move) -> StoreProposal | None:
        """Return the write that starts a move; None if the partition has changed since the plan."""
        key = PartitionId(UUID(move.key.topic), move.key.partition)
        found = self.index.get(key)
        if found is None or tuple(reassign.target_replicas(found[1])) != move.before or self.keeper.is_writing(key):
            return None
        topic, partition = found
        try:
            record = reassign.start_reassignment(
                leaders.record_of(partition), move.after, self.keeper.facts(key, topic, partition)
            )
        except reassign.RefusedReassignment as e:
            log.warning("replica not moved", topic=topic.name, partition=key.partition, reason=str(e))
            return None
        return StoreProposal(key, partition.revision, record) if record is not None else None

    def _on_outcome(self, proposal: StoreProposal, outcome: ProposalOutcome, revision: int) -> None:
        """Plan again what was not written."""
        if outcome is not ProposalOutcome.WRITTEN:
            self._next_plan_s = 0.0
