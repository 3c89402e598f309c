"""Reassignments and leader elections that administrators request from any broker. Called by `api`.

A reassignment is one write on the condition that the partition has not changed; the controller then completes it. The
requested broker runs elections itself, by the controller's rules and conditions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from penstock.config.broker import BrokerConfig
from penstock.control.broker_availability import BrokerAvailability, read_availability
from penstock.control.controller import leaders, reassign
from penstock.control.members import BROKER_HISTORIES, BrokerHistory, ReplicaCondition, partition_name, read_history
from penstock.control.membership import compare_created
from penstock.control.results import VIEW_TIMEOUT_S, AdminError, ConfigOutcome, store_error
from penstock.runtime.clock import Clock
from penstock.state import keys
from penstock.state.records import PartitionRecord, decode, encode
from penstock.state.store import Compare, PutOp, Store, StoreError
from penstock.state.view import ClusterView, TopicView
from penstock.state.watcher import Watcher
from penstock.wire.errors import ErrorCode

ATTEMPTS = 10
"""Attempts to write a change while other writers change the same partition."""
MAX_CONCURRENT_CHANGES = 256


@dataclass(frozen=True, slots=True)
class ReassignmentRequest:
    """New replicas for a partition; None cancels its reassignment."""

    topic: str
    partition: int
    replicas: Sequence[int] | None
    may_change_factor: bool = True


Change = Callable[[PartitionRecord, leaders.ReplicaFacts], PartitionRecord | None]
"""From the present record to the new one; None without change. Can raise `AdminError`."""


class ReassignmentRequests:
    """Handles reassignments and elections by request."""

    def __init__(self, store: Store, view: ClusterView, watcher: Watcher, clock: Clock, config: BrokerConfig) -> None:
        self.store, self.view, self.watcher, self.clock, self.config = store, view, watcher, clock, config

    async def reassign(self, requests: Sequence[ReassignmentRequest]) -> list[ConfigOutcome]:
        """Start or cancel reassignments; the results are in the order of the requests. Returns when the view has
        them."""
        try:
            availability = await read_availability(self.store, self.view, self.clock, self.config)
        except StoreError as e:
            return [ConfigOutcome(store_error(e), str(e)) for _ in requests]
        return await self._run_batches([self._reassign(request, availability) for request in requests])

    async def elect(self, partitions: Sequence[tuple[str, int]], is_unclean: bool) -> list[ConfigOutcome]:
        """Elect the preferred replicas, or with `is_unclean` any registered replica."""
        histories: dict[int, BrokerHistory] = {}
        if is_unclean:
            try:
                for entry in (await self.store.range(BROKER_HISTORIES)).entries:
                    histories[int(entry.key[len(BROKER_HISTORIES) :])] = read_history(entry)
            except StoreError as e:
                return [ConfigOutcome(store_error(e), str(e)) for _ in partitions]
        change = require_unclean if is_unclean else require_preferred
        return await self._run_batches([self._change(topic, index, change, histories) for topic, index in partitions])

    async def _run_batches(self, work: list[Awaitable[int]]) -> list[ConfigOutcome]:
        outcomes: list[ConfigOutcome] = []
        latest = 0
        for start in range(0, len(work), MAX_CONCURRENT_CHANGES):
            for result in await asyncio.gather(*work[start : start + MAX_CONCURRENT_CHANGES], return_exceptions=True):
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
                await self.watcher.applied(latest, VIEW_TIMEOUT_S)
            except StoreError as e:
                return [outcome if outcome.error else ConfigOutcome(store_error(e), str(e)) for outcome in outcomes]
        return outcomes

    async def _reassign(self, request: ReassignmentRequest, availability: BrokerAvailability) -> int:
        def change(record: PartitionRecord, facts: leaders.ReplicaFacts) -> PartitionRecord | None:
            if request.replicas is None:
                if not record.adding and not record.removing:
                    raise AdminError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No reassignment is in progress.")
                return reassign.cancel_reassignment(record, facts)
            reassign.check_target(request.replicas, facts.epochs.keys() | availability.absent | set(record.replicas))
            if not any(
                broker in facts.epochs or broker in reassign.original_replicas(record) for broker in request.replicas
            ):
                raise reassign.RefusedReassignment(f"All brokers in {list(request.replicas)} are absent; add another.")
            factor = len(reassign.target_replicas(record))
            if not request.may_change_factor and len(request.replicas) != factor:
                raise AdminError(
                    ErrorCode.INVALID_REPLICATION_FACTOR,
                    f"{len(request.replicas)} replicas would change the replication factor {factor}, which the request"
                    " does not allow.",
                )
            for broker in set(request.replicas) - set(reassign.original_replicas(record)):
                if broker in availability.draining:
                    raise reassign.RefusedReassignment(
                        f"Broker {broker} is draining; set broker.draining to false first."
                    )
            return reassign.start_reassignment(record, request.replicas, facts)

        conditions = availability.unchanged_for([request.replicas or ()])
        try:
            return await self._change(request.topic, request.partition, change, {}, conditions)
        except reassign.RefusedReassignment as e:
            raise AdminError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, str(e)) from None

    async def _change(
        self,
        name: str,
        index: int,
        change: Change,
        histories: dict[int, BrokerHistory],
        conditions: Sequence[Compare] = (),
    ) -> int:
        """Return the revision of the change, 0 without change. Raises `AdminError`, `StoreError`."""
        for _ in range(ATTEMPTS):
            topic = self.view.topics.get(name)
            is_known = topic is not None and 0 <= index < len(topic.partitions)  # a failed growth can leave keys
            entry = await self.store.get(keys.partition(topic.topic_id, index)) if topic and is_known else None
            if topic is None or entry is None:
                raise AdminError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f'Partition {index} of topic "{name}" does not exist.'
                )
            before = decode(PartitionRecord, entry.key, entry.value)
            new = change(before, self._facts(topic, index, before, histories))
            if new is None:
                return 0
            compares = [Compare.unchanged(entry), *conditions]
            if new.leader != before.leader and new.leader in self.view.brokers:
                compares.append(compare_created(keys.broker(new.leader), self.view.brokers[new.leader].epoch))
            result = await self.store.txn(compares, [PutOp(entry.key, encode(new))])
            if result.succeeded:
                return result.revision
        raise AdminError(ErrorCode.REQUEST_TIMED_OUT, "The partition is being changed by other writers; try again.")

    def _facts(
        self, topic: TopicView, index: int, record: PartitionRecord, histories: dict[int, BrokerHistory]
    ) -> leaders.ReplicaFacts:
        brokers = self.view.brokers
        name, was_flushed = partition_name(topic.topic_id, index), topic.config.flushes_each_batch

        def replica_condition(broker: int, epoch: int | None) -> ReplicaCondition:
            history = histories.get(broker)
            return (
                history.replica_condition(epoch, was_flushed, name)
                if history is not None
                else ReplicaCondition.REPLACED
            )

        return leaders.ReplicaFacts(
            {broker.broker_id: broker.epoch for broker in brokers.values()},
            self.view.revision,
            frozenset(broker.broker_id for broker in brokers.values() if broker.draining),
            replica_condition,
            min(topic.config.min_insync_replicas, len(record.replicas) - len(record.adding)),
            topic.config.unclean_leader_election_enable,
        )


def require_preferred(record: PartitionRecord, facts: leaders.ReplicaFacts) -> PartitionRecord:
    """Elect the preferred replica. Raises `AdminError` if it leads already or cannot lead."""
    if record.leader == record.replicas[0]:
        raise AdminError(ErrorCode.ELECTION_NOT_NEEDED, "The preferred replica is the leader.")
    new = leaders.elect_preferred(record, facts)
    if new is None:
        raise AdminError(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"The preferred replica, on broker {record.replicas[0]}, is not in sync, or is draining.",
        )
    return new


def require_unclean(record: PartitionRecord, facts: leaders.ReplicaFacts) -> PartitionRecord:
    """Elect any registered replica. Raises `AdminError` if there is a leader or no replica can lead."""
    if record.leader in facts.epochs:
        raise AdminError(ErrorCode.ELECTION_NOT_NEEDED, f"The partition has a leader, broker {record.leader}.")
    new = leaders.elect_unclean(record, facts)
    if new is None:
        raise AdminError(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"None of the replicas {record.replicas} can be elected."
        )
    return new
