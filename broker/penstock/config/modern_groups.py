"""Settings of groups whose broker assigns partitions: consumer groups (KIP-848) and share groups (KIP-932).

`BrokerConfig` inherits the fields of `ModernGroupDefaults`. A group's own settings (resource type GROUP) override them;
`consumer_group_config` and `share_group_config` resolve both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from penstock.config.definition import InvalidSetting, Setting, SettingType, define, setting
from penstock.config.share_groups import (
    ISOLATION_LEVELS,
    READ_COMMITTED,
    ShareGroupDefaults,
    ShareOffsetReset,
    parse_offset_reset,
)
from penstock.filter import MAX_FILTER_CHARS, FilterError, RecordFilter, compile_filter

ASSIGNORS = ("uniform", "range")
"""Names of the assignors of consumer groups; the first is the default."""

MAX_BACKOFF_MS = 30 * 86_400_000

MIGRATION_POLICIES = ("bidirectional", "upgrade", "downgrade", "disabled")


def at_least_one_assignor(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of assignors. Raises `InvalidSetting` if there are none."""
    if not names:
        raise InvalidSetting(f"group.consumer.assignors must not be empty; use {','.join(ASSIGNORS)}")
    return names


def parse_share_filter(text: str) -> RecordFilter | None:
    """Return a group's filter, None for the empty text. Raises `InvalidSetting`."""
    try:
        return compile_filter(text) if text else None
    except FilterError as e:
        raise InvalidSetting(f"cannot set share.filter: {e}") from None


@dataclass(slots=True)
class ModernGroupDefaults(ShareGroupDefaults):
    """The broker's settings of groups whose broker assigns partitions."""

    # fmt: off
    group_consumer_session_timeout_ms: int = setting(
        "group.consumer.session.timeout.ms", 45_000,
        "Time without a heartbeat after which a member of a consumer group is removed, in ms.", minimum=1,
    )
    group_consumer_min_session_timeout_ms: int = setting(
        "group.consumer.min.session.timeout.ms", 45_000,
        "Minimum of a group's consumer.session.timeout.ms, in ms.", minimum=1,
    )
    group_consumer_max_session_timeout_ms: int = setting(
        "group.consumer.max.session.timeout.ms", 60_000,
        "Maximum of a group's consumer.session.timeout.ms, in ms.", minimum=1,
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        "group.consumer.heartbeat.interval.ms", 5000,
        "Interval at which members of consumer groups send heartbeats, in ms.", minimum=1,
    )
    group_consumer_min_heartbeat_interval_ms: int = setting(
        "group.consumer.min.heartbeat.interval.ms", 5000,
        "Minimum of a group's consumer.heartbeat.interval.ms, in ms.", minimum=1,
    )
    group_consumer_max_heartbeat_interval_ms: int = setting(
        "group.consumer.max.heartbeat.interval.ms", 15_000,
        "Maximum of a group's consumer.heartbeat.interval.ms, in ms.", minimum=1,
    )
    group_consumer_assignment_interval_ms: int = setting(
        "group.consumer.assignment.interval.ms", 1000,
        "Minimum time between two assignments of a consumer group, in ms: changes of members that come in between share"
        " the next one.", dynamic=True,
    )
    group_consumer_min_assignment_interval_ms: int = setting(
        "group.consumer.min.assignment.interval.ms", 0,
        "Minimum of a group's consumer.assignment.interval.ms, in ms.",
    )
    group_consumer_max_assignment_interval_ms: int = setting(
        "group.consumer.max.assignment.interval.ms", 15_000,
        "Maximum of a group's consumer.assignment.interval.ms, in ms.",
    )
    group_consumer_max_size: int = setting(
        "group.consumer.max.size", (1 << 31) - 1, "Maximum number of members of a consumer group.", minimum=1,
    )
    group_consumer_assignors: tuple[str, ...] = setting(
        "group.consumer.assignors", ASSIGNORS,
        "Assignors that members of consumer groups can choose; the first is the default.",
        kind=SettingType.LIST, allowed=ASSIGNORS, convert=at_least_one_assignor,
    )
    group_consumer_migration_policy: str = setting(
        "group.consumer.migration.policy", "bidirectional",
        "Whether a group with members changes its protocol: to the consumer protocol when its first member joins"
        " (upgrade), to the classic protocol when the last member of the consumer protocol leaves (downgrade), both"
        " (bidirectional), or neither (disabled).", allowed=MIGRATION_POLICIES,
    )
    group_consumer_regex_refresh_interval_ms: int = setting(
        "group.consumer.regex.refresh.interval.ms", 600_000,
        "Interval at which the topics of a subscription by regular expression are selected again with the members'"
        " current rights, in ms. New and deleted topics are noticed at once.", minimum=10_000,
    )
    # fmt: on

    def group_contradiction(self) -> str | None:
        """Return which values contradict each other; None if none do."""
        for each in BOUNDED:
            low, value, high = each.bound(self, "min."), each.default(self), each.bound(self, "max.")
            if not low <= value <= high:
                return f"group.{each} ({value}) must be from {low} to {high}, the values of its min and max"
        return None


