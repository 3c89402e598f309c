"""Commits offsets for groups, in a thread of its own, so that no query waits for it. Called by `listener`.

Of several commits that wait for the same group the newest offset of each partition counts: a group that brokers are
slow to take delays nothing, and costs nothing but one commit when they are back.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from penstock.client.types import TopicPartition
from penstock_spark.model.connection import Connection
from penstock_spark.model.errors import PenstockSparkError

log = logging.getLogger("penstock_spark")
Commit = Callable[[Connection, str, Mapping[TopicPartition, int]], None]


class Publisher:
    """`commit` waits until brokers have it, and raises `PenstockSparkError` where they do not take it."""

    def __init__(self, commit: Commit) -> None:
        self._commit = commit
        self._changed = threading.Condition()
        self._waiting: dict[tuple[Connection, str], dict[TopicPartition, int]] = {}
        self._published: dict[tuple[Connection, str], dict[TopicPartition, int]] = {}
        self._busy = self._closed = False
        self._thread: threading.Thread | None = None

    def publish(self, connection: Connection, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Returns at once. What the group has already is not committed again."""
        with self._changed:
            if self._closed:
                return
            known = self._published.get((connection, group), {}) | self._waiting.get((connection, group), {})
            news = {one: offset for one, offset in offsets.items() if known.get(one) != offset}
            if not news:
                return
            self._waiting.setdefault((connection, group), {}).update(news)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="penstock-progress", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Whether all that was published has been committed, or refused, in that time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._busy, timeout_s)

    def close(self) -> None:
        """What comes later, when the ways to the brokers may be closed, is not published."""
        with self._changed:
            self._closed = True

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting))
                target, offsets = next(iter(self._waiting.items()))
                del self._waiting[target]
                self._busy = True
            try:
                self._commit(*target, offsets)
                with self._changed:
                    self._published.setdefault(target, {}).update(offsets)
            except PenstockSparkError as error:
                # The query goes on: its checkpoint is what counts, and the next batch publishes newer offsets.
                log.warning("the offsets of group %r could not be committed: %s", target[1], error)
            except Exception:  # the thread is for all groups, and for all batches to come
                log.warning("the offsets of group %r could not be committed", target[1], exc_info=True)
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()
