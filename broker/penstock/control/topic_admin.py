"""Creates, grows and deletes topics by transactions on the store. Called by `api`, also for auto-creation.

A topic exists from the transaction that writes its name, after all its partitions. Deletion removes the name and leaves
a tombstone; `topic_removal` or the controller removes the data, and the tombstone last. Requests return when the view
has the change, so that the client's next request sees it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from uuid import UUID

from penstock.config.broker import BrokerConfig
from penstock.config.definition import InvalidSetting
from penstock.config.topic import resolve, topic_setting
from penstock.control.assignment import check_manual, partition_puts
from penstock.control.broker_availability import AvailabilitySource, BrokerAvailability
from penstock.control.controller.reassign import target_replicas
from penstock.control.features import check_settings
from penstock.control.naming import TopicNameCollisions, check_new_name
from penstock.control.replica_placer import ReplicaPlacer, usable_brokers
from penstock.control.results import (
    VIEW_TIMEOUT_S,
    AdminError,
    ConfigOutcome,
    TopicOutcome,
    TopicRequest,
    already_exists,
    store_error,
    unknown_topic,
)
from penstock.control.topic_removal import topic_deletions
from penstock.control.topic_shrink import TopicShrinking, not_more
from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock.security.quotas.mutations import MutationQuota, MutationQuotaExceeded
from penstock.state import keys
from penstock.state.records import (
    MAX_PARTITIONS,
    MAX_REPLICAS,
    BadRecord,
    TopicNameRecord,
    TopicRecord,
    decode,
    encode,
)
from penstock.state.store import (
    MAX_TXN_OPERATIONS,
    Compare,
    CompareTarget,
    DeleteOp,
    Operation,
    PutOp,
    Store,
    StoreEntry,
    StoreError,
)
from penstock.state.view import ClusterView, TopicChange, TopicView
from penstock.state.watcher import Watcher
from penstock.wire.errors import ErrorCode

log = get_logger("penstock.control")

MAX_REQUEST_PARTITIONS = 10_000
"""Maximum number of new partitions in one request."""
MAX_CONCURRENT_TOPICS = 256
"""Topics of one request that are created concurrently: they share commits, and other requests run in between."""


class TopicService:
    """The lifecycle of topics. `brokers` are those that can get replicas."""

    def __init__(
        self,
        store: Store,
        view: ClusterView,
        watcher: Watcher,
        clock: Clock,
        config: BrokerConfig,
        new_id: Callable[[], UUID],
        brokers: AvailabilitySource,
    ) -> None:
        self.brokers = brokers
        self.store, self.view, self.watcher, self.clock, self.config = store, view, watcher, clock, config
        self._new_id = new_id
        self._collisions = TopicNameCollisions()
        self._placer = ReplicaPlacer(view)
        self._partition_count = 0
        self._reserved = 0
        self._growth_lock = asyncio.Lock()
        self._shrinking = TopicShrinking(store, view, watcher, clock)
        self._creating: dict[str, asyncio.Task[TopicOutcome]] = {}
        for topic in view.topics.values():
            self._partition_count += len(topic.partitions)
            self._collisions.add(topic.name)
        view.subscribe(self._on_changes)

    def _on_changes(self, changes: list[TopicChange]) -> None:
        self._placer.apply_changes(changes)
        for change in changes:
            if change.old is not None:
                self._partition_count -= len(change.old.partitions)
                self._collisions.remove(change.old.name)
        for change in changes:
            if change.new is not None:
                self._partition_count += len(change.new.partitions)
                self._collisions.add(change.new.name)

    # Creating

    async def create(
        self, topics: Sequence[TopicRequest], validate_only: bool = False, quota: MutationQuota | None = None
    ) -> list[TopicOutcome]:
        """Create topics independently; the results are in the order of the topics. `quota` limits the partitions."""
        duplicates = {name for name, count in Counter(topic.name for topic in topics).items() if count > 1}
        requested = sum(max(topic.partition_count, len(topic.assignment), 1) for topic in topics)

        def request_error(topic: TopicRequest) -> AdminError | None:
            if topic.name in duplicates:
                return AdminError(ErrorCode.INVALID_REQUEST, f'Duplicate topic name "{topic.name}" in the request.')
            if requested > MAX_REQUEST_PARTITIONS:
                return AdminError(
                    ErrorCode.INVALID_PARTITIONS,
                    f"The request has {requested} partitions; the maximum is {MAX_REQUEST_PARTITIONS}.",
                )
            return None

        try:
            availability = await self.brokers.read()
        except StoreError as e:
            return [TopicOutcome(topic.name, store_error(e), str(e)) for topic in topics]
        outcomes: list[TopicOutcome] = []
        for start in range(0, len(topics), MAX_CONCURRENT_TOPICS):
            part = topics[start : start + MAX_CONCURRENT_TOPICS]
            outcomes += await asyncio.gather(
                *[self._create(topic, validate_only, request_error(topic), availability, quota) for topic in part]
            )
        return outcomes

    async def _create(
        self,
        topic: TopicRequest,
        validate_only: bool,
        request_error: AdminError | None,
        availability: BrokerAvailability,
        quota: MutationQuota | None,
    ) -> TopicOutcome:
        try:
            if request_error is not None:
                raise request_error
            self._check_name(topic)
            overrides = self._check_settings(topic)
            assignment = self._plan(topic, availability)
            charge(quota, len(assignment))
            topic_id = self._topic_id()
            if not validate_only:
                await self._write(topic_id, topic.name, assignment, overrides, availability)
        except AdminError as e:
            return TopicOutcome(topic.name, e.error, e.message)
        except StoreError as e:
            return TopicOutcome(topic.name, store_error(e), str(e))
        shown_id = None if validate_only else topic_id
        return TopicOutcome(
            topic.name,
            topic_id=shown_id,
            partition_count=len(assignment),
            replication_factor=len(assignment[0]),
            overrides=overrides,
        )

    def _check_name(self, topic: TopicRequest) -> None:
        """Raise `AdminError` if no new topic can have the name."""
        check_new_name(topic.name)
        if topic.name in self.view.topics:
            raise already_exists(topic.name)
        self._collisions.check(topic.name)

    def _plan(self, topic: TopicRequest, availability: BrokerAvailability) -> list[list[int]]:
        """Return the replicas of each partition. Raises `AdminError` if the request's numbers are not valid."""
        assignment = (
            self._place_manually(topic, availability)
            if topic.assignment
            else self._place_automatically(topic, availability)
        )
        self._check_count(len(assignment))
        return assignment

    def _place_manually(self, topic: TopicRequest, availability: BrokerAvailability) -> list[list[int]]:
        for what, number in (("numPartitions", topic.partition_count), ("replicationFactor", topic.replication_factor)):
            if number != -1:
                raise AdminError(
                    ErrorCode.INVALID_REQUEST, f"A manual assignment was given, but {what} is {number} instead of -1."
                )
        if sorted(topic.assignment) != list(range(len(topic.assignment))):
            raise AdminError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "The partitions of a manual assignment must be numbered from 0 without gaps.",
            )
        assignment = [topic.assignment[i] for i in range(len(topic.assignment))]
        check_manual(assignment, self.view.brokers, None, availability.absent)
        return assignment

    def _place_automatically(self, topic: TopicRequest, availability: BrokerAvailability) -> list[list[int]]:
        factor = topic.replication_factor
        if factor == -1:
            factor = min(self.config.default_replication_factor, self._max_replicas(availability))
        if factor < 1:
            raise invalid_factor(factor)
        count = self.config.num_partitions if topic.partition_count == -1 else topic.partition_count
        if count < 1:
            raise AdminError(ErrorCode.INVALID_PARTITIONS, f"The number of partitions must be positive, not {count}.")
        if factor > MAX_REPLICAS:
            raise invalid_factor(factor)
        self._check_count(count)
        return self._placer.place(count, factor, availability.draining, absent=availability.absent)

    def _max_replicas(self, availability: BrokerAvailability) -> int:
        """Return the maximum number of replicas of a new partition."""
        return max(len(usable_brokers(self.view, availability.draining)) + len(availability.absent), 1)

    def _check_count(self, count: int) -> None:
        present = self._partition_count + self._reserved
        if count > MAX_PARTITIONS or present + count > self.config.max_partitions:
            raise AdminError(
                ErrorCode.INVALID_PARTITIONS,
                f"{count} partitions in addition to the existing {present} would exceed max.partitions"
                f" ({self.config.max_partitions}); raise it or delete topics.",
            )

    def _check_settings(self, topic: TopicRequest) -> dict[str, str]:
        overrides: dict[str, str] = {}
        for name, value in topic.settings.items():
            if value is None:
                raise AdminError(ErrorCode.INVALID_CONFIG, f'The setting "{name}" has no value; leave it out instead.')
            overrides[name] = value
        try:
            overrides = {name: topic_setting(name).normalise(text) for name, text in overrides.items()}
            resolve(overrides, self.config.topic_defaults)
            check_settings(overrides, {}, self.view.feature_level)
        except InvalidSetting as e:
            raise AdminError(ErrorCode.INVALID_CONFIG, str(e)) from None
        return overrides

    def _topic_id(self) -> UUID:
        """Return a random id that is not reserved and does not start with "-" in base64."""
        topic_id = self._new_id()
        while topic_id.int < 2 or topic_id.bytes[0] >> 2 == 62:
            topic_id = self._new_id()
        return topic_id

    async def _write(
        self,
        topic_id: UUID,
        name: str,
        assignment: list[list[int]],
        overrides: dict[str, str],
        availability: BrokerAvailability,
    ) -> None:
        """Write the partitions first and the name last. Raises `AdminError` if the name was taken meanwhile."""
        record = TopicRecord(
            name=name,
            topic_id=topic_id,
            partition_count=len(assignment),
            overrides=overrides,
            created_ms=self.clock.wall_ms(),
        )
        last: list[Operation] = [
            PutOp(keys.topic(topic_id), encode(record)),
            PutOp(keys.topic_name(name), encode(TopicNameRecord(topic_id=topic_id))),
        ]
        children = partition_puts(topic_id, 0, assignment, self.brokers.epochs())
        conditions = [Compare.absent(keys.topic_name(name)), *availability.unchanged_for(assignment)]
        self._reserved += len(assignment)
        self._placer.count(assignment, 1)
        try:
            if len(children) + len(last) <= MAX_TXN_OPERATIONS:
                children, last = [], [*children, *last]
            if children:
                # The controller can take this for an aborted creation and delete the partitions: then this fails.
                conditions.append(Compare(keys.partition(topic_id, 0), CompareTarget.VERSION, 0, ">"))
                await self._put_all(children)
            result = await self.store.txn(conditions, last)
            if not result.succeeded:
                if children:
                    await self.store.txn([], [DeleteOp(keys.partitions(topic_id), prefix=True)])
                await self._raise_conflict(name)
            await self.watcher.applied(result.revision, VIEW_TIMEOUT_S)
        finally:
            self._reserved -= len(assignment)
            self._placer.count(assignment, -1)

    async def _raise_conflict(self, name: str) -> None:
        """Raise `AdminError` with the reason why the name was not written."""
        if await self.store.get(keys.topic_name(name)) is not None:
            raise already_exists(name)
        raise AdminError(ErrorCode.REQUEST_TIMED_OUT, "Brokers started or stopped to drain meanwhile; try again.")

    async def _put_all(self, puts: Sequence[Operation], conditions: Sequence[Compare] = ()) -> None:
        """Write in the largest transactions possible. Raises `AdminError` if a condition did not hold."""
        chunks = [puts[i : i + MAX_TXN_OPERATIONS] for i in range(0, len(puts), MAX_TXN_OPERATIONS)]
        results = await asyncio.gather(*[self.store.txn(conditions, chunk) for chunk in chunks])
        if not all(result.succeeded for result in results):
            raise AdminError(ErrorCode.REQUEST_TIMED_OUT, "The topic was changed concurrently; try again.")

    async def auto_create(self, name: str) -> TopicOutcome:
        """Create a topic with the defaults; concurrent requests for it share one creation."""
        task = self._creating.get(name)
        if task is None:
            task = asyncio.ensure_future(self._create_one(TopicRequest(name)))
            self._creating[name] = task
            task.add_done_callback(lambda _: self._creating.pop(name, None))
        return await asyncio.shield(task)

    async def _create_one(self, topic: TopicRequest) -> TopicOutcome:
        (outcome,) = await self.create([topic])
        if outcome.error is ErrorCode.REQUEST_TIMED_OUT:  # clients of Metadata retry this code
            return replace(outcome, error=ErrorCode.LEADER_NOT_AVAILABLE)
        return outcome

    # Growing

    async def create_partitions(
        self,
        name: str,
        count: int,
        assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
        quota: MutationQuota | None = None,
        may_shrink: bool = False,
    ) -> ConfigOutcome:
        """Increase a topic's partitions to `count`, or reduce them with `may_shrink`. `quota` limits the new ones."""
        try:
            async with self._growth_lock:
                if await self._shrinking.change(name, count, validate_only, may_shrink):
                    return ConfigOutcome()
                await self._grow(name, count, assignments, validate_only, quota)
        except AdminError as e:
            return ConfigOutcome(e.error, e.message)
        except StoreError as e:
            return ConfigOutcome(store_error(e), str(e))
        return ConfigOutcome()

    async def _grow(
        self,
        name: str,
        count: int,
        assignments: Sequence[Sequence[int]] | None,
        validate_only: bool,
        quota: MutationQuota | None,
    ) -> None:
        topic = self.view.topics.get(name)
        if topic is None:
            raise unknown_topic(name)
        availability = await self.brokers.read()
        added = self._plan_growth(topic, count, assignments, availability)
        charge(quota, len(added))
        if validate_only:
            return
        entry, record = await self.read_record(topic)
        if record.partition_count != len(topic.partitions):
            raise AdminError(ErrorCode.REQUEST_TIMED_OUT, f'Topic "{name}" is being changed; try again.')
        self._reserved += len(added)
        self._placer.count(added, 1)
        try:
            unchanged = [Compare.unchanged(entry)]
            puts = partition_puts(topic.topic_id, len(topic.partitions), added, self.brokers.epochs())
            await self._put_all(puts, unchanged)
            grown = TopicRecord(
                name=name,
                topic_id=topic.topic_id,
                partition_count=count,
                overrides=record.overrides,
                created_ms=record.created_ms,
            )
            conditions = [*unchanged, *availability.unchanged_for(added)]
            result = await self.store.txn(conditions, [PutOp(entry.key, encode(grown))])
            if not result.succeeded:
                raise AdminError(ErrorCode.REQUEST_TIMED_OUT, f'Topic "{name}" was changed concurrently; try again.')
            await self.watcher.applied(result.revision, VIEW_TIMEOUT_S)
        finally:
            self._reserved -= len(added)
            self._placer.count(added, -1)

    def _plan_growth(
        self,
        topic: TopicView,
        count: int,
        assignments: Sequence[Sequence[int]] | None,
        availability: BrokerAvailability,
    ) -> list[list[int]]:
        present = len(topic.partitions)
        if count <= present:
            raise not_more(topic, count, present)
        if count - present > MAX_REQUEST_PARTITIONS:
            raise AdminError(
                ErrorCode.INVALID_PARTITIONS,
                f"{count - present} new partitions exceed the limit of {MAX_REQUEST_PARTITIONS} per request.",
            )
        self._check_count(count - present)
        factor = len(target_replicas(topic.partitions[0]))  # the target, during a reassignment
        if assignments is None:
            factor = min(factor, self._max_replicas(availability))
            return self._placer.place(count - present, factor, availability.draining, topic, availability.absent)
        if len(assignments) != count - present:
            raise AdminError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{count - present} partition(s) are added, but {len(assignments)} assignment(s) are given.",
            )
        check_manual(assignments, self.view.brokers, factor, availability.absent)
        return [list(replicas) for replicas in assignments]

    async def read_record(self, topic: TopicView) -> tuple[StoreEntry, TopicRecord]:
        """Read a topic's record from the store. Raises `AdminError` if it is deleted."""
        entry = await self.store.get(keys.topic(topic.topic_id))
        if entry is None:
            raise unknown_topic(topic.name)
        try:
            record = decode(TopicRecord, entry.key, entry.value)
        except BadRecord as e:
            raise AdminError(ErrorCode.UNKNOWN_SERVER_ERROR, str(e)) from None
        if record.deleting:
            raise unknown_topic(topic.name)
        return entry, record

    # Deleting

    async def delete(self, topic: TopicView, quota: MutationQuota | None = None) -> ConfigOutcome:
        """Delete a topic and return when the view no longer has it. Its data is removed afterwards."""
        if not self.config.delete_topic_enable:
            return ConfigOutcome(ErrorCode.TOPIC_DELETION_DISABLED, "Topic deletion is disabled (delete.topic.enable).")
        tombstone = TopicRecord(
            name=topic.name,
            topic_id=topic.topic_id,
            partition_count=len(topic.partitions),
            deleting=True,
            deleted_ms=self.clock.wall_ms(),
        )
        name_key = keys.topic_name(topic.name)
        try:
            charge(quota, len(topic.partitions))
            result = await self.store.txn(
                [Compare(name_key, CompareTarget.VALUE, encode(TopicNameRecord(topic_id=topic.topic_id)))],
                [
                    PutOp(keys.topic(topic.topic_id), encode(tombstone)),
                    DeleteOp(name_key),
                    *topic_deletions(topic.topic_id),
                ],
            )
            if not result.succeeded:
                raise unknown_topic(topic.name)
            await self.watcher.applied(result.revision, VIEW_TIMEOUT_S)
        except AdminError as e:
            return ConfigOutcome(e.error, e.message)
        except StoreError as e:
            return ConfigOutcome(store_error(e), str(e))
        return ConfigOutcome()


def charge(quota: MutationQuota | None, partitions: int) -> None:
    """Charge partitions that are created or deleted. Raises `AdminError` if the client must wait."""
    try:
        if quota is not None:
            quota.charge(partitions)
    except MutationQuotaExceeded as e:
        raise AdminError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, str(e)) from None


def invalid_factor(factor: int) -> AdminError:
    """Return the error for a replication factor out of range."""
    return AdminError(
        ErrorCode.INVALID_REPLICATION_FACTOR,
        f"The replication factor must be from 1 to {MAX_REPLICAS}, or -1, not {factor}.",
    )
