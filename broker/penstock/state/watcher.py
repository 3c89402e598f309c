"""Keeps a broker's `ClusterView` as the store says: loads all, then applies changes in revision order. Made by `node`.

What a broker knows of the cluster it knows from here alone, also of what it has itself written: whoever writes waits
with `applied` until the view has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TypeVar
from uuid import UUID

from penstock.config.broker import BrokerConfig
from penstock.runtime.logging import get_logger
from penstock.state import keys
from penstock.state.store import Compacted, Store, StoreChanges, StoreError, StoreEvent, StoreUnavailable
from penstock.state.tables import Tables
from penstock.state.view import ClusterView, TopicChange, TopicView

log = get_logger("penstock.state")

RETRY_S = 0.5
TURN = 500
"""Records that are read before others get their turn on the loop: a broker that reads all again must keep its lease."""

C = TypeVar("C")

Gate = Callable[[Sequence[StoreEvent]], Awaitable[None]]
"""Awaited before changes are taken in. It may write down what must not be forgotten, or hold them back for ever. Of
everything that is read at once it is told the elections, and that a store was restored."""


class Watcher:
    """Follows `keys.METADATA`. `config` is changed when a broker setting in the store is.

    Values that are no records are reported by key in `problems` and in the log, and what was there before stays.
    """

    def __init__(self, store: Store, view: ClusterView, config: BrokerConfig, gate: Gate | None = None) -> None:
        self.store, self.view, self.config, self.gate = store, view, config, gate
        self.loads = 0
        """How often everything was read: once, and again when changes were missed."""
        self._tables = Tables()
        self._reported: dict[str, str] = {}
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def problems(self) -> dict[str, str]:
        """By key, what is wrong with its value."""
        return self._tables.problems

    def unnamed(self) -> list[UUID]:
        """As `Tables.unnamed`: topic ids that no name points to."""
        return self._tables.unnamed()

    def has_part_of(self, topic_id: UUID) -> bool:
        """Whether the store has a record or a partition of a topic, that of one on its way out included."""
        return topic_id in self._tables.topics

    def deleted_ms(self, topic_id: UUID) -> int:
        """When a topic that has a tombstone was deleted, by the wall clock of who did it; 0 where that is unknown."""
        table = self._tables.topics.get(topic_id)
        return table.record.deleted_ms if table is not None and table.record is not None else 0

    async def start(self) -> None:
        """Returns when the view is filled. Raises `StoreError`."""
        assert self._task is None, "a watcher is started once"
        await self._load()
        self._task = asyncio.get_running_loop().create_task(self._follow(), name="watcher")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for _, waiter in self._waiting:
            waiter.cancel()
        self._waiting.clear()

    async def applied(self, revision: int, patience_s: float | None = None) -> None:
        """Returns when the view has everything up to `revision`, which must be that of a change of metadata.

        Raises `StoreUnavailable` where that takes longer than `patience_s`: the change was made all the same.
        """
        if self.view.revision >= revision:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((revision, waiter))
        try:
            async with asyncio.timeout(patience_s):
                await waiter
        except TimeoutError:
            raise StoreUnavailable(
                "the change was made, but the store has not told this broker of it yet: look before trying again"
            ) from None

    async def _follow(self) -> None:
        while True:
            try:
                async for changes in self.store.watch(keys.METADATA, self.view.revision + 1):
                    if self.gate is not None:
                        await self.gate(changes.events)
                    self._apply(changes)
            except Compacted:
                log.info("changes were missed: reading all metadata again", revision=self.view.revision)
                await self._reload()
            except StoreError as e:
                log.warning("the store is not available", reason=str(e))
                await asyncio.sleep(RETRY_S)
            except Exception:
                # Our bug: a broker that no longer followed the store would do more harm than one that reads all again.
                log.exception("changes could not be applied: reading all metadata again")
                await asyncio.sleep(RETRY_S)
                await self._reload()

    async def _reload(self) -> None:
        try:
            await self._load()
        except Exception as e:
            log.warning("the metadata could not be read", reason=str(e))
            await asyncio.sleep(RETRY_S)

    async def _load(self) -> None:
        listing = await self.store.range(keys.METADATA)
        if self.gate is not None:
            told = (keys.ELECTIONS, keys.RESTORED)
            await self.gate([StoreEvent(entry.key, entry) for entry in listing.entries if entry.key.startswith(told)])
        self.loads += 1
        tables = Tables()
        for number, entry in enumerate(listing.entries):
            if number % TURN == TURN - 1:
                await asyncio.sleep(0)
            tables.put(entry)
        before, self._tables = self._tables, tables
        self._tables.keep_understood(before)
        self._tables.touch(self._tables.topics)
        self._tables.touch(self.view.topics_by_id)
        self._tables.touch(self.view.deleting)
        self._tables.brokers_touched = self._tables.configs_touched = True
        self._tables.shards_touched.update(self.view.shards)
        self._publish(listing.revision)

    def _apply(self, changes: StoreChanges) -> None:
        for event in changes.events:
            self._take(event)
        self._publish(changes.revision)

    def _take(self, event: StoreEvent) -> None:
        if event.entry is None:
            self._tables.delete(event.key)
        else:
            self._tables.put(event.entry)

    def _publish(self, revision: int) -> None:
        """Brings the view up to the tables, then tells the listeners, then those who wait."""
        tables, view = self._tables, self.view
        view.cluster_id = tables.cluster.cluster_id if tables.cluster else view.cluster_id
        view.feature_level = tables.cluster.feature_level if tables.cluster else view.feature_level
        view.controller_id = tables.controller.broker_id if tables.controller else -1
        view.controller_epoch = tables.controller.epoch if tables.controller else view.controller_epoch
        brokers_touched, tables.brokers_touched = tables.brokers_touched, False
        if brokers_touched:
            view.brokers = {broker.broker_id: broker for broker in tables.brokers.values()}
        if tables.configs_touched:
            tables.configs_touched = False
            self._change_config()
        shards, tables.shards_touched = tables.shards_touched, set()
        view.shards = dict(tables.shards) if shards else view.shards
        touched, tables.touched = tables.touched, {}
        topic_changes = self._change_topics(touched)
        view.revision = revision
        self._report()
        if topic_changes:
            for listener in view.listeners:
                call(listener, topic_changes)
        for broker_listener in view.broker_listeners if brokers_touched else ():
            call(ignoring(broker_listener), None)
        for shard_listener in view.shard_listeners if shards else ():
            call(shard_listener, shards)
        self._wake(revision)

    def _change_config(self) -> None:
        configs = self._tables.broker_configs
        all_brokers = configs.get(keys.broker_config(None), {})
        this_broker = configs.get(keys.broker_config(self.config.node_id), {})
        before = self.config.topic_defaults
        for problem in self.config.change(all_brokers, this_broker):
            log.warning("a broker setting in the store is left out", reason=problem)
        if self.config.topic_defaults != before:
            self._tables.forget_configs()
            self._tables.touch(self._tables.topics)

    def _change_topics(self, touched: Mapping[UUID, Collection[int] | None]) -> list[TopicChange]:
        gone: list[TopicChange] = []
        come: list[TopicChange] = []
        view, defaults = self.view, self.config.topic_defaults
        for topic_id, indexes in touched.items():
            old = view.topics_by_id.get(topic_id)
            if old is None:
                indexes = None
            new = self._tables.project(topic_id, defaults, indexes)
            if self._tables.is_deleting(topic_id):
                view.deleting.add(topic_id)
            else:
                view.deleting.discard(topic_id)
            indexes = differing(old, new, indexes)
            if old == new if indexes is None else not indexes:
                continue
            if new is None:
                assert old is not None, "None is None"
                gone.append(TopicChange(old, None))
            else:
                come.append(TopicChange(old, new, indexes))
        for change in gone:
            remove(view, change.old)
        for change in come:
            assert change.new is not None, "what comes is there"
            view.topics[change.new.name] = view.topics_by_id[change.new.topic_id] = change.new
        return gone + come

    def _report(self) -> None:
        if self._tables.problems == self._reported:
            return
        for key, reason in self._tables.problems.items():
            if self._reported.get(key) != reason:
                log.error("a value in the store is not understood", key=key, reason=reason)
        self._reported = dict(self._tables.problems)

    def _wake(self, revision: int) -> None:
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for wanted, waiter in waiting:
            if wanted > revision:
                self._waiting.append((wanted, waiter))
            elif not waiter.done():
                waiter.set_result(None)


def remove(view: ClusterView, old: TopicView | None) -> None:
    assert old is not None, "what is removed was there"
    del view.topics_by_id[old.topic_id]
    present = view.topics.get(old.name)
    if present is not None and present.topic_id == old.topic_id:
        del view.topics[old.name]


def differing(old: TopicView | None, new: TopicView | None, indexes: Collection[int] | None) -> Collection[int] | None:
    """Of the partitions that were put in anew those that differ; None where more than that may."""
    if old is None or new is None or indexes is None or len(old.partitions) != len(new.partitions):
        return None
    return [i for i in indexes if i < len(new.partitions) and old.partitions[i] != new.partitions[i]]


def ignoring(listener: Callable[[], None]) -> Callable[[None], None]:
    """For a listener that is told nothing."""
    return lambda _: listener()


def call(listener: Callable[[C], None], changes: C) -> None:
    """One listener's failure is logged, and is not the others'."""
    try:
        listener(changes)
    except Exception:
        log.exception("a listener of changes failed")
