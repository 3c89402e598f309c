"""The settings of a topic: the table of all that is known, and how a topic's `TopicConfig` follows from it.

Most have broker settings that give their default for topics without their own (`log.retention.ms` for `retention.ms`);
where several name the same thing in different units, the first of them that is set counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock.config.definition import (
    MAX_VALUE_CHARS,
    InvalidSetting,
    Setting,
    SettingType,
    Value,
    shown,
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
"""The start of the names of settings that Kafka does not have."""
RECORD_VALIDATION = f"{OWN_PREFIX}record.validation"
REPLICAS = ".throttled.replicas"


@dataclass(frozen=True, slots=True)
class SettingSynonym:
    """A broker setting that gives a topic setting's default, times `factor`."""

    name: str
    factor: int = 1


@dataclass(frozen=True, slots=True)
class TopicSetting:
    """A topic setting, and its broker settings in the order in which they count."""

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
NO_TIERS = "tiered storage is not offered: all data lies in the brokers' log directories"

TOPIC_SETTINGS: dict[str, TopicSetting] = dict(
    [
        define(
            "cleanup.policy", SettingType.LIST, "delete",
            "What becomes of old data: delete drops it by age and size, compact keeps the last record of each key.",
            "log.cleanup.policy", allowed=("delete", "compact"),
        ),
        define(
            "compression.gzip.level", SettingType.INT, -1,
            "The level for compression.type gzip: 1 to 9, or -1 for the codec's default.",
            "compression.gzip.level", minimum=-1, maximum=9, excluded=(0,),
        ),
        define(
            "compression.lz4.level", SettingType.INT, 9,
            "The level for compression.type lz4: 9, the default, compresses fastest, other levels search longer.",
            "compression.lz4.level", minimum=1, maximum=17,
        ),
        define(
            "compression.type", SettingType.STRING, "producer",
            "The codec in which batches are stored. With producer they stay as they came, which costs nothing; else"
            " batches that come in another codec are compressed anew before they are stored.",
            "compression.type", allowed=tuple(CODECS),
        ),
        define(
            "compression.zstd.level", SettingType.INT, 3,
            "The level for compression.type zstd.",
            "compression.zstd.level", minimum=-131_072, maximum=22,
        ),
        define(
            "delete.retention.ms", SettingType.LONG, DAY_MS,
            "How long a compacted topic keeps the record that says that a key was deleted, in ms.",
            "log.cleaner.delete.retention.ms", minimum=0,
        ),
        define(
            "file.delete.delay.ms", SettingType.LONG, MINUTE_MS,
            "How long the file of a deleted segment stays, in ms.",
            "log.segment.delete.delay.ms", minimum=0,
        ),
        define(
            "flush.messages", SettingType.LONG, 1,
            "Records after which the log is forced to disk; with 1 an acknowledgement means that the batch is on disk.",
            "log.flush.interval.messages", minimum=1,
        ),
        define(
            "flush.ms", SettingType.LONG, FOREVER,
            "Time after which appended records are forced to disk, in ms.",
            "log.flush.interval.ms", minimum=0,
        ),
        define(
            "follower.replication.throttled.replicas", SettingType.LIST, "",
            "Replicas that fetch no more than follower.replication.throttled.rate while they are not in sync, as"
            " PARTITION:BROKER,... or * for all (KIP-73).",
        ),
        define(
            "index.interval.bytes", SettingType.INT, 4096,
            "Bytes of log between two entries of the offset index.",
            "log.index.interval.bytes", minimum=0,
        ),
        define(
            "leader.replication.throttled.replicas", SettingType.LIST, "",
            "Replicas that, while they lead, send no more than leader.replication.throttled.rate to those that are not"
            " in sync, as PARTITION:BROKER,... or * for all (KIP-73).",
        ),
        define(
            "local.retention.bytes", SettingType.LONG, -2,
            "The size of what a topic with tiered storage keeps on the broker; without effect, since there are no such"
            " topics: retention.bytes counts.",
            "log.local.retention.bytes", minimum=-2,
        ),
        define(
            "local.retention.ms", SettingType.LONG, -2,
            "The age of what a topic with tiered storage keeps on the broker; without effect, since there are no such"
            " topics: retention.ms counts.",
            "log.local.retention.ms", minimum=-2,
        ),
        define(
            "max.compaction.lag.ms", SettingType.LONG, FOREVER,
            "Time after which a record is compacted at the latest, in ms.",
            "log.cleaner.max.compaction.lag.ms", minimum=1,
        ),
        define(
            "max.message.bytes", SettingType.INT, 1_048_588,
            "The largest batch of records that is accepted, in bytes, as compressed.",
            "message.max.bytes", minimum=0, maximum=1 << 30,
        ),
        define(
            "message.timestamp.after.max.ms", SettingType.LONG, HOUR_MS,
            "How far in the future a record's timestamp may lie, in ms.",
            "log.message.timestamp.after.max.ms", minimum=0,
        ),
        define(
            "message.timestamp.before.max.ms", SettingType.LONG, FOREVER,
            "How far in the past a record's timestamp may lie, in ms.",
            "log.message.timestamp.before.max.ms", minimum=0,
        ),
        define(
            "message.timestamp.type", SettingType.STRING, "CreateTime",
            "Whether a record has the producer's timestamp (CreateTime) or the broker's (LogAppendTime).",
            "log.message.timestamp.type", allowed=("CreateTime", "LogAppendTime"),
        ),
        define(
            "min.cleanable.dirty.ratio", SettingType.DOUBLE, 0.5,
            "The part of a log that must be uncompacted before it is compacted.",
            "log.cleaner.min.cleanable.ratio", minimum=0, maximum=1,
        ),
        define(
            "min.compaction.lag.ms", SettingType.LONG, 0,
            "Time for which a record is not compacted, in ms.",
            "log.cleaner.min.compaction.lag.ms", minimum=0,
        ),
        define(
            "min.insync.replicas", SettingType.INT, 1,
            "In-sync replicas that must have a batch before it is acknowledged; counts at most the replication factor.",
            "min.insync.replicas", minimum=1,
        ),
        define(
            DELETION_POLICY, SettingType.STRING, RETAIN,
            "What becomes of the topic when its owner goes, for whoever manages topics; brokers make nothing of it.",
            allowed=DELETION_POLICIES,
        ),
        define(
            OWNER, SettingType.STRING, "",
            "Whose the topic is, for whoever manages topics, such as the UID of an object; brokers make nothing of it.",
            max_chars=MAX_OWNER_CHARS,
        ),
        define(
            RECORD_VALIDATION, SettingType.STRING, ENDS,
            "How much of a produced batch is checked before it is stored, beside its header and CRC: ends decompresses"
            " it, parses the first and the last record and, of up to 16, follows the lengths of all; all parses every"
            " record; none leaves damaged batches to consumers.",
            RECORD_VALIDATION, allowed=(NO_VALIDATION, ENDS, EVERY_RECORD),
        ),
        define(
            "preallocate", SettingType.BOOLEAN, "false",
            "Files of segments grow as they are written; nothing else is offered.",
            "log.preallocate", allowed=("false",),
        ),
        define(
            "remote.log.copy.disable", SettingType.BOOLEAN, "false",
            "Whether a topic with tiered storage copies nothing more to it; without effect, since there are no such"
            " topics.",
        ),
        define(
            "remote.log.delete.on.disable", SettingType.BOOLEAN, "false",
            "Whether the tiered data of a topic goes when tiered storage is switched off; without effect, since there"
            " is no such data.",
        ),
        define(
            "remote.storage.enable", SettingType.BOOLEAN, "false",
            "Whether the topic has tiered storage, which is not offered.", allowed=("false",), reason=NO_TIERS,
        ),
        define(
            "retention.bytes", SettingType.LONG, -1,
            "The size to which a partition's log may grow before old segments are deleted, in bytes; -1 for no bound.",
            "log.retention.bytes", minimum=-1,
        ),
        define(
            "retention.ms", SettingType.LONG, 14 * DAY_MS,
            "The age at which segments are deleted, in ms; -1 for never.",
            "log.retention.ms", ("log.retention.minutes", MINUTE_MS), ("log.retention.hours", HOUR_MS), minimum=-1,
        ),
        define(
            "segment.bytes", SettingType.INT, 1 << 30,
            "The size at which a new segment is begun, in bytes.",
            "log.segment.bytes", minimum=MIN_SEGMENT_BYTES,
        ),
        define(
            "segment.index.bytes", SettingType.INT, 10 << 20,
            "The largest index of a segment; without effect: indexes grow with their segment, which segment.bytes and"
            " segment.ms bound.",
            "log.index.size.max.bytes", minimum=4,
        ),
        define(
            "segment.jitter.ms", SettingType.LONG, 0,
            "The most by which segment.ms is shortened at random, in ms, so that not all logs roll at once.",
            "log.roll.jitter.ms", ("log.roll.jitter.hours", HOUR_MS), minimum=0,
        ),
        define(
            "segment.ms", SettingType.LONG, 7 * DAY_MS,
            "The age at which a new segment is begun, in ms.",
            "log.roll.ms", ("log.roll.hours", HOUR_MS), minimum=1,
        ),
        define(
            "unclean.leader.election.enable", SettingType.BOOLEAN, "false",
            "Whether a replica that may lack acknowledged records can become leader when there is no other.",
            "unclean.leader.election.enable",
        ),
    ]
)  # fmt: skip


