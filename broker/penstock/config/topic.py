"""The table of topic settings, and how a `TopicConfig` is resolved from a topic's overrides and the broker's defaults.

Most topic settings have broker settings for their default (`retention.ms` has `log.retention.ms`). Of several synonyms
in different units, the first one that is set takes precedence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock.config.addresses import quoted
from penstock.config.definition import (
    MAX_VALUE_CHARS,
    InvalidSetting,
    Setting,
    SettingType,
    Value,
    text_of,
    unknown_config,
)
from penstock.config.ownership import DELETION_POLICIES, DELETION_POLICY, MAX_OWNER_CHARS, OWNER, RETAIN
from penstock.config.values import (
    CODECS,
    DAY_MS,
    ENDS,
    EVERY_RECORD,
    EVERY_REPLICA,
    FOREVER,
    NO_VALIDATION,
    TopicConfig,
)

MIN_SEGMENT_BYTES = 1024
OWN_PREFIX = "penstock."
"""Name prefix of settings that Kafka does not have."""
RECORD_VALIDATION = f"{OWN_PREFIX}record.validation"
THROTTLED_REPLICAS_SUFFIX = ".throttled.replicas"


@dataclass(frozen=True, slots=True)
class SettingSynonym:
    """A broker setting that is a topic setting's default, in a unit `factor` times larger."""

    name: str
    factor: int = 1


@dataclass(frozen=True, slots=True)
class TopicSetting:
    """A topic setting and its broker settings, highest precedence first."""

    setting: Setting
    synonyms: tuple[SettingSynonym, ...]


def define(
    name: str,
    kind: SettingType,
    default: str | int | float,
    documentation: str,
    *synonyms: str | tuple[str, int],
    minimum: float | None = None,
    maximum: float | None = None,
    allowed: tuple[str, ...] = (),
    excluded: tuple[int, ...] = (),
    max_chars: int = MAX_VALUE_CHARS,
    reason: str = "",
) -> tuple[str, TopicSetting]:
    """Return an entry of `TOPIC_SETTINGS`."""
    setting = Setting(
        name,
        kind,
        str(default),
        documentation,
        minimum,
        maximum,
        allowed,
        excluded,
        dynamic=True,
        max_chars=max_chars,
        reason=reason,
    )
    return name, TopicSetting(
        setting, tuple(SettingSynonym(s) if isinstance(s, str) else SettingSynonym(*s) for s in synonyms)
    )


HOUR_MS, MINUTE_MS = 3_600_000, 60_000
NO_TIERS = "tiered storage is not supported: all data is stored in the brokers' log directories"

