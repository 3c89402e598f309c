"""What subscriptions select: topics by name and by regular expression, with their partitions and racks.

Used by `group`. The expressions are RE2's, as in Kafka, so that matching takes linear time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol
from uuid import UUID

import re2

from penstock.state.view import ClusterView

MAX_PATTERN_CHARS = 4096
MAX_CACHED_PATTERNS = 1000
"""Expressions whose topics are remembered; members of a group usually have the same."""
MAX_PATTERN_BYTES = 1 << 20
"""Memory that a compiled expression may use."""

TopicFilter = Callable[[str], bool]
"""Returns whether a member may see a topic with this name. Equal filters see the same topics."""


class TopicCatalog(Protocol):
    """The topics of the cluster."""

    def topic_id(self, name: str) -> UUID | None:
        """Return the id of a topic; None if it does not exist."""

    def topic_name(self, topic_id: UUID) -> str | None:
        """Return the name of a topic; None if it does not exist."""

    def partition_count(self, topic_id: UUID) -> int:
        """Return the number of partitions of a topic; 0 if it does not exist."""

    def racks(self, topic_id: UUID) -> Sequence[frozenset[str]]:
        """Return the racks of the replicas of each partition."""

    def matching(self, pattern: str, is_visible: TopicFilter) -> frozenset[UUID]:
        """Return the visible topics whose whole names match an expression. Raises ValueError for an invalid one."""


class ViewTopicCatalog:
    """The topics of this broker's view. Implements `TopicCatalog`."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._matching: dict[tuple[str, TopicFilter], frozenset[UUID]] = {}

    def forget_matches(self) -> None:
        """Match expressions again: topics or rights have changed."""
        self._matching.clear()

    def topic_id(self, name: str) -> UUID | None:
        """Return the id of a topic; None if it does not exist."""
        topic = self._view.topics.get(name)
        return None if topic is None else topic.topic_id

    def topic_name(self, topic_id: UUID) -> str | None:
        """Return the name of a topic; None if it does not exist."""
        topic = self._view.topics_by_id.get(topic_id)
        return None if topic is None else topic.name

    def partition_count(self, topic_id: UUID) -> int:
        """Return the number of partitions of a topic; 0 if it does not exist."""
        topic = self._view.topics_by_id.get(topic_id)
        return 0 if topic is None else topic.shown_count

    def racks(self, topic_id: UUID) -> Sequence[frozenset[str]]:
        """Return the racks of the replicas of each partition."""
        topic, brokers = self._view.topics_by_id.get(topic_id), self._view.brokers
        racks = {broker_id: broker.rack for broker_id, broker in brokers.items() if broker.rack is not None}
        partitions = [] if topic is None else topic.shown_partitions
        return [frozenset(racks[r] for r in partition.replicas if r in racks) for partition in partitions]

    def matching(self, pattern: str, is_visible: TopicFilter) -> frozenset[UUID]:
        """Return the visible topics whose whole names match an expression. Raises ValueError for an invalid one."""
        found = self._matching.get((pattern, is_visible))
        if found is None:
            if len(self._matching) >= MAX_CACHED_PATTERNS:
                self._matching.clear()
            matches = compiled(pattern).fullmatch
            topics = self._view.topics.items()
            found = frozenset(topic.topic_id for name, topic in topics if matches(name) and is_visible(name))
            self._matching[pattern, is_visible] = found
        return found


def compiled(pattern: str) -> re2._Regexp:
    """Compile an expression. Raises ValueError, whose message is RE2's, if it is invalid or too large."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise ValueError(f"the expression has {len(pattern)} characters; the limit is {MAX_PATTERN_CHARS}")
    options = re2.Options()
    options.max_mem = MAX_PATTERN_BYTES
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as e:
        raise ValueError(e.args[0].decode() if isinstance(e.args[0], bytes) else str(e)) from None