WITHOUT_EFFECT = frozenset(
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
"""Settings that the broker does not act on: those with one value only, those of features that Penstock does not have,
and notes of the tools that manage topics."""


def effective(overrides: Mapping[str, str]) -> dict[str, str]:
    """Those of a topic's own settings that `resolve` makes something of."""
    return {name: text for name, text in overrides.items() if name not in WITHOUT_EFFECT}


def topic_setting(name: str) -> Setting:
    """Raises `InvalidSetting` for an unknown name."""
    known = TOPIC_SETTINGS.get(name)
    if known is None:
        raise unknown_config("topic", name)
    return known.setting


def parse_topic_setting(name: str, text: str) -> Value:
    """Raises `InvalidSetting` for an unknown name and for a value that it cannot have."""
    value = topic_setting(name).parse(text)
    if name.endswith(REPLICAS):
        config_fields(name, value)
    if name == "compression.gzip.level" and value == 0:
        raise InvalidSetting(f"invalid value {shown(text)} for {name}: it must be -1 or a whole number from 1 to 9")
    return value


def normalise_topic_setting(name: str, text: str) -> str:
    """Return a topic setting's value as it is stored and shown. Raises `InvalidSetting`."""
    return text_of(parse_topic_setting(name, text))


def config_fields(name: str, value: Value) -> dict[str, Any]:
    """The fields of `TopicConfig` that a setting decides; none where only one value is offered."""
    if name == "cleanup.policy":
        assert isinstance(value, tuple), "cleanup.policy is a list"
        return {"cleanup_delete": "delete" in value, "cleanup_compact": "compact" in value}
    if name == "message.timestamp.type":
        return {"message_timestamp_log_append": value == "LogAppendTime"}
    if name in WITHOUT_EFFECT:
        return {}
    if name == "compression.type":
        return {"compression_codec": CODECS[str(value)]}
    if name == RECORD_VALIDATION:
        return {"record_validation": value}
    if name.endswith(REPLICAS):
        assert isinstance(value, tuple), f"{name} is a list"
        return {name.replace(".", "_"): replica_list(name, value)}
    return {name.replace(".", "_"): value}


def replica_list(name: str, words: tuple[str, ...]) -> frozenset[tuple[int, int]]:
    """`0:1,1:2` as (partition, broker). Raises `InvalidSetting`."""
    if words == ("*",):
        return frozenset({EVERY_REPLICA})
    found = set()
    for word in words:
        partition, _, broker = word.partition(":")
        if not (partition.isdecimal() and broker.isdecimal() and word.isascii()):
            raise InvalidSetting(
                f"invalid value {shown(','.join(words))} for {name}: it must be * or PARTITION:BROKER, such as 0:1,"
                " with commas between several"
            )
        found.add((int(partition), int(broker)))
    return frozenset(found)


def resolve(overrides: Mapping[str, str], defaults: TopicConfig) -> TopicConfig:
    """What a topic's own settings and the defaults make together. Raises `InvalidSetting`."""
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
    """As `resolve` for what is already stored: settings that are not understood are left out, and named."""
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