TOPIC_SETTINGS: dict[str, TopicSetting] = dict(
    [
        define(
            "cleanup.policy", SettingType.LIST, "delete",
            "Retention policy: delete removes old segments by age and size, compact keeps the last record of each key.",
            "log.cleanup.policy", allowed=("delete", "compact"),
        ),
        define(
            "compression.gzip.level", SettingType.INT, -1,
            "Level for compression.type gzip: 1 to 9, or -1 for the codec's default.",
            "compression.gzip.level", minimum=-1, maximum=9, excluded=(0,),
        ),
        define(
            "compression.lz4.level", SettingType.INT, 9,
            "Level for compression.type lz4. The default, 9, is the fastest; other levels compress better.",
            "compression.lz4.level", minimum=1, maximum=17,
        ),
        define(
            "compression.type", SettingType.STRING, "producer",
            "Codec in which batches are stored. With producer, batches keep the producer's codec at no cost; otherwise,"
            " the broker recompresses batches that use another codec.",
            "compression.type", allowed=tuple(CODECS),
        ),
        define(
            "compression.zstd.level", SettingType.INT, 3,
            "Level for compression.type zstd.",
            "compression.zstd.level", minimum=-131_072, maximum=22,
        ),
        define(
            "delete.retention.ms", SettingType.LONG, DAY_MS,
            "Time for which a compacted topic keeps tombstones, in ms.",
            "log.cleaner.delete.retention.ms", minimum=0,
        ),
        define(
            "file.delete.delay.ms", SettingType.LONG, MINUTE_MS,
            "Time after which the files of a deleted segment are removed, in ms.",
            "log.segment.delete.delay.ms", minimum=0,
        ),
        define(
            "flush.messages", SettingType.LONG, 1,
            "Records after which the log is flushed to disk. With 1, a batch is on disk when it is acknowledged.",
            "log.flush.interval.messages", minimum=1,
        ),
        define(
            "flush.ms", SettingType.LONG, FOREVER,
            "Time after which appended records are flushed to disk, in ms.",
            "log.flush.interval.ms", minimum=0,
        ),
        define(
            "follower.replication.throttled.replicas", SettingType.LIST, "",
            "Replicas whose fetching is limited to follower.replication.throttled.rate while they are out of sync, as"
            " PARTITION:BROKER,... or * for all (KIP-73).",
        ),
        define(
            "index.interval.bytes", SettingType.INT, 4096,
            "Bytes of log between entries of the offset index.",
            "log.index.interval.bytes", minimum=0,
        ),
        define(
            "leader.replication.throttled.replicas", SettingType.LIST, "",
            "Replicas that, as leader, are limited to leader.replication.throttled.rate when sending to out-of-sync"
            " replicas, as PARTITION:BROKER,... or * for all (KIP-73).",
        ),
        define(
            "local.retention.bytes", SettingType.LONG, -2,
            "Local retention size of topics with tiered storage. No effect, as tiered storage is not supported:"
            " retention.bytes applies.",
            "log.local.retention.bytes", minimum=-2,
        ),
        define(
            "local.retention.ms", SettingType.LONG, -2,
            "Local retention time of topics with tiered storage. No effect, as tiered storage is not supported:"
            " retention.ms applies.",
            "log.local.retention.ms", minimum=-2,
        ),
        define(
            "max.compaction.lag.ms", SettingType.LONG, FOREVER,
            "Maximum time before a record becomes eligible for compaction, in ms.",
            "log.cleaner.max.compaction.lag.ms", minimum=1,
        ),
        define(
            "max.message.bytes", SettingType.INT, 1_048_588,
            "Maximum size of a record batch after compression, in bytes.",
            "message.max.bytes", minimum=0, maximum=1 << 30,
        ),
        define(
            "message.timestamp.after.max.ms", SettingType.LONG, HOUR_MS,
            "Maximum difference between a record's timestamp in the future and the broker's clock, in ms.",
            "log.message.timestamp.after.max.ms", minimum=0,
        ),
        define(
            "message.timestamp.before.max.ms", SettingType.LONG, FOREVER,
            "Maximum difference between a record's timestamp in the past and the broker's clock, in ms.",
            "log.message.timestamp.before.max.ms", minimum=0,
        ),
        define(
            "message.timestamp.type", SettingType.STRING, "CreateTime",
            "Timestamp of records: the producer's (CreateTime) or the broker's (LogAppendTime).",
            "log.message.timestamp.type", allowed=("CreateTime", "LogAppendTime"),
        ),
        define(
            "min.cleanable.dirty.ratio", SettingType.DOUBLE, 0.5,
            "Minimum ratio of uncompacted data to the whole log before the log is compacted.",
            "log.cleaner.min.cleanable.ratio", minimum=0, maximum=1,
        ),
        define(
            "min.compaction.lag.ms", SettingType.LONG, 0,
            "Minimum time before a record can be compacted, in ms.",
            "log.cleaner.min.compaction.lag.ms", minimum=0,
        ),
        define(
            "min.insync.replicas", SettingType.INT, 1,
            "Minimum ISR size for writes with acks=all; limited to the replication factor.",
            "min.insync.replicas", minimum=1,
        ),
        define(
            DELETION_POLICY, SettingType.STRING, RETAIN,
            "Whether external tools keep or delete the topic when its owner is deleted. Ignored by brokers.",
            allowed=DELETION_POLICIES,
        ),
        define(
            OWNER, SettingType.STRING, "",
            "Owner of the topic, such as the UID of a Kubernetes object, set by external tools. Ignored by brokers.",
            max_chars=MAX_OWNER_CHARS,
        ),
        define(
            RECORD_VALIDATION, SettingType.STRING, ENDS,
            "Validation of produced batches beyond header and CRC. ends decompresses the batch and parses its first and"
            " last record and, for up to 16 records, the lengths of all; all parses every record; none skips it, so"
            " that consumers may receive damaged batches.",
            RECORD_VALIDATION, allowed=(NO_VALIDATION, ENDS, EVERY_RECORD),
        ),
        define(
            "preallocate", SettingType.BOOLEAN, "false",
            "Whether segment files are preallocated. Not supported: files grow as they are written.",
            "log.preallocate", allowed=("false",),
        ),
        define(
            "remote.log.copy.disable", SettingType.BOOLEAN, "false",
            "Whether copying to tiered storage is disabled. No effect, as tiered storage is not supported.",
        ),
        define(
            "remote.log.delete.on.disable", SettingType.BOOLEAN, "false",
            "Whether disabling tiered storage deletes the tiered data. No effect, as tiered storage is not supported.",
        ),
        define(
            "remote.storage.enable", SettingType.BOOLEAN, "false",
            "Whether the topic uses tiered storage, which is not supported.", allowed=("false",), reason=NO_TIERS,
        ),
        define(
            "retention.bytes", SettingType.LONG, -1,
            "Maximum size of a partition's log before old segments are deleted, in bytes; -1 for no limit.",
            "log.retention.bytes", minimum=-1,
        ),
        define(
            "retention.ms", SettingType.LONG, 14 * DAY_MS,
            "Age at which segments are deleted, in ms; -1 for never.",
            "log.retention.ms", ("log.retention.minutes", MINUTE_MS), ("log.retention.hours", HOUR_MS), minimum=-1,
        ),
        define(
            "segment.bytes", SettingType.INT, 1 << 30,
            "Maximum size of a segment, in bytes.",
            "log.segment.bytes", minimum=MIN_SEGMENT_BYTES,
        ),
        define(
            "segment.index.bytes", SettingType.INT, 10 << 20,
            "Maximum size of a segment's index. No effect: index sizes follow from segment.bytes and segment.ms.",
            "log.index.size.max.bytes", minimum=4,
        ),
        define(
            "segment.jitter.ms", SettingType.LONG, 0,
            "Maximum random reduction of segment.ms, in ms, so that logs do not roll at the same time.",
            "log.roll.jitter.ms", ("log.roll.jitter.hours", HOUR_MS), minimum=0,
        ),
        define(
            "segment.ms", SettingType.LONG, 7 * DAY_MS,
            "Age at which a new segment is started, in ms.",
            "log.roll.ms", ("log.roll.hours", HOUR_MS), minimum=1,
        ),
        define(
            "unclean.leader.election.enable", SettingType.BOOLEAN, "false",
            "Whether an out-of-sync replica, which may lack acknowledged records, can become leader if no other can.",
            "unclean.leader.election.enable",
        ),
    ]
)  # fmt: skip


