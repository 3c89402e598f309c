"""The broker's settings of share groups (KIP-932), and the values of the settings of such groups.

`modern_groups` has the settings of single groups, and resolves both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from penstock.config.addresses import quoted
from penstock.config.definition import InvalidSetting, SettingType, setting

SHARE_ASSIGNORS = ("simple",)
READ_COMMITTED = "read_committed"
ISOLATION_LEVELS = ("read_uncommitted", READ_COMMITTED)
MAX_DURATION_MS = (1 << 63) - 1
BY_DURATION = "by_duration:"
DURATION = re.compile(
    r"P(?!$)(?:(?P<days>\d{1,9})D)?"
    r"(?:T(?!$)(?:(?P<hours>\d{1,12})H)?(?:(?P<minutes>\d{1,12})M)?"
    r"(?:(?P<seconds>\d{1,15})(?:[.,](?P<fraction>\d{0,9}))?S)?)?",
    re.IGNORECASE | re.ASCII,
)
"""An ISO 8601 duration without years, months and weeks, as Java parses it."""


class ShareResetStrategy(StrEnum):
    """Where a share group starts in a partition."""

    LATEST = "latest"
    EARLIEST = "earliest"
    BY_DURATION = "by_duration"


class ShareOffsetReset(NamedTuple):
    """A value of `share.auto.offset.reset`; `duration_ms` is the age of the first record with BY_DURATION."""

    strategy: ShareResetStrategy
    duration_ms: int = 0


def parse_offset_reset(text: str) -> ShareOffsetReset:
    """Parse a value of `share.auto.offset.reset`. Raises `InvalidSetting`."""
    if text in (ShareResetStrategy.LATEST, ShareResetStrategy.EARLIEST):
        return ShareOffsetReset(ShareResetStrategy(text))
    duration_ms = parse_duration_ms(text.removeprefix(BY_DURATION)) if text.startswith(BY_DURATION) else None
    if duration_ms is None:
        raise InvalidSetting(
            f"invalid value {quoted(text)} for share.auto.offset.reset: it must be latest, earliest, or"
            f" {BY_DURATION}<ISO 8601 duration> such as {BY_DURATION}PT1H30M"
        )
    return ShareOffsetReset(ShareResetStrategy.BY_DURATION, duration_ms)


def parse_duration_ms(text: str) -> int | None:
    """Return an ISO 8601 duration in milliseconds; None if it is invalid or too long."""
    found = DURATION.fullmatch(text)
    if found is None:
        return None
    days, hours, minutes, seconds = (int(found[unit] or 0) for unit in ("days", "hours", "minutes", "seconds"))
    whole_ms = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000
    return min(whole_ms + int((found["fraction"] or "").ljust(3, "0")[:3]), MAX_DURATION_MS)


def exactly_one_assignor(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of assignors. Raises `InvalidSetting` unless there is one."""
    if len(names) != 1:
        raise InvalidSetting(f"group.share.assignors must have exactly one assignor; use {','.join(SHARE_ASSIGNORS)}")
    return names


