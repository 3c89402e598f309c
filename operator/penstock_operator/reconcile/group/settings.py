"""Computes the setting changes of a group. Used by `reconcile.group`.

The object owns the settings that it lists, and those that it has listed before: the status has their names. Settings
that other tools made stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock_operator.model.group import ConsumerGroup
from penstock_operator.ports.brokers import ObservedGroupState


def changes(desired: ConsumerGroup, group: ObservedGroupState | None) -> Mapping[str, str | None]:
    """Return the differences between the desired and the current settings; None resets a setting."""
    there = group.settings if group is not None else {}
    wanted = desired.spec.config
    found: dict[str, str | None] = {name: value for name, value in wanted.items() if there.get(name) != value}
    found |= {name: None for name in desired.status.configured if name in there and name not in wanted}
    return dict(sorted(found.items()))


def configured(desired: ConsumerGroup) -> tuple[str, ...]:
    """Return the names of the settings that the object has set, once its changes are made."""
    if desired.spec.paused:
        return desired.status.configured
    return tuple(sorted(desired.spec.config))
