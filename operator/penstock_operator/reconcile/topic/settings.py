"""Which settings of a topic are to be changed. Used by `reconcile.topic`.

The object owns all settings of its topic: one that it does not name goes back to the brokers' default. Not its own are
those that movers of replicas set for a while, notes of others (`penstock.*`), and, of a topic that it took over, those
that were there before and that it never named: to adopt a topic must not change how long its records are kept.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.config.definition import InvalidSetting
from penstock.config.topic import parse_topic_setting
from penstock_operator.model.topic import Topic
from penstock_operator.ports.brokers import DELETION_POLICY, OWNER

THROTTLED = frozenset({"leader.replication.throttled.replicas", "follower.replication.throttled.replicas"})
RESERVED = "penstock."

Changes = dict[str, str | None]


def ownership(desired: Topic) -> dict[str, str]:
    """What is stored with the topic, so that it is known whose it is when the object is gone."""
    return {OWNER: desired.metadata.uid, DELETION_POLICY: desired.spec.lasting_policy}


def kept_while_paused(desired: Topic, there: Mapping[str, str]) -> Changes:
    """The one note that a paused object does change: its topic must not go with it, whoever sees that it went."""
    if there.get(OWNER) != desired.metadata.uid or there.get(DELETION_POLICY) != "Delete":
        return {}
    return {DELETION_POLICY: "Retain"}


def changes(desired: Topic, there: Mapping[str, str], kept: tuple[str, ...]) -> Changes:
    """What differs between what is wanted and what is set, ownership included."""
    wanted = {**desired.spec.config, **ownership(desired)}
    found: Changes = {name: value for name, value in wanted.items() if not is_same(name, value, there.get(name))}
    for name in there:
        if name not in wanted and name not in kept and not is_of_others(name):
            found[name] = None
    return dict(sorted(found.items()))


def kept_settings(desired: Topic, there: Mapping[str, str]) -> tuple[str, ...]:
    """Those that the object leaves as they are: of a topic that is not its own all that it does not name, afterwards
    those of them that it never named and that are still set. Where the status was lost (it has no topic yet, and the
    topic is there and this object's), nobody knows which those were: all that it does not name."""
    unnamed = [name for name in sorted(there) if name not in desired.spec.config and not is_of_others(name)]
    if there.get(OWNER) == desired.metadata.uid and desired.status.topic_id is not None:
        return tuple(name for name in unnamed if name in desired.status.kept_settings)
    return tuple(unnamed)


def is_of_others(name: str) -> bool:
    return name in THROTTLED or name.startswith(RESERVED)


def is_same(name: str, wanted: str, there: str | None) -> bool:
    """Whether two texts mean the same to the brokers ("compact, delete" and "compact,delete")."""
    if there is None or wanted == there:
        return wanted == there
    try:
        return parse_topic_setting(name, wanted) == parse_topic_setting(name, there)
    except InvalidSetting:
        return False


def told(found: Changes, there: Mapping[str, str]) -> str:
    """In words, without ownership; "" where nothing else changes."""
    parts = []
    for name, value in found.items():
        if name in (OWNER, DELETION_POLICY):
            continue
        before = there.get(name)
        if value is None:
            parts.append(f"{name} back to the default (was {before})")
        else:
            parts.append(f"{name}={value}" + (f" (was {before})" if before is not None else ""))
    return ", ".join(parts)
