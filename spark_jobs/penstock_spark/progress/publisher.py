"""Commits offsets of groups, each group in its own thread, so that no query waits for a commit. Called by `listener`.

Of several pending commits of a group only the newest offset of each partition is committed. A group whose commits are
slow does not delay others, and needs one commit when the brokers are back.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from penstock.client import TopicPartition
from penstock_spark.model.connection import ConnectionOptions
from penstock_spark.model.errors import PenstockSparkError

log = logging.getLogger("penstock_spark")
Commit = Callable[[ConnectionOptions, str, Mapping[TopicPartition, int]], None]
Target = tuple[ConnectionOptions, str]


class Publisher:
    """Commits in the background. `commit` blocks until the brokers have it, and raises `PenstockSparkError`."""

    def __init__(self, commit: Commit) -> None:
        self._commit = commit
        self._changed = threading.Condition()
        self._waiting: dict[Target, dict[TopicPartition, int]] = {}
        self._published: dict[Target, dict[TopicPartition, int]] = {}
        self._busy: set[Target] = set()
        """Targets with a thread, which ends when nothing is pending."""
        self._closed = False

    def publish(self, connection: ConnectionOptions, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Schedule a commit and return. Offsets that the group has already are not committed again."""
        target = (connection, group)
        with self._changed:
            if self._closed:
                return
            known = self._published.get(target, {}) | self._waiting.get(target, {})
            changed = {one: offset for one, offset in offsets.items() if known.get(one) != offset}
            if not changed:
                return
            if target not in self._busy:
                threading.Thread(target=self._work, args=(target,), name="penstock-progress", daemon=True).start()
                self._busy.add(target)
            self._waiting.setdefault(target, {}).update(changed)

    def flush(self, timeout_s: float) -> bool:
        """Wait for pending commits; return whether all were committed or rejected within `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._busy, timeout_s)

    def close(self) -> None:
        """Ignore further offsets: the links may be closed."""
        with self._changed:
            self._closed = True

    def _work(self, target: Target) -> None:
        while offsets := self._pop_waiting(target):
            try:
                self._commit(*target, offsets)
                with self._changed:
                    self._published.setdefault(target, {}).update(offsets)
            except PenstockSparkError as error:
                # The query continues: its checkpoint is authoritative, and the next batch publishes newer offsets.
                log.warning('cannot commit the offsets of group "%s": %s', target[1], error)
            except Exception:  # must not stop later commits
                log.warning('cannot commit the offsets of group "%s"', target[1], exc_info=True)

    def _pop_waiting(self, target: Target) -> dict[TopicPartition, int] | None:
        """Return the pending offsets of a group; None ends its thread."""
        with self._changed:
            offsets = self._waiting.pop(target, None)
            if offsets is None:
                self._busy.discard(target)
                self._changed.notify_all()
            return offsets
