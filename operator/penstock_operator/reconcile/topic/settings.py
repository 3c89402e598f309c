"""Computes the setting changes of a topic. Used by `reconcile.topic`.

The object owns all settings of its topic: settings that it does not list are reset. Exceptions are the throttle lists
of reassignments, `penstock.*` settings, and settings that an adopted topic had before and that the object never listed:
adopting a topic must not change its retention.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.config.definition import InvalidSetting
from penstock.config.topic import topic_setting
from penstock_operator.model.topic import Topic
from penstock_operator.ports.brokers import DELETION_POLICY, OWNER

THROTTLED = frozenset({"leader.replication.throttled.replicas", "follower.replication.throttled.replicas"})
RESERVED = "penstock."

Changes = dict[str, str | None]


def ownership(desired: Topic) -> dict[str, str]:
    """Return the settings that store owner and deletion policy with the topic."""
    return {OWNER: desired.metadata.uid, DELETION_POLICY: desired.spec.lasting_policy}


def kept_while_paused(desired: Topic, there: Mapping[str, str]) -> Changes:
    """Return the only change of a paused object: the stored policy becomes Retain, so that deleting the paused object
    does not delete its topic."""
    if there.get(OWNER) != desired.metadata.uid or there.get(DELETION_POLICY) != "Delete":
        return {}
    return {DELETION_POLICY: "Retain"}


def changes(desired: Topic, there: Mapping[str, str], kept: tuple[str, ...]) -> Changes:
    """Return the differences between desired and current settings, including ownership; None resets a setting."""
    wanted = {**desired.spec.config, **ownership(desired)}
    found: Changes = {name: value for name, value in wanted.items() if not is_same(name, value, there.get(name))}
    for name in there:
        if name not in wanted and name not in kept and not is_foreign(name):
            found[name] = None
    return dict(sorted(found.items()))


def kept_settings(desired: Topic, there: Mapping[str, str]) -> tuple[str, ...]:
    """Return the settings that the object does not manage. While adopting a topic: all settings that it does not list.
    Afterwards: those of them that it never listed and that are still set. If the status was lost (no topic id although
    the object owns the topic): all settings that it does not list."""
    unnamed = [name for name in sorted(there) if name not in desired.spec.config and not is_foreign(name)]
    if there.get(OWNER) == desired.metadata.uid and desired.status.topic_id is not None:
        return tuple(name for name in unnamed if name in desired.status.kept_settings)
    return tuple(unnamed)


def is_foreign(name: str) -> bool:
    """Whether other components manage the setting."""
    return name in THROTTLED or name.startswith(RESERVED)


def is_same(name: str, wanted: str, there: str | None) -> bool:
    """Whether two texts are equal to the brokers, such as "compact, delete" and "compact,delete"."""
    if there is None or wanted == there:
        return wanted == there
    try:
        return topic_setting(name).parse(wanted) == topic_setting(name).parse(there)
    except InvalidSetting:
        return False


def describe_changes(found: Changes, there: Mapping[str, str]) -> str:
    """Return the changes as text, without ownership; "" if nothing else changes."""
    parts = []
    for name, value in found.items():
        if name in (OWNER, DELETION_POLICY):
            continue
        before = there.get(name)
        if value is None:
            parts.append(f"{name} reset to the default (was {before})")
        else:
            parts.append(f"{name}={value}" + (f" (was {before})" if before is not None else ""))
    return ", ".join(parts)