@dataclass(slots=True)
class ShareGroupDefaults:
    """The broker's settings of share groups."""

    # fmt: off
    group_share_session_timeout_ms: int = setting(
        "group.share.session.timeout.ms", 45_000,
        "Time without a heartbeat after which a member of a share group is removed, in ms.", minimum=1,
    )
    group_share_min_session_timeout_ms: int = setting(
        "group.share.min.session.timeout.ms", 45_000,
        "Minimum of a group's share.session.timeout.ms, in ms.", minimum=1,
    )
    group_share_max_session_timeout_ms: int = setting(
        "group.share.max.session.timeout.ms", 60_000,
        "Maximum of a group's share.session.timeout.ms, in ms.", minimum=1,
    )
    group_share_heartbeat_interval_ms: int = setting(
        "group.share.heartbeat.interval.ms", 5000,
        "Interval at which members of share groups send heartbeats, in ms.", minimum=1,
    )
    group_share_min_heartbeat_interval_ms: int = setting(
        "group.share.min.heartbeat.interval.ms", 5000,
        "Minimum of a group's share.heartbeat.interval.ms, in ms.", minimum=1,
    )
    group_share_max_heartbeat_interval_ms: int = setting(
        "group.share.max.heartbeat.interval.ms", 15_000,
        "Maximum of a group's share.heartbeat.interval.ms, in ms.", minimum=1,
    )
    group_share_assignment_interval_ms: int = setting(
        "group.share.assignment.interval.ms", 1000,
        "Minimum time between two assignments of a share group, in ms: changes of members that come in between share"
        " the next one.", dynamic=True,
    )
    group_share_min_assignment_interval_ms: int = setting(
        "group.share.min.assignment.interval.ms", 0, "Minimum of a group's share.assignment.interval.ms, in ms.",
    )
    group_share_max_assignment_interval_ms: int = setting(
        "group.share.max.assignment.interval.ms", 15_000, "Maximum of a group's share.assignment.interval.ms, in ms.",
    )
    group_share_max_size: int = setting(
        "group.share.max.size", 200, "Maximum number of members of a share group.", minimum=1, maximum=1000,
    )
    group_share_assignors: tuple[str, ...] = setting(
        "group.share.assignors", SHARE_ASSIGNORS, "The assignor of share groups.",
        kind=SettingType.LIST, allowed=SHARE_ASSIGNORS, convert=exactly_one_assignor,
    )
    group_share_max_share_sessions: int = setting(
        "group.share.max.share.sessions", 2000, "Maximum number of share sessions of this broker.", minimum=1,
    )
    group_share_record_lock_duration_ms: int = setting(
        "group.share.record.lock.duration.ms", 30_000,
        "Time after which a record that a member of a share group has not acknowledged is delivered again, in ms.",
        minimum=1000, maximum=3_600_000,
    )
    group_share_min_record_lock_duration_ms: int = setting(
        "group.share.min.record.lock.duration.ms", 15_000,
        "Minimum of a group's share.record.lock.duration.ms, in ms.", minimum=1000, maximum=30_000,
    )
    group_share_max_record_lock_duration_ms: int = setting(
        "group.share.max.record.lock.duration.ms", 60_000,
        "Maximum of a group's share.record.lock.duration.ms, in ms.", minimum=30_000, maximum=3_600_000,
    )
    group_share_delivery_count_limit: int = setting(
        "group.share.delivery.count.limit", 5,
        "Maximum number of deliveries of a record to a share group.", minimum=2, maximum=10,
    )
    group_share_min_delivery_count_limit: int = setting(
        "group.share.min.delivery.count.limit", 2,
        "Minimum of a group's share.delivery.count.limit.", minimum=2, maximum=5,
    )
    group_share_max_delivery_count_limit: int = setting(
        "group.share.max.delivery.count.limit", 10,
        "Maximum of a group's share.delivery.count.limit.", minimum=5, maximum=25,
    )
    group_share_partition_max_record_locks: int = setting(
        "group.share.partition.max.record.locks", 2000,
        "Maximum number of records of a partition that are delivered to a share group and not done.",
        minimum=100, maximum=10_000,
    )
    group_share_min_partition_max_record_locks: int = setting(
        "group.share.min.partition.max.record.locks", 100,
        "Minimum of a group's share.partition.max.record.locks.", minimum=100, maximum=2000,
    )
    group_share_max_partition_max_record_locks: int = setting(
        "group.share.max.partition.max.record.locks", 4000,
        "Maximum of a group's share.partition.max.record.locks.", minimum=2000, maximum=10_000,
    )
    errors_deadletterqueue_auto_create_topics_enable: bool = setting(
        "errors.deadletterqueue.auto.create.topics.enable", False,
        "Whether the dead-letter topic of a share group is created when its first letter is written (KIP-1191).",
        dynamic=True,
    )
    errors_deadletterqueue_topic_name_prefix: str = setting(
        "errors.deadletterqueue.topic.name.prefix", "dlq.",
        "Prefix that the names of dead-letter topics must have; empty for none (KIP-1191).",
        dynamic=True, max_chars=200,
    )
    # fmt: on