class BoundedSetting(NamedTuple):
    """A group's numeric setting `{protocol}.{name}`, whose default and bounds are settings of the broker."""

    protocol: str
    name: str

    def __str__(self) -> str:
        return f"{self.protocol}.{self.name}"

    def default(self, broker: ModernGroupDefaults) -> int:
        """Return the value of a group that does not set it."""
        return self.bound(broker, "")

    def bound(self, broker: ModernGroupDefaults, bound: str) -> int:
        """Return the broker's bound `min.` or `max.`."""
        value: int = getattr(broker, f"group_{self.protocol}_{bound}{self.name}".replace(".", "_"))
        return value

    def effective(self, broker: ModernGroupDefaults, overrides: Mapping[str, str]) -> int:
        """Return the value of a group; one out of the broker's bounds is moved to the nearest bound."""
        text = overrides.get(str(self))
        value = self.default(broker) if text is None else int(text)
        return max(self.bound(broker, "min."), min(value, self.bound(broker, "max.")))


CONSUMER_BOUNDED = tuple(
    BoundedSetting("consumer", name)
    for name in ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms")
)
SHARE_BOUNDED = tuple(
    BoundedSetting("share", name)
    for name in (
        "session.timeout.ms",
        "heartbeat.interval.ms",
        "assignment.interval.ms",
        "record.lock.duration.ms",
        "delivery.count.limit",
        "partition.max.record.locks",
    )
)
BOUNDED = CONSUMER_BOUNDED + SHARE_BOUNDED
"""Settings of a group whose values the broker bounds."""


CONSUMER_SETTINGS: dict[str, Setting] = {
    known.name: known
    for known in (
        define(
            "consumer.session.timeout.ms",
            45_000,
            "Time without a heartbeat after which a member is removed, in ms (consumer groups).",
            synonyms=["group.consumer.session.timeout.ms"],
            minimum=1,
        ),
        define(
            "consumer.heartbeat.interval.ms",
            5000,
            "Interval at which members send heartbeats, in ms (consumer groups).",
            synonyms=["group.consumer.heartbeat.interval.ms"],
            minimum=1,
        ),
        define(
            "consumer.assignment.interval.ms",
            1000,
            "Minimum time between two assignments, in ms (consumer groups).",
            synonyms=["group.consumer.assignment.interval.ms"],
        ),
    )
}


DEAD_LETTER_TOPIC = "errors.deadletterqueue.topic.name"
COPY_DEAD_LETTERS = "errors.deadletterqueue.copy.record.enable"

SHARE_FILTER = "share.filter"

SHARE_SETTINGS: dict[str, Setting] = {
    known.name: known
    for known in (
        define(
            "share.session.timeout.ms",
            45_000,
            "Time without a heartbeat after which a member is removed, in ms (share groups).",
            synonyms=["group.share.session.timeout.ms"],
            minimum=1,
        ),
        define(
            "share.heartbeat.interval.ms",
            5000,
            "Interval at which members send heartbeats, in ms (share groups).",
            synonyms=["group.share.heartbeat.interval.ms"],
            minimum=1,
        ),
        define(
            "share.assignment.interval.ms",
            1000,
            "Minimum time between two assignments, in ms (share groups).",
            synonyms=["group.share.assignment.interval.ms"],
        ),
        define(
            "share.record.lock.duration.ms",
            30_000,
            "Time after which a record that a member has not acknowledged is delivered again, in ms (share groups).",
            synonyms=["group.share.record.lock.duration.ms"],
            minimum=1000,
        ),
        define(
            "share.delivery.count.limit",
            5,
            "Maximum number of deliveries of a record (share groups).",
            synonyms=["group.share.delivery.count.limit"],
            minimum=2,
        ),
        define(
            "share.partition.max.record.locks",
            2000,
            "Maximum number of records of a partition that are delivered and not done (share groups).",
            synonyms=["group.share.partition.max.record.locks"],
            minimum=100,
        ),
        define(
            "share.auto.offset.reset",
            "latest",
            "Where a group starts in a partition: latest, earliest, or by_duration:<ISO 8601 duration>, such as"
            " by_duration:PT1H, for the first record that is not older (share groups).",
            convert=parse_offset_reset,
        ),
        define(
            "share.isolation.level",
            ISOLATION_LEVELS[0],
            "Whether records of aborted and open transactions are delivered (share groups).",
            allowed=ISOLATION_LEVELS,
        ),
        define(
            "share.renew.acknowledge.enable",
            True,
            "Whether members can extend the time to acknowledge a record (share groups).",
        ),
        define(
            DEAD_LETTER_TOPIC,
            "",
            "Topic for records that are rejected or delivered too often; empty for none. The topic needs"
            " errors.deadletterqueue.group.enable=true (share groups, KIP-1191).",
            max_chars=249,
        ),
        define(
            COPY_DEAD_LETTERS,
            True,
            "Whether dead letters have the key, the value and the headers of the record (share groups, KIP-1191)."
            " Kafka's default is false.",
        ),
        define(
            "share.redelivery.backoff.ms",
            0,
            "Time after which a record that was released, or whose lock has ended, is delivered again after its first"
            " delivery, in ms; 0 for at once (share groups).",
            kind=SettingType.LONG,
            maximum=MAX_BACKOFF_MS,
        ),
        define(
            "share.redelivery.backoff.multiplier",
            2.0,
            "Factor by which share.redelivery.backoff.ms grows with each further delivery (share groups).",
            minimum=1,
            maximum=100,
        ),
        define(
            "share.redelivery.backoff.max.ms",
            300_000,
            "Maximum of a record's back-off, in ms (share groups).",
            kind=SettingType.LONG,
            maximum=MAX_BACKOFF_MS,
        ),
        define(
            "share.order.by.key",
            False,
            "Whether records of one key in a partition are delivered in order, and each only once the previous one is"
            " done (share groups).",
        ),
        define(
            SHARE_FILTER,
            "",
            "Condition on the headers, the key and the timestamp of a record, such as type = 'order' and priority >= 5;"
            " records that do not pass are done without being delivered. Empty for none (share groups).",
            max_chars=MAX_FILTER_CHARS,
            convert=parse_share_filter,
        ),
    )
}


