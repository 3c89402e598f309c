"""The settings of a topic, and how a `TopicConfig` is resolved from a topic's overrides and the broker's defaults.

Most topic settings have broker settings for their default (`retention.ms` has `log.retention.ms`). Of several synonyms
in different units, the first one that is set takes precedence.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from penstock.config.addresses import quoted
from penstock.config.definition import (
    InvalidSetting,
    Setting,
    SettingField,
    SettingType,
    Value,
    define,
    field_of,
    setting,
    setting_fields,
    unknown_config,
)
from penstock.config.ownership import ownership_settings

LIST, LONG = SettingType.LIST, SettingType.LONG
FOREVER = (1 << 63) - 1
DAY_MS, HOUR_MS, MINUTE_MS = 86_400_000, 3_600_000, 60_000
MIN_SEGMENT_BYTES = 1024
MAX_DELIVERY_DELAY_MS = 30 * DAY_MS
OWN_PREFIX = "penstock."
"""Name prefix of settings that Kafka does not have."""
DELIVERY_DELAY = "delivery.delay.ms"
DELIVERY_SCHEDULE = "delivery.schedule.enable"
OWN_SETTINGS = frozenset({DELIVERY_DELAY, DELIVERY_SCHEDULE})
"""Names without the prefix of settings that Kafka does not have."""
CLEANUP, TIMESTAMP_TYPE = "cleanup.policy", "message.timestamp.type"
CREATE_TIME, LOG_APPEND_TIME = "CreateTime", "LogAppendTime"
"""Values of message.timestamp.type."""
DEAD_LETTERS_ENABLED = "errors.deadletterqueue.group.enable"
NEW_IN_KAFKA_4_4 = frozenset({DEAD_LETTERS_ENABLED})
"""Names of settings that Kafka before 4.4 does not know."""
RECORD_VALIDATION = f"{OWN_PREFIX}record.validation"
NO_VALIDATION, ENDS, EVERY_RECORD = "none", "ends", "all"
"""Values of penstock.record.validation."""
AS_PRODUCED = -1
"""Keeps the producer's codec."""
CODECS = {"producer": AS_PRODUCED, "uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""Values of compression.type, with the codec's number in a batch."""
LEADER_THROTTLED, FOLLOWER_THROTTLED = (f"{side}.replication.throttled.replicas" for side in ("leader", "follower"))
EVERY_REPLICA = (-1, -1)
"""Element of a replica list that stands for all replicas of the topic."""


def names_replica(listed: Collection[tuple[int, int]], partition: int, broker_id: int) -> bool:
    """Return whether a list of (partition, broker) contains a replica."""
    return (partition, broker_id) in listed or EVERY_REPLICA in listed


def parse_replica_list(name: str, words: tuple[str, ...]) -> frozenset[tuple[int, int]]:
    """Parse `0:1,1:2` into (partition, broker) pairs; like Kafka, ignore empty words. Raises `InvalidSetting`."""
    if words == ("*",):
        return frozenset({EVERY_REPLICA})
    found = set()
    for word in filter(None, words):
        partition, _, broker = word.partition(":")
        if not (partition.isdecimal() and broker.isdecimal() and word.isascii()):
            raise InvalidSetting(
                f"invalid value {quoted(','.join(words))} for {name}: it must be * or PARTITION:BROKER, such as 0:1;"
                " several separated by commas"
            )
        found.add((int(partition), int(broker)))
    return frozenset(found)


# fmt: off
CLEANUP_POLICY = define(
    CLEANUP, "delete",
    "Retention policy: delete removes old segments by age and size, compact keeps the last record of each key.",
    kind=LIST, allowed=("delete", "compact"), synonyms=["log.cleanup.policy"],
)


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The topic settings that a broker reads. Sizes are in bytes, times in ms, -1 means unlimited.

    With `flush_messages` 1, a batch is acknowledged only after fdatasync.
    """

    cleanup_delete: bool = field_of(CLEANUP_POLICY, lambda words: "delete" in words)
    cleanup_compact: bool = field_of(CLEANUP_POLICY, lambda words: "compact" in words)
    compression_gzip_level: int = setting(
        "compression.gzip.level", -1, "Level for compression.type gzip: 1 to 9, or -1 for the codec's default.",
        minimum=-1, maximum=9, excluded=(0,), synonyms=["compression.gzip.level"],
    )
    compression_lz4_level: int = setting(
        "compression.lz4.level", 9,
        "Level for compression.type lz4. The default, 9, is the fastest; other levels compress better.",
        minimum=1, maximum=17, synonyms=["compression.lz4.level"],
    )
    compression_codec: int = setting(
        "compression.type", "producer",
        "Codec in which batches are stored. With producer, batches keep the producer's codec at no cost; otherwise,"
        " the broker recompresses batches that use another codec.",
        allowed=tuple(CODECS), convert=CODECS.__getitem__, synonyms=["compression.type"],
    )
    """Codec in which batches are stored, or AS_PRODUCED."""
    compression_zstd_level: int = setting(
        "compression.zstd.level", 3, "Level for compression.type zstd.",
        minimum=-131_072, maximum=22, synonyms=["compression.zstd.level"],
    )
    delete_retention_ms: int = setting(
        "delete.retention.ms", DAY_MS, "Time for which a compacted topic keeps tombstones, in ms.",
        kind=LONG, synonyms=["log.cleaner.delete.retention.ms"],
    )
    delivery_delay_ms: int = setting(
        DELIVERY_DELAY, 0,
        "Time after its append at which consumers can read a record, in ms, up to 30 days; 0 for at once. The records"
        " get the broker's timestamp (LogAppendTime). A compacted topic cannot have a delay.",
        kind=LONG, maximum=MAX_DELIVERY_DELAY_MS,
    )
    delivery_schedule_enable: bool = setting(
        DELIVERY_SCHEDULE, False,
        "Whether producers can schedule records: a record with the header penstock-deliver-at (ms since 1970) or"
        " penstock-deliver-after-ms is delivered at that time, up to 30 days ahead. A compacted topic, or one with"
        " delivery.delay.ms, cannot have scheduled records.",
    )
    errors_deadletterqueue_group_enable: bool = setting(
        DEAD_LETTERS_ENABLED, False,
        "Whether share groups may write their dead letters to the topic (KIP-1191). A compacted topic cannot have dead"
        " letters.",
    )
    file_delete_delay_ms: int = setting(
        "file.delete.delay.ms", MINUTE_MS, "Time after which the files of a deleted segment are removed, in ms.",
        kind=LONG, synonyms=["log.segment.delete.delay.ms"],
    )
    flush_messages: int = setting(
        "flush.messages", 1,
        "Records after which the log is flushed to disk. With 1, a batch is on disk when it is acknowledged.",
        kind=LONG, minimum=1, synonyms=["log.flush.interval.messages"],
    )
    flush_ms: int = setting(
        "flush.ms", FOREVER, "Time after which appended records are flushed to disk, in ms.",
        kind=LONG, synonyms=["log.flush.interval.ms"],
    )
    follower_replication_throttled_replicas: frozenset[tuple[int, int]] = setting(
        FOLLOWER_THROTTLED, "",
        "Replicas whose fetching is limited to follower.replication.throttled.rate while they are out of sync, as"
        " PARTITION:BROKER,... or * for all (KIP-73).",
        kind=LIST, convert=partial(parse_replica_list, FOLLOWER_THROTTLED),
    )
    """Pairs of (partition, broker), or EVERY_REPLICA."""
    index_interval_bytes: int = setting(
        "index.interval.bytes", 4096, "Bytes of log between entries of the offset index.",
        synonyms=["log.index.interval.bytes"],
    )
    leader_replication_throttled_replicas: frozenset[tuple[int, int]] = setting(
        LEADER_THROTTLED, "",
        "Replicas that, as leader, are limited to leader.replication.throttled.rate when sending to out-of-sync"
        " replicas, as PARTITION:BROKER,... or * for all (KIP-73).",
        kind=LIST, convert=partial(parse_replica_list, LEADER_THROTTLED),
    )
    max_compaction_lag_ms: int = setting(
        "max.compaction.lag.ms", FOREVER, "Maximum time before a record becomes eligible for compaction, in ms.",
        kind=LONG, minimum=1, synonyms=["log.cleaner.max.compaction.lag.ms"],
    )
    max_message_bytes: int = setting(
        "max.message.bytes", 1_048_588, "Maximum size of a record batch after compression, in bytes.",
        maximum=1 << 30, synonyms=["message.max.bytes"],
    )
    message_timestamp_after_max_ms: int = setting(
        "message.timestamp.after.max.ms", HOUR_MS,
        "Maximum difference between a record's timestamp in the future and the broker's clock, in ms.",
        kind=LONG, synonyms=["log.message.timestamp.after.max.ms"],
    )
    message_timestamp_before_max_ms: int = setting(
        "message.timestamp.before.max.ms", FOREVER,
        "Maximum difference between a record's timestamp in the past and the broker's clock, in ms.",
        kind=LONG, synonyms=["log.message.timestamp.before.max.ms"],
    )
    message_timestamp_log_append: bool = setting(
        TIMESTAMP_TYPE, CREATE_TIME,
        "Timestamp of records: the producer's (CreateTime) or the broker's (LogAppendTime), which topics with"
        " delivery.delay.ms always have.",
        allowed=(CREATE_TIME, LOG_APPEND_TIME), convert=lambda word: word == LOG_APPEND_TIME,
        synonyms=["log.message.timestamp.type"],
    )
    min_cleanable_dirty_ratio: float = setting(
        "min.cleanable.dirty.ratio", 0.5,
        "Minimum ratio of uncompacted data to the whole log before the log is compacted.",
        maximum=1, synonyms=["log.cleaner.min.cleanable.ratio"],
    )
    min_compaction_lag_ms: int = setting(
        "min.compaction.lag.ms", 0, "Minimum time before a record can be compacted, in ms.",
        kind=LONG, synonyms=["log.cleaner.min.compaction.lag.ms"],
    )
    min_insync_replicas: int = setting(
        "min.insync.replicas", 1, "Minimum ISR size for writes with acks=all; limited to the replication factor.",
        minimum=1, synonyms=["min.insync.replicas"],
    )
    record_validation: str = setting(
        RECORD_VALIDATION, ENDS,
        "Validation of produced batches beyond header and CRC. ends decompresses the batch and parses its first and"
        " last record and, for up to 16 records, the lengths of all; all parses every record; none skips it, so"
        " that consumers may receive damaged batches.",
        allowed=(NO_VALIDATION, ENDS, EVERY_RECORD), synonyms=[RECORD_VALIDATION],
    )
    retention_bytes: int = setting(
        "retention.bytes", -1,
        "Maximum size of a partition's log before old segments are deleted, in bytes; -1 for no limit.",
        kind=LONG, minimum=-1, synonyms=["log.retention.bytes"],
    )
    retention_ms: int = setting(
        "retention.ms", 7 * DAY_MS, "Age at which segments are deleted, in ms; -1 for never.",
        kind=LONG, minimum=-1,
        synonyms=["log.retention.ms", ("log.retention.minutes", MINUTE_MS), ("log.retention.hours", HOUR_MS)],
    )
    segment_bytes: int = setting(
        "segment.bytes", 1 << 30, "Maximum size of a segment, in bytes.",
        minimum=MIN_SEGMENT_BYTES, synonyms=["log.segment.bytes"],
    )
    segment_jitter_ms: int = setting(
        "segment.jitter.ms", 0,
        "Maximum random reduction of segment.ms, in ms, so that logs do not roll at the same time.",
        kind=LONG, synonyms=["log.roll.jitter.ms", ("log.roll.jitter.hours", HOUR_MS)],
    )
    segment_ms: int = setting(
        "segment.ms", 7 * DAY_MS, "Age at which a new segment is started, in ms.",
        kind=LONG, minimum=1, synonyms=["log.roll.ms", ("log.roll.hours", HOUR_MS)],
    )
    unclean_leader_election_enable: bool = setting(
        "unclean.leader.election.enable", False,
        "Whether an out-of-sync replica, which may lack acknowledged records, can become leader if no other can.",
        synonyms=["unclean.leader.election.enable"],
    )

    @property
    def flushes_each_batch(self) -> bool:
        """Return whether each batch is flushed before it is acknowledged."""
        return self.flush_messages <= 1

    @property
    def checks_only_ends(self) -> bool:
        """Return whether the check of an uncompressed batch's first and last record is all that a broker does."""
        return (
            self.record_validation == ENDS
            and self.compression_codec == AS_PRODUCED
            and not self.cleanup_compact
            and not self.delivery_schedule_enable
        )

    def contradiction(self) -> str | None:
        """Return which settings contradict each other; None if they are consistent."""
        if self.delivery_delay_ms and self.cleanup_compact:
            return (
                f"{DELIVERY_DELAY} ({self.delivery_delay_ms}) does not work with compaction, which could remove records"
                f" before they are delivered; set {CLEANUP}=delete, or {DELIVERY_DELAY}=0"
            )
        if self.delivery_delay_ms and not self.message_timestamp_log_append:
            return (
                f"{DELIVERY_DELAY} ({self.delivery_delay_ms}) counts from the time of the append; set"
                f" {TIMESTAMP_TYPE}=LogAppendTime, or remove {TIMESTAMP_TYPE}, which then is LogAppendTime"
            )
        if self.delivery_schedule_enable and self.cleanup_compact:
            return (
                f"{DELIVERY_SCHEDULE} does not work with compaction, which could remove records before they are"
                f" delivered; set {CLEANUP}=delete, or {DELIVERY_SCHEDULE}=false"
            )
        if self.delivery_schedule_enable and self.delivery_delay_ms:
            return (
                f"{DELIVERY_SCHEDULE} does not work with {DELIVERY_DELAY} ({self.delivery_delay_ms}), as a record has"
                f" one time of delivery; set {DELIVERY_DELAY}=0, or {DELIVERY_SCHEDULE}=false"
            )
        if self.errors_deadletterqueue_group_enable and self.cleanup_compact:
            return (
                f"{DEAD_LETTERS_ENABLED} does not work with compaction, which rejects letters of records without a key"
                f" and removes all but the last one of a key; set {CLEANUP}=delete, or {DEAD_LETTERS_ENABLED}=false"
            )
        if self.min_compaction_lag_ms <= self.max_compaction_lag_ms:
            return None
        return (
            f"min.compaction.lag.ms ({self.min_compaction_lag_ms}) must not be greater than"
            f" max.compaction.lag.ms ({self.max_compaction_lag_ms})"
        )


IGNORED_SETTINGS = {known.name: known for known in (
    define(
        "local.retention.bytes", -2,
        "Local retention size of topics with tiered storage. No effect, as tiered storage is not supported:"
        " retention.bytes applies.",
        kind=LONG, minimum=-2, synonyms=["log.local.retention.bytes"],
    ),
    define(
        "local.retention.ms", -2,
        "Local retention time of topics with tiered storage. No effect, as tiered storage is not supported:"
        " retention.ms applies.",
        kind=LONG, minimum=-2, synonyms=["log.local.retention.ms"],
    ),
    *ownership_settings("topic", "topic"),
    define(
        "preallocate", False,
        "Whether segment files are preallocated. Not supported: files grow as they are written.",
        allowed=("false",), synonyms=["log.preallocate"],
    ),
    define(
        "remote.log.copy.disable", False,
        "Whether copying to tiered storage is disabled. No effect, as tiered storage is not supported.",
    ),
    define(
        "remote.log.delete.on.disable", False,
        "Whether disabling tiered storage deletes the tiered data. No effect, as tiered storage is not supported.",
    ),
    define(
        "remote.storage.enable", False, "Whether the topic uses tiered storage, which is not supported.",
        allowed=("false",),
        reason="tiered storage is not supported: all data is stored in the brokers' log directories",
    ),
    define(
        "segment.index.bytes", 10 << 20,
        "Maximum size of a segment's index. No effect: index sizes follow from segment.bytes and segment.ms.",
        minimum=4, synonyms=["log.index.size.max.bytes"],
    ),
)}
"""Settings that the broker ignores: those with a single value, those of unsupported features, and those of external
tools.
"""
# fmt: on


TOPIC_FIELDS: dict[str, list[SettingField]] = {}
"""The fields of `TopicConfig` by the name of their setting."""
for each in setting_fields(TopicConfig):
    TOPIC_FIELDS.setdefault(each.setting.name, []).append(each)
KNOWN = IGNORED_SETTINGS | {name: found[0].setting for name, found in TOPIC_FIELDS.items()}
TOPIC_SETTINGS = {name: replace(KNOWN[name], dynamic=True) for name in sorted(KNOWN)}
CONTRADICTORY = ("min.compaction.lag.ms", "max.compaction.lag.ms")
"""Settings with broker defaults that `TopicConfig.contradiction` compares."""
REFUSED_WITH_DELAY = (*CONTRADICTORY, CLEANUP, TIMESTAMP_TYPE)
"""Settings of which values contradict a delay, or each other."""


def is_own(name: str) -> bool:
    """Return whether a topic setting is one that Kafka does not have."""
    return name.startswith(OWN_PREFIX) or name in OWN_SETTINGS


def effective_overrides(overrides: Mapping[str, str]) -> dict[str, str]:
    """Return the overrides that affect `resolve`."""
    return {name: text for name, text in overrides.items() if name not in IGNORED_SETTINGS}


def topic_setting(name: str) -> Setting:
    """Return a topic setting's definition. Raises `UnknownSetting`."""
    known = TOPIC_SETTINGS.get(name)
    if known is None:
        raise unknown_config("topic", name)
    return known


def config_fields(name: str, value: Value) -> dict[str, Any]:
    """Return the fields of `TopicConfig` that a setting determines; empty for ignored settings."""
    return {each.name: each.convert(value) for each in TOPIC_FIELDS.get(name, ())}


def resolve(overrides: Mapping[str, str], defaults: TopicConfig) -> TopicConfig:
    """Return the configuration from a topic's overrides and the defaults. Raises `InvalidSetting`."""
    if not overrides:
        return defaults
    values: dict[str, Any] = {}
    for name, text in overrides.items():
        values.update(config_fields(name, topic_setting(name).parse(text)))
    if values.get("delivery_delay_ms") and TIMESTAMP_TYPE not in overrides:
        values["message_timestamp_log_append"] = True
    config = replace(defaults, **values)
    if (contradiction := config.contradiction()) is not None:
        raise InvalidSetting(contradiction)
    return config


def resolve_leniently(overrides: Mapping[str, str], defaults: TopicConfig) -> tuple[TopicConfig, str | None]:
    """Resolve valid overrides. If some contradict others or the defaults, the defaults apply; returns the
    contradiction.

    A delay, or the setting for scheduled records, applies nevertheless, because records must not be delivered early or
    lost: the topic is not compacted then. A topic that is compacted takes no dead letters.
    """
    try:
        return resolve(overrides, defaults), None
    except InvalidSetting as e:
        is_delayed = int(overrides.get(DELIVERY_DELAY, "0")) > 0
        waits = is_delayed or overrides.get(DELIVERY_SCHEDULE, "").lower() == "true"
        dropped = REFUSED_WITH_DELAY if waits else CONTRADICTORY
        consistent = {name: text for name, text in overrides.items() if name not in dropped}
        if waits:
            consistent[CLEANUP] = "delete"
        if is_delayed:
            consistent.pop(DELIVERY_SCHEDULE, None)
        if consistent.get(CLEANUP, "").find("compact") >= 0 or (CLEANUP not in consistent and defaults.cleanup_compact):
            consistent.pop(DEAD_LETTERS_ENABLED, None)
        return resolve(consistent, defaults), str(e)
