"""Creates, grows and deletes topics, by transactions on the store. Called by `api` and, for auto-creation, `Metadata`.

A topic of any size exists from one transaction on: the one that writes its name, after everything else of it. It ends
by the one that removes the name and leaves a tombstone; what is then left of it goes in the background, and the
tombstone last. Who answers waits until the view has it, so that the client's next request finds it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

from penstock.config.broker import BrokerConfig
from penstock.config.definition import InvalidSetting
from penstock.config.topic import normalise_topic_setting, resolve
from penstock.control.assignment import check_manual, partition_puts
from penstock.control.controller.reassign import target
from penstock.control.drains import Drains, read_drains
from penstock.control.naming import Collisions, check_new_name
from penstock.control.placing import Placing, usable_brokers
from penstock.control.results import (
    SEEN_S,
    AdminError,
    ConfigOutcome,
    TopicOutcome,
    TopicRequest,
    already_exists,
    store_error,
    unknown_topic,
)
from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
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

Cleaner = Callable[[UUID], Awaitable[None]]
"""Removes what a room keeps of a deleted topic; called again after a restart if it failed or was cut short."""

MAX_REQUEST_PARTITIONS = 10_000
"""New partitions that one request may ask for."""
AT_A_TIME = 256
"""Topics of one request that are created together: they share commits, and others get their turn in between."""


class TopicService:
    """The life of topics. `cleaners` are asked to forget a topic that was deleted.

    Where it `is_clustered` there are other brokers: what is left of topics is then removed by the controller
    (`controller.housekeeping`), each broker's own data by that broker when it sees the tombstone.
    """

    def __init__(
        self,
        store: Store,
        view: ClusterView,
        watcher: Watcher,
        clock: Clock,
        config: BrokerConfig,
        new_id: Callable[[], UUID] = uuid4,
        is_clustered: bool = False,
    ) -> None:
        self.is_clustered = is_clustered
        self.store, self.view, self.watcher, self.clock, self.config = store, view, watcher, clock, config
        self.cleaners: list[Cleaner] = []
        self._new_id = new_id
        self._collisions = Collisions()
        self._placing = Placing(view)
        self._partition_count = 0
        self._reserved = 0
        self._growing = asyncio.Lock()
        self._creating: dict[str, asyncio.Task[TopicOutcome]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        for topic in view.topics.values():
            self._partition_count += len(topic.partitions)
            self._collisions.add(topic.name)
        view.subscribe(self._on_changes)

    def _on_changes(self, changes: list[TopicChange]) -> None:
        self._placing.take(changes)
        for change in changes:
            if change.old is not None:
                self._partition_count -= len(change.old.partitions)
                self._collisions.remove(change.old.name)
        for change in changes:
            if change.new is not None:
                self._partition_count += len(change.new.partitions)
                self._collisions.add(change.new.name)

    # Creating

    async def create(self, topics: Sequence[TopicRequest], validate_only: bool = False) -> list[TopicOutcome]:
        """Creates topics, each for itself; the answers are in the order of the topics."""
        twice = {name for name, count in Counter(topic.name for topic in topics).items() if count > 1}
        asked = sum(max(topic.partition_count, len(topic.assignment), 1) for topic in topics)

        def refusal(topic: TopicRequest) -> AdminError | None:
            if topic.name in twice:
                return AdminError(ErrorCode.INVALID_REQUEST, f"Duplicate topic name {topic.name!r} in the request.")
            if asked > MAX_REQUEST_PARTITIONS:
                return AdminError(
                    ErrorCode.INVALID_PARTITIONS,
                    f"The request asks for {asked} partitions: at most {MAX_REQUEST_PARTITIONS}; split it.",
                )
            return None

        try:
            drains = await self._drains()
        except StoreError as e:
            return [TopicOutcome(topic.name, store_error(e), str(e)) for topic in topics]
        outcomes: list[TopicOutcome] = []
        for start in range(0, len(topics), AT_A_TIME):
            part = topics[start : start + AT_A_TIME]
            outcomes += await asyncio.gather(
                *[self._create(topic, validate_only, refusal(topic), drains) for topic in part]
            )
        return outcomes

    async def _drains(self) -> Drains:
        """Who is to be emptied, as it is in the store now: the view tells it later. Raises `StoreError`."""
        if not self.is_clustered:
            return Drains()
        return await read_drains(self.store, self.view, self.clock, self.config)

    async def _create(
        self, topic: TopicRequest, validate_only: bool, refusal: AdminError | None, drains: Drains
    ) -> TopicOutcome:
        try:
            if refusal is not None:
                raise refusal
            self._check_name(topic)
            overrides = self._check_settings(topic)
            assignment = self._plan(topic, drains)
            topic_id = self._topic_id()
            if not validate_only:
                await self._write(topic_id, topic.name, assignment, overrides, drains)
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

    def _plan(self, topic: TopicRequest, drains: Drains) -> list[list[int]]:
        """Return the replicas of each partition. Raises `AdminError` if the request's numbers do not allow it."""
        assignment = self._manual(topic, drains) if topic.assignment else self._automatic(topic, drains)
        self._check_count(len(assignment))
        return assignment

    def _manual(self, topic: TopicRequest, drains: Drains) -> list[list[int]]:
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
        check_manual(assignment, self.view.brokers, None, drains.away)
        return assignment

    def _automatic(self, topic: TopicRequest, drains: Drains) -> list[list[int]]:
        factor = topic.replication_factor
        if factor == -1:
            factor = min(self.config.default_replication_factor, self._room(drains))
        if factor < 1:
            raise invalid_factor(factor)
        count = self.config.num_partitions if topic.partition_count == -1 else topic.partition_count
        if count < 1:
            raise AdminError(ErrorCode.INVALID_PARTITIONS, f"The number of partitions must be positive, not {count}.")
        if factor > MAX_REPLICAS:
            raise invalid_factor(factor)
        self._check_count(count)
        return self._placing.place(count, factor, drains.brokers, away=drains.away)

    def _room(self, drains: Drains) -> int:
        """How many replicas a new partition can have."""
        return max(len(usable_brokers(self.view, drains.brokers)) + len(drains.away), 1)

    def _check_count(self, count: int) -> None:
        present = self._partition_count + self._reserved
        if count > MAX_PARTITIONS or present + count > self.config.max_partitions:
            raise AdminError(
                ErrorCode.INVALID_PARTITIONS,
                f"{count} partitions beside the {present} there are would be more than max.partitions allows:"
                f" {self.config.max_partitions}.",
            )

    def _check_settings(self, topic: TopicRequest) -> dict[str, str]:
        overrides: dict[str, str] = {}
        for name, value in topic.settings.items():
            if value is None:
                raise AdminError(ErrorCode.INVALID_CONFIG, f"The setting {name} has no value; leave it out instead.")
            overrides[name] = value
        try:
            overrides = {name: normalise_topic_setting(name, text) for name, text in overrides.items()}
            resolve(overrides, self.config.topic_defaults)
        except InvalidSetting as e:
            raise AdminError(ErrorCode.INVALID_CONFIG, str(e)) from None
        return overrides

    def _topic_id(self) -> UUID:
        """A random id that no client takes for a missing one or, in base64, for a command line option."""
        topic_id = self._new_id()
        while topic_id.int < 2 or topic_id.bytes[0] >> 2 == 62:
            topic_id = self._new_id()
        return topic_id

    async def _write(
        self, topic_id: UUID, name: str, assignment: list[list[int]], overrides: dict[str, str], drains: Drains
    ) -> None:
        """Children first, the name last. Raises `AdminError` where another had the name first."""
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
        children = partition_puts(topic_id, 0, assignment, self._epochs())
        conditions = [Compare.absent(keys.topic_name(name)), *drains.unchanged_for(assignment)]
        self._reserved += len(assignment)
        self._placing.count(assignment, 1)
        try:
            if len(children) + len(last) <= MAX_TXN_OPERATIONS:
                children, last = [], [*children, *last]
            if children:
                # Whoever takes this for the leftovers of a creation that was cut short removes them all: it fails then.
                conditions.append(Compare(keys.partition(topic_id, 0), CompareTarget.VERSION, 0, ">"))
                await self._put_all(children)
            result = await self.store.txn(conditions, last)
            if not result.succeeded:
                if children:
                    await self.store.txn([], [DeleteOp(keys.partitions(topic_id), prefix=True)])
                await self._refuse(name)
            await self.watcher.applied(result.revision, SEEN_S)
        finally:
            self._reserved -= len(assignment)
            self._placing.count(assignment, -1)

    async def _refuse(self, name: str) -> None:
        """Why the name could not be written: raises `AdminError`."""
        if await self.store.get(keys.topic_name(name)) is not None:
            raise already_exists(name)
        raise AdminError(ErrorCode.REQUEST_TIMED_OUT, "Brokers began or ended to drain meanwhile: try again.")

    def _epochs(self) -> dict[int, int] | None:
        """The epochs of the brokers that are registered; None where there is but one broker."""
        return {b.broker_id: b.epoch for b in self.view.brokers.values()} if self.is_clustered else None

    async def _put_all(self, puts: Sequence[Operation], conditions: Sequence[Compare] = ()) -> None:
        """Writes in transactions as large as they may be. Raises `AdminError` where a condition did not hold."""
        chunks = [puts[i : i + MAX_TXN_OPERATIONS] for i in range(0, len(puts), MAX_TXN_OPERATIONS)]
        results = await asyncio.gather(*[self.store.txn(conditions, chunk) for chunk in chunks])
        if not all(result.succeeded for result in results):
            raise AdminError(ErrorCode.REQUEST_TIMED_OUT, "The topic was changed by somebody else: try again.")

    async def auto_create(self, name: str) -> TopicOutcome:
        """Creates a topic that a client asked for, with the defaults; many who ask at a time share one creation."""
        task = self._creating.get(name)
        if task is None:
            task = asyncio.ensure_future(self._create_one(TopicRequest(name)))
            self._creating[name] = task
            task.add_done_callback(lambda _: self._creating.pop(name, None))
        return await asyncio.shield(task)

    async def _create_one(self, topic: TopicRequest) -> TopicOutcome:
        (outcome,) = await self.create([topic])
        if outcome.error is ErrorCode.REQUEST_TIMED_OUT:  # in metadata, clients wait for what has no leader yet
            return replace(outcome, error=ErrorCode.LEADER_NOT_AVAILABLE)
        return outcome

    # Growing

    async def create_partitions(
        self, name: str, count: int, assignments: Sequence[Sequence[int]] | None = None, validate_only: bool = False
    ) -> ConfigOutcome:
        """Makes a topic's partitions `count`, which must be more than it has."""
        try:
            async with self._growing:
                await self._grow(name, count, assignments, validate_only)
        except AdminError as e:
            return ConfigOutcome(e.error, e.message)
        except StoreError as e:
            return ConfigOutcome(store_error(e), str(e))
        return ConfigOutcome()

    async def _grow(
        self, name: str, count: int, assignments: Sequence[Sequence[int]] | None, validate_only: bool
    ) -> None:
        topic = self.view.topics.get(name)
        if topic is None:
            raise unknown_topic(name)
        drains = await self._drains()
        added = self._plan_growth(topic, count, assignments, drains)
        if validate_only:
            return
        entry, record = await self.current(topic)
        if record.partition_count != len(topic.partitions):
            raise AdminError(ErrorCode.REQUEST_TIMED_OUT, f"Topic {name} is changing: try again.")
        self._reserved += len(added)
        self._placing.count(added, 1)
        try:
            unchanged = [Compare.unchanged(entry)]
            puts = partition_puts(topic.topic_id, len(topic.partitions), added, self._epochs())
            await self._put_all(puts, unchanged)
            grown = TopicRecord(
                name=name,
                topic_id=topic.topic_id,
                partition_count=count,
                overrides=record.overrides,
                created_ms=record.created_ms,
            )
            conditions = [*unchanged, *drains.unchanged_for(added)]
            result = await self.store.txn(conditions, [PutOp(entry.key, encode(grown))])
            if not result.succeeded:
                raise AdminError(ErrorCode.REQUEST_TIMED_OUT, f"Topic {name} was changed by somebody else: try again.")
            await self.watcher.applied(result.revision, SEEN_S)
        finally:
            self._reserved -= len(added)
            self._placing.count(added, -1)

    def _plan_growth(
        self, topic: TopicView, count: int, assignments: Sequence[Sequence[int]] | None, drains: Drains
    ) -> list[list[int]]:
        present = len(topic.partitions)
        if count == present:
            raise AdminError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {present} partition(s).")
        if count < present:
            raise AdminError(
                ErrorCode.INVALID_PARTITIONS,
                f"The topic {topic.name} has {present} partition(s), so {count} would not be an increase; fewer"
                " partitions are not offered yet, because what is in the others would be lost.",
            )
        if count - present > MAX_REQUEST_PARTITIONS:
            raise AdminError(
                ErrorCode.INVALID_PARTITIONS,
                f"{count - present} partitions are more than the {MAX_REQUEST_PARTITIONS} that can be added at a time.",
            )
        self._check_count(count - present)
        factor = len(target(topic.partitions[0]))  # as it will be, where replicas are being moved
        if assignments is None:
            factor = min(factor, self._room(drains))
            return self._placing.place(count - present, factor, drains.brokers, topic, drains.away)
        if len(assignments) != count - present:
            raise AdminError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{count - present} partition(s) are to be added, and {len(assignments)} assignment(s) are given.",
            )
        check_manual(assignments, self.view.brokers, factor, drains.away)
        return [list(replicas) for replicas in assignments]

    async def current(self, topic: TopicView) -> tuple[StoreEntry, TopicRecord]:
        """A topic's record as it is in the store. Raises `AdminError` where it has gone."""
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

    async def delete(self, topic: TopicView) -> ConfigOutcome:
        """Deletes a topic; returns when nobody sees it any more. Its data is removed afterwards."""
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
            result = await self.store.txn(
                [Compare(name_key, CompareTarget.VALUE, encode(TopicNameRecord(topic_id=topic.topic_id)))],
                [
                    PutOp(keys.topic(topic.topic_id), encode(tombstone)),
                    DeleteOp(name_key),
                    DeleteOp(keys.partitions(topic.topic_id), prefix=True),
                ],
            )
            if not result.succeeded:
                raise unknown_topic(topic.name)
            await self.watcher.applied(result.revision, SEEN_S)
        except AdminError as e:
            return ConfigOutcome(e.error, e.message)
        except StoreError as e:
            return ConfigOutcome(store_error(e), str(e))
        self._in_background(self._finish_deletion(topic.topic_id))
        return ConfigOutcome()

    async def _finish_deletion(self, topic_id: UUID) -> None:
        """Has the data removed, and then the tombstone; where that fails, the next start does it."""
        try:
            for cleaner in self.cleaners:
                await cleaner(topic_id)
            if self.is_clustered:
                return  # other brokers have data too, and may be away: the controller knows when nobody needs it
            await self.store.txn([], [DeleteOp(keys.topic(topic_id)), DeleteOp(keys.partitions(topic_id), prefix=True)])
        except Exception as e:
            log.warning(
                "what is left of a deleted topic stays until the next start", topic=str(topic_id), reason=str(e)
            )

    async def resume(self) -> None:
        """Finishes, after a start, what was under way at the last end: deletions, and creations that got no name.

        In a cluster an unnamed topic may be one that another broker is creating: the controller looks after them.
        """
        for topic_id in list(self.view.deleting):
            self._in_background(self._finish_deletion(topic_id))
        for topic_id in self.watcher.unnamed() if not self.is_clustered else ():
            await self.store.txn([], [DeleteOp(keys.topic(topic_id)), DeleteOp(keys.partitions(topic_id), prefix=True)])

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settle(self) -> None:
        """Returns when nothing goes on in the background."""
        while self._tasks:
            await asyncio.wait(self._tasks)


def invalid_factor(factor: int) -> AdminError:
    return AdminError(
        ErrorCode.INVALID_REPLICATION_FACTOR,
        f"The replication factor must be from 1 to {MAX_REPLICAS}, or -1, not {factor}.",
    )
