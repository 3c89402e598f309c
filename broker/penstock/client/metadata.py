"""Cached cluster metadata: an immutable snapshot that each Metadata response updates.

No I/O: `cluster` requests metadata and merges it here; producers, consumers and admin clients read it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from penstock.client.errors import error_code
from penstock.client.types import Node, PartitionInfo, TopicInfo
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.metadata import MetadataResponse, MetadataResponseTopic


@dataclass(frozen=True, slots=True)
class MetadataCache:
    """Brokers by id, topics by name, and errors of requested topics that are missing."""

    cluster_id: str | None = None
    controller_id: int = -1
    brokers: dict[int, Node] = field(default_factory=dict)
    topics: dict[str, TopicInfo] = field(default_factory=dict)
    errors: dict[str, ErrorCode] = field(default_factory=dict)

    def leader(self, topic: str, partition: int) -> int:
        """Return the id of a partition's leader; -1 if unknown."""
        info = self.topics.get(topic)
        found = (info.partitions.get(partition) or info.removed.get(partition)) if info else None
        return found.leader if found and found.leader in self.brokers else -1

    def partition_count(self, topic: str) -> int:
        """Return the number of partitions; 0 if the topic is unknown."""
        info = self.topics.get(topic)
        return len(info.partitions) if info else 0


def merge_metadata(old: MetadataCache, response: MetadataResponse, requested: Iterable[str] | None) -> MetadataCache:
    """Return `old` updated from a response for the topics `requested` (None: all topics, so that others are removed).

    A response with an older leader epoch than the cached one does not change the cached leader (KIP-320).
    """
    topics = {} if requested is None else dict(old.topics)
    errors = {} if requested is None else dict(old.errors)
    for name in requested or ():
        errors.pop(name, None)
    for topic in response.topics:
        name = topic.name or ""
        if topic.error_code:
            errors[name] = error_code(topic.error_code)
            if topic.error_code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION):
                topics.pop(name, None)
            continue
        topics[name] = topic_info(topic, old.topics.get(name))
    brokers = {b.node_id: Node(b.node_id, b.host, b.port, b.rack) for b in response.brokers}
    return MetadataCache(response.cluster_id, response.controller_id, brokers, topics, errors)


def topic_info(topic: MetadataResponseTopic, old: TopicInfo | None) -> TopicInfo:
    """Return a topic from a response; a newer cached leader is kept."""
    known = old.partitions if old is not None and old.topic_id == topic.topic_id else {}
    partitions = {}
    for p in sorted(topic.partitions, key=lambda p: p.partition_index):
        leader = -1 if p.error_code == ErrorCode.LEADER_NOT_AVAILABLE else p.leader_id
        info = PartitionInfo(
            p.partition_index, leader, p.leader_epoch, tuple(p.replica_nodes), tuple(p.isr_nodes),
            tuple(p.offline_replicas),
        )  # fmt: skip
        before = known.get(p.partition_index)
        if before is not None and before.leader_epoch > p.leader_epoch >= 0:
            info = replace(info, leader=before.leader, leader_epoch=before.leader_epoch)
        partitions[p.partition_index] = info
    earlier = {} if old is None or old.topic_id != topic.topic_id else old.removed | known
    removed = {index: info for index, info in earlier.items() if index not in partitions}
    return TopicInfo(topic.name or "", topic.topic_id, topic.is_internal, partitions, removed)
