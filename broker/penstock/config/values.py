"""The resolved settings of a topic. Created by `config.topic` from texts, read by the log and the replicas."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

FOREVER = (1 << 63) - 1
DAY_MS = 86_400_000

AS_PRODUCED = -1
"""Keeps the producer's codec."""
CODECS = {"producer": AS_PRODUCED, "uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""Values of compression.type, with the codec's number in a batch."""
NO_VALIDATION, ENDS, EVERY_RECORD = "none", "ends", "all"
"""Values of penstock.record.validation."""

EVERY_REPLICA = (-1, -1)
"""Element of a replica list that stands for all replicas of the topic."""


def names_replica(listed: Collection[tuple[int, int]], partition: int, broker_id: int) -> bool:
    """Return whether a list of (partition, broker) contains a replica."""
    return (partition, broker_id) in listed or EVERY_REPLICA in listed


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """Each field is the topic setting of the same name. Sizes are in bytes, times in ms, -1 means unlimited.

    With `flush_messages` 1, a batch is acknowledged only after fdatasync.
    """

    cleanup_delete: bool = True
    cleanup_compact: bool = False
    retention_ms: int = 14 * DAY_MS
    retention_bytes: int = -1
    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * DAY_MS
    segment_jitter_ms: int = 0
    index_interval_bytes: int = 4096
    max_message_bytes: int = 1_048_588
    min_insync_replicas: int = 1
    flush_messages: int = 1
    flush_ms: int = FOREVER
    file_delete_delay_ms: int = 60_000
    message_timestamp_log_append: bool = False
    message_timestamp_before_max_ms: int = FOREVER
    message_timestamp_after_max_ms: int = 3_600_000
    compression_codec: int = AS_PRODUCED
    """Codec in which batches are stored, or AS_PRODUCED."""
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    record_validation: str = ENDS
    delete_retention_ms: int = DAY_MS
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = FOREVER
    min_cleanable_dirty_ratio: float = 0.5
    unclean_leader_election_enable: bool = False
    leader_replication_throttled_replicas: frozenset[tuple[int, int]] = frozenset()
    """Pairs of (partition, broker), or EVERY_REPLICA."""
    follower_replication_throttled_replicas: frozenset[tuple[int, int]] = frozenset()

    @property
    def flushes_each_batch(self) -> bool:
        """Return whether each batch is flushed before it is acknowledged."""
        return self.flush_messages <= 1
