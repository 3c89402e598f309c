"""Broker and group settings of groups whose broker assigns partitions: consumer groups (KIP-848).

`BrokerConfig` inherits the fields of `ModernGroupDefaults`. A group's own settings (resource type GROUP) override them;
`consumer_group_config` resolves both for the group coordinator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.config.definition import InvalidSetting, Setting, SettingType, define, setting

ASSIGNORS = ("uniform", "range")
"""Names of the assignors of consumer groups; the first is the default."""


def at_least_one_assignor(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of assignors. Raises `InvalidSetting` if there are none."""
    if not names:
        raise InvalidSetting(f"group.consumer.assignors must not be empty; use {','.join(ASSIGNORS)}")
    return names


@dataclass(slots=True)
class ModernGroupDefaults:
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
    group_consumer_regex_refresh_interval_ms: int = setting(
        "group.consumer.regex.refresh.interval.ms", 600_000,
        "Interval at which the topics of a subscription by regular expression are selected again with the members'"
        " current rights, in ms. New and deleted topics are noticed at once.", minimum=10_000,
    )
    # fmt: on

    def group_contradiction(self) -> str | None:
        """Return which values contradict each other; None if none do."""
        for name in BOUNDED:
            low, value, high = (getattr(self, field_name(name, bound)) for bound in ("min.", "", "max."))
            if not low <= value <= high:
                return f"group.consumer.{name} ({value}) must be from {low} to {high}, the values of its min and max"
        return None


BOUNDED = ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms")
"""Settings of a group whose values the broker bounds."""


def field_name(name: str, bound: str = "") -> str:
    """Return the field of a bounded setting, or of its bound `min.` or `max.`."""
    return f"group_consumer_{bound}{name}".replace(".", "_")


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


@dataclass(frozen=True, slots=True)
class ConsumerGroupConfig:
    """The effective settings of a consumer group, in milliseconds."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int


def consumer_group_config(defaults: ModernGroupDefaults, overrides: Mapping[str, str]) -> ConsumerGroupConfig:
    """Return a group's effective settings; values out of the broker's bounds are moved to the nearest bound."""
    values = []
    for name in BOUNDED:
        text = overrides.get(f"consumer.{name}")
        value = getattr(defaults, field_name(name)) if text is None else int(text)
        low, high = (getattr(defaults, field_name(name, bound)) for bound in ("min.", "max."))
        values.append(max(low, min(value, high)))
    return ConsumerGroupConfig(*values)


def check_bounds(defaults: ModernGroupDefaults, overrides: Mapping[str, object]) -> None:
    """Raise `InvalidSetting` for a group's setting that exceeds the broker's bounds."""
    for name in BOUNDED:
        value = overrides.get(f"consumer.{name}")
        low, high = (getattr(defaults, field_name(name, bound)) for bound in ("min.", "max."))
        if isinstance(value, str) and not low <= int(value) <= high:
            raise InvalidSetting(
                f"consumer.{name} must be from group.consumer.min.{name} ({low}) to group.consumer.max.{name} ({high}),"
                f" not {value}"
            )