@dataclass(frozen=True, slots=True)
class ConsumerGroupConfig:
    """The effective settings of a consumer group, in milliseconds."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int


@dataclass(frozen=True, slots=True)
class ShareGroupConfig:
    """The effective settings of a share group."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int
    record_lock_duration_ms: int
    max_delivery_count: int
    partition_max_record_locks: int
    auto_offset_reset: ShareOffsetReset
    is_read_committed: bool
    is_renew_enabled: bool
    backoff_ms: int
    backoff_multiplier: float
    max_backoff_ms: int
    is_ordered_by_key: bool
    dead_letter_topic: str = ""
    """Name of the topic for dead letters; empty for none."""
    copies_dead_letters: bool = True
    filter: RecordFilter | None = None


ModernGroupConfig = ConsumerGroupConfig | ShareGroupConfig


def consumer_group_config(defaults: ModernGroupDefaults, overrides: Mapping[str, str]) -> ConsumerGroupConfig:
    """Return a group's effective settings; values out of the broker's bounds are moved to the nearest bound."""
    return ConsumerGroupConfig(*(each.effective(defaults, overrides) for each in CONSUMER_BOUNDED))


def share_group_config(defaults: ModernGroupDefaults, overrides: Mapping[str, str]) -> ShareGroupConfig:
    """Return a group's effective settings; values out of the broker's bounds are moved to the nearest bound."""

    def parse(name: str) -> object:
        known = SHARE_SETTINGS[name]
        text = overrides.get(name, known.default)
        assert text is not None, f"{name} has a default"
        return known.parse(text)

    session_ms, heartbeat_ms, assignment_ms, lock_ms, deliveries, locks = (
        each.effective(defaults, overrides) for each in SHARE_BOUNDED
    )
    return ShareGroupConfig(
        session_ms,
        heartbeat_ms,
        assignment_ms,
        lock_ms,
        deliveries,
        locks,
        auto_offset_reset=parse_offset_reset(str(parse("share.auto.offset.reset"))),
        is_read_committed=parse("share.isolation.level") == READ_COMMITTED,
        is_renew_enabled=parse("share.renew.acknowledge.enable") is True,
        dead_letter_topic=str(parse(DEAD_LETTER_TOPIC)),
        copies_dead_letters=parse(COPY_DEAD_LETTERS) is True,
        backoff_ms=int(str(parse("share.redelivery.backoff.ms"))),
        backoff_multiplier=float(str(parse("share.redelivery.backoff.multiplier"))),
        max_backoff_ms=int(str(parse("share.redelivery.backoff.max.ms"))),
        is_ordered_by_key=parse("share.order.by.key") is True,
        filter=parse_share_filter(str(parse(SHARE_FILTER))),
    )


def check_bounds(defaults: ModernGroupDefaults, overrides: Mapping[str, object]) -> None:
    """Raise `InvalidSetting` for a group's setting that exceeds the broker's bounds."""
    for each in BOUNDED:
        value, low, high = overrides.get(str(each)), each.bound(defaults, "min."), each.bound(defaults, "max.")
        if isinstance(value, str) and not low <= int(value) <= high:
            name = each.name
            raise InvalidSetting(
                f"{each} must be from group.{each.protocol}.min.{name} ({low}) to group.{each.protocol}.max.{name}"
                f" ({high}), not {value}"
            )
