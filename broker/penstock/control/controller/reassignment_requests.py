"""What administrators ask of any broker: other replicas for a partition, another leader. Called by `api`.

A wish is one write on the condition that the partition is what was looked at; the controller then drives it on. An
election is done by whoever is asked, under the same rules and conditions as the controller's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from penstock.config.broker import BrokerConfig
from penstock.control.controller import leaders, reassign
from penstock.control.drains import Drains, read_drains
from penstock.control.members import PASTS, Past, Standing, partition_name, read_past
from penstock.control.membership import created
from penstock.control.results import SEEN_S, AdminError, ConfigOutcome, store_error
from penstock.runtime.clock import Clock
from penstock.state import keys
from penstock.state.records import PartitionRecord, decode, encode
from penstock.state.store import Compare, PutOp, Store, StoreError
from penstock.state.view import ClusterView, TopicView
from penstock.state.watcher import Watcher
from penstock.wire.errors import ErrorCode

ATTEMPTS = 10
"""How often a wish is tried again when somebody else's change came first."""
AT_A_TIME = 256


@dataclass(frozen=True, slots=True)
class ReassignmentRequest:
    """New replicas for a partition; None cancels what is under way."""

    topic: str
    partition: int
    replicas: Sequence[int] | None
    may_change_factor: bool = True


Change = Callable[[PartitionRecord, leaders.ReplicaFacts], PartitionRecord | None]
"""What is to become of a record; None where it is that already. May raise `AdminError`."""


