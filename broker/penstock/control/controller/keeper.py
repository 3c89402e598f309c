"""Reconciles all partitions with the registered brokers by the rules in `leaders` and `reassign`. Part of a
`ControllerTerm`.

Level-triggered: an event only marks partitions, and the decision depends on the view and the brokers at that moment. A
partition is checked again once the view has the controller's last write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol
from uuid import UUID

from penstock.control.controller import leaders, reassign
from penstock.control.controller.index import PartitionId, PartitionIndex
from penstock.control.controller.registry import Registry
from penstock.control.controller.writer import MAX_BATCH_PARTITIONS, ProposalOutcome, ProposalWriter, StoreProposal
from penstock.control.members import partition_name
from penstock.runtime.logging import get_logger
from penstock.state.records import PartitionRecord
from penstock.state.view import PartitionView, TopicView

log = get_logger("penstock.control")

MAX_IN_FLIGHT = 8
"""Maximum number of concurrent transactions."""
MAX_PARTITIONS_PER_TURN = 1000
"""Partitions checked before the event loop runs other tasks."""
RETRY_S = 0.5
LOG_ENDS_RETRY_S = 1.0


class LogEnds(Protocol):
    """Queries log end offsets of replicas from brokers. Implemented by `node`."""

    async def log_ends(
        self, broker_id: int, partitions: list[tuple[UUID, int]]
    ) -> dict[tuple[UUID, int], tuple[int, int]]:
        """Return (last leader epoch, log end offset) of the replicas that the broker knows. Raises OSError."""


class PartitionKeeper:
    """Checks the partitions passed to `mark` until `run` is cancelled."""

    def __init__(self, index: PartitionIndex, registry: Registry, writer: ProposalWriter, log_ends: LogEnds) -> None:
        self.index, self.registry, self.writer, self.log_ends = index, registry, writer, log_ends
        self.elected_unclean = 0
        self._urgent: dict[PartitionId, None] = {}
        self._marked: dict[PartitionId, None] = {}
        self._prefer: set[PartitionId] = set()
        self._in_flight: set[PartitionId] = set()
        self._awaited: dict[PartitionId, int] = {}
        """Revision of the last write of a partition, until the view has it."""
        self._awaiting_log_ends: set[PartitionId] = set()
        self._wake = asyncio.Event()
        self._log_ends_needed = asyncio.Event()
        self._epochs: dict[int, int] = {}
        self._avoided: frozenset[int] = frozenset()
        self._leaving: frozenset[int] = frozenset()
        self._base = leaders.ReplicaFacts({}, 0)

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(MAX_IN_FLIGHT):
                tasks.create_task(self._work())
            tasks.create_task(self._elect_by_log_ends())

    # Marking

    def on_brokers(self, brokers: set[int]) -> None:
        """Mark the partitions of brokers that were registered, removed or changed."""
        members = self.registry.members
        self._epochs = {broker: member.epoch for broker, member in members.items()}
        self._avoided = frozenset(broker for broker, member in members.items() if not member.may_be_chosen)
        self._leaving = frozenset(broker for broker, member in members.items() if member.is_leaving)
        self._base = leaders.ReplicaFacts(self._epochs, self.registry.revision, self._avoided)
        for broker in brokers:
            self.mark(self.index.partitions_on(broker))

    def on_partition(self, key: PartitionId, partition: PartitionView) -> None:
        """Mark a partition that has changed in the view, unless it is stable."""
        awaited = self._awaited.get(key)
        if awaited is not None and partition.revision >= awaited:
            del self._awaited[key]
        if not self._is_stable(key, partition):
            self.mark([key])

    def on_removed(self, key: PartitionId) -> None:
        """Drop the state of a partition that was removed from the view."""
        self._awaited.pop(key, None)
        self._prefer.discard(key)

    def mark(self, partitions: Iterable[PartitionId]) -> None:
        """Schedule partitions for a check, those without a usable leader first."""
        for key in partitions:
            found = self.index.get(key)
            if found is None:
                continue
            leader = found[1].leader
            if leader not in self._epochs or leader in self._leaving:
                self._urgent[key] = None
            else:
                self._marked[key] = None
        if self._urgent or self._marked:
            self._wake.set()

    def prefer(self, partitions: Iterable[PartitionId]) -> None:
        """Schedule the election of preferred leaders."""
        keys = list(partitions)
        self._prefer.update(keys)
        self.mark(keys)

    def is_busy_with(self, broker: int) -> bool:
        """Return whether a broker's partitions still await a check, a write or the view."""
        held = self.index.by_broker.get(broker, {}).keys()
        return not all(
            held.isdisjoint(busy)
            for busy in (self._urgent, self._marked, self._in_flight, self._awaited, self._awaiting_log_ends)
        )

    def is_writing(self, key: PartitionId) -> bool:
        """Return whether the view may lack the last write of a partition."""
        return key in self._in_flight or key in self._awaited

    @property
    def is_idle(self) -> bool:
        """Whether no partition is marked or being written."""
        return not (self._urgent or self._marked or self._in_flight or self._awaited)

    # Deciding

    def _is_stable(self, key: PartitionId, partition: PartitionView) -> bool:
        return (
            leaders.is_stable(partition, self._base)
            and not partition.adding
            and not partition.removing
            and partition.leader not in self._leaving
            and key not in self._prefer
        )

    def facts(self, key: PartitionId, topic: TopicView, partition: PartitionView) -> leaders.ReplicaFacts:
        """Return the facts for one partition."""
        config, name = topic.config, partition_name(*key)
        return leaders.ReplicaFacts(
            self._epochs,
            self.registry.revision,
            self._avoided,
            lambda broker, epoch: self.registry.replica_condition(broker, epoch, config.flushes_each_batch, name),
            min(config.min_insync_replicas, len(partition.replicas) - len(partition.adding)),
            config.unclean_leader_election_enable,
        )

    def _decide(self, key: PartitionId) -> StoreProposal | None:
        found = self.index.get(key)
        if found is None or key in self._in_flight or self._awaited.get(key, 0) > found[1].revision:
            return None  # removed, or checked again when the view has the last write
        topic, partition = found
        if self._is_stable(key, partition):
            return None
        facts = self.facts(key, topic, partition)
        before = leaders.record_of(partition)
        record = leaders.reconcile(before, facts) or before
        if record.leader in self._leaving:
            record = leaders.hand_over_leadership(record, facts) or record
        if record.adding or record.removing:
            record = reassign.complete_reassignment(record, facts) or record
        if key in self._prefer:
            record = leaders.elect_preferred(record, facts) or record
        if record == before:
            self._prefer.discard(key)
            if leaders.waits_for_log_ends(record, facts):
                self._awaiting_log_ends.add(key)
                self._log_ends_needed.set()
            return None
        self._count_unclean_election(topic, before, record, facts)
        return StoreProposal(key, partition.revision, record)

    def _count_unclean_election(
        self, topic: TopicView, before: PartitionRecord, record: PartitionRecord, facts: leaders.ReplicaFacts
    ) -> None:
        """Count and log a leader that only unclean leader election allows."""
        if record.leader != leaders.NO_LEADER and facts.unclean_allowed:
            otherwise = leaders.reconcile(before, replace(facts, unclean_allowed=False)) or before
            if otherwise.leader == leaders.NO_LEADER:
                self.elected_unclean += 1
                log.warning("unclean leader election; acknowledged records may be lost", topic=topic.name)

    def _next_batch(self) -> list[StoreProposal]:
        batch: list[StoreProposal] = []
        for _ in range(MAX_PARTITIONS_PER_TURN):
            queue = self._urgent or self._marked
            if not queue or len(batch) == MAX_BATCH_PARTITIONS:
                break
            key = next(iter(queue))
            self._urgent.pop(key, None)
            self._marked.pop(key, None)
            proposal = self._decide(key)
            if proposal is not None:
                self._in_flight.add(key)
                batch.append(proposal)
        return batch

    # Writing

    async def _work(self) -> None:
        while True:
            if not self._urgent and not self._marked:
                self._wake.clear()
                await self._wake.wait()
            batch = self._next_batch()
            if not batch:
                await asyncio.sleep(0)
                continue
            try:
                await self.writer.write(batch, self._on_outcome)
            finally:
                self._in_flight.difference_update(p.key for p in batch)

    def _on_outcome(self, proposal: StoreProposal, outcome: ProposalOutcome, revision: int) -> None:
        key = proposal.key
        self._in_flight.discard(key)
        found = self.index.get(key)
        if found is None:
            return
        if outcome is ProposalOutcome.WRITTEN:
            self._prefer.discard(key)
            if found[1].revision < revision:
                self._awaited[key] = revision
            elif not self._is_stable(key, found[1]):
                self.mark([key])
        elif outcome is ProposalOutcome.UNKNOWN or found[1].revision == proposal.revision:
            # The view may lag. Its next change marks the partition too; this is the fallback.
            asyncio.get_running_loop().call_later(RETRY_S, self.mark, [key])
        else:
            self.mark([key])

    async def _elect_by_log_ends(self) -> None:
        """Elect the longest log of the last ISR for partitions without a replica that is surely complete."""
        while True:
            await self._log_ends_needed.wait()
            self._log_ends_needed.clear()
            keys, self._awaiting_log_ends = self._awaiting_log_ends, set()
            ends = await self._query_log_ends(keys)
            proposals: list[StoreProposal] = []
            for key in keys:
                found = self.index.get(key)
                if found is None or key in self._in_flight:
                    continue
                topic, partition = found
                record = leaders.elect_highest(
                    leaders.record_of(partition), self.facts(key, topic, partition), ends.get(key, {})
                )
                if record is not None:
                    self._in_flight.add(key)
                    log.warning("elected the longest log of the last ISR", topic=topic.name, partition=key.partition)
                    proposals.append(StoreProposal(key, partition.revision, record))
            for start in range(0, len(proposals), MAX_BATCH_PARTITIONS):
                await self.writer.write(proposals[start : start + MAX_BATCH_PARTITIONS], self._on_outcome)
            elected = {proposal.key for proposal in proposals}
            if remaining := [key for key in keys if key not in elected]:
                await asyncio.sleep(LOG_ENDS_RETRY_S)
                self.mark(remaining)

    async def _query_log_ends(self, keys: set[PartitionId]) -> dict[PartitionId, dict[int, tuple[int, int]]]:
        """Query the log ends of the last ISRs' replicas; brokers that fail are left out."""
        by_broker: dict[int, list[tuple[UUID, int]]] = {}
        for key in keys:
            found = self.index.get(key)
            for broker in found[1].last_isr if found is not None else ():
                by_broker.setdefault(broker, []).append(key)
        answers = await asyncio.gather(
            *[self.log_ends.log_ends(broker, partitions) for broker, partitions in by_broker.items()],
            return_exceptions=True,
        )
        ends: dict[PartitionId, dict[int, tuple[int, int]]] = {}
        for broker, answer in zip(by_broker, answers, strict=True):
            if isinstance(answer, BaseException):
                log.warning("log end query failed", broker=broker, reason=repr(answer))
                continue
            for partition, end in answer.items():
                ends.setdefault(PartitionId(*partition), {})[broker] = end
        return ends