IGNORED_SETTINGS = frozenset(
    {
        "local.retention.bytes",
        "local.retention.ms",
        "preallocate",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "remote.storage.enable",
        "segment.index.bytes",
        OWNER,
        DELETION_POLICY,
    }
)
"""Settings that the broker ignores: those with a single value, those of unsupported features, and those of external
tools.
"""


def effective_overrides(overrides: Mapping[str, str]) -> dict[str, str]:
    """Return the overrides that affect `resolve`."""
    return {name: text for name, text in overrides.items() if name not in IGNORED_SETTINGS}


def topic_setting(name: str) -> Setting:
    """Return a topic setting's definition. Raises `InvalidSetting` if it is unknown."""
    known = TOPIC_SETTINGS.get(name)
    if known is None:
        raise unknown_config("topic", name)
    return known.setting


def parse_topic_setting(name: str, text: str) -> Value:
    """Return a topic setting's typed value. Raises `InvalidSetting` for an unknown name or an invalid value."""
    value = topic_setting(name).parse(text)
    if name.endswith(THROTTLED_REPLICAS_SUFFIX):
        config_fields(name, value)
    if name == "compression.gzip.level" and value == 0:
        raise InvalidSetting(f"invalid value {quoted(text)} for {name}: it must be -1 or a whole number from 1 to 9")
    return value


def normalise_topic_setting(name: str, text: str) -> str:
    """Return a topic setting's value as it is stored and shown. Raises `InvalidSetting`."""
    return text_of(parse_topic_setting(name, text))


def config_fields(name: str, value: Value) -> dict[str, Any]:
    """Return the fields of `TopicConfig` that a setting determines; empty for ignored settings."""
    if name == "cleanup.policy":
        assert isinstance(value, tuple), "cleanup.policy is a list"
        return {"cleanup_delete": "delete" in value, "cleanup_compact": "compact" in value}
    if name == "message.timestamp.type":
        return {"message_timestamp_log_append": value == "LogAppendTime"}
    if name in IGNORED_SETTINGS:
        return {}
    if name == "compression.type":
        return {"compression_codec": CODECS[str(value)]}
    if name == RECORD_VALIDATION:
        return {"record_validation": value}
    if name.endswith(THROTTLED_REPLICAS_SUFFIX):
        assert isinstance(value, tuple), f"{name} is a list"
        return {name.replace(".", "_"): parse_replica_list(name, value)}
    return {name.replace(".", "_"): value}


def parse_replica_list(name: str, words: tuple[str, ...]) -> frozenset[tuple[int, int]]:
    """Parse `0:1,1:2` into (partition, broker) pairs. Raises `InvalidSetting`."""
    if words == ("*",):
        return frozenset({EVERY_REPLICA})
    found = set()
    for word in words:
        partition, _, broker = word.partition(":")
        if not (partition.isdecimal() and broker.isdecimal() and word.isascii()):
            raise InvalidSetting(
                f"invalid value {quoted(','.join(words))} for {name}: it must be * or PARTITION:BROKER, such as 0:1;"
                " several separated by commas"
            )
        found.add((int(partition), int(broker)))
    return frozenset(found)


def resolve(overrides: Mapping[str, str], defaults: TopicConfig) -> TopicConfig:
    """Return the configuration from a topic's overrides and the defaults. Raises `InvalidSetting`."""
    if not overrides:
        return defaults
    fields: dict[str, Any] = {}
    for name, text in overrides.items():
        fields.update(config_fields(name, parse_topic_setting(name, text)))
    config = replace(defaults, **fields)
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise InvalidSetting(
            f"min.compaction.lag.ms ({config.min_compaction_lag_ms}) must not be greater than"
            f" max.compaction.lag.ms ({config.max_compaction_lag_ms})"
        )
    return config


def resolve_leniently(overrides: Mapping[str, str], defaults: TopicConfig) -> tuple[TopicConfig, list[str]]:
    """Resolve stored overrides. Invalid ones are ignored, and returned as error messages."""
    try:
        return resolve(overrides, defaults), []
    except InvalidSetting:
        pass
    problems: list[str] = []
    config = defaults
    for name, text in overrides.items():
        try:
            config = resolve({name: text}, config)
        except InvalidSetting as e:
            problems.append(str(e))
    return config, problems