class ReassignmentRequests:
    """Reassignments and elections by request."""

    def __init__(self, store: Store, view: ClusterView, watcher: Watcher, clock: Clock, config: BrokerConfig) -> None:
        self.store, self.view, self.watcher, self.clock, self.config = store, view, watcher, clock, config

    async def reassign(self, wishes: Sequence[ReassignmentRequest]) -> list[ConfigOutcome]:
        """One answer for each wish, in their order, when the view has them all."""
        try:
            drains = await read_drains(self.store, self.view, self.clock, self.config)
        except StoreError as e:
            return [ConfigOutcome(store_error(e), str(e)) for _ in wishes]
        return await self._all([self._reassign(wish, drains) for wish in wishes])

    async def elect(self, partitions: Sequence[tuple[str, int]], is_unclean: bool) -> list[ConfigOutcome]:
        """Elects the preferred replica of each partition, or, `is_unclean`, whoever is there."""
        pasts: dict[int, Past] = {}
        if is_unclean:
            try:
                for entry in (await self.store.range(PASTS)).entries:
                    pasts[int(entry.key[len(PASTS) :])] = read_past(entry)
            except StoreError as e:
                return [ConfigOutcome(store_error(e), str(e)) for _ in partitions]
        change = unclean_leader if is_unclean else preferred_leader
        return await self._all([self._change(topic, index, change, pasts) for topic, index in partitions])

    async def _all(self, work: list[Awaitable[int]]) -> list[ConfigOutcome]:
        outcomes: list[ConfigOutcome] = []
        latest = 0
        for start in range(0, len(work), AT_A_TIME):
            for result in await asyncio.gather(*work[start : start + AT_A_TIME], return_exceptions=True):
                if isinstance(result, AdminError):
                    outcomes.append(ConfigOutcome(result.error, result.message))
                elif isinstance(result, StoreError):
                    outcomes.append(ConfigOutcome(store_error(result), str(result)))
                elif isinstance(result, BaseException):
                    raise result
                else:
                    latest = max(latest, result)
                    outcomes.append(ConfigOutcome())
        if latest:
            try:
                await self.watcher.applied(latest, SEEN_S)
            except StoreError as e:
                return [outcome if outcome.error else ConfigOutcome(store_error(e), str(e)) for outcome in outcomes]
        return outcomes

    async def _reassign(self, wish: ReassignmentRequest, drains: Drains) -> int:
        def change(record: PartitionRecord, facts: leaders.ReplicaFacts) -> PartitionRecord | None:
            if wish.replicas is None:
                if not record.adding and not record.removing:
                    raise AdminError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "Nothing is being reassigned.")
                return reassign.cancelled(record, facts)
            reassign.check_target(wish.replicas, facts.epochs.keys() | drains.away | set(record.replicas))
            if not any(broker in facts.epochs or broker in reassign.original(record) for broker in wish.replicas):
                raise reassign.RefusedReassignment(f"All of brokers {list(wish.replicas)} are away: add another.")
            factor = len(reassign.target(record))
            if not wish.may_change_factor and len(wish.replicas) != factor:
                raise AdminError(
                    ErrorCode.INVALID_REPLICATION_FACTOR,
                    f"{len(wish.replicas)} replicas where {factor} are wanted, and their number is to stay.",
                )
            for broker in set(wish.replicas) - set(reassign.original(record)):
                if broker in drains.brokers:
                    raise reassign.RefusedReassignment(f"Broker {broker} is draining: end that first.")
            return reassign.started(record, wish.replicas, facts)

        conditions = drains.unchanged_for([wish.replicas or ()])
        try:
            return await self._change(wish.topic, wish.partition, change, {}, conditions)
        except reassign.RefusedReassignment as e:
            raise AdminError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, str(e)) from None

    async def _change(
        self, name: str, index: int, change: Change, pasts: dict[int, Past], conditions: Sequence[Compare] = ()
    ) -> int:
        """Returns the revision of the change, 0 where there was none to make. Raises `AdminError`, `StoreError`."""
        for _ in range(ATTEMPTS):
            topic = self.view.topics.get(name)
            is_known = topic is not None and 0 <= index < len(topic.partitions)  # there may be keys of a failed growth
            entry = await self.store.get(keys.partition(topic.topic_id, index)) if topic and is_known else None
            if topic is None or entry is None:
                raise AdminError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {index} of a topic {name!r}."
                )
            before = decode(PartitionRecord, entry.key, entry.value)
            new = change(before, self._facts(topic, index, before, pasts))
            if new is None:
                return 0
            compares = [Compare.unchanged(entry), *conditions]
            if new.leader != before.leader and new.leader in self.view.brokers:
                compares.append(created(keys.broker(new.leader), self.view.brokers[new.leader].epoch))
            result = await self.store.txn(compares, [PutOp(entry.key, encode(new))])
            if result.succeeded:
                return result.revision
        raise AdminError(ErrorCode.REQUEST_TIMED_OUT, "The partition is being changed by others: try again.")

    def _facts(
        self, topic: TopicView, index: int, record: PartitionRecord, pasts: dict[int, Past]
    ) -> leaders.ReplicaFacts:
        brokers = self.view.brokers
        name, was_flushed = partition_name(topic.topic_id, index), topic.config.flushes_each_batch

        def standing(broker: int, epoch: int | None) -> Standing:
            past = pasts.get(broker)
            return past.standing(epoch, was_flushed, name) if past is not None else Standing.REPLACED

        return leaders.ReplicaFacts(
            {broker.broker_id: broker.epoch for broker in brokers.values()},
            self.view.revision,
            frozenset(broker.broker_id for broker in brokers.values() if broker.draining),
            standing,
            min(topic.config.min_insync_replicas, len(record.replicas) - len(record.adding)),
            topic.config.unclean_leader_election_enable,
        )


def preferred_leader(record: PartitionRecord, facts: leaders.ReplicaFacts) -> PartitionRecord:
    """Raises `AdminError` where it leads already, or cannot."""
    if record.leader == record.replicas[0]:
        raise AdminError(ErrorCode.ELECTION_NOT_NEEDED, "The preferred replica is the leader.")
    new = leaders.preferred(record, facts)
    if new is None:
        raise AdminError(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"The preferred replica, on broker {record.replicas[0]}, is not in sync, or not to lead.",
        )
    return new


def unclean_leader(record: PartitionRecord, facts: leaders.ReplicaFacts) -> PartitionRecord:
    """Raises `AdminError` where there is a leader, or nobody could be one."""
    if record.leader in facts.epochs:
        raise AdminError(ErrorCode.ELECTION_NOT_NEEDED, f"The partition has a leader, broker {record.leader}.")
    new = leaders.unclean(record, facts)
    if new is None:
        raise AdminError(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"None of the replicas {record.replicas} could be leader."
        )
    return new
