"""The offset of a streaming query in Spark's checkpoint, as JSON.

Used by `source.stream` and `listener`.

    {"flights": {"0": 123, "1": 4}, "@topics": {"flights": "8f14e45f-ceea-467a-9575-1f2d4c9a7c11"}}

The part by topic and partition is that of Spark's Kafka connector: the offset of the next record. Keys with `@`, which
is not valid in topic names, are additions:

`@topics`   topic ids, which distinguish a topic that was deleted and recreated from the one that was read.
`@from`     in the first batch only: its start. Spark asks a new query for its start, and asks again to repeat the first
            batch; `latest` would then be another offset, and the records in between would be lost.

Checkpoints without them, such as the connector's own, are accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from penstock.client import TopicPartition
from penstock_spark.model.errors import PenstockSparkError

Offsets = Mapping[TopicPartition, int]
TOPICS, FROM, INITIAL = "@topics", "@from", "@initial"


class ForeignCheckpoint(PenstockSparkError):
    """The checkpoint's offsets are not of this source."""


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """An offset of a streaming query."""

    offsets: Offsets
    ids: Mapping[str, UUID] = field(default_factory=dict)
    initial: bool = False
    """Whether this is the start of the query, before any batch. Never stored in a checkpoint."""
    began: Offsets | None = None

    def to_json(self) -> dict[str, Any]:
        """Return JSON with keys in a fixed order: Spark compares offsets as text."""
        found: dict[str, Any] = _by_topic(self.offsets)
        if self.ids:
            found[TOPICS] = {topic: str(self.ids[topic]) for topic in sorted(self.ids)}
        if self.initial:
            found[INITIAL] = True
        if self.began is not None:
            found[FROM] = _by_topic(self.began)
        return found

    @classmethod
    def from_json(cls, value: object) -> StreamOffset:
        """Parse an offset. Raises `ForeignCheckpoint`."""
        try:
            if not isinstance(value, dict):
                raise TypeError(f"{value!r} is not an object")
            parts = dict(value)
            ids = {topic: UUID(text) for topic, text in parts.pop(TOPICS, {}).items()}
            initial = bool(parts.pop(INITIAL, False))
            began = parts.pop(FROM, None)
            return cls(_parsed(parts), ids, initial, None if began is None else _parsed(began))
        except (TypeError, ValueError, AttributeError) as error:
            raise ForeignCheckpoint(
                f"the checkpoint does not have offsets of this source: {error}; it may be another query's: use a new "
                "checkpointLocation for a new query"
            ) from None


def _by_topic(offsets: Offsets) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def _parsed(parts: Mapping[str, Any]) -> dict[TopicPartition, int]:
    found = {}
    for topic, partitions in parts.items():
        for partition, offset in partitions.items():
            if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
                raise ValueError(f"{topic}-{partition} has the offset {offset!r}")
            found[TopicPartition(topic, int(partition))] = offset
    return found
