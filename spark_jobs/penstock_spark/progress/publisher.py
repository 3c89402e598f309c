"""Commits offsets for groups, each group's in a thread of its own, so that no query waits for them. Called by
`listener`.

Of several commits that wait for the same group the newest offset of each partition counts: a group that brokers are
slow to take delays no other, and costs nothing but one commit when they are back.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from penstock.client.types import TopicPartition
from penstock_spark.model.connection import ConnectionOptions
from penstock_spark.model.errors import PenstockSparkError

log = logging.getLogger("penstock_spark")
Commit = Callable[[ConnectionOptions, str, Mapping[TopicPartition, int]], None]
Target = tuple[ConnectionOptions, str]


class Publisher:
    """`commit` waits until brokers have it, and raises `PenstockSparkError` where they do not take it."""

    def __init__(self, commit: Commit) -> None:
        self._commit = commit
        self._changed = threading.Condition()
        self._waiting: dict[Target, dict[TopicPartition, int]] = {}
        self._published: dict[Target, dict[TopicPartition, int]] = {}
        self._busy: set[Target] = set()
        """Those that have a thread, which ends when nothing waits for them."""
        self._closed = False

    def publish(self, connection: ConnectionOptions, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Returns at once. What the group has already is not committed again."""
        target = (connection, group)
        with self._changed:
            if self._closed:
                return
            known = self._published.get(target, {}) | self._waiting.get(target, {})
            news = {one: offset for one, offset in offsets.items() if known.get(one) != offset}
            if not news:
                return
            if target not in self._busy:
                threading.Thread(target=self._work, args=(target,), name="penstock-progress", daemon=True).start()
                self._busy.add(target)
            self._waiting.setdefault(target, {}).update(news)

    def flush(self, timeout_s: float) -> bool:
        """Whether all that was published has been committed, or refused, in that time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._busy, timeout_s)

    def close(self) -> None:
        """What comes later, when the ways to the brokers may be closed, is not published."""
        with self._changed:
            self._closed = True

    def _work(self, target: Target) -> None:
        while offsets := self._taken(target):
            try:
                self._commit(*target, offsets)
                with self._changed:
                    self._published.setdefault(target, {}).update(offsets)
            except PenstockSparkError as error:
                # The query goes on: its checkpoint is what counts, and the next batch publishes newer offsets.
                log.warning("the offsets of group %r could not be committed: %s", target[1], error)
            except Exception:  # the next batch is to be published all the same
                log.warning("the offsets of group %r could not be committed", target[1], exc_info=True)

    def _taken(self, target: Target) -> dict[TopicPartition, int] | None:
        """What waits for a group; where nothing does, its thread ends."""
        with self._changed:
            offsets = self._waiting.pop(target, None)
            if offsets is None:
                self._busy.discard(target)
                self._changed.notify_all()
            return offsets
