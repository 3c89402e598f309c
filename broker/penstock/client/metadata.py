"""What the client knows of a cluster, as one immutable picture that each answer to Metadata brings up to date.

Sans-io: `cluster` asks, this merges; producers, consumers and admin look things up.
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
    """Brokers by id, topics by name, and why the topics that were asked for and are missing are missing."""

    cluster_id: str | None = None
    controller_id: int = -1
    brokers: dict[int, Node] = field(default_factory=dict)
    topics: dict[str, TopicInfo] = field(default_factory=dict)
    errors: dict[str, ErrorCode] = field(default_factory=dict)

    def leader(self, topic: str, partition: int) -> int:
        """The node that leads a partition, -1 where nobody is known to."""
        info = self.topics.get(topic)
        found = info.partitions.get(partition) if info else None
        return found.leader if found and found.leader in self.brokers else -1

    def partition_count(self, topic: str) -> int:
        """0 for a topic that is not known."""
        info = self.topics.get(topic)
        return len(info.partitions) if info else 0


def merge(old: MetadataCache, answer: MetadataResponse, asked: Iterable[str] | None) -> MetadataCache:
    """`old` with what `answer` says of the topics `asked` (None: of all, so others are gone).

    An answer with an older leader epoch than the one known keeps the known leader (KIP-320).
    """
    topics = {} if asked is None else dict(old.topics)
    errors = {} if asked is None else dict(old.errors)
    for name in asked or ():
        errors.pop(name, None)
    for topic in answer.topics:
        name = topic.name or ""
        if topic.error_code:
            errors[name] = error_code(topic.error_code)
            if topic.error_code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION):
                topics.pop(name, None)
            continue
        topics[name] = topic_info(topic, old.topics.get(name))
    brokers = {b.node_id: Node(b.node_id, b.host, b.port, b.rack) for b in answer.brokers}
    return MetadataCache(answer.cluster_id, answer.controller_id, brokers, topics, errors)


def topic_info(topic: MetadataResponseTopic, old: TopicInfo | None) -> TopicInfo:
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
    return TopicInfo(topic.name or "", topic.topic_id, topic.is_internal, partitions)
