"""Keeps all partitions as `leaders` and `reassign` say they should be, while this broker is controller.

Level-triggered: an event only marks partitions to be looked at; what is then done follows from the view and the brokers
as they are at that moment. A partition is looked at again when the view has what was written of it.
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
from penstock.control.controller.writer import BATCH, ProposalOutcome, ProposalWriter, StoreProposal
from penstock.control.members import partition_name
from penstock.runtime.logging import get_logger
from penstock.state.records import PartitionRecord
from penstock.state.view import PartitionView, TopicView

log = get_logger("penstock.control")

IN_FLIGHT = 8
"""Transactions that are under way together."""
LOOKS = 1000
"""Partitions that are looked at before others get their turn on the loop."""
RETRY_S = 0.5
ASK_AGAIN_S = 1.0


class LogEnds(Protocol):
    """Asks brokers how far their replicas reach. Made by `node`."""

    async def log_ends(
        self, broker_id: int, partitions: list[tuple[UUID, int]]
    ) -> dict[tuple[UUID, int], tuple[int, int]]:
        """(last leader epoch, log end offset) of each replica that the broker could tell. Raises OSError."""


class PartitionKeeper:
    """`run` works until it is cancelled; `mark` says what to look at."""

    def __init__(self, index: PartitionIndex, registry: Registry, writer: ProposalWriter, log_ends: LogEnds) -> None:
        self.index, self.registry, self.writer, self.log_ends = index, registry, writer, log_ends
        self.elected_unclean = 0
        self._urgent: dict[PartitionId, None] = {}
        self._marked: dict[PartitionId, None] = {}
        self._prefer: set[PartitionId] = set()
        self._in_flight: set[PartitionId] = set()
        self._awaited: dict[PartitionId, int] = {}
        """The revision at which a partition was written, until the view has it."""
        self._ask: set[PartitionId] = set()
        self._wake = asyncio.Event()
        self._asking = asyncio.Event()
        self._epochs: dict[int, int] = {}
        self._avoided: frozenset[int] = frozenset()
        self._leaving: frozenset[int] = frozenset()
        self._base = leaders.ReplicaFacts({}, 0)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(IN_FLIGHT):
                tasks.create_task(self._work())
            tasks.create_task(self._ask_for_log_ends())

    # What to look at

    def on_brokers(self, brokers: set[int]) -> None:
        """Brokers came, went, or are better avoided now."""
        members = self.registry.members
        self._epochs = {broker: member.epoch for broker, member in members.items()}
        self._avoided = frozenset(broker for broker, member in members.items() if not member.may_be_chosen)
        self._leaving = frozenset(broker for broker, member in members.items() if member.is_leaving)
        self._base = leaders.ReplicaFacts(self._epochs, self.registry.revision, self._avoided)
        for broker in brokers:
            self.mark(self.index.of(broker))

    def on_partition(self, key: PartitionId, partition: PartitionView) -> None:
        """A partition has changed in the view."""
        awaited = self._awaited.get(key)
        if awaited is not None and partition.revision >= awaited:
            del self._awaited[key]
        if not self._is_well(key, partition):
            self.mark([key])

    def on_gone(self, key: PartitionId) -> None:
        """A partition is no longer in the view."""
        self._awaited.pop(key, None)
        self._prefer.discard(key)

    def mark(self, partitions: Iterable[PartitionId]) -> None:
        """These are looked at soon, those without a leader first."""
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
        """These go back to their preferred leaders where they can."""
        wanted = list(partitions)
        self._prefer.update(wanted)
        self.mark(wanted)

    def is_busy_with(self, broker: int) -> bool:
        """Whether partitions of a broker are still to be looked at, or written, or not yet in the view."""
        held = self.index.by_broker.get(broker, {}).keys()
        return not all(
            held.isdisjoint(busy) for busy in (self._urgent, self._marked, self._in_flight, self._awaited, self._ask)
        )

    def is_writing(self, key: PartitionId) -> bool:
        """Whether what the view has of a partition is not the last that was, or is being, written."""
        return key in self._in_flight or key in self._awaited

    @property
    def is_idle(self) -> bool:
        return not (self._urgent or self._marked or self._in_flight or self._awaited)

    # Deciding

    def _is_well(self, key: PartitionId, partition: PartitionView) -> bool:
        return (
            leaders.is_settled(partition, self._base)
            and not partition.adding
            and not partition.removing
            and partition.leader not in self._leaving
            and key not in self._prefer
        )

    def facts(self, key: PartitionId, topic: TopicView, partition: PartitionView) -> leaders.ReplicaFacts:
        """The facts for one partition."""
        config, name = topic.config, partition_name(*key)
        return leaders.ReplicaFacts(
            self._epochs,
            self.registry.revision,
            self._avoided,
            lambda broker, epoch: self.registry.standing(broker, epoch, config.flushes_each_batch, name),
            min(config.min_insync_replicas, len(partition.replicas) - len(partition.adding)),
            config.unclean_leader_election_enable,
        )

    def _decide(self, key: PartitionId) -> StoreProposal | None:
        found = self.index.get(key)
        if found is None or key in self._in_flight or self._awaited.get(key, 0) > found[1].revision:
            return None  # gone, or looked at again when the view has what was written
        topic, partition = found
        if self._is_well(key, partition):
            return None
        facts = self.facts(key, topic, partition)
        before = leaders.record_of(partition)
        record = leaders.settle(before, facts) or before
        if record.leader in self._leaving:
            record = leaders.handed_over(record, facts) or record
        if record.adding or record.removing:
            record = reassign.completed(record, facts) or record
        if key in self._prefer:
            self._prefer.discard(key)
            record = leaders.preferred(record, facts) or record
        if record == before:
            if leaders.waits_for_log_ends(record, facts):
                self._ask.add(key)
                self._asking.set()
            return None
        self._note(topic, before, record, facts)
        return StoreProposal(key, partition.revision, record)

    def _note(
        self, topic: TopicView, before: PartitionRecord, record: PartitionRecord, facts: leaders.ReplicaFacts
    ) -> None:
        """Counts, and logs, what an operator must hear of."""
        if record.leader != leaders.NO_LEADER and facts.unclean_allowed:
            otherwise = leaders.settle(before, replace(facts, unclean_allowed=False)) or before
            if otherwise.leader == leaders.NO_LEADER:
                self.elected_unclean += 1
                log.warning("a replica that may lack records leads: they may be lost", topic=topic.name)

    def _next_batch(self) -> list[StoreProposal]:
        batch: list[StoreProposal] = []
        for _ in range(LOOKS):
            queue = self._urgent or self._marked
            if not queue or len(batch) == BATCH:
                break
            key = next(iter(queue))
            self._urgent.pop(key, None)
            self._marked.pop(key, None)
            try:
                proposal = self._decide(key)
            except (AssertionError, LookupError, ValueError) as e:
                # A record that contradicts itself: somebody wrote it by hand. It must not stop the others.
                log.error("a partition cannot be kept in order", partition=partition_name(*key), reason=str(e))
                continue
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
                await self.writer.write(batch, self._told)
            finally:
                self._in_flight.difference_update(p.key for p in batch)

    def _told(self, proposal: StoreProposal, fate: ProposalOutcome, revision: int) -> None:
        key = proposal.key
        self._in_flight.discard(key)
        found = self.index.get(key)
        if found is None:
            return
        if fate is ProposalOutcome.WRITTEN:
            if found[1].revision < revision:
                self._awaited[key] = revision
            elif not self._is_well(key, found[1]):
                self.mark([key])
        elif fate is ProposalOutcome.UNKNOWN or found[1].revision == proposal.revision:
            # The view may be behind: what it brings marks the partition again, and this only makes sure.
            asyncio.get_running_loop().call_later(RETRY_S, self.mark, [key])
        else:
            self.mark([key])

    async def _ask_for_log_ends(self) -> None:
        """Elects the highest of the last ISR for partitions that have nobody who surely has everything."""
        while True:
            await self._asking.wait()
            self._asking.clear()
            keys, self._ask = self._ask, set()
            ends = await self._collect(keys)
            proposals: list[StoreProposal] = []
            for key in keys:
                found = self.index.get(key)
                if found is None or key in self._in_flight:
                    continue
                topic, partition = found
                record = leaders.with_highest(
                    leaders.record_of(partition), self.facts(key, topic, partition), ends.get(key, {})
                )
                if record is not None:
                    self._in_flight.add(key)
                    log.warning(
                        "the highest of the last in-sync replicas leads", topic=topic.name, partition=key.partition
                    )
                    proposals.append(StoreProposal(key, partition.revision, record))
            for start in range(0, len(proposals), BATCH):
                await self.writer.write(proposals[start : start + BATCH], self._told)
            led = {proposal.key for proposal in proposals}
            if left := [key for key in keys if key not in led]:
                await asyncio.sleep(ASK_AGAIN_S)
                self.mark(left)

    async def _collect(self, keys: set[PartitionId]) -> dict[PartitionId, dict[int, tuple[int, int]]]:
        """What each broker of the last ISRs tells of its replicas; nothing of those that do not answer."""
        by_broker: dict[int, list[tuple[UUID, int]]] = {}
        for key in keys:
            found = self.index.get(key)
            for broker in found[1].last_isr if found is not None else ():
                by_broker.setdefault(broker, []).append(key)
        answers = await asyncio.gather(
            *[self.log_ends.log_ends(broker, wanted) for broker, wanted in by_broker.items()], return_exceptions=True
        )
        ends: dict[PartitionId, dict[int, tuple[int, int]]] = {}
        for broker, answer in zip(by_broker, answers, strict=True):
            if isinstance(answer, BaseException):
                log.warning("a broker could not be asked for its log ends", broker=broker, reason=repr(answer))
                continue
            for partition, end in answer.items():
                ends.setdefault(PartitionId(*partition), {})[broker] = end
        return ends
