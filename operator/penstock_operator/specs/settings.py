"""Splits a cluster's settings into static ones, read at startup, and dynamic ones.

Only static settings are in the settings file, so only they cause restarts. Dynamic settings are set cluster-wide by the
admin protocol; in the file, a setting removed from the spec would stay in effect until a restart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from penstock.config.broker import BROKER_SETTINGS
from penstock.config.definition import InvalidSetting
from penstock_operator.model.cluster import Cluster, ClusterSpec
from penstock_operator.specs.listeners import Transition
from penstock_operator.specs.security import listener_settings, super_users

THROTTLE = "reassignment.throttle.bytes.per.second"
DRAINING, DOMAIN, RACK = "broker.draining", "broker.failure.domain", "broker.rack"
MANAGED = "etcd.managed"
OPERATORS = frozenset({"node.id", "listeners", "advertised.listeners", DRAINING, DOMAIN, RACK, MANAGED, THROTTLE})
"""Settings that the operator derives from other fields; the schema rejects them in `config`."""


def start_settings(cluster: Cluster, transition: Transition = Transition.NONE) -> dict[str, str]:
    """Return the static settings, sorted. Keeps unknown names: the broker's error suggests the nearest known name."""
    spec = cluster.spec
    chosen = {name: text for name, text in spec.config.items() if name not in OPERATORS and not is_dynamic(name)}
    if spec.etcd.managed or spec.etcd.sidecar is not None:
        chosen[MANAGED] = "true"
    chosen |= listener_settings(cluster, transition) | super_users(cluster, transition)
    return dict(sorted(chosen.items()))


def running_settings(spec: ClusterSpec) -> dict[str, str]:
    """Return the dynamic settings of all brokers, sorted."""
    chosen = {name: text for name, text in spec.config.items() if name not in OPERATORS and is_dynamic(name)}
    chosen[THROTTLE] = str(spec.moving.throttle_bytes_per_second)
    return dict(sorted(chosen.items()))


def is_dynamic(name: str) -> bool:
    """Whether brokers apply the setting without a restart."""
    known = BROKER_SETTINGS.get(name)
    return known is not None and known.dynamic


def same(name: str, one: str | None, other: str | None) -> bool:
    """Whether two strings have the same value; brokers may report another notation than was set."""
    if one is None or other is None:
        return one == other
    known = BROKER_SETTINGS.get(name)
    try:
        return one.strip() == other.strip() or (known is not None and known.parse(one) == known.parse(other))
    except InvalidSetting:
        return False


def toml(settings: Mapping[str, str]) -> str:
    """Render a settings file. JSON strings are valid TOML basic strings."""
    return "".join(
        f"{json.dumps(name, ensure_ascii=False)} = {json.dumps(text, ensure_ascii=False)}\n"
        for name, text in settings.items()
    )
