"""Keeps a broker's `ClusterView` equal to the store: loads everything, then applies changes in order. Created by
`node`.

A broker knows the cluster only by its view, including its own writes: writers wait with `applied` until the view has
their change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TypeVar
from uuid import UUID

from penstock.config.broker import BrokerConfig
from penstock.config.definition import RejectedSetting
from penstock.runtime.logging import get_logger
from penstock.runtime.tasks import report, spawn
from penstock.state import keys
from penstock.state.store import Compacted, Store, StoreChanges, StoreError, StoreEvent, StoreUnavailable
from penstock.state.tables import Tables
from penstock.state.view import ClusterView, TopicChange, TopicView

log = get_logger("penstock.state")

RETRY_S = 0.5
RECORDS_PER_TURN = 500
"""Records applied before the event loop runs other tasks: a broker that reloads must keep its lease."""

C = TypeVar("C")

Gate = Callable[[Sequence[StoreEvent]], Awaitable[None]]
"""Awaited before changes are applied. It can persist what must not be lost, or block them. After a full load it gets
only elections and the restore mark."""


class Watcher:
    """Follows `keys.METADATA`, and updates `config` with broker settings in the store.

    Unreadable values are logged and listed in `problems`; the previous value stays in effect. Invalid settings are
    logged and ignored.
    """

    def __init__(self, store: Store, view: ClusterView, config: BrokerConfig, gate: Gate | None = None) -> None:
        self.store, self.view, self.config, self.gate = store, view, config, gate
        self.loads = 0
        """Number of full loads: one, and one more each time changes were missed."""
        self._tables = Tables()
        self._reported: dict[str, str] = {}
        self._reported_settings: dict[str, list[RejectedSetting]] = {}
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def problems(self) -> dict[str, str]:
        """Reasons of unreadable values by key."""
        return self._tables.problems

    def unnamed(self) -> list[UUID]:
        """Return topic ids that no name refers to; see `Tables.unnamed`."""
        return self._tables.unnamed()

    def has_keys_of(self, topic_id: UUID) -> bool:
        """Return whether the store has a record or a partition of a topic, also of one being deleted."""
        return topic_id in self._tables.topics

    def deleted_ms(self, topic_id: UUID) -> int:
        """Return when a topic with a tombstone was deleted, in wall-clock ms of the deleting broker; 0 if unknown."""
        table = self._tables.topics.get(topic_id)
        return table.record.deleted_ms if table is not None and table.record is not None else 0

    async def start(self) -> None:
        """Fill the view, then follow changes. Raises `StoreError`."""
        assert self._task is None, "a watcher is started once"
        await self._load()
        self._task = spawn(self._follow(), "watcher")

    async def stop(self) -> None:
        """Stop following; cancel waiters."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for _, waiter in self._waiting:
            waiter.cancel()
        self._waiting.clear()

    async def applied(self, revision: int, patience_s: float | None = None) -> None:
        """Return when the view has `revision`, which must be that of a metadata change.

        Raises `StoreUnavailable` after `patience_s` seconds: the change was made nevertheless.
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
                "the change was made, but this broker has not received it from the store yet; check it before a retry"
            ) from None

    async def _follow(self) -> None:
        while True:
            try:
                async for changes in self.store.watch(keys.METADATA, self.view.revision + 1):
                    if self.gate is not None:
                        await self.gate(changes.events)
                    self._apply(changes)
            except Compacted:
                log.info("watch compacted; reloading all metadata", revision=self.view.revision)
                await self._reload()
            except StoreError as e:
                log.warning("metadata store unavailable; retrying", reason=str(e))
                await asyncio.sleep(RETRY_S)
            except Exception as e:
                # A bug: a reload does less harm than a broker that no longer follows the store.
                report("applying metadata changes failed; reloading all metadata", e)
                await asyncio.sleep(RETRY_S)
                await self._reload()

    async def _reload(self) -> None:
        try:
            await self._load()
        except StoreError as e:
            log.warning("loading metadata failed; retrying", reason=str(e))
            await asyncio.sleep(RETRY_S)
        except Exception as e:
            report("loading metadata failed; retrying", e)
            await asyncio.sleep(RETRY_S)

    async def _load(self) -> None:
        listing = await self.store.range(keys.METADATA)
        if self.gate is not None:
            gated = (keys.ELECTIONS, keys.RESTORED)
            await self.gate([StoreEvent(entry.key, entry) for entry in listing.entries if entry.key.startswith(gated)])
        self.loads += 1
        tables = Tables()
        for number, entry in enumerate(listing.entries):
            if number % RECORDS_PER_TURN == RECORDS_PER_TURN - 1:
                await asyncio.sleep(0)
            tables.put(entry)
        before, self._tables = self._tables, tables
        self._tables.keep_readable(before)
        self._tables.touch(self._tables.topics)
        self._tables.touch(self.view.topics_by_id)
        self._tables.touch(self.view.deleting)
        self._tables.brokers_touched = self._tables.configs_touched = True
        self._tables.shards_touched.update(self.view.shards)
        self._tables.security_touched.update(self.view.security.keys(), tables.security.keys())
        self._publish(listing.revision)

    def _apply(self, changes: StoreChanges) -> None:
        for event in changes.events:
            self._apply_event(event)
        self._publish(changes.revision)

    def _apply_event(self, event: StoreEvent) -> None:
        if event.entry is None:
            self._tables.delete(event.key)
        else:
            self._tables.put(event.entry)

    def _publish(self, revision: int) -> None:
        """Update the view from the tables, then notify the listeners, then the waiters."""
        tables, view = self._tables, self.view
        view.cluster_id = tables.cluster.cluster_id if tables.cluster else view.cluster_id
        view.feature_level = tables.cluster.feature_level if tables.cluster else view.feature_level
        if tables.cluster:
            view.features, view.features_epoch = tables.cluster.features, tables.cluster.features_epoch
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
        security, tables.security_touched = tables.security_touched, set()
        view.security = tables.security
        touched, tables.touched = tables.touched, {}
        topic_changes = self._change_topics(touched)
        view.revision = revision
        self._report()
        if topic_changes:
            for listener in view.listeners:
                notify(listener, topic_changes)
        for broker_listener in view.broker_listeners if brokers_touched else ():
            notify(without_argument(broker_listener), None)
        for shard_listener in view.shard_listeners if shards else ():
            notify(shard_listener, shards)
        for security_listener in view.security_listeners if security else ():
            notify(security_listener, security)
        self._wake(revision)

    def _change_config(self) -> None:
        configs = self._tables.broker_configs
        all_brokers = configs.get(keys.broker_config(None), {})
        this_broker = configs.get(keys.broker_config(self.config.node_id), {})
        before = self.config.topic_defaults
        rejected = self.config.apply_dynamic(all_brokers, this_broker)
        self._tables.reject(keys.broker_config(None), rejected)
        if self.config.topic_defaults != before:
            self._tables.forget_configs()
            self._tables.touch(self._tables.topics)

    def _change_topics(self, touched: Mapping[UUID, Collection[int] | None]) -> list[TopicChange]:
        removed: list[TopicChange] = []
        updated: list[TopicChange] = []
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
            indexes = changed_indexes(old, new, indexes)
            if old == new if indexes is None else not indexes:
                continue
            if new is None:
                assert old is not None, "a change has a topic"
                removed.append(TopicChange(old, None))
            else:
                updated.append(TopicChange(old, new, indexes))
        for change in removed:
            remove_topic(view, change.old)
        for change in updated:
            assert change.new is not None, "an updated topic exists"
            view.topics[change.new.name] = view.topics_by_id[change.new.topic_id] = change.new
        return removed + updated

    def _report(self) -> None:
        """Log new problems."""
        problems, rejected = self._tables.problems, self._tables.rejected
        if problems != self._reported:
            for key, reason in problems.items():
                if self._reported.get(key) != reason:
                    log.error("unreadable value in the metadata store", key=key, reason=reason)
            self._reported = dict(problems)
        if rejected != self._reported_settings:
            for key, found in rejected.items():
                for each in found:
                    if each not in self._reported_settings.get(key, ()):
                        log.error("invalid setting in the metadata store; ignoring it", **each._asdict())
            self._reported_settings = dict(rejected)

    def _wake(self, revision: int) -> None:
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for awaited, waiter in waiting:
            if awaited > revision:
                self._waiting.append((awaited, waiter))
            elif not waiter.done():
                waiter.set_result(None)


def remove_topic(view: ClusterView, old: TopicView | None) -> None:
    """Remove a topic from the view."""
    assert old is not None, "a removed topic was in the view"
    del view.topics_by_id[old.topic_id]
    present = view.topics.get(old.name)
    if present is not None and present.topic_id == old.topic_id:
        del view.topics[old.name]


def changed_indexes(
    old: TopicView | None, new: TopicView | None, indexes: Collection[int] | None
) -> Collection[int] | None:
    """Return which of the rebuilt partitions differ; None if more may have changed."""
    if old is None or new is None or indexes is None or len(old.partitions) != len(new.partitions):
        return None
    return [i for i in indexes if i < len(new.partitions) and old.partitions[i] != new.partitions[i]]


def without_argument(listener: Callable[[], None]) -> Callable[[None], None]:
    """Adapt a listener that takes no argument."""
    return lambda _: listener()


def notify(listener: Callable[[C], None], changes: C) -> None:
    """Call a listener; log its failure, so that the others are called."""
    try:
        listener(changes)
    except Exception as e:
        report("metadata listener failed", e)
